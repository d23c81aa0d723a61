"""Eviction: S3-FIFO, by bytes.

A new entry begins in a small queue. If it is used there, it moves to the main queue when its turn
to leave comes. If not, it is evicted, and its key is remembered as a ghost: should the key return
soon, its entry goes to the main queue at once. In the main queue each use is worth one more round.
So entries of a scan pass through the small queue and leave the used ones alone, and a hit changes
only a counter. An entry that saves far more tokens per byte than others begins with one round.

Source: Yang, Zhang, Qiu, Yue, Rashmi: "FIFO queues are all you need for cache eviction", SOSP 2023.
"""

from collections import OrderedDict
from collections.abc import Iterator

SMALL_SHARE = 3
"""The small queue has one byte in so many.

The paper's tenth is better on Zipf traces by a point and worse than LRU on conversations, whose
reuse is soon or never; a third is better than LRU on both (benchmarks/eviction.py).
"""

MOST_USES = 3
"""More uses do not count: an entry that was hot long ago must leave in the end."""

DEAR = 2.0
"""An entry that saves so many times the mean of tokens per byte begins with a round."""

_MEAN_OVER = 10_000
"""The mean is of about so many entries."""


class Rounds:
    """Tells which entries save far more tokens per byte than the mean of the latest ones."""

    def __init__(self) -> None:
        self._seen = 0
        self._mean = 0.0

    def of(self, size: int, tokens: int) -> int:
        """Return the rounds with which an entry begins: 1 or 0."""
        density = tokens / max(1, size)
        dear = density > DEAR * self._mean > 0
        self._seen += 1
        self._mean += (density - self._mean) / min(self._seen, _MEAN_OVER)
        return 1 if dear else 0


class Slot:
    """The size and the uses of one entry."""

    __slots__ = ("size", "uses")

    def __init__(self, size: int, uses: int) -> None:
        self.size = size
        self.uses = uses


class S3Fifo:
    """The keys and sizes of the stored entries. ``bytes`` never exceeds ``max_bytes``."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.bytes = 0
        self._small_bytes = 0
        self._ghost_bytes = 0
        # First in, first out.
        self._small: OrderedDict[bytes, Slot] = OrderedDict()
        self._main: OrderedDict[bytes, Slot] = OrderedDict()
        self._ghosts: OrderedDict[bytes, int] = OrderedDict()
        self._rounds = Rounds()

    def __len__(self) -> int:
        return len(self._small) + len(self._main)

    def use(self, key: bytes) -> None:
        """Note a use of an entry, if there is one."""
        slot = self._small.get(key) or self._main.get(key)
        if slot is not None and slot.uses < MOST_USES:
            slot.uses += 1

    def add(self, key: bytes, size: int, tokens: int = 0) -> Iterator[bytes]:
        """Add a new key, of at most ``max_bytes``; yield the keys that are evicted for it.

        A hit saves ``tokens``. The key is there only when the iterator is exhausted.
        """
        returning = self._forget_ghost(key)
        while self.bytes + size > self.max_bytes:
            evicted = self._evict()
            if evicted is not None:
                yield evicted
        self.bytes += size
        slot = Slot(size, self._rounds.of(size, tokens))
        if returning:
            self._main[key] = slot
        else:
            self._small[key] = slot
            self._small_bytes += size

    def remove(self, key: bytes) -> int | None:
        """Forget a key; return its size, or None if it was not there."""
        slot = self._small.pop(key, None)
        if slot is not None:
            self._small_bytes -= slot.size
        else:
            slot = self._main.pop(key, None)
        if slot is None:
            return None
        self.bytes -= slot.size
        return slot.size

    def _evict(self) -> bytes | None:
        """Take one step: evict a key, or give the one whose turn it is another round."""
        small = self._small_bytes * SMALL_SHARE > self.max_bytes or not self._main
        key, slot = (self._small if small else self._main).popitem(last=False)
        if small:
            self._small_bytes -= slot.size
        if slot.uses:
            slot.uses = 0 if small else slot.uses - 1
            self._main[key] = slot
            return None
        self.bytes -= slot.size
        if small:
            self._ghosts[key] = slot.size
            self._ghost_bytes += slot.size
            while self._ghost_bytes > self.max_bytes:
                self._forget_ghost(next(iter(self._ghosts)))
        return key

    def _forget_ghost(self, key: bytes) -> bool:
        size = self._ghosts.pop(key, None)
        self._ghost_bytes -= size or 0
        return size is not None
