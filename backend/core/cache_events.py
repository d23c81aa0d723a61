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


class EventLog:
    """The latest events, until their owner takes them."""

    def __init__(self, limit: int) -> None:
        """Keep ``limit`` events; the oldest make room for new ones."""
        self._events: deque[CacheEvent] = deque(maxlen=limit)
        self._total = 0

    def append(self, event: CacheEvent) -> None:
        """Add the next event."""
        self._events.append(event)
        self._total += 1

    def take(self) -> EventBatch:
        """Return what gathered since the last call."""
        batch = EventBatch(self._total - len(self._events), tuple(self._events))
        self._events.clear()
        return batch
