"""Answers that are a list of choices, put together from the chunks of a stream.

Law: a result is assembled only from what is understood. A delta whose merge is not defined here
makes the answer unfit to be stored; it still reaches the client untouched.
"""

from collections.abc import Container, Mapping
from dataclasses import dataclass, field
from typing import Any

from gateway.protocol.http.cache_status import Reason
from gateway.protocol.streaming.decode import (
    Pattern,
    StreamedAnswer,
    UnknownShapeError,
    pattern_of,
)
from gateway.protocol.streaming.render import ChoiceForm

_CHUNK_ONLY = frozenset({"object", "choices", "usage", "obfuscation", "p"})
"""Top-level fields that speak of one chunk; the last two pad it against guesses by its size."""

_FIRST_COUNTS = frozenset({"id", "created", "model", "system_fingerprint", "service_tier"})
"""Top-level fields that some servers change for each chunk; a reply has one."""

_TEXT = frozenset({"content", "refusal", "reasoning_content", "reasoning"})
"""Fields of a delta with pieces to join."""

_DETAIL_TEXT = frozenset({"text", "summary"})
"""Fields of an item of ``reasoning_details`` with pieces to join."""

_CALL_TEXT = frozenset({"arguments"})
"""Fields of a function call with pieces to join."""

MAX_CALLS = 1024
"""Whole tool calls of one answer: each new one is compared with those before it."""

MOST_PATTERNS = 16
"""Of one answer: servers whose events differ in more than a text are not looked at further."""

_NOTHING: tuple[Any, ...] = (None, "", [], {})
"""Values by which servers say that a chunk has nothing to add to a field."""


class _Pieces(list[str]):
    """Text that is still arriving: joined once, since adding to a string copies it."""


class _WholeCall(dict[str, Any]):
    """A tool call without an index, which is therefore in one piece."""


@dataclass(slots=True, kw_only=True)
class StreamedChoices(StreamedAnswer):
    """Merges the chunks of a stream of choices in order of arrival."""

    form: ChoiceForm
    _top: dict[str, Any] = field(default_factory=dict)
    _choices: dict[int, dict[str, Any]] = field(default_factory=dict)
    _unfinished: set[int] = field(default_factory=set)
    _patterns_sought: int = 0

    def _read(self, chunk: dict[str, Any], raw: bytes, *, merges: bool) -> None:
        usage, choices = chunk.get("usage"), chunk.get("choices")
        if usage is not None:
            self.usage = usage
        for choice in choices if isinstance(choices, list) else ():
            if isinstance(choice, dict) and isinstance(index := choice.get("index"), int):
                finish = choice.get("finish_reason")
                if finish and isinstance(finish, str):
                    self._unfinished.discard(index)
                else:
                    self._unfinished.add(index)
                self.ended = not self._unfinished or self.error is not None
        if merges:
            self._merge(chunk, choices)
        self._decoder.pattern = self._find_pattern(chunk, raw, merges=merges)

    def _merge(self, chunk: dict[str, Any], choices: Any) -> None:
        top = self._top
        for name, value in chunk.items():
            if name not in _CHUNK_ONLY:
                known = top.get(name)
                # The same again is no news, not even a list: citations come with every chunk.
                if known is None or not (name in _FIRST_COUNTS or known == value):
                    _set_once(top, name, value)
        if not isinstance(choices, list):
            raise UnknownShapeError("a chunk without choices")
        for choice in choices:
            self._merge_choice(choice)

    def _merge_choice(self, choice: Any) -> None:
        index = choice.get("index") if isinstance(choice, dict) else None
        if not isinstance(index, int):
            raise UnknownShapeError("a choice without an index")
        merged = self._choices.setdefault(index, {"index": index})
        for name, value in choice.items():
            if value is None:
                if name not in ("delta", "text"):
                    merged.setdefault(name, None)
            elif name == "delta" and isinstance(value, dict):
                _merge_delta(_inner(merged, "message"), value)
            elif name == "text" and isinstance(value, str):
                _append(merged, name, value)
            elif name in ("delta", "text"):
                raise UnknownShapeError(f"a {name} of an unknown type")
            elif name == "logprobs" and isinstance(value, dict):
                _merge_lists(_inner(merged, name), value)
            elif name != "index":
                _set_once(merged, name, value)

    def _find_pattern(self, chunk: dict[str, Any], raw: bytes, *, merges: bool) -> Pattern | None:
        """Return what the next event may be like, if it may only add to one message's content.

        Merging a second event that differs in the content alone changes nothing else.
        """
        if self._patterns_sought >= MOST_PATTERNS or not is_content(chunk):
            return None
        self._patterns_sought += 1
        if not merges:
            return content_pattern(chunk, raw, [])
        message = self._choices.get(chunk["choices"][0]["index"], {}).get("message", {})
        texts = message.get("content") if isinstance(message, dict) else None
        return content_pattern(chunk, raw, texts) if isinstance(texts, _Pieces) else None

    def _drop(self) -> None:
        self._choices.clear()

    def result(self) -> dict[str, Any] | Reason:
        if self._unfit is not None:
            return self._unfit
        if not self._choices:
            return Reason.UNKNOWN_SHAPE
        try:
            ordered = [_join_texts(self._choices[index]) for index in sorted(self._choices)]
            for choice in ordered:
                _complete(choice, self.form.defaults)
        except (UnknownShapeError, RecursionError):
            return Reason.UNKNOWN_SHAPE
        result = {**self._top, "object": self.form.reply, "choices": ordered}
        if self.usage is not None:
            result["usage"] = self.usage
        return result


def is_content(chunk: dict[str, Any]) -> bool:
    """Tell whether a chunk brings a piece of one choice's content, and no usage."""
    match chunk:
        case {"choices": [{"index": int(), "delta": {"content": str(text)}}]}:
            return bool(text) and chunk.get("usage") is None
        case _:
            return False


def content_pattern(chunk: dict[str, Any], raw: bytes, texts: list[str]) -> Pattern | None:
    """Return the pattern of a chunk that ``is_content``, if it brings nothing else."""
    [choice] = chunk["choices"]
    delta = choice["delta"]
    rest = [value for name, value in choice.items() if name not in ("index", "delta")]
    others = [value for name, value in delta.items() if name not in ("role", "content")]
    if (
        b"\\" in raw
        or raw.count(b'"content"') != 1
        or any(value is not None for value in rest)
        or any(value not in _NOTHING for value in others)
        or not isinstance(delta.get("role"), str | None)
        or any(isinstance(chunk[name], dict | list) for name in chunk if name != "choices")
    ):
        return None
    return pattern_of(b"content", delta["content"], raw, texts, null_usage="usage" in chunk)


def _complete(choice: dict[str, Any], defaults: Mapping[str, Any]) -> None:
    for name, value in defaults.items():
        if isinstance(value, dict):
            _complete(_inner(choice, name), value)
        else:
            choice.setdefault(name, value)


def _merge_delta(message: dict[str, Any], delta: dict[str, Any]) -> None:
    for name, value in delta.items():
        if name in _TEXT and isinstance(value, str):
            _append(message, name, value)
        elif name == "tool_calls" and value and isinstance(value, list):
            _merge_tool_calls(message, value)
        elif name == "reasoning_details" and value and isinstance(value, list):
            _merge_details(message, name, value)
        elif name == "function_call" and isinstance(value, dict):
            _merge_texts(_inner(message, name), value, _CALL_TEXT)
        else:
            _set_once(message, name, value)


def _merge_tool_calls(message: dict[str, Any], deltas: list[Any]) -> None:
    calls = _inner_list(message, "tool_calls")
    for delta in deltas:
        match delta:
            case {"index": int(index)} if 0 <= index <= len(calls):
                pass
            case {"index": _}:
                raise UnknownShapeError("a tool call out of order")
            case {"function": {"name": str(name)}} if name and _is_new(delta, calls):
                calls.append(_WholeCall(delta))
                continue
            case _:
                raise UnknownShapeError("a piece of an unknown tool call")
        if index == len(calls):
            calls.append({})
        elif type(calls[index]) is not dict:  # a whole one, or what no delta has brought
            raise UnknownShapeError("a tool call now with an index, now without")
        for name, value in delta.items():
            if name == "function" and isinstance(value, dict):
                _merge_texts(_inner(calls[index], name), value, _CALL_TEXT)
            elif name != "index":
                _set_once(calls[index], name, value)


def _is_new(delta: dict[str, Any], calls: list[Any]) -> bool:
    """Tell whether a call without an index is one more: another's id would make it a piece."""
    given = delta.get("id")
    return (
        bool(given)
        and len(calls) < MAX_CALLS
        and all(isinstance(call, _WholeCall) and call["id"] != given for call in calls)
    )


def _merge_details(message: dict[str, Any], name: str, deltas: list[Any]) -> None:
    """Merge OpenRouter's list: texts of one type and index add up, whatever else follows on."""
    details = _inner_list(message, name)
    for delta in deltas:
        if not isinstance(delta, dict):
            raise UnknownShapeError(f"{name!r} of an unknown type")
        last = details[-1] if details else None
        if last is not None and not isinstance(last, dict):
            raise UnknownShapeError(f"{name!r} of an unknown type")
        if last is not None and None in (last.get("index"), delta.get("index")):
            raise UnknownShapeError(f"{name!r} without an index")
        if last is None or any(delta.get(each) != last.get(each) for each in ("index", "type")):
            last = {}
            details.append(last)
        _merge_texts(last, delta, _DETAIL_TEXT)


def _merge_texts(holder: dict[str, Any], delta: dict[str, Any], texts: Container[str]) -> None:
    for name, value in delta.items():
        if name in texts and isinstance(value, str):
            _append(holder, name, value)
        else:
            _set_once(holder, name, value)


def _merge_lists(merged: dict[str, Any], delta: Mapping[str, Any]) -> None:
    for name, value in delta.items():
        known = merged.get(name)
        if isinstance(value, list) and isinstance(known, list):
            known.extend(value)
        elif isinstance(value, list | None):
            merged[name] = known if value is None else list(value)
        else:
            raise UnknownShapeError(f"logprobs {name!r} of an unknown type")


def _inner(holder: dict[str, Any], name: str) -> dict[str, Any]:
    inner = holder.get(name)
    if inner is None:
        inner = holder[name] = {}
    if not isinstance(inner, dict):
        raise UnknownShapeError(f"{name!r} is now an object, now not")
    return inner


def _inner_list(holder: dict[str, Any], name: str) -> list[Any]:
    items = holder[name] = holder.get(name) or []
    if not isinstance(items, list):
        raise UnknownShapeError(f"{name!r} is now a list, now not")
    return items


def _append(holder: dict[str, Any], name: str, text: str) -> None:
    pieces = holder.get(name)
    if pieces is None:
        pieces = holder[name] = _Pieces()
    if not isinstance(pieces, _Pieces):
        raise UnknownShapeError(f"{name!r} is now text, now not")
    pieces.append(text)


def _set_once(holder: dict[str, Any], name: str, value: Any) -> None:
    """Set a field that has one value in a reply, whichever chunks repeat it or parts of it."""
    known = holder.get(name)
    if known in _NOTHING:
        if value not in _NOTHING or known is None:
            holder[name] = value
    elif value in _NOTHING:
        pass
    elif isinstance(known, dict) and isinstance(value, dict):
        for part, item in value.items():
            _set_once(known, part, item)
    elif isinstance(value, list) or known != value:
        raise UnknownShapeError(f"{name!r} has several values")


def _join_texts(value: Any) -> Any:
    match value:
        case _Pieces():
            return "".join(value)
        case dict():
            return {name: _join_texts(item) for name, item in value.items()}
        case list():
            return [_join_texts(item) for item in value]
        case _:
            return value
