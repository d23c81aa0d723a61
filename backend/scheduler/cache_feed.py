"""The prefix cache as a router sees it: numbered changes, and a snapshot to begin with.

Laws:
- Numbers ascend without a gap for as long as the feed lives. Who has applied all changes up to a
  number knows exactly what the feed knew then.
- Whatever is not certain is forgotten, never guessed: after lost events or a new engine the feed
  says that nothing can be found, and what is published from then on can.
- Only the latest changes are kept. Who is further behind begins again with a snapshot.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from backend.scheduler.cache_events import BlockRemoved, BlocksStored, EventBatch


@dataclass(frozen=True, slots=True)
class Cleared:
    """Nothing can be found any more."""


Change = BlocksStored | BlockRemoved | Cleared


@dataclass(frozen=True, slots=True)
class Numbered:
    """A change and its number, the first of which is 1."""

    sequence: int
    change: Change


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All blocks that could be found after change ``sequence``: digests with their parents."""

    sequence: int
    blocks: tuple[tuple[bytes, bytes], ...]


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

    def snapshot(self) -> Snapshot:
        """Return what can be found now."""
        return Snapshot(self.sequence, tuple(self._parents.items()))

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


def parts(snapshot: Snapshot, size: int) -> Iterator[tuple[tuple[bytes, bytes], ...]]:
    """Yield a snapshot's blocks, at most ``size`` at a time; one empty part when there are none."""
    for start in range(0, max(len(snapshot.blocks), 1), size):
        yield snapshot.blocks[start : start + size]
