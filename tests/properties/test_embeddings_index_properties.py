"""The index against the plainest model there is: a dictionary searched by brute force."""

import numpy as np
from examples import some
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from embeddings.index.flat import Place
from embeddings.index.partition import FLAT_VECTORS, MemoryIndex

DIMENSIONS = 3
MAX_VECTORS = 24
# What a 16-bit float may be off, see the port.
SLACK = 5e-4
PARTITIONS = st.sampled_from([b"p", b"q", b"r"])
KEYS = st.sampled_from([b"%d" % number for number in range(40)])


def unit(seed: int) -> np.ndarray:
    vector = np.random.default_rng(seed).standard_normal(DIMENSIONS)
    return (vector / np.linalg.norm(vector)).astype(np.float32)


class IndexMachine(RuleBasedStateMachine):
    flat_vectors: int

    def __init__(self) -> None:
        super().__init__()
        self.index = MemoryIndex(DIMENSIONS, MAX_VECTORS, self.flat_vectors)
        self.model: dict[bytes, tuple[bytes, np.ndarray, float]] = {}
        self.now = 0.0

    @rule(partition=PARTITIONS, key=KEYS, seed=st.integers(0, 10**6), life=st.integers(1, 50))
    def add(self, partition, key, seed, life):
        self.forget_expired_if_dropped()
        evicted = self.index.add(partition, key, unit(seed), self.now + life)
        self.model.pop(key, None)
        self.model[key] = (partition, unit(seed), self.now + life)
        for gone in evicted:
            assert gone == next(iter(self.model))
            del self.model[gone]

    @rule(key=KEYS)
    def remove(self, key):
        self.forget_expired_if_dropped()
        assert self.index.remove(key) == (self.model.pop(key, None) is not None)

    @rule(seconds=st.integers(0, 30))
    def wait(self, seconds):
        self.now += seconds

    @rule(limit=st.integers(1, 5))
    def sweep(self, limit):
        for key in self.index.sweep(self.now, limit):
            assert self.model.pop(key)[2] <= self.now

    @rule(steps=st.integers(1, 30))
    def build(self, steps):
        """What is built changes nothing that can be seen."""
        for _ in range(steps):
            self.index.build()

    @rule()
    def restart(self):
        """What is read back all at once is what was put in one by one."""
        self.forget_expired_if_dropped()
        self.index = MemoryIndex(DIMENSIONS, MAX_VECTORS, self.flat_vectors)
        places = [Place(key, where, until) for key, (where, _, until) in self.model.items()]
        rows = np.array([row for _, row, _ in self.model.values()]).reshape(-1, DIMENSIONS)
        assert self.index.add_all(places, rows.astype(np.float32)) == []

    @rule(partition=PARTITIONS, seed=st.integers(0, 10**6), k=st.integers(1, 30))
    def search(self, partition, seed, k):
        found = self.index.search(partition, unit(seed), k, self.now)
        live = {
            key: float(vector @ unit(seed))
            for key, (where, vector, expires_at) in self.model.items()
            if where == partition and self.now < expires_at
        }
        best = sorted(live.values(), reverse=True)[:k]
        assert np.allclose([match.similarity for match in found], best, atol=SLACK)
        assert len({match.key for match in found}) == len(found)
        for match in found:
            assert abs(live[match.key] - match.similarity) < SLACK

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def a_stored_vector_is_its_own_nearest(self, data):
        key = data.draw(st.sampled_from(sorted(self.model)))
        partition, vector, expires_at = self.model[key]
        if self.now < expires_at:
            nearest = self.index.search(partition, vector, 1, self.now)[0]
            assert nearest.similarity > 1 - SLACK

    @invariant()
    def the_bound_holds(self):
        assert len(self.index) <= MAX_VECTORS
        assert len(self.index) <= len(self.model)

    def forget_expired_if_dropped(self):
        """A search drops expired vectors when it meets them; the model follows."""
        for key in self.index.sweep(self.now, 100):
            del self.model[key]
        for key, (_, _, expires_at) in list(self.model.items()):
            if expires_at <= self.now:
                del self.model[key]


class SmallPartitions(IndexMachine):
    flat_vectors = FLAT_VECTORS


class LargePartitions(IndexMachine):
    """So small that each partition goes back and forth over the switch."""

    flat_vectors = 3


SmallPartitions.TestCase.settings = settings(max_examples=some(30), stateful_step_count=40)
LargePartitions.TestCase.settings = settings(max_examples=some(60), stateful_step_count=60)
TestSmallPartitions = SmallPartitions.TestCase
TestLargePartitions = LargePartitions.TestCase
