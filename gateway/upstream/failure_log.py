"""A line for each failed call to one upstream, and the outages of one without a pool."""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gateway.protocol.cache_status import Reason
from gateway.protocol.errors import UpstreamError

log = logging.getLogger(__name__)

EVERY_SECONDS = 10.0
"""Between two lines of one kind about one upstream."""

_EVENT = {"fields": {"event": "upstream"}}


@dataclass(eq=False, slots=True)
class Outage:
    """The time from a failed call of an upstream to its next good one."""

    since: float
    why: Reason
    """Of the last call that failed."""
    is_logged: bool = False


class FailureLog:
    """A line for each failed call to one upstream, at most one of a kind in some seconds.

    ``count`` is set for an upstream without a pool alone: then calls that failed are counted, and
    outages are noted here. In a pool, the states of its upstreams serve for that.
    """

    def __init__(
        self,
        name: str,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._name = name
        self._clock, self._wall = clock, wall
        self._last: dict[Reason, float] = {}
        self._suppressed: dict[Reason, int] = {}
        self.count: Callable[[Reason], None] | None = None
        self.outage: Outage | None = None

    def note_failed_call(self, error: UpstreamError) -> None:
        """Log and count a call that failed."""
        self._note(error.reason, error.detail or error.message)

    def note_failure(self, error: UpstreamError) -> None:
        """Log a failed request that is no call, such as one that passes through."""
        self._warn(error.reason, error.detail or error.message)

    def note_status(self, status: int) -> None:
        """Log and count a reply with a server error."""
        self._note(Reason.UPSTREAM_STATUS, f"it answered with status {status}")

    def end_outage(self, outage: Outage) -> None:
        """Note that a call ended well; its head came within this outage."""
        if outage is not self.outage:
            return
        self.outage = None
        if outage.is_logged:
            log.info("upstream %s answers again", self._name, extra=_EVENT)

    def note_refused_fields(self, names: Sequence[str]) -> None:
        """Log that a translated request was sent twice: the first had these fields."""
        text = f"it refuses a request with {' or '.join(names)}, so such requests are sent twice"
        if "stream_options" in names:
            text += "; if it does not know stream_options, leave stream-usage out of its accepts"
        self._warn(Reason.UPSTREAM_STATUS, text)

    def _note(self, reason: Reason, what: str) -> None:
        is_logged = self._warn(reason, what)
        if self.count is None:
            return
        self.count(reason)
        if self.outage is None:
            self.outage = Outage(self._wall(), reason)
        self.outage.why = reason
        self.outage.is_logged = self.outage.is_logged or is_logged

    def _warn(self, reason: Reason, what: str) -> bool:
        """Log a fault; tell whether it has a line."""
        now = self._clock()
        if (last := self._last.get(reason)) is not None and now - last < EVERY_SECONDS:
            self._suppressed[reason] = self._suppressed.get(reason, 0) + 1
            return False
        self._last[reason] = now
        suppressed = self._suppressed.pop(reason, 0)
        more = f" ({suppressed} more since the last line)" if suppressed else ""
        log.warning("upstream %s: %s%s", self._name, what, more, extra=_EVENT)
        return True
