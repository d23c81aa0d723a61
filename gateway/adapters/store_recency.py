"""When entries were last used: kept in memory, so that a hit never writes."""

import threading
from collections.abc import Callable

MAX_KEYS = 65_536


class Recency:
    """Uses not yet written down, stamped in an order that even a frozen clock keeps.

    Touched by the loop, taken by the writer's thread.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._uses: dict[bytes, int] = {}
        self._last = 0

    def __len__(self) -> int:
        return len(self._uses)

    def stamp(self) -> int:
        """Return the time in microseconds, later than every stamp before it."""
        now = int(self._clock() * 1_000_000)
        with self._lock:
            self._last = max(self._last + 1, now)
            return self._last

    def touch(self, key: bytes) -> None:
        """Note a use. With MAX_KEYS of them unwritten, uses of other keys are not noted."""
        # On the path of every hot hit, hence without a call for the stamp.
        now = int(self._clock() * 1_000_000)
        with self._lock:
            self._last = now = now if now > self._last else self._last + 1
            uses = self._uses
            if key in uses or len(uses) < MAX_KEYS:
                uses[key] = now

    def pop(self, key: bytes) -> int | None:
        """Return and forget the key's last use."""
        with self._lock:
            return self._uses.pop(key, None)

    def take(self) -> dict[bytes, int]:
        """Return and forget the last use of every key."""
        with self._lock:
            uses, self._uses = self._uses, {}
            return uses
