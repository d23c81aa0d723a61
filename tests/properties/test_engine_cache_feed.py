"""A reader of the feed knows what the cache can find, however it reads, and after every fault."""

from hypothesis import given
from hypothesis import strategies as st

from backend.scheduler.cache_events import (
    NOTHING_CACHED,
    BlockRemoved,
    BlocksStored,
    CacheFeed,
    Cleared,
    EventBatch,
    parts,
)

ROOT = b"root"


class Reader:
    """Applies what it is told, as a router would."""

    def __init__(self):
        self.position = None
        self.blocks = {}

    def read(self, feed):
        changes = None if self.position is None else feed.since(self.position)
        if changes is None:
            snapshot = feed.snapshot()
            self.blocks = {digest: parent for part in parts(snapshot, 3) for digest, parent in part}
            self.position = feed.sequence
            return
        for numbered in changes:
            assert numbered.sequence == self.position + 1
            self.position = numbered.sequence
            self.apply(numbered.change)

    def apply(self, change):
        match change:
            case BlocksStored(parent, digests):
                for digest in digests:
                    self.blocks[digest] = parent
                    parent = digest
            case BlockRemoved(digest):
                del self.blocks[digest]
            case Cleared():
                self.blocks = {}


class Cache:
    """What an engine has, and the events that say so."""

    def __init__(self):
        self.blocks = {}
        self.told = 0

    def batch(self, *events):
        first = self.told
        self.told += len(events)
        return EventBatch(first, events)

    def store(self, chain):
        parent = ROOT
        for number in range(len(chain)):
            digest = bytes(chain[: number + 1])
            new, self.blocks[digest] = digest not in self.blocks, parent
            if new:
                yield BlocksStored(parent, (digest,), 16)
            parent = digest

    def remove(self, chain):
        if bytes(chain) in self.blocks:
            del self.blocks[bytes(chain)]
            yield BlockRemoved(bytes(chain))


CHAINS = st.lists(st.integers(0, 2), min_size=1, max_size=3)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("store"), CHAINS),
        st.tuples(st.just("remove"), CHAINS),
        st.tuples(st.sampled_from(["restart", "lose", "read", "silence"]), st.none()),
    ),
    max_size=60,
)


@given(STEPS, st.integers(1, 20))
def test_a_reader_never_believes_what_cannot_be_found(steps, limit):
    feed, cache, reader = CacheFeed(limit), Cache(), Reader()
    for what, chain in steps:
        if what == "store":
            feed.apply(cache.batch(*cache.store(chain)))
        elif what == "remove":
            feed.apply(cache.batch(*cache.remove(chain)))
        elif what == "restart":
            cache = Cache()
            feed.apply(NOTHING_CACHED)
        elif what == "lose":
            cache.told += 1
        elif what == "read":
            reader.read(feed)
            assert reader.blocks.items() == dict(feed.snapshot()).items()
        else:
            feed.apply(cache.batch())
        if what != "lose":
            assert dict(feed.snapshot()).items() <= cache.blocks.items()
    reader.read(feed)
    assert reader.blocks == dict(feed.snapshot())


@given(st.lists(CHAINS, max_size=30), st.integers(1, 50), st.integers(0, 60))
def test_changes_since_a_number_are_those_after_it_or_none_are_kept(chains, limit, number):
    feed, cache = CacheFeed(limit), Cache()
    for chain in chains:
        feed.apply(cache.batch(*cache.store(chain)))
    changes = feed.since(number)
    if number > feed.sequence or feed.sequence - number > limit:
        assert changes is None
    else:
        expected = list(range(number + 1, feed.sequence + 1))
        assert [numbered.sequence for numbered in changes] == expected


def test_a_block_that_was_forgotten_is_not_removed_again():
    feed = CacheFeed(10)
    feed.apply(EventBatch(0, (BlocksStored(ROOT, (b"one",), 16),)))
    feed.apply(EventBatch(5, (BlockRemoved(b"one"),)))
    changes = [numbered.change for numbered in feed.since(1)]
    assert changes == [Cleared()]


def test_an_empty_cache_is_one_empty_part():
    assert list(parts(CacheFeed(5).snapshot(), 3)) == [()]
