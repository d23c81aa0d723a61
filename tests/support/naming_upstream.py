"""An upstream whose answers name who asked, on every cached path: what isolation is told by."""

import json
from collections.abc import Mapping
from typing import Any, Self

import orjson
from scripted_responses import message, response, text

from gateway.upstream.request import Outgoing, Served
from scripted_upstream import completion

HEADERS = ("authorization", "api-key", "x-api-key", "openai-organization", "openai-project")
NAMES = ("user", "safety_identifier")
Asker = dict[str, str]

BODIES: dict[str, Any] = {
    "chat": lambda question: {"messages": [{"role": "user", "content": question}]},
    "completions": lambda question: {"prompt": question},
    "responses": lambda question: {"input": question, "store": False},
    "embeddings": lambda question: {"input": question},
    "embeddings of a batch": lambda question: {"input": [question, f"{question}?"]},
}
PATHS = {
    "chat": "/v1/chat/completions",
    "completions": "/v1/completions",
    "responses": "/v1/responses",
    "embeddings": "/v1/embeddings",
    "embeddings of a batch": "/v1/embeddings",
}


def asker_in(headers: Mapping[str, str], body: Mapping[str, Any]) -> Asker:
    """Return who a request says it is from."""
    asker = {name: headers[name] for name in HEADERS if name in headers}
    return asker | {name: body[name] for name in NAMES if name in body}


def answer_to(path: str, asker: Asker, body: Mapping[str, Any]) -> dict[str, Any]:
    """Return an answer that names its asker."""
    said = json.dumps(asker)
    match path:
        case "/v1/chat/completions":
            return completion(said)
        case "/v1/completions":
            choice = {"index": 0, "text": said, "logprobs": None, "finish_reason": "stop"}
            return completion("", object="text_completion", choices=[choice])
        case "/v1/responses":
            return response(message(text(said)))
    items = body["input"] if isinstance(body["input"], list) else [body["input"]]
    data = [
        {"object": "embedding", "index": place, "embedding": said} for place in range(len(items))
    ]
    return {"object": "list", "data": data, "model": "m", "usage": None}


def made_for(path: str, reply: Any) -> Asker:
    """Return whom an answer names: one asker in all of it."""
    match path:
        case "/v1/chat/completions":
            told = {reply["choices"][0]["message"]["content"]}
        case "/v1/completions":
            told = {reply["choices"][0]["text"]}
        case "/v1/responses":
            told = {reply["output"][0]["content"][0]["text"]}
        case _:
            told = {one["embedding"] for one in reply["data"]}
    [said] = told
    asker: Asker = json.loads(said)
    return asker


class NamingUpstream:
    """The fake at the upstream's port."""

    name = "http://upstream/v1"

    def send(self, outgoing: Outgoing) -> "NamingReply":
        asked = orjson.loads(outgoing.raw)
        asker = asker_in({name.lower(): value for name, value in outgoing.fields}, asked)
        return NamingReply(answer_to(outgoing.target, asker, asked))


class NamingReply:
    """A reply, and the context it comes in."""

    status = 200
    headers = (("Content-Type", "application/json"),)
    content_type = "application/json"
    served = Served("upstream")

    def __init__(self, answer: dict[str, Any]) -> None:
        self._rest = orjson.dumps(answer)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        return None

    async def read(self) -> bytes:
        piece, self._rest = self._rest, b""
        return piece
