"""A chat completion as a message of Anthropic's, and errors in Anthropic's form.

Laws:
- Arguments of a tool that are no JSON object make the reply an error.
- Clients require both counts of tokens. If the server does not tell one, it is estimated, and the
  usage has ``"estimated": true``. All other figures are the server's.
"""

import re
from collections.abc import Callable
from typing import Any

import orjson

from gateway.protocol import exact_json
from gateway.protocol.errors import anthropic_error
from gateway.protocol.tokens import tokens_in

Message = dict[str, Any]

_STOPS = {
    "stop": "end_turn",
    "length": "max_tokens",
    "tool_calls": "tool_use",
    "function_call": "tool_use",
    "content_filter": "refusal",
}


_TOO_LONG = "prompt is too long"
_PROMPT_FAULTS = (400, 422)
_CONTEXT = re.compile(r"context (?:length|window|size)|longer than the model", re.IGNORECASE)
"""How servers without a code for it say that the prompt is too long."""

_ANSWER_TOO_LARGE = re.compile(r"max_(?:completion_)?tokens\W* (?:is|are) too large")
"""A shorter prompt would not help."""


class UnreadableReplyError(ValueError):
    """A reply of the server cannot be a message; the text says why."""


def to_error(status: int, body: bytes) -> dict[str, Any]:
    """Return a server's error in Anthropic's form, with the server's own message."""
    try:
        given = orjson.loads(body)
    except orjson.JSONDecodeError:
        given = None
    message = message_of(given) or f"The model's server answered {status}."
    return anthropic_error(status, as_client_reads(status, message, given))


def as_client_reads(status: int, message: str, error: Any) -> str:
    """Return the message of an error; a prompt that is too long gets Anthropic's words.

    By them Claude Code knows that it has to shorten the conversation.
    """
    if status not in _PROMPT_FAULTS or _TOO_LONG in message.lower():
        return message
    inner = error.get("error") if isinstance(error, dict) else None
    code = inner.get("code") if isinstance(inner, dict) else None
    if code == "context_length_exceeded" or (
        _CONTEXT.search(message) and not _ANSWER_TOO_LARGE.search(message)
    ):
        return f"{_TOO_LONG}: {message}"
    return message


def message_of(error: Any) -> str:
    """Return the message of an error in one of the forms that servers use, or an empty text."""
    match error:
        case {"error": {"message": str(message)}} | {"error": str(message)}:
            return message
        case {"message": str(message)} | {"detail": str(message)}:
            return message
        case {"detail": [{"msg": str(message)}, *_]}:
            return message
        case _:
            return ""


def message_id(chat_id: Any) -> str:
    """Return the id of a message for that of a completion."""
    return f"msg_{chat_id.removeprefix('chatcmpl-')}" if isinstance(chat_id, str) else "msg_0"


def to_message(result: Any, prompt: Callable[[], int]) -> Message:
    """Return the message for a chat completion. Raises UnreadableReplyError.

    ``prompt`` estimates the tokens of the prompt.
    """
    choice: dict[str, Any]
    match result:
        case {"choices": [{"message": dict(said)} as choice, *_]}:
            pass
        case _:
            raise UnreadableReplyError("The model's server sent no chat completion.")
    content: list[dict[str, Any]] = []
    if thought := thought_of(said):
        content.append({"type": "thinking", "thinking": thought, "signature": ""})
    texts = (said.get("content"), said.get("refusal"))
    content += ({"type": "text", "text": text} for text in texts if isinstance(text, str) and text)
    calls = said.get("tool_calls") or ()
    content += (_tool_use(call) for call in (calls if isinstance(calls, list) else ()))
    stop_reason, stop_sequence = stop_of(choice, calls=bool(calls), refused=said.get("refusal"))
    return {
        "id": message_id(result.get("id")),
        "type": "message",
        "role": "assistant",
        "model": result.get("model"),
        "content": content,
        "stop_reason": stop_reason,
        "stop_sequence": stop_sequence,
        "usage": usage_of(result.get("usage"), prompt, lambda: sum(map(_size_of, content))),
    }


def _size_of(block: dict[str, Any]) -> int:
    """Return the bytes that a model wrote for a block."""
    match block:
        case {"text": str(text)} | {"thinking": str(text)}:
            return size_of(text)
        case _:
            return len(exact_json.dumps(block.get("input")))


def size_of(text: str) -> int:
    """Return the bytes of a text."""
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))


def thought_of(said: dict[str, Any]) -> str:
    """Return the reasoning of a message or of a piece of one, by either of its names."""
    for name in ("reasoning_content", "reasoning"):
        if isinstance(text := said.get(name), str) and text:
            return text
    return ""


def _tool_use(call: Any) -> dict[str, Any]:
    match call:
        case {"id": str(name), "function": {"name": str(function), "arguments": str(text)}}:
            pass
        case _:
            raise UnreadableReplyError("The model's server sent a tool call of an unknown form.")
    try:
        given = exact_json.loads(text.encode() or b"{}")
    except orjson.JSONDecodeError:
        given = None
    if not isinstance(given, dict):
        message = f"The model called {function} with arguments that are no JSON object."
        raise UnreadableReplyError(message)
    return {"type": "tool_use", "id": name, "name": function, "input": given}


def stop_of(
    choice: dict[str, Any], *, calls: bool, refused: object = None
) -> tuple[str | None, str | None]:
    """Return why a message ended, and the stop sequence that ended it, if the server names it.

    A word that is not known stays: it is no clean end.
    """
    finish = choice.get("finish_reason")
    if not isinstance(finish, str):
        return None, None
    reason = _STOPS.get(finish, finish)
    if reason != "end_turn":
        return reason, None
    if refused:
        return "refusal", None
    if calls:
        return "tool_use", None
    matched = choice.get("stop_reason")  # vLLM's
    return ("stop_sequence", matched) if isinstance(matched, str) and matched else (reason, None)


def usage_of(usage: Any, prompt: Callable[[], int], written: Callable[[], int]) -> dict[str, Any]:
    """Return the usage in Anthropic's words, which count cached tokens apart.

    ``prompt`` estimates the tokens of the prompt, and ``written`` is the size of the answer.
    """
    usage = usage if isinstance(usage, dict) else {}
    details = usage.get("prompt_tokens_details")
    cached = _count(details.get("cached_tokens")) if isinstance(details, dict) else None
    sent, answered = _count(usage.get("prompt_tokens")), _count(usage.get("completion_tokens"))
    counts = {"input_tokens": max(0, (prompt() if sent is None else sent) - (cached or 0))}
    if cached is not None:
        counts["cache_creation_input_tokens"] = 0
        counts["cache_read_input_tokens"] = cached
    counts["output_tokens"] = tokens_in(written()) if answered is None else answered
    return {**counts, "estimated": True} if None in (sent, answered) else counts


def _count(value: Any) -> int | None:
    return value if type(value) is int and value >= 0 else None
