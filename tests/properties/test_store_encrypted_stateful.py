"""Encrypted entries under random puts, rotations and forgetting by two gateways on one store.

Whatever happens, a get is the entry last put under its key or nothing; what was forgotten is found
by nobody once the time is over for which others know a key; and while nothing is forgotten
everything is found.
"""

import asyncio
import base64
from dataclasses import replace

from examples import some
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from gateway.cache.stores.conformance import example_entry
from gateway.cache.stores.encrypted import KNOWN_SECONDS, SealedStore, parse_master_keys
from gateway.cache.stores.memory import MemoryStore

MASTERS = [f"k{n}:{base64.b64encode(bytes([n]) * 32).decode()}" for n in range(3)]
KEYS = [b"0", b"1", b"2", b"3"]
SCOPES = [b"a", b"b"]

gateways = st.integers(0, 1)


class SharedKeys:
    """The fake at the port of scope keys."""

    def __init__(self):
        self.there = {}

    async def find(self, tag, master):
        return self.there.get((tag, master))

    async def ensure(self, tag, master, proposed, until):
        return self.there.setdefault((tag, master), proposed)

    async def forget(self, tag):
        self.there = {name: key for name, key in self.there.items() if name[0] != tag}

    async def close(self):
        pass


class SealedStores(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.now = 1_800_000_000.0
        self.inner, self.keys = MemoryStore(max_bytes=1 << 24), SharedKeys()
        self.first = [0, 0]
        self.stores = [self.opened(0), self.opened(0)]
        self.last = {}
        self.puts = 0
        # Entries that were put before their scope was forgotten, and those that may have been
        # sealed with a key that was forgotten elsewhere a moment ago.
        self.forgotten = {}
        self.doubtful = set()
        self.forgetting = dict.fromkeys(SCOPES, float("-inf"))

    def opened(self, first):
        order = [MASTERS[first], *(each for each in MASTERS if each != MASTERS[first])]
        masters = parse_master_keys(",".join(order))
        return SealedStore(self.inner, masters, self.keys, clock=lambda: self.now)

    def run(self, work):
        return self.loop.run_until_complete(work)

    @rule(gateway=gateways, key=st.sampled_from(KEYS), scope=st.sampled_from(SCOPES))
    def put(self, gateway, key, scope):
        self.puts += 1
        entry = replace(example_entry(key, b"%d" % self.puts), scope=scope)
        self.run(self.stores[gateway].put(entry))
        self.last[key] = entry
        self.forgotten.pop(key, None)
        self.doubtful.discard(key)
        if self.now - self.forgetting[scope] < KNOWN_SECONDS:
            self.doubtful.add(key)

    @rule(gateway=gateways, scope=st.sampled_from(SCOPES))
    def forget(self, gateway, scope):
        self.run(self.stores[gateway].forget(scope))
        self.forgetting[scope] = self.now
        for key, entry in self.last.items():
            if entry.scope == scope:
                self.forgotten[key] = gateway

    @rule(seconds=st.sampled_from([1.0, KNOWN_SECONDS]))
    def wait(self, seconds):
        self.now += seconds

    @rule(gateway=gateways, first=st.integers(0, len(MASTERS) - 1))
    def restart_with_another_first_key(self, gateway, first):
        self.stores[gateway] = self.opened(first)

    @rule(gateway=gateways, key=st.sampled_from(KEYS))
    def get(self, gateway, key):
        found = self.run(self.stores[gateway].get(key))
        entry = self.last.get(key)
        if found is not None:
            assert found == entry
            if key in self.forgotten:
                # Only the other gateway, and only as long as it may know the key.
                assert self.now - self.forgetting[found.scope] < KNOWN_SECONDS
                assert self.forgotten[key] != gateway
        elif entry is not None:
            assert key in self.forgotten or key in self.doubtful
            # A damaged or forgotten entry is deleted by whoever meets it.
            del self.last[key]
            self.forgotten.pop(key, None)

    @invariant()
    def nothing_is_in_clear(self):
        for entry in self.run(self.inner.walk(None, 100)).entries:
            assert (entry.question, entry.scope, entry.model) == (None, b"", "")

    def teardown(self):
        self.loop.close()


TestSealedStores = SealedStores.TestCase
TestSealedStores.settings = settings(max_examples=some(50))
