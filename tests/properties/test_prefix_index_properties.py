"""The index beside a plain least recently used order, whatever is sent where."""

from collections import OrderedDict

from hypothesis import given
from hypothesis import strategies as st

from gateway.upstream.pool.routing import PrefixIndex

# Prompts as paths in a small tree: entry i stands for all before it as well.
PROMPTS = st.lists(st.integers(0, 2), min_size=1, max_size=6).map(
    lambda turns: tuple(hash(tuple(turns[: end + 1])) for end in range(len(turns)))
)


class Reference:
    """One replica's cache: blocks by last use, tails before heads."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._blocks: OrderedDict[int, None] = OrderedDict()

    def add(self, prefix: tuple[int, ...]) -> None:
        for digest in reversed(prefix):
            self._blocks[digest] = None
            self._blocks.move_to_end(digest)
        while len(self._blocks) > self._capacity:
            self._blocks.popitem(last=False)

    def held(self, prefix: tuple[int, ...]) -> int:
        return next((at for at, one in enumerate(prefix) if one not in self._blocks), len(prefix))


@given(st.integers(1, 40), st.lists(PROMPTS, max_size=40), st.lists(PROMPTS, max_size=5))
def test_small_replicas_forget_exactly_as_a_least_recently_used_cache(
    capacity: int, sent: list[tuple[int, ...]], asked: list[tuple[int, ...]]
) -> None:
    index, reference = PrefixIndex(capacity=capacity), Reference(capacity)
    for prefix in sent:
        index.add("a", prefix)
        reference.add(prefix)
    for prefix in (*sent, *asked):
        assert index.cached_blocks("a", prefix) == reference.held(prefix)


@given(st.lists(st.tuples(st.sampled_from("abc"), PROMPTS), max_size=40), st.integers(3, 30))
def test_what_is_found_reaches_from_the_start_without_a_gap(
    sent: list[tuple[str, tuple[int, ...]]], most: int
) -> None:
    index = PrefixIndex(most=most)
    for name, prefix in sent:
        index.add(name, prefix)
        assert len(index) <= most
    for name, prefix in sent:
        held = index.cached_blocks(name, prefix)
        assert all(index.last_use(name, digest) for digest in prefix[:held])
        assert not any(index.last_use(name, digest) for digest in prefix[held:])
