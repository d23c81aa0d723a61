"""What a router learns of the prefix cache: which blocks can be found, and which no longer.

Events carry block hashes and counts, never tokens. A hash gives the text away to nobody; a router
that knows the text, the model and the salt can compute it.

Laws of the feed, which is numbered changes and a snapshot to begin with:
- Numbers ascend without a gap for as long as the feed lives. A reader that has applied all changes
  up to a number knows exactly what the feed knew then.
- What is not certain is forgotten, never guessed. After lost events or a new engine the feed says
  that nothing can be found; what is cached from then on can.
- Only the latest changes are kept. A reader that is further behind begins again with a snapshot.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice


@dataclass(frozen=True, slots=True)
class BlocksStored:
    """Blocks that can be found from now on, a chain that continues after ``parent``.

    ``adapter`` 0 is the base model.
    """

    parent: bytes
    digests: tuple[bytes, ...]
    num_tokens: int
    adapter: int = 0


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

    def take(self) -> list[EventBatch]:
        """Return what gathered since the last call, if anything did.

        After ``start_over`` an empty batch that begins with 0 comes first.
        """
        batches = [NOTHING_CACHED] if self._began_anew else []
        self._began_anew = False
        if self._events:
            batches.append(EventBatch(self._total - len(self._events), tuple(self._events)))
            self._events.clear()
        return batches


@dataclass(frozen=True, slots=True)
class Cleared:
    """Nothing can be found any more."""


Change = BlocksStored | BlockRemoved | Cleared

Blocks = tuple[tuple[bytes, bytes], ...]
"""Digests with their parents."""


@dataclass(frozen=True, slots=True)
class Numbered:
    """A change and its number, the first of which is 1."""

    sequence: int
    change: Change


class CacheFeed:
    """What is known, and the latest changes; not thread-safe."""

    def __init__(self, limit: int) -> None:
        """Keep ``limit`` changes."""
        self._changes: deque[Numbered] = deque(maxlen=limit)
        self._parents: dict[bytes, bytes] = {}
        self._expected = 0
        self.sequence = 0
        """The number of the latest change, 0 before the first."""

    def apply(self, batch: EventBatch) -> None:
        """Take in what the engine reports."""
        if batch.first != self._expected:
            # Events were lost, or another engine begins to count.
            self._add(Cleared())
        self._expected = batch.first + len(batch.events)
        for event in batch.events:
            if not isinstance(event, BlockRemoved) or event.digest in self._parents:
                self._add(event)  # others are of blocks that were forgotten already

    def since(self, sequence: int) -> tuple[Numbered, ...] | None:
        """Return the changes after number ``sequence``; None when some are no longer kept."""
        missing = self.sequence - sequence
        if not 0 <= missing <= len(self._changes):
            return None
        return tuple(islice(self._changes, len(self._changes) - missing, None))

    def snapshot(self) -> Blocks:
        """Return all blocks that can be found after the latest change."""
        return tuple(self._parents.items())

    def _add(self, change: Change) -> None:
        self.sequence += 1
        self._changes.append(Numbered(self.sequence, change))
        match change:
            case BlocksStored(parent, digests):
                for digest in digests:
                    self._parents[digest] = parent
                    parent = digest
            case BlockRemoved(digest):
                del self._parents[digest]
            case Cleared():
                self._parents.clear()


def parts(blocks: Blocks, size: int) -> Iterator[Blocks]:
    """Yield ``blocks``, at most ``size`` at a time; one empty part when there are none."""
    for start in range(0, max(len(blocks), 1), size):
        yield blocks[start : start + size]
