"""A chat completion as a message of Anthropic's, and errors in Anthropic's form.

Laws:
- What a client of chat completions could read is in the message. What no message can hold, such as
  arguments that are no object, has a place where the client finds it.
- An answer that the server itself calls broken is an error. Words for its end that are not known
  are no error, but such a message says ``finish_reason`` and is not stored.
- Clients require both counts of tokens. If the server does not tell one, it is estimated, and the
  usage has ``"estimated": true``. All other figures are the server's.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import orjson

from gateway.protocol import exact_json
from gateway.protocol.anthropic.calls import Calls
from gateway.protocol.errors import anthropic_error
from gateway.protocol.tokens import tokens_in

Message = dict[str, Any]

_STOPS = {
    **dict.fromkeys(("stop", "eos", "eos_token", "end_turn", "stop_sequence"), "end_turn"),
    **dict.fromkeys(("length", "max_tokens", "model_length"), "max_tokens"),
    **dict.fromkeys(("tool_calls", "function_call", "tool_use"), "tool_use"),
    **dict.fromkeys(("content_filter", "safety", "recitation", "sensitive"), "refusal"),
}
"""By the words of OpenAI and of others, in lower case."""

_BROKEN = frozenset(
    {"error", "abort", "aborted", "cancelled", "failed", "network_error"}
    | {"insufficient_system_resource", "malformed_function_call"}
)
"""Words by which servers say that they broke an answer off."""


_TOO_LONG = "prompt is too long"
_PROMPT_FAULTS = (400, 422)
_CONTEXT = re.compile(r"context (?:length|window|size)|longer than the model", re.IGNORECASE)
"""How servers without a code for it say that the prompt is too long."""

_ANSWER_TOO_LARGE = re.compile(r"max_(?:completion_)?tokens\W* (?:is|are) too large")
"""A shorter prompt would not help."""


class UnreadableReplyError(ValueError):
    """A reply of the server cannot be a message; the text says why."""


class Prompt(NamedTuple):
    """The request that a reply answers, as far as the reply depends on it."""

    tokens: Callable[[], int]
    """Estimates the tokens of the prompt."""
    model: str = ""
    tools: frozenset[str] = frozenset()
    """The names of its tools."""
    turns: int = 0

    def calls(self, chat_id: Any) -> Calls:
        return Calls(self.tools, f"{chat_id}/{self.turns}")


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
    error = error_of(error)
    inner = error.get("error") if isinstance(error, dict) else None
    code = inner.get("code") if isinstance(inner, dict) else None
    if code == "context_length_exceeded" or (
        _CONTEXT.search(message) and not _ANSWER_TOO_LARGE.search(message)
    ):
        return f"{_TOO_LONG}: {message}"
    return message


def error_of(given: Any) -> Any:
    """Return an error that came alone in an array, as Gemini sends it."""
    return given[0] if isinstance(given, list) and given else given


def message_of(error: Any) -> str:
    """Return the message of an error in one of the forms that servers use, or an empty text."""
    match error_of(error):
        case {"error": [*_] | {"error": _} as inner}:
            return message_of(inner)
        case {"errors": [dict() as first, *_]}:
            return message_of(first)
        case {"error": {"message": str(message)}} | {"error": str(message)}:
            return message
        case {"message": str(message)} | {"detail": str(message)}:
            return message
        case {"detail": [{"msg": str(message)}, *_]}:
            return message
        case _:
            return ""


def message_id(chat_id: Any) -> str:
    """Return the id of a message for the id of a completion."""
    return f"msg_{chat_id.removeprefix('chatcmpl-')}" if isinstance(chat_id, str) else "msg_0"


def to_message(result: Any, prompt: Prompt) -> Message:
    """Return the message for a chat completion. Raises UnreadableReplyError."""
    choice: dict[str, Any]
    match result:
        case {"choices": [{"message": dict(said)} as choice, *_]} if result.get("error") is None:
            pass
        case _:
            text = message_of(result) or "The model's server sent no chat completion."
            raise UnreadableReplyError(text)
    if (fault := fault_of(choice)) is not None:
        raise UnreadableReplyError(fault)
    content: list[dict[str, Any]] = []
    for kind, text in texts_of(said):
        if content and content[-1]["type"] == kind:
            content[-1][kind] += text
        else:
            content.append({"type": kind, **EMPTY[kind], kind: text})
    calls = prompt.calls(result.get("id"))
    calls.take_whole(said)
    end = stop_of(choice, calls=bool(calls.calls), refused=said.get("refusal"))
    content += (
        {"type": "tool_use", **calls.begin(call), "input": call.input()} for call in calls.calls
    )
    usage = choice.get("usage") if result.get("usage") is None else result["usage"]
    return {
        "id": message_id(result.get("id")),
        "type": "message",
        "role": "assistant",
        "model": result.get("model") or prompt.model,
        "content": content,
        **end,
        **calls.marks(),
        "usage": usage_of(usage, prompt.tokens, lambda: sum(map(_size_of, content))),
    }


def _size_of(block: dict[str, Any]) -> int:
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


EMPTY: Mapping[str, Mapping[str, str]] = {
    "text": {"text": ""},
    "thinking": {"thinking": "", "signature": ""},
}
"""Blocks of text as they begin, by type; the type is also the field of the text."""


def texts_of(said: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the texts of a message or of a piece of one, each with the type of its block."""
    if thought := thought_of(said):
        yield "thinking", thought
    for name in ("content", "refusal"):
        match said.get(name):
            case str(text) if text:
                yield "text", text
            case [*parts]:  # Mistral's
                for part in parts:
                    yield from _texts_of_part(part)


def _texts_of_part(part: Any) -> Iterator[tuple[str, str]]:
    match part:
        case {"type": "thinking", "thinking": str(text)} if text:
            yield "thinking", text
        case {"type": "thinking", "thinking": [*inner]}:
            texts = (each.get("text") for each in inner if isinstance(each, dict))
            if text := "".join(each for each in texts if isinstance(each, str)):
                yield "thinking", text
        case {"text": str(text)} | {"refusal": str(text)} if text:
            yield "text", text


def fault_of(choice: dict[str, Any]) -> str | None:
    """Return what a server says of an answer that it broke off itself, None if it did not."""
    error, finish = choice.get("error"), choice.get("finish_reason")
    broken = isinstance(finish, str) and finish.lower() in _BROKEN
    if not broken and not error:
        return None
    what = f" with the finish reason {finish}" if broken else ""
    return message_of({"error": error}) or f"The model's server broke its answer off{what}."


def stop_of(choice: Mapping[str, Any], *, calls: bool, refused: object = None) -> dict[str, Any]:
    """Return why a message ended, and the stop sequence that ended it, if the server names it."""
    finish = choice.get("finish_reason")
    finish = finish if isinstance(finish, str) else ""
    reason, sequence = _STOPS.get(finish.lower(), "end_turn"), None
    if reason in ("end_turn", "tool_use"):
        reason = "tool_use" if calls else "end_turn"
    if reason == "end_turn" and refused:
        reason = "refusal"
    if reason == "end_turn":
        matched = (choice.get("stop_reason"), choice.get("matched_stop"))  # vLLM's, SGLang's
        sequence = next((text for text in matched if isinstance(text, str) and text), None)
        reason = reason if sequence is None else "stop_sequence"
    end: dict[str, Any] = {"stop_reason": reason, "stop_sequence": sequence}
    return end if finish.lower() in _STOPS else {**end, FINISH: finish}


FINISH = "finish_reason"
"""The field of a message that has the server's own word, if that word is not known."""


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
