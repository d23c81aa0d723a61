"""What goes when a store is full: S3-FIFO, by bytes.

A new entry stands in a small queue on probation. Used there, it moves to the main queue when its
turn to leave comes; unused, it goes, and its key is remembered as a ghost: should it come back
soon, it goes to the main queue at once. In the main queue each use is worth one more round. So a
scan of things asked once passes through the small queue and leaves what is asked again alone, and
a hit changes nothing but a counter. What saves far more tokens per byte than others starts with one
round of its own.

Source: Yang, Zhang, Qiu, Yue, Rashmi: "FIFO queues are all you need for cache eviction", SOSP 2023.
"""

from collections import OrderedDict
from collections.abc import Iterator

SMALL_SHARE = 3
"""The small queue's share is one in so many bytes.

The paper's tenth is better on Zipf traces by a point and worse than LRU on conversations, whose
reuse is soon or never; a third is better than LRU on both (benchmarks/eviction.py).
"""

MOST_USES = 3
"""More uses than this are not counted: an entry hot long ago must go at last."""


DEAR = 2.0
"""What saves so many times the mean of tokens per byte is worth a round."""

_MEAN_OVER = 10_000
"""Entries over which the mean runs, about."""


class Rounds:
    """Tells what saves far more tokens per byte than the mean of what came lately."""

    def __init__(self) -> None:
        self._seen = 0
        self._mean = 0.0

    def of(self, size: int, tokens: int) -> int:
        """Return the rounds that an entry starts with: 1 when it is dear, else 0."""
        density = tokens / max(1, size)
        dear = density > DEAR * self._mean > 0
        self._seen += 1
        self._mean += (density - self._mean) / min(self._seen, _MEAN_OVER)
        return 1 if dear else 0


class Slot:
    """What is known of one entry."""

    __slots__ = ("size", "uses")

    def __init__(self, size: int, uses: int) -> None:
        self.size = size
        self.uses = uses


class S3Fifo:
    """Keys and sizes of what is stored; owns no entries. ``bytes`` never exceeds ``max_bytes``."""

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
        """Note a use of an entry, if it is there."""
        slot = self._small.get(key) or self._main.get(key)
        if slot is not None and slot.uses < MOST_USES:
            slot.uses += 1

    def add(self, key: bytes, size: int, tokens: int = 0) -> Iterator[bytes]:
        """Take in a key that is not there, of at most ``max_bytes``; yield the keys that must go.

        ``tokens`` is what a hit saves. To be exhausted: the key is there once all were yielded.
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
        """Forget a key; return its size, None when it was not there."""
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
        if self._small_bytes * SMALL_SHARE > self.max_bytes or not self._main:
            return self._leave_small()
        return self._leave_main()

    def _leave_small(self) -> bytes | None:
        key, slot = self._small.popitem(last=False)
        self._small_bytes -= slot.size
        if slot.uses:
            slot.uses = 0
            self._main[key] = slot
            return None
        self.bytes -= slot.size
        self._ghosts[key] = slot.size
        self._ghost_bytes += slot.size
        while self._ghost_bytes > self.max_bytes:
            _, size = self._ghosts.popitem(last=False)
            self._ghost_bytes -= size
        return key

    def _leave_main(self) -> bytes | None:
        key, slot = self._main.popitem(last=False)
        if slot.uses:
            slot.uses -= 1
            self._main[key] = slot
            return None
        self.bytes -= slot.size
        return key

    def _forget_ghost(self, key: bytes) -> bool:
        size = self._ghosts.pop(key, None)
        if size is None:
            return False
        self._ghost_bytes -= size
        return True
