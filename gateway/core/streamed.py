"""Follows a streamed answer event by event: what the client gets, and what it amounts to.

Every event reaches the client as it came, but for the usage that only the gateway asked for. Law:
nothing that an upstream sends stops the stream; what is not understood is only not stored.
"""

from typing import Any

import orjson

from gateway.core import sse
from gateway.core.assemble import Assembler, UnknownShapeError
from gateway.core.types import Endpoint, Reason


class StreamedAnswer:
    """Follows the events of one stream: what to pass on, and what they amount to."""

    def __init__(
        self, endpoint: Endpoint, *, assemble: bool, strip_usage: bool, max_bytes: int
    ) -> None:
        self.usage: Any = None
        self.failed = False
        """Whether the upstream itself sent an error event."""
        self.done = False
        """Whether the event that ends the stream has come."""
        self._assembler = Assembler(endpoint)
        self._assemble = assemble
        self._strip_usage = strip_usage
        self._unfit: Reason | None = None
        self._bytes_left = max_bytes
        self._open_choices: set[int] = set()
        self._started = False

    def pass_on(self, event: sse.Event) -> bytes:
        """Return the bytes that the client gets for this event; may be none."""
        if event.data == sse.DONE:
            self.done = True
            return b"" if self.failed else event.raw  # what failed ends without [DONE]
        if event.data is None:
            return event.raw
        try:
            chunk = orjson.loads(event.data)
        except orjson.JSONDecodeError:
            chunk = None
        if not isinstance(chunk, dict):
            self._unfit = Reason.UNCLEAN
            return event.raw
        if chunk.get("error") is not None:
            self._unfit = Reason.UNCLEAN
            self.failed = True
            return event.raw
        self._follow(chunk)
        self._merge(chunk, len(event.raw))
        if not self._strip_usage or "usage" not in chunk:
            return event.raw
        return _without_usage(chunk, event.raw)

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


def _without_usage(chunk: dict[str, Any], raw: bytes) -> bytes:
    """Return the event without the usage that only the gateway asked for."""
    if chunk["usage"] is not None and not chunk.get("choices"):
        return b""  # the usage chunk
    rest = {name: value for name, value in chunk.items() if name != "usage"}
    try:
        return sse.encode(orjson.dumps(rest))
    except TypeError:  # nested deeper than orjson prints
        return raw
