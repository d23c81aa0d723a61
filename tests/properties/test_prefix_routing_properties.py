"""Whatever is asked: only what is offered, load bounded, the same answer to the same question."""

from math import ceil
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from gateway.upstream.pool.routing import (
    ALWAYS_ROOM,
    SHARE_OVER,
    Dispatch,
    Load,
    PrefixAware,
    PrefixIndex,
)

NAMES = "abcd"

PROMPTS = st.lists(st.integers(0, 3), max_size=6).map(
    # Digests of chains: entry i stands for all before it as well.
    lambda turns: tuple(hash(tuple(turns[: end + 1])) for end in range(len(turns)))
)
LOADS = st.lists(
    st.builds(
        Load,
        st.sampled_from(NAMES),
        st.integers(0, 50),
        st.sampled_from((0.5, 1.0, 4.0)),
    ),
    min_size=1,
    unique_by=lambda load: load.name,
)
HISTORY = st.lists(st.tuples(st.sampled_from(NAMES), PROMPTS), max_size=20)
STEPS = st.lists(
    st.tuples(
        st.sampled_from(("send", "token", "none cached", "end", "forget")),
        st.sampled_from(NAMES),
        PROMPTS,
        st.integers(0, 9),
    ),
    max_size=40,
)


def grown(history: list[tuple[str, tuple[int, ...]]]) -> PrefixAware:
    routing = PrefixAware(PrefixIndex(capacity=12))
    for name, prefix in history:
        sent = routing.begin(name, prefix)
        routing.first_token(sent)
        routing.end(sent)
    return routing


@given(HISTORY, PROMPTS, LOADS, st.randoms(use_true_random=False))
def test_all_that_is_offered_is_ordered_the_first_has_room_and_the_same_is_answered_the_same(
    history: list[tuple[str, tuple[int, ...]]],
    prompt: tuple[int, ...],
    loads: list[Load],
    rng: Random,
) -> None:
    order = grown(history).order(prompt, loads)
    assert sorted(choice.name for choice in order) == sorted(load.name for load in loads)
    assert all(0 <= choice.blocks_hit <= len(prompt) for choice in order)

    first = next(load for load in loads if load.name == order[0].name)
    under_way = sum(load.in_flight for load in loads) + 1
    share = under_way / sum(load.weight for load in loads) * first.weight
    most = max(ALWAYS_ROOM, ceil((1 + SHARE_OVER) * share))
    assert first.in_flight + 1 <= most

    shuffled = list(loads)
    rng.shuffle(shuffled)
    assert grown(history).order(prompt, shuffled) == order


@given(STEPS)
def test_whatever_happens_the_account_comes_out_even_and_the_index_stays_bounded(
    steps: list[tuple[str, str, tuple[int, ...], int]],
) -> None:
    routing = PrefixAware(PrefixIndex(capacity=10, most=25))
    under_way: list[Dispatch] = []
    for step, name, prompt, which in steps:
        sent = under_way[which % len(under_way)] if under_way else None
        match step:
            case "send":
                under_way.append(routing.begin(name, prompt))
            case "forget":
                routing.forget(name)
            case "token" if sent is not None:
                routing.first_token(sent)
            case "none cached" if sent is not None:
                routing.note_cached(sent, 0)
            case "end" if sent is not None:
                routing.end(sent)
                under_way.remove(sent)
        assert all(routing.index.size(each) <= 10 for each in NAMES)
        assert len(routing.index) <= 25
    for sent in under_way:
        routing.end(sent)
    for name in NAMES:
        assert routing.queued_blocks(name) == 0
    for choice in routing.order(tuple(range(20)), [Load(name, 0) for name in NAMES]):
        assert choice.blocks_hit == routing.index.cached_blocks(choice.name, tuple(range(20)))
