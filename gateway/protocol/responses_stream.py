"""The events of a streamed response (Responses API): read from an upstream, made from a result.

The last event carries the whole response. Law: it is stored only if it agrees with the stream:
every item that was done, and every text and argument that came in pieces.

The events of a stored response come in OpenAI's order: the response begun, each item added empty,
its parts one by one as a delta and whole, the item done, and last the whole response. Law: the
events hold all of the response, and none comes before the event that it refers to.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from gateway.protocol import exact_json
from gateway.protocol.cache_status import Reason
from gateway.protocol.stream import StreamedAnswer, UnknownShapeError, encode

_LAST = frozenset({"response.completed", "response.incomplete", "response.failed"})
_PIECES = {
    "response.output_text.delta": "text",
    "response.refusal.delta": "refusal",
    "response.function_call_arguments.delta": "arguments",
    "response.custom_tool_call_input.delta": "input",
}
"""Events that bring a piece of text, and the field of the item or its part where it ends up."""


@dataclass(slots=True, kw_only=True)
class StreamedResponse(StreamedAnswer):
    """Follows the events of the Responses API."""

    _response: Any = None
    _items: dict[int, Any] = field(default_factory=dict)
    _pieces: dict[tuple[Any, Any, str], list[str]] = field(default_factory=dict)

    def _read(self, chunk: dict[str, Any], *, merges: bool) -> None:
        response, kind = chunk.get("response"), str(chunk.get("type"))
        if isinstance(response, dict) and isinstance(response.get("id"), str):
            self.response_id = response["id"]
        if kind in _LAST:
            self.over = self.done = self.ended = True
            self._response = response
            if isinstance(response, dict):
                self.usage = response.get("usage")
        if not merges:
            return
        match chunk:
            case {"type": "response.output_item.done", "output_index": int(place), "item": item}:
                self._items[place] = item
            case {"output_index": int(place), "delta": str(piece)} if kind in _PIECES:
                part = chunk.get("content_index")
                if not isinstance(part, int | None):
                    raise UnknownShapeError("a piece of an unknown part")
                self._pieces.setdefault((place, part, _PIECES[kind]), []).append(piece)

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
        for (place, part, name), pieces in self._pieces.items():
            if _text_at(output, place, part, name) != "".join(pieces):
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
        events.append(b"event: " + kind.encode() + b"\n" + encode(exact_json.dumps(numbered)))
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
