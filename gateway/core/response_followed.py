"""Follows a streamed response event by event: what the client gets, and what it amounts to.

The last event carries the whole response. Law: it is stored only if it says what was streamed:
every item that was done, and every text and argument that came in pieces.
"""

from collections.abc import Mapping
from typing import Any

import orjson

from gateway.core import exact_json, sse
from gateway.core.types import Reason

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
