"""What a complete result says, whichever endpoint it is of: its text, its tool calls, its end."""

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import orjson


@dataclass(frozen=True, slots=True)
class Answer:
    """What a stored or fresh result says. ``calls`` are names and arguments of tool calls."""

    text: str
    calls: tuple[str, ...]
    finish: tuple[str, ...]


def read_answer(result: Any) -> Answer | None:
    """Return what a result says, None where it is of no form known here."""
    match result:
        case {"choices": [*choices]} if choices:
            return _chat(choices)
        case {"output": [*items], "status": str(status)}:
            return _response(items, status)
        case _:
            return None


def _chat(choices: Sequence[Any]) -> Answer | None:
    texts: list[str] = []
    calls: list[str] = []
    finish: list[str] = []
    for choice in choices:
        match choice:
            case {"message": dict(message), "finish_reason": str(reason)}:
                finish.append(reason)
            case _:
                return None
        texts.append(message.get("content") or "")
        calls += [
            _call(call.get("function") or call.get("custom"))
            for call in message.get("tool_calls") or ()
        ]
        if message.get("function_call"):
            calls.append(_call(message["function_call"]))
    return Answer("\n\n".join(texts), tuple(calls), tuple(finish))


def _response(items: Sequence[Any], status: str) -> Answer | None:
    texts: list[str] = []
    calls: list[str] = []
    for item in items:
        match item:
            case {"type": "message", "content": [*parts]}:
                texts += [p["text"] for p in parts if isinstance(p.get("text"), str)]
            case {"type": "reasoning"}:
                pass
            case {"type": str(), "name": str()}:
                calls.append(_call(item))
            case _:
                return None
    return Answer("\n\n".join(texts), tuple(calls), (status,))


def _call(given: Any) -> str:
    """Return name and arguments, in one order of their keys."""
    if not isinstance(given, dict):
        return repr(given)
    arguments: Any = given.get("arguments", given.get("input"))
    # Whatever is no JSON is free text.
    with contextlib.suppress(orjson.JSONDecodeError, TypeError):
        parsed = orjson.loads(arguments)
        arguments = orjson.dumps(parsed, option=orjson.OPT_SORT_KEYS).decode()
    return f"{given.get('name')}({arguments})"
