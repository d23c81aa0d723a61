"""Follows a streamed answer event by event: what the client gets, and what it amounts to.

Every event reaches the client as it came, but for the usage that only the gateway asked for.
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
        self._done = False
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
            self._done = True
            return event.raw
        if event.data is None:
            return event.raw
        try:
            chunk = orjson.loads(event.data)
        except orjson.JSONDecodeError:
            chunk = None
        if not isinstance(chunk, dict) or "error" in chunk:
            self._unfit = Reason.UNCLEAN
            return event.raw
        self._merge(chunk, len(event.raw))
        if not self._strip_usage or "usage" not in chunk:
            return event.raw
        if not chunk.get("choices"):
            return b""
        del chunk["usage"]
        return sse.encode(orjson.dumps(chunk))

    def _merge(self, chunk: dict[str, Any], size: int) -> None:
        if chunk.get("usage") is not None:
            self.usage = chunk["usage"]
        for choice in chunk.get("choices") or ():
            if isinstance(choice, dict) and isinstance(choice.get("index"), int):
                self._started = True
                if choice.get("finish_reason") is None:
                    self._open_choices.add(choice["index"])
                else:
                    self._open_choices.discard(choice["index"])
        self._bytes_left -= size
        if self._unfit is not None or not self._assemble:
            return
        if self._bytes_left < 0:
            self._unfit = Reason.TOO_LARGE
            return
        try:
            self._assembler.feed(chunk)
        except UnknownShapeError:
            self._unfit = Reason.UNKNOWN_SHAPE

    @property
    def ended(self) -> bool:
        """Tell whether the stream came to its end: ``[DONE]``, or every choice finished."""
        return self._done or (self._started and not self._open_choices)

    def result(self) -> dict[str, Any] | Reason:
        """Return the complete result, or why there is none."""
        if self._unfit is not None:
            return self._unfit
        try:
            return self._assembler.result()
        except UnknownShapeError:
            return Reason.UNKNOWN_SHAPE
