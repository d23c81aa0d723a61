"""The table of the upstream calls that identical requests may join.

Laws:
- Under one slot at most one flight can be joined, so identical misses that may follow make one
  call. A flight without readers is cancelled at once, unless its answer is complete: throwing that
  away would save nothing.
- The table knows no answers and does no I/O; ``now`` is an argument.
"""

from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

from gateway.upstream.sharing.answer_log import LogMemory


class Flight:
    """One upstream call, from its beginning until it can no longer be joined.

    ``slot`` is what its followers share with it, None if it has none. An ``attended`` one is
    there for its readers and ends with the last of them.
    """

    complete = False
    """Whether the upstream has sent all of the answer."""
    landed_at: float | None = None
    """Since when a lookup finds the entry, if there is one."""
    held_bytes = 0

    def __init__(self, slot: Hashable | None, *, attended: bool = True) -> None:
        self.slot = slot
        self.attended = attended
        self.reading = 1 if attended else 0
        """Number of readers of the answer, with the leader."""


F = TypeVar("F", bound=Flight)


class FlightTable(Generic[F]):
    """All flights that can be joined, by slot.

    A flight that landed stays joinable for ``linger`` seconds, but only for requests that came
    before it landed: they looked for the entry too early to find it. If no request is looking for
    an entry, the flight ends at once. ``linger_bytes`` bounds what such flights hold, and
    ``log_bytes`` what those under way keep for requests that join.
    """

    def __init__(self, *, linger: float, linger_bytes: int, log_bytes: int = 64 * 2**20) -> None:
        self._linger, self._linger_bytes = linger, linger_bytes
        self.memory = LogMemory(log_bytes)
        self.looking = 0
        """Number of requests that are looked up, and have joined no flight yet."""
        self._joinable: dict[Hashable, F] = {}
        self.landed: OrderedDict[F, None] = OrderedDict()
        self._landed_bytes = 0

    def lead(self, flight: F) -> None:
        """Begin a flight. It takes its slot over: the next request follows the newest call."""
        if flight.slot is None:
            return
        if (before := self._joinable.get(flight.slot)) is not None:
            self.close(before)
        self._joinable[flight.slot] = flight

    def follow(self, slot: Hashable, *, most: int, since: float) -> F | None:
        """Join the flight under ``slot``, or return None if the caller must lead one.

        ``most`` bounds the readers beside the leader; ``since`` is when the request came.
        """
        flight = self._joinable.get(slot)
        if flight is None or flight.reading > most:
            return None
        if flight.landed_at is not None and flight.landed_at < since:
            return None
        flight.reading += 1
        return flight

    def under_way(self, slot: Hashable) -> F | None:
        """Return the flight under this slot that has yet to land."""
        flight = self._joinable.get(slot)
        return flight if flight is not None and flight.landed_at is None else None

    def leave(self, flight: F) -> bool:
        """Take one reader away; tell whether the call must now be cancelled."""
        flight.reading -= 1
        if flight.reading or flight.complete or not flight.attended:
            return False
        self.close(flight)
        return True

    def close(self, flight: F) -> None:
        """Let no more readers join; those there go on. Doing it again does nothing."""
        if flight.slot is not None and self._joinable.get(flight.slot) is flight:
            del self._joinable[flight.slot]
        if flight in self.landed:
            del self.landed[flight]
            self._landed_bytes -= flight.held_bytes

    def land(self, flight: F, *, size: int, now: float) -> None:
        """Note that the whole answer, of ``size`` bytes, is there and the entry can be hit."""
        flight.complete = True
        if flight.landed_at is not None:
            return
        flight.landed_at = now
        if flight.slot is None or self._joinable.get(flight.slot) is not flight:
            return
        if not self.looking:
            del self._joinable[flight.slot]
            return
        flight.held_bytes = size
        self.landed[flight] = None
        self._landed_bytes += size
        while self._landed_bytes > self._linger_bytes:
            self.close(next(iter(self.landed)))

    def forget(self, now: float) -> float | None:
        """Close what landed too long ago; return when to do so again, None if nothing lingers."""
        while self.landed:
            flight = next(iter(self.landed))
            until = (flight.landed_at or 0.0) + self._linger
            if until > now:
                return until
            self.close(flight)
        return None
