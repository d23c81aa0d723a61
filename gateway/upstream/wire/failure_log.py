"""A line in the log for each failed request to one upstream."""

import logging
import time
from collections.abc import Callable

from gateway.protocol.errors import UpstreamError
from gateway.protocol.http.cache_status import Reason

log = logging.getLogger(__name__)

EVERY_SECONDS = 10.0
"""Between two lines of one kind about one upstream."""

_EVENT = {"fields": {"event": "upstream"}}


class FailureLog:
    """A line for each failed request to one upstream, at most one of a kind in some seconds."""

    def __init__(self, name: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._name, self._clock = name, clock
        self._last: dict[Reason, float] = {}
        self._suppressed: dict[Reason, int] = {}

    def note(self, error: UpstreamError) -> None:
        """Log a request that failed."""
        self._warn(error.reason, error.detail or error.message)

    def note_status(self, status: int) -> None:
        """Log a reply with a server error."""
        self._warn(Reason.UPSTREAM_STATUS, f"it answered with status {status}")

    def _warn(self, reason: Reason, what: str) -> None:
        now = self._clock()
        if (last := self._last.get(reason)) is not None and now - last < EVERY_SECONDS:
            self._suppressed[reason] = self._suppressed.get(reason, 0) + 1
            return
        self._last[reason] = now
        suppressed = self._suppressed.pop(reason, 0)
        more = f" ({suppressed} more since the last line)" if suppressed else ""
        log.warning("upstream %s: %s%s", self._name, what, more, extra=_EVENT)
