"""Eviction policies beside the shipped one, and the offline optimum, on a trace of requests.

Each takes (key, size, cost) and says whether the key was there; small and plain, for comparison.
"""

import heapq
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence

from gateway.cache.stores.memory import S3Fifo

Request = tuple[bytes, int, int]
"""Key, bytes, and what a hit saves in tokens."""

Access = Callable[[bytes, int, int], bool]


def lru(max_bytes: int) -> Access:
    kept: OrderedDict[bytes, int] = OrderedDict()
    used = 0

    def access(key: bytes, size: int, _cost: int) -> bool:
        nonlocal used
        if key in kept:
            kept.move_to_end(key)
            return True
        while used + size > max_bytes:
            used -= kept.popitem(last=False)[1]
        kept[key] = size
        used += size
        return False

    return access


def s3_fifo(max_bytes: int) -> Access:
    policy = S3Fifo(max_bytes)
    kept: set[bytes] = set()

    def access(key: bytes, size: int, _cost: int) -> bool:
        if key in kept:
            policy.use(key)
            return True
        for evicted in policy.add(key, size):
            kept.remove(evicted)
        kept.add(key)
        return False

    return access


class WTinyLfu:
    """Window of 1 %, segmented main part, admission by frequency (Einziger et al., 2017)."""

    def __init__(self, max_bytes: int) -> None:
        self._window = Segment(max_bytes // 100)
        self._probation = Segment(max_bytes)
        self._protected = Segment(max_bytes * 8 // 10)
        self._room = max_bytes - max_bytes // 100
        self._counts: Counter[bytes] = Counter()
        self._seen = 0

    def __call__(self, key: bytes, size: int, _cost: int) -> bool:
        self._note(key)
        for segment in (self._window, self._protected):
            if key in segment.keys:
                segment.keys.move_to_end(key)
                return True
        if key in self._probation.keys:
            self._protected.add(key, self._probation.pop(key))
            while self._protected.full:
                self._probation.add(*self._protected.oldest())
            return True
        self._window.add(key, size)
        while self._window.full and len(self._window.keys) > 1:
            self._admit(*self._window.oldest())
        return False

    def _note(self, key: bytes) -> None:
        self._counts[key] = min(15, self._counts[key] + 1)
        self._seen += 1
        kept = (self._window, self._probation, self._protected)
        if self._seen > 10 * max(1000, sum(len(segment.keys) for segment in kept)):
            self._seen = 0
            halved = {known: count // 2 for known, count in self._counts.items() if count > 1}
            self._counts = Counter(halved)

    def _admit(self, key: bytes, size: int) -> None:
        while self._probation.bytes + self._protected.bytes + size > self._room:
            if not self._probation.keys:
                return
            victim = next(iter(self._probation.keys))
            if self._counts[victim] >= self._counts[key]:
                return
            self._probation.pop(victim)
        self._probation.add(key, size)


class Segment:
    """A part of the cache in order of use."""

    def __init__(self, max_bytes: int) -> None:
        self.keys: OrderedDict[bytes, int] = OrderedDict()
        self.bytes = 0
        self._max_bytes = max_bytes

    @property
    def full(self) -> bool:
        return self.bytes > self._max_bytes

    def add(self, key: bytes, size: int) -> None:
        self.keys[key] = size
        self.bytes += size

    def pop(self, key: bytes) -> int:
        size = self.keys.pop(key)
        self.bytes -= size
        return size

    def oldest(self) -> tuple[bytes, int]:
        key = next(iter(self.keys))
        return key, self.pop(key)


def gdsf(max_bytes: int) -> Access:
    """Greedy dual size frequency (Cherkasova, 1998): least frequency times cost per byte goes."""
    kept: dict[bytes, tuple[float, int, int]] = {}
    heap: list[tuple[float, bytes]] = []
    used = 0
    clock = 0.0

    def access(key: bytes, size: int, cost: int) -> bool:
        nonlocal used, clock
        found = kept.get(key)
        uses = 1 if found is None else found[1] + 1
        value = clock + uses * cost / size
        if found is None:
            while used + size > max_bytes:
                priority, victim = heapq.heappop(heap)
                held = kept.get(victim)
                if held is not None and held[0] == priority:
                    del kept[victim]
                    used -= held[2]
                    clock = priority
            used += size
        kept[key] = (value, uses, size)
        heapq.heappush(heap, (value, key))
        return found is not None

    return access


def optimum(requests: Sequence[Request], max_bytes: int) -> tuple[int, int]:
    """Return hits and tokens saved when what is needed again last goes (Belady, 1966).

    The optimum for entries of one size; for others close to it, not a bound.
    """
    following: list[int] = [0] * len(requests)
    next_use: dict[bytes, int] = {}
    for at in range(len(requests) - 1, -1, -1):
        key = requests[at][0]
        following[at] = next_use.get(key, len(requests))
        next_use[key] = at
    kept: dict[bytes, int] = {}
    heap: list[tuple[int, bytes]] = []
    used = hits = tokens = 0
    for at, (key, size, cost) in enumerate(requests):
        if key in kept:
            hits += 1
            tokens += cost
        elif following[at] == len(requests):
            continue  # never again: not worth a place
        else:
            kept[key] = size
            used += size
        heapq.heappush(heap, (-following[at], key))
        next_use[key] = following[at]
        if following[at] == len(requests):
            used -= kept.pop(key)
        while used > max_bytes:
            when, victim = heapq.heappop(heap)
            if victim in kept and next_use[victim] == -when:
                used -= kept.pop(victim)
    return hits, tokens
