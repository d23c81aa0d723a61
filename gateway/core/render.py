"""From a stored result to a streamed reply in OpenAI's form (the plain reply is the result).

Role first, then the content, then the finish reason, one id and ``created`` throughout, the usage
chunk where it was asked for, ``[DONE]``.
"""

from collections.abc import Iterator
from typing import Any

import orjson

from gateway.core import sse
from gateway.core.types import Endpoint

_PLAIN_ONLY = ("object", "choices", "usage")


def render_stream(endpoint: Endpoint, result: dict[str, Any], *, include_usage: bool) -> bytes:
    """Return the whole event stream of a result."""
    chat = endpoint is Endpoint.CHAT
    top = {name: value for name, value in result.items() if name not in _PLAIN_ONLY}
    top["object"] = "chat.completion.chunk" if chat else "text_completion"
    if include_usage:
        top["usage"] = None
    chunks = [
        {**top, "choices": [piece]}
        for choice in result["choices"]
        for piece in (_chat_pieces(choice) if chat else _completion_pieces(choice))
    ]
    if include_usage:
        chunks.append({**top, "choices": [], "usage": result.get("usage")})
    events = [sse.encode(orjson.dumps(chunk)) for chunk in chunks]
    events.append(sse.encode(sse.DONE))
    return b"".join(events)


def _chat_pieces(choice: dict[str, Any]) -> Iterator[dict[str, Any]]:
    index = choice["index"]
    message = choice["message"]
    extras = {
        name: value
        for name, value in choice.items()
        if name not in ("index", "message", "finish_reason", "logprobs")
    }
    open_delta = {"role": message.get("role", "assistant"), "content": ""}
    yield {"index": index, "delta": open_delta, "logprobs": None, "finish_reason": None}
    delta = {name: value for name, value in message.items() if name != "role" and value is not None}
    if delta.get("tool_calls"):
        calls = delta["tool_calls"]
        delta["tool_calls"] = [{"index": place, **call} for place, call in enumerate(calls)]
    yield {
        "index": index,
        "delta": delta,
        "logprobs": choice.get("logprobs"),
        "finish_reason": None,
    }
    yield {
        "index": index,
        "delta": {},
        "logprobs": None,
        **extras,
        "finish_reason": choice.get("finish_reason"),
    }


def _completion_pieces(choice: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield {**choice, "finish_reason": None}
    yield {**choice, "text": "", "logprobs": None}
