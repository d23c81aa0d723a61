"""How many requests may be sent in any one minute: exact, over a window that slides."""

from collections import deque

MINUTE = 60.0


class Rate:
    """At most ``most`` sends in any minute; ``now`` never goes back."""

    def __init__(self, most: int) -> None:
        self._sent: deque[float] = deque(maxlen=most)
        self._most = most

    def free_at(self, now: float) -> float:
        """Return when the next may be sent, ``now`` if at once."""
        if len(self._sent) < self._most:
            return now
        return max(now, self._sent[0] + MINUTE)

    def take(self, now: float) -> None:
        """Note one that is sent."""
        self._sent.append(now)
