"""What a router wants to know of the prefix cache: which blocks can be found, and which no longer.

Events carry digests and counts, never tokens: a digest cannot be turned into the text, and whoever
knows the text, the model and the salt can make the digest.
"""

from collections import deque
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BlocksStored:
    """Blocks that can be found from now on, a chain that continues after ``parent``."""

    parent: bytes
    digests: tuple[bytes, ...]
    num_tokens: int


@dataclass(frozen=True, slots=True)
class BlockRemoved:
    """A block that can no longer be found."""

    digest: bytes


CacheEvent = BlocksStored | BlockRemoved


@dataclass(frozen=True, slots=True)
class EventBatch:
    """Events in order; ``first`` is the number of the first one.

    Numbers have no gaps, so a reader that finds one has missed what was dropped in it.
    """

    first: int
    events: tuple[CacheEvent, ...]


NOTHING_CACHED = EventBatch(0, ())
"""Says that the numbers begin again, and the cache is empty."""


class EventLog:
    """The latest events, until their owner takes them."""

    def __init__(self, limit: int) -> None:
        """Keep ``limit`` events; the oldest make room for new ones."""
        self._events: deque[CacheEvent] = deque(maxlen=limit)
        self._total = 0
        self._began_anew = False

    def append(self, event: CacheEvent) -> None:
        """Add the next event."""
        self._events.append(event)
        self._total += 1

    def start_over(self) -> None:
        """Forget everything: the cache is empty, and numbers begin again with 0."""
        self._events.clear()
        self._total = 0
        self._began_anew = True

    def take_batches(self) -> list[EventBatch]:
        """Return what gathered since the last call, if anything did.

        After ``start_over`` an empty batch that begins with 0 comes first.
        """
        batches = [NOTHING_CACHED] if self._began_anew else []
        self._began_anew = False
        if self._events:
            batches.append(self.take())
        return batches

    def take(self) -> EventBatch:
        """Return what gathered since the last call."""
        batch = EventBatch(self._total - len(self._events), tuple(self._events))
        self._events.clear()
        return batch
