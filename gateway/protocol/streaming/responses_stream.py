"""The events of a streamed response (Responses API): read from an upstream, made from a result.

The last event carries the whole response. Law: it is stored only if it agrees with the stream:
every item that was done, and every text and argument that came in pieces.

The events of a stored response come in OpenAI's order: the response begun, each item added empty,
its parts one by one as a delta and whole, the item done, and last the whole response. Law: the
events hold all of the response, and none comes before the event that it refers to.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import orjson

from gateway.protocol import exact_json
from gateway.protocol.cache_status import Reason
from gateway.protocol.streaming import sse

_LAST = frozenset({"response.completed", "response.incomplete", "response.failed"})
_PIECES = {
    "response.output_text.delta": "text",
    "response.refusal.delta": "refusal",
    "response.function_call_arguments.delta": "arguments",
    "response.custom_tool_call_input.delta": "input",
}
"""Events that bring a piece of text, and the field of the item or its part where it ends up."""


class FollowedResponse:
    """See ``StreamedAnswer``: the same for the events of the Responses API."""

    def __init__(self, *, assemble: bool, max_bytes: int) -> None:
        self.usage: Any = None
        self.error: bytes | None = None
        """What the upstream itself said in an error event."""
        self.done = False
        """Whether the event that ends the stream has come."""
        self.made: str | None = None
        """The response's id."""
        self._assemble = assemble
        self._unfit: Reason | None = None
        self._bytes_left = max_bytes
        self._response: Any = None
        self._items: dict[int, Any] = {}
        self._pieces: dict[tuple[Any, Any, str], list[str]] = {}

    def pass_on(self, event: sse.Event) -> tuple[bytes, bytes]:
        """Return the bytes that clients get for this event: as it came, to all alike."""
        raw = event.raw
        if event.data == sse.DONE:
            self.done = True
        elif event.data is not None:
            self._read(event.data, len(raw))
        return raw, raw

    def _read(self, data: bytes, size: int) -> None:
        try:
            told = exact_json.loads(data)
        except orjson.JSONDecodeError:
            told = None
        if not isinstance(told, dict):
            self._unfit = Reason.UNCLEAN
        elif told.get("type") == "error" or told.get("error") is not None:
            self._unfit = Reason.UNCLEAN
            self.error = data
        else:
            self._follow(told, size)

    def _follow(self, told: Mapping[str, Any], size: int) -> None:
        match told:
            case {"response": {"id": str(made)}}:
                self.made = made
        if told.get("type") in _LAST:
            self.done = True
            self._response = told.get("response")
            if isinstance(self._response, dict):
                self.usage = self._response.get("usage")
        if self._unfit is not None or not self._assemble:
            return
        self._bytes_left -= size
        if self._bytes_left < 0:
            self._unfit = Reason.TOO_LARGE
            return
        match told:
            case {"type": "response.output_item.done", "output_index": int(place), "item": item}:
                self._items[place] = item
            case {"type": str(kind), "output_index": place, "delta": str(piece)} if (
                kind in _PIECES and isinstance(place, int)
            ):
                where = (place, told.get("content_index"), _PIECES[kind])
                self._pieces.setdefault(where, []).append(piece)

    @property
    def over(self) -> bool:
        """Tell whether nothing is to come any more."""
        return self.done

    @property
    def failed(self) -> bool:
        """Tell whether the upstream itself sent an error event."""
        return self.error is not None

    @property
    def ended(self) -> bool:
        """Tell whether the upstream ended the stream."""
        return self.done or self.failed

    def result(self) -> dict[str, Any] | Reason:
        """Return the complete response, or why there is none."""
        if self._unfit is not None:
            return self._unfit
        if not isinstance(self._response, dict):
            return Reason.UNCLEAN
        done = [self._items[place] for place in sorted(self._items)]
        # Some servers leave out of the last event what the events before it have told.
        response = {**self._response, "output": self._response.get("output") or done}
        output = response["output"]
        if not isinstance(output, list) or (done and done != output):
            return Reason.UNKNOWN_SHAPE
        for (place, part, field), pieces in self._pieces.items():
            if _text_at(output, place, part, field) != "".join(pieces):
                return Reason.UNKNOWN_SHAPE
        return response


def _text_at(output: list[Any], place: int, part: Any, field: str) -> Any:
    """Return the text that a response has where a piece of it was said to go."""
    try:
        item = output[place]
        return item[field] if part is None else item["content"][part][field]
    except (LookupError, TypeError):
        return None


_RESPONSE_EVENTS_LAST = ("completed", "incomplete", "failed")
Events = Iterator[tuple[str, dict[str, Any]]]


def render_response(response: Mapping[str, Any]) -> bytes:
    """Return the whole event stream. Raises ValueError for a response that has not ended."""
    if response["status"] not in _RESPONSE_EVENTS_LAST:
        raise ValueError(f"a response that is {response['status']}")
    events = []
    for number, (kind, event) in enumerate(_events(response)):
        numbered = {"type": kind, **event, "sequence_number": number}
        events.append(b"event: " + kind.encode() + b"\n" + sse.encode(exact_json.dumps(numbered)))
    return b"".join(events)


def _events(response: Mapping[str, Any]) -> Events:
    begun = {**response, "status": "in_progress", "output": []}
    begun.pop("usage", None)
    for told_last in ("completed_at", "incomplete_details", "error"):
        if told_last in begun:
            begun[told_last] = None
    yield "response.created", {"response": begun}
    yield "response.in_progress", {"response": begun}
    for place, item in enumerate(response["output"]):
        where = {"output_index": place}
        yield "response.output_item.added", {**where, "item": _emptied(item)}
        yield from _pieces(item, {"item_id": item.get("id") or f"item_{place}", **where})
        yield "response.output_item.done", {**where, "item": item}
    yield f"response.{response['status']}", {"response": response}


def _emptied(item: Mapping[str, Any]) -> dict[str, Any]:
    """Return an item as it is announced, before anything of it has come."""
    empty: dict[str, Any] = {**item}
    if "status" in empty:
        empty["status"] = "in_progress"
    match item["type"]:
        case "message":
            empty["content"] = []
        case "reasoning":
            empty |= {name: [] for name in ("summary", "content") if item.get(name) is not None}
        case "function_call":
            empty["arguments"] = ""
        case "custom_tool_call":
            empty["input"] = ""
    return empty


def _pieces(item: Mapping[str, Any], where: dict[str, Any]) -> Events:
    match item["type"]:
        case "message":
            for place, part in enumerate(item["content"]):
                yield from _part(part, {**where, "content_index": place})
        case "reasoning":
            for place, part in enumerate(item.get("summary") or ()):
                yield from _summary(part, {**where, "summary_index": place})
            for place, part in enumerate(item.get("content") or ()):
                yield from _part(part, {**where, "content_index": place})
        case "function_call":
            given = item["arguments"]
            yield "response.function_call_arguments.delta", {**where, "delta": given}
            told = {"name": item["name"], "arguments": given}
            yield "response.function_call_arguments.done", {**where, **told}
        case "custom_tool_call":
            yield "response.custom_tool_call_input.delta", {**where, "delta": item["input"]}
            yield "response.custom_tool_call_input.done", {**where, "input": item["input"]}


def _part(part: Mapping[str, Any], where: dict[str, Any]) -> Events:
    kind = part["type"]
    name = "refusal" if kind == "refusal" else "text"
    text = part[name]
    empty = {**part, name: ""}
    empty |= {lists: [] for lists in ("annotations", "logprobs") if part.get(lists) is not None}
    told = {"logprobs": part.get("logprobs") or []} if kind == "output_text" else {}
    yield "response.content_part.added", {**where, "part": empty}
    yield f"response.{kind}.delta", {**where, "delta": text, **told}
    for place, annotation in enumerate(part.get("annotations") or ()):
        noted = {"annotation_index": place, "annotation": annotation}
        yield "response.output_text.annotation.added", {**where, **noted}
    yield f"response.{kind}.done", {**where, name: text, **told}
    yield "response.content_part.done", {**where, "part": part}


def _summary(part: Mapping[str, Any], where: dict[str, Any]) -> Events:
    name = "response.reasoning_summary_"
    yield f"{name}part.added", {**where, "part": {**part, "text": ""}}
    yield f"{name}text.delta", {**where, "delta": part["text"]}
    yield f"{name}text.done", {**where, "text": part["text"]}
    yield f"{name}part.done", {**where, "part": part}
