"""Which replica a miss goes to: the longest prefix, within the bound on load."""

from collections.abc import Sequence

from gateway.core.prefix_index import PrefixIndex
from gateway.core.routing import LeastLoaded, Load, PrefixAware, Route

PROMPT = tuple(range(100, 120))
OTHER = tuple(range(200, 220))


def loads(**in_flight: int) -> list[Load]:
    return [Load(name, count) for name, count in in_flight.items()]


def router(**held: Sequence[int]) -> PrefixAware:
    made = PrefixAware(PrefixIndex())
    for name, prefix in held.items():
        made.index.add(name, prefix)
    return made


def test_the_replica_that_holds_the_longest_prefix_is_first() -> None:
    order = router(a=PROMPT[:5], c=PROMPT[:9]).order(PROMPT, loads(a=0, b=0, c=0), 0.0)
    assert [(choice.name, choice.blocks_hit) for choice in order] == [("c", 9), ("a", 5), ("b", 0)]
    assert [choice.why for choice in order] == [Route.PREFIX, Route.BALANCE, Route.BALANCE]


def test_a_replica_with_too_much_to_do_is_passed_over() -> None:
    order = router(a=PROMPT).order(PROMPT, loads(a=10, b=3, c=3), 0.0)
    assert order[0].why is Route.BALANCE
    assert order[-1].name == "a"


def test_a_few_requests_are_no_load_that_counts() -> None:
    assert router(a=PROMPT).order(PROMPT, loads(a=3, b=0), 0.0)[0].name == "a"


def test_a_stronger_replica_may_have_more_at_a_time() -> None:
    offered = [Load("a", 10, weight=3.0), Load("b", 3)]
    assert router(a=PROMPT).order(PROMPT, offered, 0.0)[0].name == "a"


def test_what_is_to_be_computed_before_counts_as_well() -> None:
    made = router(a=PROMPT[:4])
    waiting = made.sent("a", OTHER, 0.0)
    assert made.order(PROMPT, loads(a=1, b=0), 0.0)[0].name == "b"
    made.first_token(waiting, 1.0)
    made.ended(waiting, 2.0)
    made.ended(waiting, 2.0)
    assert made.order(PROMPT, loads(a=0, b=0), 0.0)[0].name == "a"


def test_tokens_that_the_replica_says_are_queued_count_too() -> None:
    offered = [Load("a", 0, queued_tokens=100_000), Load("b", 0)]
    assert router(a=PROMPT).order(PROMPT, offered, 0.0)[0].name == "b"


def test_what_nobody_holds_goes_where_another_gateway_sends_it() -> None:
    offered = loads(a=0, b=0, c=0)
    chosen = router().order(PROMPT, offered, 0.0)[0]
    assert chosen.why is Route.COLD
    assert router().order(PROMPT, offered[::-1], 0.0)[0] == chosen


def test_cold_prompts_spread_over_all_replicas() -> None:
    offered = loads(a=0, b=0, c=0)
    firsts = {router().order((number,), offered, 0.0)[0].name for number in range(50)}
    assert firsts == {"a", "b", "c"}


def test_gateways_that_know_different_conversations_agree_by_where_prompts_part() -> None:
    # Both know the system prompt, one has seen another conversation of it as well.
    system = tuple(range(8))
    one, another = router(a=system, b=system), router(a=(*system, *OTHER), b=system)
    offered = loads(a=0, b=0)
    for first in range(1000, 1020):
        prompt = (*system, first)
        assert (
            one.order(prompt, offered, 0.0)[0].name == another.order(prompt, offered, 0.0)[0].name
        )


def test_a_replica_that_started_anew_holds_nothing() -> None:
    made = router(a=PROMPT)
    made.forget("a")
    assert made.order(PROMPT, loads(a=0, b=0), 0.0)[0].why is Route.COLD


def test_a_prompt_without_blocks_goes_to_the_least_loaded() -> None:
    assert router().order((), loads(a=5, b=3, c=8), 0.0)[0].name == "b"


def test_no_replica_offered_is_no_choice() -> None:
    assert router().order(PROMPT, [], 0.0) == []
    assert LeastLoaded().order(PROMPT, [], 0.0) == []


def test_least_loaded_looks_at_load_alone() -> None:
    offered = [Load("a", 4, weight=4.0), Load("b", 2), Load("c", 1)]
    assert [choice.name for choice in LeastLoaded().order(PROMPT, offered, 0.0)] == ["a", "c", "b"]
