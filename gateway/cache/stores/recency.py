"""What entries were used: counted in memory, so that a hit never writes."""

import threading

from gateway.cache.stores.eviction import MOST_USES

MAX_KEYS = 65_536


class Recency:
    """Uses not yet written down.

    Touched by the loop, taken by the writer's thread.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._uses: dict[bytes, int] = {}

    def __len__(self) -> int:
        return len(self._uses)

    def touch(self, key: bytes) -> None:
        """Note a use. With MAX_KEYS of them unwritten, uses of other keys are not noted."""
        # On the path of every hot hit: a key that has all its uses is left alone, without a lock.
        if self._uses.get(key, 0) >= MOST_USES:
            return
        with self._lock:
            uses = self._uses
            if key in uses:
                uses[key] += 1
            elif len(uses) < MAX_KEYS:
                uses[key] = 1

    def pop(self, key: bytes) -> int:
        """Return the uses noted of a key, and forget them."""
        with self._lock:
            return self._uses.pop(key, 0)

    def take(self) -> dict[bytes, int]:
        """Return the uses noted of every key, and forget them."""
        with self._lock:
            uses, self._uses = self._uses, {}
            return uses
