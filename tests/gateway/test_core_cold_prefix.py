"""A burst behind one cold prefix: computed once, and waited for no longer than two seconds."""

from gateway.core.cold_prefix import MOST_SECONDS
from gateway.core.prefix_routing import PrefixAware
from gateway.core.routing import Sent

SYSTEM = tuple(range(100))


def burst(routing: PrefixAware, count: int) -> list[Sent]:
    return [routing.sent("a", (*SYSTEM, 1000 + number), 0.0) for number in range(count)]


def test_the_first_goes_and_the_others_wait_for_its_first_token() -> None:
    made = PrefixAware()
    leader, *others = burst(made, 5)
    assert made.held_back(leader, 0.0) is None
    for sent in others:
        wait = made.held_back(sent, 0.0)
        assert wait is not None
        assert (wait.leader, wait.until) == (leader, MOST_SECONDS)
    made.first_token(leader, 1.0)
    assert all(made.held_back(sent, 1.0) is None for sent in others)


def test_who_waited_long_enough_goes_all_the_same() -> None:
    made = PrefixAware()
    leader, other = burst(made, 2)
    made.held_back(leader, 0.0)
    assert made.held_back(other, MOST_SECONDS - 0.1) is not None
    assert made.held_back(other, MOST_SECONDS) is None


def test_where_the_leader_fails_one_of_the_others_leads() -> None:
    made = PrefixAware()
    leader, second, third = burst(made, 3)
    made.held_back(leader, 0.0)
    made.ended(leader, 0.5)
    assert made.held_back(second, 0.5) is None
    wait = made.held_back(third, 0.5)
    assert wait is not None
    assert wait.leader is second


def test_who_goes_is_not_told_to_wait_for_itself() -> None:
    made = PrefixAware()
    (leader,) = burst(made, 1)
    assert made.held_back(leader, 0.0) is None
    assert made.held_back(leader, 0.0) is None


def test_nobody_waits_at_another_replica_or_for_a_short_prefix() -> None:
    made = PrefixAware()
    made.held_back(made.sent("a", (1, 2, 3), 0.0), 0.0)
    made.held_back(made.sent("a", SYSTEM, 0.0), 0.0)
    assert made.held_back(made.sent("a", (1, 2, 3, 4), 0.0), 0.0) is None
    assert made.held_back(made.sent("b", SYSTEM, 0.0), 0.0) is None


def test_nobody_waits_for_what_was_computed_before() -> None:
    made = PrefixAware()
    made.index.add("a", SYSTEM)
    first, second = burst(made, 2)
    assert made.held_back(first, 0.0) is None
    assert made.held_back(second, 0.0) is None


def test_nobody_waits_where_the_replica_computes_it_once_by_itself() -> None:
    made = PrefixAware(sharing={"a"})
    assert all(made.held_back(sent, 0.0) is None for sent in burst(made, 3))
