"""Follows a streamed answer event by event: what the client gets, and what it amounts to.

Every event reaches a client as it came, but for the usage where that client did not ask for it.
Law: nothing that an upstream sends stops the stream; what is not understood is only not stored.
"""

from typing import Any

import orjson

from gateway.protocol import exact_json
from gateway.protocol.cache_status import Reason
from gateway.protocol.errors import RequestError, error_body
from gateway.protocol.streaming import sse
from gateway.protocol.streaming.assemble import Assembler, ChoiceForm, UnknownShapeError


class StreamedAnswer:
    """Follows the events of one stream: what to pass on, and what they amount to."""

    def __init__(self, form: ChoiceForm, *, assemble: bool, max_bytes: int) -> None:
        self.usage: Any = None
        self.error: bytes | None = None
        """What the upstream itself said in an error event."""
        self.over = False
        """Whether nothing is to come any more, an answer or not."""
        self.done = False
        """Whether the event that ends the stream has come."""
        self.made: str | None = None
        """The id of what the upstream keeps: nothing of these."""
        self._assembler = Assembler(form)
        self._assemble = assemble
        self._unfit: Reason | None = None
        self._bytes_left = max_bytes
        self._open_choices: set[int] = set()
        self._started = False
        self._spoke = False
        """Whether anything but usage has come."""

    def pass_on(self, event: sse.Event) -> tuple[bytes, bytes]:
        """Return the bytes that clients get for this event, with usage and without."""
        raw = event.raw
        if event.data == sse.DONE:
            self.over = True
            if not self._spoke:  # no choice at all: that is no answer's end
                return b"", b""
            self.done = True
            last = b"" if self.failed else raw  # what failed ends without [DONE]
            return last, last
        if event.data is None:
            return raw, raw
        try:
            chunk = exact_json.loads(event.data)
        except orjson.JSONDecodeError:
            chunk = None
        self._spoke = self._spoke or not isinstance(chunk, dict) or chunk.get("choices") != []
        if not isinstance(chunk, dict):
            self._unfit = Reason.UNCLEAN
            return raw, raw
        if chunk.get("error") is not None:
            self._unfit = Reason.UNCLEAN
            self.error = event.data
            return raw, raw
        self._follow(chunk)
        self._merge(chunk, len(raw))
        return raw, _without_usage(chunk, raw) if "usage" in chunk else raw

    def _follow(self, chunk: dict[str, Any]) -> None:
        if chunk.get("usage") is not None:
            self.usage = chunk["usage"]
        choices = chunk.get("choices")
        for choice in choices if isinstance(choices, list) else ():
            match choice:
                case {"index": int(index), "finish_reason": str(reason)} if reason:
                    self._started = True
                    self._open_choices.discard(index)
                case {"index": int(index)}:
                    self._started = True
                    self._open_choices.add(index)

    def _merge(self, chunk: dict[str, Any], size: int) -> None:
        if self._unfit is not None or not self._assemble:
            return
        self._bytes_left -= size
        if self._bytes_left < 0:
            self._unfit = Reason.TOO_LARGE
            return
        try:
            self._assembler.feed(chunk)
        except (UnknownShapeError, RecursionError):
            self._unfit = Reason.UNKNOWN_SHAPE

    @property
    def failed(self) -> bool:
        """Tell whether the upstream itself sent an error event."""
        return self.error is not None

    @property
    def ended(self) -> bool:
        """Tell whether the upstream ended the stream: every choice finished, an error, [DONE]."""
        return self.done or self.failed or (self._started and not self._open_choices)

    def result(self) -> dict[str, Any] | Reason:
        """Return the complete result, or why there is none."""
        if self._unfit is not None:
            return self._unfit
        try:
            return self._assembler.result()
        except UnknownShapeError:
            return Reason.UNKNOWN_SHAPE


def failure_event(fault: Exception) -> bytes:
    """Return the event that tells a client why its stream ends early."""
    if isinstance(fault, RequestError):
        return sse.encode(orjson.dumps(fault.body()))
    message = "The gateway had an internal error while it streamed the answer."
    body = error_body(message, "server_error", None, Reason.INTERNAL.value)
    return sse.encode(orjson.dumps(body))


def _without_usage(chunk: dict[str, Any], raw: bytes) -> bytes:
    """Return the event without the usage that only the gateway asked for.

    Servers that report it unasked do so beside a choice: there it stays.
    """
    if chunk["usage"] is not None:
        return raw if chunk.get("choices") else b""
    rest = {name: value for name, value in chunk.items() if name != "usage"}
    try:
        return sse.encode(exact_json.dumps(rest))
    except TypeError:  # nested deeper than orjson prints
        return raw
