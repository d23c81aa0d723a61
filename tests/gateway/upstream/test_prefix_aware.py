"""Which replica a miss goes to: the longest prefix, within the bound on load."""

from collections.abc import Sequence

from gateway.upstream.pool.routing import (
    ALONE_AFTER,
    LOST_AFTER,
    LeastLoaded,
    Load,
    PrefixAware,
    PrefixIndex,
    Route,
)

PROMPT = tuple(range(100, 120))
OTHER = tuple(range(200, 220))


def loads(**in_flight: int) -> list[Load]:
    return [Load(name, count) for name, count in in_flight.items()]


def router(**held: Sequence[int]) -> PrefixAware:
    made = PrefixAware()
    for name, prefix in held.items():
        made.index.add(name, prefix)
    return made


def first(routing: PrefixAware, prompt: Sequence[int], offered: list[Load]) -> str:
    return routing.order(prompt, offered)[0].name


def complete(routing: PrefixAware, name: str, prompt: Sequence[int], cached: int = 1) -> None:
    sent = routing.begin(name, prompt)
    routing.first_token(sent)
    routing.note_cached(sent, cached)
    routing.end(sent)


def test_the_replica_that_holds_the_longest_prefix_is_first() -> None:
    order = router(a=PROMPT[:3], c=PROMPT[:15]).order(PROMPT, loads(a=0, b=0, c=0))
    assert [(choice.name, choice.blocks_hit) for choice in order] == [("c", 15), ("a", 3), ("b", 0)]
    assert [choice.why for choice in order] == [Route.PREFIX, Route.BALANCE, Route.BALANCE]


def test_a_replica_with_too_much_to_do_is_passed_over() -> None:
    order = router(a=PROMPT).order(PROMPT, loads(a=20, b=3, c=3))
    assert order[0].why is Route.BALANCE
    assert order[-1].name == "a"


def test_a_few_requests_are_no_load_that_counts() -> None:
    assert first(router(a=PROMPT), PROMPT, loads(a=3, b=0)) == "a"


def test_a_stronger_replica_may_have_more_at_a_time() -> None:
    others = [Load(name, 1) for name in "bcd"]
    assert first(router(a=PROMPT), PROMPT, [Load("a", 10), *others]) != "a"
    assert first(router(a=PROMPT), PROMPT, [Load("a", 10, weight=4.0), *others]) == "a"


def test_what_is_to_be_computed_before_counts_until_its_first_token() -> None:
    made = router(a=PROMPT[:10])
    waiting = made.begin("a", tuple(range(1000, 2000)))
    assert first(made, PROMPT, loads(a=1, b=0)) == "b"
    made.first_token(waiting)
    made.end(waiting)
    made.end(waiting)
    assert first(made, PROMPT, loads(a=0, b=0)) == "a"


def test_what_nobody_holds_goes_where_another_gateway_sends_it() -> None:
    offered = loads(a=0, b=0, c=0)
    chosen = router().order(PROMPT, offered)[0]
    assert chosen.why is Route.COLD
    assert router().order(PROMPT, offered[::-1])[0] == chosen


def test_cold_prompts_spread_over_all_replicas() -> None:
    offered = loads(a=0, b=0, c=0)
    assert {first(router(), (number,), offered) for number in range(50)} == {"a", "b", "c"}


def test_gateways_that_know_different_conversations_agree_by_where_prompts_part() -> None:
    # Both know the system prompt, one has seen another conversation of it as well.
    system = tuple(range(8))
    one, another = router(a=system, b=system), router(a=(*system, *OTHER), b=system)
    offered = loads(a=0, b=0)
    for number in range(1000, 1020):
        prompt = (*system, number)
        assert first(one, prompt, offered) == first(another, prompt, offered)


def test_a_prompt_stays_at_a_weak_replica_that_holds_it() -> None:
    offered = [Load("a", 0), Load("b", 0, weight=4.0)]
    assert first(router(a=PROMPT[:14]), PROMPT, offered) == "a"


def test_a_chat_that_began_here_is_expected_where_others_sent_its_later_turns() -> None:
    offered = loads(a=0, b=0, c=0, d=0)
    for number in range(30):
        chat = tuple(range(1000 * number, 1000 * number + 18))
        began = first(router(), chat[:3], offered)
        assert first(router(**{began: chat[:3]}), chat, offered) == began


def alone(*, has_siblings: bool = False) -> PrefixAware:
    """Return a gateway that has found nothing of another's for long."""
    made = PrefixAware(has_siblings=has_siblings)
    for number in range(ALONE_AFTER):
        complete(made, "a", tuple(range(1000 * number, 1000 * number + 8)))
    return made


def test_a_gateway_alone_sends_what_nobody_holds_where_there_is_less_to_do() -> None:
    made, cold = alone(), tuple(range(-50, -20))
    home = first(router(), cold, loads(a=0, b=0))
    busy = [Load(name, 3 if name == home else 0) for name in "ab"]
    assert first(router(), cold, busy) == home
    assert first(made, cold, busy) != home


def test_a_gateway_that_finds_what_it_did_not_send_is_not_alone() -> None:
    made = alone()
    assert made.is_alone
    complete(made, "a", PROMPT, cached=1023)
    assert made.is_alone
    complete(made, "b", PROMPT, cached=1024)
    assert not made.is_alone


def test_one_of_several_workers_is_never_alone() -> None:
    assert not alone(has_siblings=True).is_alone


def test_short_prompts_prove_no_loneliness() -> None:
    made = PrefixAware()
    for number in range(2 * ALONE_AFTER):
        complete(made, "a", (number,))
        complete(made, "a", PROMPT)
    assert not made.is_alone


def test_a_replica_that_started_anew_holds_nothing() -> None:
    made = router(a=PROMPT)
    made.forget("a")
    assert made.order(PROMPT, loads(a=0, b=0))[0].why is Route.COLD


def test_what_was_not_computed_after_all_is_not_believed() -> None:
    made = router(a=PROMPT[:4])
    made.end(made.begin("a", PROMPT))
    assert made.index.cached_blocks("a", PROMPT) == 4


def test_what_is_refused_or_given_up_pushes_nothing_out() -> None:
    made = PrefixAware(PrefixIndex(capacity=len(PROMPT)))
    complete(made, "a", PROMPT)
    for number in range(9):
        sent = made.begin("a", tuple(range(1000 * number + 1000, 1000 * number + 1500)))
        made.end(sent)
    assert made.index.cached_blocks("a", PROMPT) == len(PROMPT)


def test_what_is_being_computed_counts_as_held() -> None:
    made = router()
    made.begin("a", PROMPT[:12])
    order = made.order(PROMPT, loads(a=1, b=0))
    assert (order[0].name, order[0].blocks_hit) == ("a", 12)


def test_a_failure_does_not_take_from_another_what_it_computed() -> None:
    made = router()
    failing, other = made.begin("a", PROMPT), made.begin("a", PROMPT)
    made.end(failing)
    made.first_token(other)
    assert made.index.cached_blocks("a", PROMPT) == len(PROMPT)


def not_found(made: PrefixAware, *finds: int) -> int:
    """Return what is believed of what was used before, after answers that found so many tokens."""
    older, newer = tuple(range(300, 320)), tuple(range(400, 420))
    for prompt in (older, PROMPT, newer):
        complete(made, "a", prompt)
    for cached in finds:
        complete(made, "a", PROMPT, cached)
    assert made.index.cached_blocks("a", newer) == len(newer)
    assert made.index.cached_blocks("a", PROMPT) == len(PROMPT)
    return made.index.cached_blocks("a", older)


def test_a_replica_that_finds_nothing_time_and_again_has_lost_what_was_used_before_too() -> None:
    made = PrefixAware()
    assert not_found(made, *[0] * LOST_AFTER) == 0


def test_a_prompt_that_is_not_found_may_be_rendered_in_another_way_and_proves_no_loss() -> None:
    assert not_found(PrefixAware(), *[0] * (LOST_AFTER - 1)) == 20
    assert not_found(PrefixAware(), *[0, 0, 2048] * 3) == 20


def test_what_is_still_being_computed_proves_no_loss() -> None:
    made = router()
    complete(made, "a", OTHER)
    made.begin("a", PROMPT)
    second = made.begin("a", PROMPT)
    made.note_cached(second, 0)
    assert made.index.cached_blocks("a", OTHER) == len(OTHER)


def test_a_prompt_without_blocks_goes_to_the_least_loaded() -> None:
    assert first(router(), (), loads(a=5, b=3, c=8)) == "b"


def test_no_replica_offered_is_no_choice() -> None:
    assert router().order(PROMPT, []) == []
    assert LeastLoaded().order(PROMPT, []) == []


def test_least_loaded_looks_at_load_alone() -> None:
    offered = [Load("a", 4, weight=4.0), Load("b", 2), Load("c", 1)]
    assert [choice.name for choice in LeastLoaded().order(PROMPT, offered)] == ["a", "c", "b"]
