"""Known questions, one JSON object a line: what ``refrain warm`` loads or has answered.

A line is {"question": TEXT, "answer": TEXT} or {"request": BODY, "answer": RESULT or TEXT}; both
may leave the answer out, and "endpoint" is that of chat unless it says otherwise.
"""

import hashlib
from dataclasses import dataclass
from typing import Any

import orjson

from gateway.protocol.endpoint import Endpoint

_FIELDS = ("question", "request", "answer", "endpoint")


class KnownError(ValueError):
    """The line is not a known question; the message names the field."""


@dataclass(frozen=True, slots=True)
class Known:
    """A request, and the complete result that answers it where that is known."""

    endpoint: Endpoint
    request: dict[str, Any]
    answer: dict[str, Any] | None


def parse_known(line: bytes, *, model: str | None, system: str | None, now: float) -> Known:
    """Read a line; ``model`` and ``system`` complete a bare question. Raises KnownError."""
    try:
        given = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise KnownError(f"expected a JSON object ({error})") from None
    if not isinstance(given, dict):
        raise KnownError("expected a JSON object")
    for field in given:
        if field not in _FIELDS:
            raise KnownError(f"{field}: expected one of the fields {', '.join(_FIELDS)}")
    endpoint = _endpoint(given.get("endpoint", Endpoint.CHAT.value))
    request = _request(given, model, system)
    return Known(endpoint, request, _answer(given.get("answer"), endpoint, request, now))


def _endpoint(value: Any) -> Endpoint:
    try:
        return Endpoint(value)
    except ValueError:
        known = ", ".join(endpoint.value for endpoint in Endpoint)
        raise KnownError(f"endpoint: expected one of {known}") from None


def _request(given: dict[str, Any], model: str | None, system: str | None) -> dict[str, Any]:
    match given:
        case {"request": dict(request)} if "question" not in given:
            return {**request, "stream": False}
        case {"question": str(question)} if "request" not in given and question.strip():
            if model is None:
                raise KnownError("question: a bare question needs --model")
            opening = [] if system is None else [{"role": "system", "content": system}]
            messages = [*opening, {"role": "user", "content": question}]
            return {"model": model, "messages": messages}
        case _:
            raise KnownError("expected either question (text) or request (an object)")


def _answer(
    answer: Any, endpoint: Endpoint, request: dict[str, Any], now: float
) -> dict[str, Any] | None:
    match answer:
        case None | dict():
            return answer
        case str() if answer and endpoint is Endpoint.CHAT:
            return _chat_result(answer, request, now)
        case _:
            raise KnownError("answer: expected text (for a chat) or a complete result")


def _chat_result(text: str, request: dict[str, Any], now: float) -> dict[str, Any]:
    digest = hashlib.sha256(orjson.dumps([request, text], option=orjson.OPT_SORT_KEYS)).hexdigest()
    message = {"role": "assistant", "content": text, "refusal": None}
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}
    return {
        "id": f"chatcmpl-{digest[:24]}",
        "object": "chat.completion",
        "created": int(now),
        "model": request.get("model"),
        "choices": [choice],
        # Nothing was computed for it, and nothing is claimed.
        "usage": {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0},
    }
