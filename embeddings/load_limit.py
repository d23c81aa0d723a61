"""How many searches may be under way, so that none waits long for the encoder.

The limit rises by one for each round of searches that waited little, and falls by a fifth after one
that waited long: additive increase and multiplicative decrease, as in TCP (Chiu and Jain 1989).
Before the first such fall it doubles with each round, as in TCP's slow start.
As in CoDel (RFC 8289), the time in the queue counts, and not its length. So several gateway
processes in front of one service share it fairly, and none has to know the others. Pure.
"""

from typing import Final

MOST: Final = 192.0
LEAST: Final = 2.0
FIRST: Final = 16.0
_DECREASE: Final = 0.8


class LoadLimit:
    """The searches of one client. ``most_seconds``: a search that waited longer waited long."""

    def __init__(self, most_seconds: float) -> None:
        self.under_way = 0
        self._most_seconds = most_seconds
        self._limit = FIRST
        self._doubles_below = float("inf")
        self._same_round = 0
        """Searches still under way that began before the limit fell: they met the same queue."""

    def begin(self) -> bool:
        """Count a search, unless as many are under way as may be; tell whether it may begin."""
        if self.under_way >= self._limit:
            return False
        self.under_way += 1
        return True

    def end(self, waited: float | None) -> None:
        """Note the end of a search that waited so many seconds; None if that is not known."""
        was_full = self.under_way + 1 > self._limit
        self.under_way -= 1
        if self._same_round > 0:
            self._same_round -= 1
        elif waited is not None and waited > self._most_seconds:
            self._doubles_below = self._limit = max(LEAST, self._limit * _DECREASE)
            self._same_round = self.under_way
        if waited is not None and waited <= self._most_seconds and was_full:
            more = 1.0 if self._limit < self._doubles_below else 1.0 / self._limit
            self._limit = min(MOST, self._limit + more)
