"""From a stored result to a streamed reply in OpenAI's form (the plain reply is the result).

Role first, then the content, then the finish reason, one id and ``created`` throughout, the usage
chunk where it was asked for, ``[DONE]``. Law: the chunks hold all that the result does.
"""

from collections.abc import Iterator
from typing import Any

from gateway.protocol import exact_json
from gateway.protocol.embeddings import without_call
from gateway.protocol.endpoint import Endpoint
from gateway.protocol.responses import named
from gateway.protocol.streaming import sse
from gateway.protocol.streaming.responses_stream import render_response

_PLAIN_ONLY = frozenset({"object", "choices", "usage"})
_PLACED = frozenset({"index", "message", "text", "logprobs", "finish_reason"})
"""Fields of a choice that have a place of their own; all others come with the finish reason."""


def render_plain(endpoint: Endpoint, body: dict[str, Any], key: bytes, result: bytes) -> bytes:
    """Return the plain reply to a request; ``key`` is that of the entry with the result."""
    match endpoint:
        case Endpoint.EMBEDDINGS:
            return without_call(key, result)
        case Endpoint.RESPONSES:
            return named(result, body)
        case _:
            return result


def render_stream(endpoint: Endpoint, result: dict[str, Any], *, include_usage: bool) -> bytes:
    """Return the whole event stream of a result."""
    if endpoint is Endpoint.RESPONSES:
        return render_response(result)
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
    if include_usage and result.get("usage") is not None:
        chunks.append({**top, "choices": [], "usage": result["usage"]})
    events = [sse.encode(exact_json.dumps(chunk)) for chunk in chunks]
    events.append(sse.encode(sse.DONE))
    return b"".join(events)


def _chat_pieces(choice: dict[str, Any]) -> Iterator[dict[str, Any]]:
    message = choice["message"]
    opening: dict[str, Any] = {name: None for name, value in message.items() if value is None}
    if message.get("content") is not None:
        opening["content"] = ""
    opening["role"] = message.get("role", "assistant")
    delta = {name: value for name, value in message.items() if name != "role" and value is not None}
    if delta.get("tool_calls"):
        calls = delta["tool_calls"]
        delta["tool_calls"] = [{**call, "index": place} for place, call in enumerate(calls)]
    yield _piece(choice, delta=opening)
    yield _piece(choice, delta=delta, logprobs=choice.get("logprobs"))
    yield _piece(choice, delta={}, **_ending(choice))


def _completion_pieces(choice: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield _piece(choice, text=choice["text"], logprobs=choice.get("logprobs"))
    yield _piece(choice, text="", **_ending(choice))


def _piece(choice: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"index": choice["index"], "logprobs": None, "finish_reason": None, **fields}


def _ending(choice: dict[str, Any]) -> dict[str, Any]:
    extras = {name: value for name, value in choice.items() if name not in _PLACED}
    return {**extras, "finish_reason": choice.get("finish_reason")}
