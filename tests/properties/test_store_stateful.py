"""Stores against plain models, over random histories of use, eviction and restart."""

import asyncio
import tempfile
from pathlib import Path

from examples import some
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from gateway.cache.ports import EntryTooLargeError
from gateway.cache.stores.conformance import example_entry
from gateway.cache.stores.entry_codec import encoded_size
from gateway.cache.stores.memory import MemoryStore, S3Fifo, resident_size
from gateway.cache.stores.sqlite.store import SqliteStore
from gateway.cache.stores.tiered import TieredStore

MAX_BYTES = 24_000
SHARE = MAX_BYTES // 8
PATIENT = {"read_seconds": 30, "write_seconds": 30}

keys = st.integers(0, 15).map(lambda n: b"%d" % n)
sizes = st.integers(0, SHARE)


class Model:
    """What a store bounded to MAX_BYTES that evicts by S3-FIFO must hold."""

    def __init__(self, charge):
        self.charge = charge
        self.entries = {}
        self.evictions = 0
        self.eviction = S3Fifo(MAX_BYTES)

    @property
    def bytes(self):
        return sum(map(self.charge, self.entries.values()))

    def get(self, key):
        self.eviction.use(key)
        return self.entries.get(key)

    def put(self, entry):
        self.delete(entry.key)
        for evicted in self.eviction.add(entry.key, self.charge(entry)):
            del self.entries[evicted]
            self.evictions += 1
        self.entries[entry.key] = entry

    def delete(self, key):
        if self.entries.pop(key, None):
            self.eviction.remove(key)


class StoreMachine(RuleBasedStateMachine):
    """Every answer and every figure is the model's."""

    charge = staticmethod(encoded_size)

    def make(self):
        raise NotImplementedError

    @initialize()
    def begin(self):
        self.runner = asyncio.Runner()
        self.folder = tempfile.TemporaryDirectory()
        self.model = Model(self.charge)
        self.evicted_before = 0
        self.store = self.make()

    @rule(key=keys, size=sizes)
    def put(self, key, size):
        entry = example_entry(key, b"x" * size)
        if self.charge(entry) > SHARE:
            try:
                self.runner.run(self.store.put(entry))
            except EntryTooLargeError:
                return
            raise AssertionError("an entry over its share was stored")
        self.runner.run(self.store.put(entry))
        self.model.put(entry)

    @rule(key=keys)
    def get(self, key):
        assert self.runner.run(self.store.get(key)) == self.model.get(key)

    @rule(key=keys)
    def get_without_use(self, key):
        found = self.runner.run(self.store.get(key, touch=False))
        assert found == self.model.entries.get(key)

    @rule(key=keys)
    def delete(self, key):
        self.runner.run(self.store.delete(key))
        self.model.delete(key)

    @invariant()
    def figures_agree(self):
        if hasattr(self, "store"):
            stats = self.store.stats()
            assert stats.entries == len(self.model.entries)
            assert stats.bytes == self.model.bytes <= MAX_BYTES
            assert stats.evictions + self.evicted_before == self.model.evictions

    def teardown(self):
        if hasattr(self, "store"):
            self.runner.run(self.store.close())
            self.runner.close()
            self.folder.cleanup()


class MemoryMachine(StoreMachine):
    charge = staticmethod(resident_size)

    def make(self):
        return MemoryStore(max_bytes=MAX_BYTES)


class SqliteMachine(StoreMachine):
    def make(self):
        path = Path(self.folder.name) / "entries.sqlite3"
        # A clock that stands still: the order of uses must not depend on it.
        return SqliteStore(path, max_bytes=MAX_BYTES, clock=lambda: 1000.0, **PATIENT)

    @rule()
    def restart(self):
        self.evicted_before += self.store.stats().evictions
        self.runner.run(self.store.close())
        self.store = self.make()
        # Figures are those of the latest commit: make one.
        self.runner.run(self.store.delete(b"absent"))


class FilterMachine(SqliteMachine):
    @rule(key=keys)
    def ask_the_filter(self, key):
        assert not (self.runner.run(self.lacks(key)) and key in self.model.entries)

    async def lacks(self, key):
        return self.store.lacks(key)


class TieredMachine(SqliteMachine):
    def make(self):
        cold = super().make()
        return TieredStore(MemoryStore(max_bytes=MAX_BYTES // 3), cold, cold.touch)

    @rule(key=keys)
    def get(self, key):
        # What the cold store evicted may still be hot, and then it is the entry last put.
        found = self.runner.run(self.store.get(key))
        expected = self.model.get(key)
        assert found == expected or (expected is None and found == self.last_put.get(key))

    @rule(key=keys)
    def get_without_use(self, key):
        found = self.runner.run(self.store.get(key, touch=False))
        expected = self.model.entries.get(key)
        assert found == expected or (expected is None and found == self.last_put.get(key))

    @initialize()
    def nothing_put(self):
        self.last_put = {}

    @rule(key=keys, size=sizes)
    def put(self, key, size):
        super().put(key, size)
        if key in self.model.entries:
            self.last_put[key] = self.model.entries[key]

    @rule(key=keys)
    def delete(self, key):
        super().delete(key)
        self.last_put.pop(key, None)


TestMemory = MemoryMachine.TestCase
TestMemory.settings = settings(max_examples=some(60), stateful_step_count=60, deadline=None)
TestSqlite = SqliteMachine.TestCase
TestSqlite.settings = settings(max_examples=some(25), stateful_step_count=60, deadline=None)
TestFilter = FilterMachine.TestCase
TestFilter.settings = settings(max_examples=some(25), stateful_step_count=60, deadline=None)
TestTiered = TieredMachine.TestCase
TestTiered.settings = settings(max_examples=some(15), stateful_step_count=60, deadline=None)
