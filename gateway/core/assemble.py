"""From the chunks of a streamed reply to the one complete result that is stored.

Law: a result is assembled only from what is understood. A delta whose merge is not defined here
makes the answer UnknownShapeError, which is never stored; it still reaches the client untouched.
"""

from collections.abc import Mapping
from typing import Any

from gateway.core.types import Endpoint


class UnknownShapeError(ValueError):
    """The chunks do not merge into a result that could be rendered again."""


_CHUNK_ONLY = frozenset({"object", "choices", "usage", "obfuscation"})


class Assembler:
    """Merges chat or completion chunks in the order they came."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._top: dict[str, Any] = {}
        self._choices: dict[int, dict[str, Any]] = {}
        self._usage: Any = None

    def feed(self, chunk: Mapping[str, Any]) -> None:
        """Take one chunk. Raises UnknownShapeError."""
        for name, value in chunk.items():
            if name not in _CHUNK_ONLY and value is not None:
                self._top.setdefault(name, value)
        if chunk.get("usage") is not None:
            self._usage = chunk["usage"]
        choices = chunk.get("choices")
        if not isinstance(choices, list):
            raise UnknownShapeError("a chunk without choices")
        for choice in choices:
            self._feed_choice(choice)

    def _feed_choice(self, choice: Any) -> None:
        match choice:
            case {"index": int(index)}:
                pass
            case _:
                raise UnknownShapeError("a choice without an index")
        merged = self._choices.setdefault(index, {"index": index})
        for name, value in choice.items():
            match name, value:
                case "index", _:
                    pass
                case "delta", dict():
                    _merge_delta(merged.setdefault("message", {}), value)
                case "text", str():
                    merged["text"] = merged.get("text", "") + value
                case "logprobs", dict():
                    _merge_lists(merged.setdefault("logprobs", {}), value)
                case _, None:
                    merged.setdefault(name, None)
                case "delta" | "text" | "logprobs", _:
                    raise UnknownShapeError(f"a {name} of an unknown type")
                case _:
                    merged[name] = value

    def result(self) -> dict[str, Any]:
        """Return the reply in its plain form. Raises UnknownShapeError when nothing came."""
        if not self._choices:
            raise UnknownShapeError("no choices")
        chat = self._endpoint is Endpoint.CHAT
        ordered = [self._choices[index] for index in sorted(self._choices)]
        for choice in ordered:
            choice.setdefault("logprobs", None)
            choice.setdefault("finish_reason", None)
            if chat:
                message = choice.setdefault("message", {})
                message.setdefault("role", "assistant")
                message.setdefault("content", None)
            else:
                choice.setdefault("text", "")
        result = {
            **self._top,
            "object": "chat.completion" if chat else "text_completion",
            "choices": ordered,
        }
        if self._usage is not None:
            result["usage"] = self._usage
        return result


def _merge_delta(message: dict[str, Any], delta: Mapping[str, Any]) -> None:
    for name, value in delta.items():
        match name, value:
            case _, None:
                message.setdefault(name, None)
            case "role", str():
                message["role"] = value
            case "tool_calls", list():
                _merge_tool_calls(message, value)
            case "function_call", dict():
                _merge_call(message.setdefault("function_call", {}), value)
            case _, str():
                message[name] = (message.get(name) or "") + value
            case _:
                raise UnknownShapeError(f"a delta field {name!r} of an unknown type")


def _merge_tool_calls(message: dict[str, Any], deltas: list[Any]) -> None:
    calls: list[dict[str, Any]] = message.get("tool_calls") or []
    message["tool_calls"] = calls
    for delta in deltas:
        match delta:
            case {"index": int(index)} if 0 <= index <= len(calls):
                pass
            case _:
                raise UnknownShapeError("a tool call out of order")
        if index == len(calls):
            calls.append({})
        for name, value in delta.items():
            if name == "function" and isinstance(value, dict):
                _merge_call(calls[index].setdefault("function", {}), value)
            elif name != "index" and value is not None:
                calls[index][name] = value


def _merge_call(call: dict[str, Any], delta: Mapping[str, Any]) -> None:
    for name, value in delta.items():
        if not isinstance(value, str | None):
            raise UnknownShapeError(f"a function call's {name!r} of an unknown type")
        if name == "arguments":
            call[name] = call.get(name, "") + (value or "")
        elif value is not None:
            call[name] = value


def _merge_lists(merged: dict[str, Any], delta: Mapping[str, Any]) -> None:
    for name, value in delta.items():
        match value:
            case None:
                merged.setdefault(name, None)
            case list():
                merged[name] = (merged.get(name) or []) + value
            case _:
                raise UnknownShapeError(f"logprobs {name!r} of an unknown type")
