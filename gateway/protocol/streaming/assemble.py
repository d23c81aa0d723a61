"""From the chunks of a streamed reply to the one complete result that is stored.

Law: a result is assembled only from what is understood. A delta whose merge is not defined here
makes the answer UnknownShapeError, which is never stored; it still reaches the client untouched.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple


class ChoiceForm(NamedTuple):
    """How an endpoint writes choices: what it calls a reply and a chunk, and what is in them."""

    reply: str
    chunk: str
    complete: Callable[[dict[str, Any]], None]
    """Sets in a choice, put together, what no chunk has said."""
    pieces: Callable[[dict[str, Any]], Iterator[dict[str, Any]]]
    """Yields the choice of each chunk by which one is streamed."""


class UnknownShapeError(ValueError):
    """The chunks do not merge into a result that could be rendered again."""


_CHUNK_ONLY = frozenset({"object", "choices", "usage", "obfuscation", "p"})
"""Top-level fields that speak of one chunk; the last two pad it against guesses by its size."""

_FIRST_COUNTS = frozenset({"id", "created", "model", "system_fingerprint", "service_tier"})
"""Top-level fields that some servers make anew for each chunk; a reply has one."""

_TEXT = frozenset({"content", "refusal", "reasoning_content", "reasoning"})
"""Fields of a delta whose pieces add up."""

_DETAIL_TEXT = frozenset({"text", "summary"})
"""Fields of an item of ``reasoning_details`` whose pieces add up."""

_NOTHING: tuple[Any, ...] = (None, "", [], {})
"""Values by which servers say that a chunk has nothing to add to a field."""


class _Pieces(list[str]):
    """Text that is still arriving: joined once, since adding to a string copies it."""


class _WholeCall(dict[str, Any]):
    """A tool call that came without an index, and so in one piece."""


class Assembler:
    """Merges the chunks of a stream of choices in the order they came."""

    def __init__(self, form: ChoiceForm) -> None:
        self._form = form
        self._top: dict[str, Any] = {}
        self._choices: dict[int, dict[str, Any]] = {}
        self._usage: Any = None

    def feed(self, chunk: Mapping[str, Any]) -> None:
        """Take one chunk. Raises UnknownShapeError."""
        for name, value in chunk.items():
            if name in _CHUNK_ONLY:
                continue
            known = self._top.get(name)
            # The same again is no news, not even a list: citations come with every chunk.
            if known is None or not (name in _FIRST_COUNTS or known == value):
                _set_once(self._top, name, value)
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
                merged = self._choices.setdefault(index, {"index": index})
            case _:
                raise UnknownShapeError("a choice without an index")
        for name, value in choice.items():
            match name, value:
                case ("index", _) | ("delta" | "text", None):
                    pass
                case "delta", dict():
                    _merge_delta(_inner(merged, "message"), value)
                case "text", str():
                    _append(merged, name, value)
                case "logprobs", dict():
                    _merge_lists(_inner(merged, name), value)
                case "delta" | "text", _:
                    raise UnknownShapeError(f"a {name} of an unknown type")
                case _:
                    _set_once(merged, name, value)

    def result(self) -> dict[str, Any]:
        """Return the reply in its plain form. Raises UnknownShapeError when nothing came."""
        if not self._choices:
            raise UnknownShapeError("no choices")
        ordered = [_joined(self._choices[index]) for index in sorted(self._choices)]
        for choice in ordered:
            choice.setdefault("logprobs", None)
            choice.setdefault("finish_reason", None)
            self._form.complete(choice)
        result = {**self._top, "object": self._form.reply, "choices": ordered}
        if self._usage is not None:
            result["usage"] = self._usage
        return result


def _merge_delta(message: dict[str, Any], delta: Mapping[str, Any]) -> None:
    for name, value in delta.items():
        match name, value:
            case _, str() if name in _TEXT:
                _append(message, name, value)
            case "tool_calls", [_, *_]:
                _merge_tool_calls(message, value)
            case "reasoning_details", [_, *_]:
                _merge_details(message, name, value)
            case "function_call", dict():
                _merge_call(_inner(message, name), value)
            case _:
                _set_once(message, name, value)


def _merge_tool_calls(message: dict[str, Any], deltas: list[Any]) -> None:
    calls: list[dict[str, Any]] = message.get("tool_calls") or []
    message["tool_calls"] = calls
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
        elif isinstance(calls[index], _WholeCall):
            raise UnknownShapeError("a tool call now with an index, now without")
        for name, value in delta.items():
            if name == "function" and isinstance(value, dict):
                _merge_call(_inner(calls[index], name), value)
            elif name != "index":
                _set_once(calls[index], name, value)


def _is_new(delta: dict[str, Any], calls: list[dict[str, Any]]) -> bool:
    """Tell whether a call without an index is one more: another's id would make it a piece."""
    given = delta.get("id")
    return bool(given) and all(
        isinstance(call, _WholeCall) and call["id"] != given for call in calls
    )


def _merge_details(message: dict[str, Any], name: str, deltas: list[Any]) -> None:
    """Merge OpenRouter's list: texts of one type and index add up, whatever else follows on."""
    details: list[Any] = message.get(name) or []
    message[name] = details
    for delta in deltas:
        if not isinstance(delta, dict):
            raise UnknownShapeError(f"{name!r} of an unknown type")
        last = details[-1] if details else None
        if last is not None and None in (last.get("index"), delta.get("index")):
            raise UnknownShapeError(f"{name!r} without an index")
        if last is None or not _continues(last, delta):
            last = {}
            details.append(last)
        for field, value in delta.items():
            if field in _DETAIL_TEXT and isinstance(value, str):
                _append(last, field, value)
            else:
                _set_once(last, field, value)


def _continues(last: dict[str, Any], delta: dict[str, Any]) -> bool:
    return all(delta.get(name) == last.get(name) for name in ("index", "type"))


def _merge_call(call: dict[str, Any], delta: Mapping[str, Any]) -> None:
    for name, value in delta.items():
        if name == "arguments" and isinstance(value, str):
            _append(call, name, value)
        else:
            _set_once(call, name, value)


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
    """Return the object in a field that may have been null so far."""
    inner = holder.get(name)
    if inner is None:
        inner = holder[name] = {}
    if not isinstance(inner, dict):
        raise UnknownShapeError(f"{name!r} is now an object, now not")
    return inner


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


def _joined(value: Any) -> Any:
    match value:
        case _Pieces():
            return "".join(value)
        case dict():
            return {name: _joined(item) for name, item in value.items()}
        case list():
            return [_joined(item) for item in value]
        case _:
            return value
