"""A burst behind one cold prefix: computed once, and waited for no longer than two seconds."""

from gateway.upstream.routing.prefix_aware import MAX_WAIT_SECONDS, PrefixAware
from gateway.upstream.routing.routing import Sent

SYSTEM = tuple(range(100))


def burst(routing: PrefixAware, count: int) -> list[Sent]:
    return [routing.sent("a", (*SYSTEM, 1000 + number), 0.0) for number in range(count)]


def test_who_waited_long_enough_goes_all_the_same() -> None:
    made = PrefixAware()
    leader, other = burst(made, 2)
    made.prefill_wait(leader, 0.0)
    assert made.prefill_wait(other, MAX_WAIT_SECONDS - 0.1) is not None
    assert made.prefill_wait(other, MAX_WAIT_SECONDS) is None


def test_who_goes_is_not_told_to_wait_for_itself() -> None:
    made = PrefixAware()
    (leader,) = burst(made, 1)
    assert made.prefill_wait(leader, 0.0) is None
    assert made.prefill_wait(leader, 0.0) is None


def test_nobody_waits_at_another_replica_or_for_a_short_prefix() -> None:
    made = PrefixAware()
    made.prefill_wait(made.sent("a", (1, 2, 3), 0.0), 0.0)
    made.prefill_wait(made.sent("a", SYSTEM, 0.0), 0.0)
    assert made.prefill_wait(made.sent("a", (1, 2, 3, 4), 0.0), 0.0) is None
    assert made.prefill_wait(made.sent("b", SYSTEM, 0.0), 0.0) is None


def test_nobody_waits_for_what_was_computed_before() -> None:
    made = PrefixAware()
    made.index.add("a", SYSTEM)
    first, second = burst(made, 2)
    assert made.prefill_wait(first, 0.0) is None
    assert made.prefill_wait(second, 0.0) is None


def test_nobody_waits_for_who_has_a_lower_priority() -> None:
    made = PrefixAware()
    low, normal, another = burst(made, 3)
    low.rank, normal.rank, another.rank = 2, 1, 1
    assert made.prefill_wait(low, 0.0) is None
    assert made.prefill_wait(normal, 0.0) is None
    wait = made.prefill_wait(another, 0.0)
    assert wait is not None
    assert wait.leader is normal
    made.first_token(low, 0.5)
    assert made.prefill_wait(another, 0.5) == wait


def test_who_has_a_lower_priority_waits_all_the_same() -> None:
    made = PrefixAware()
    normal, low = burst(made, 2)
    low.rank = 2
    made.prefill_wait(normal, 0.0)
    wait = made.prefill_wait(low, 0.0)
    assert wait is not None
    assert wait.leader is normal


def paced() -> PrefixAware:
    """Return a routing that has seen 100 blocks computed in half a second."""
    made = PrefixAware()
    stream = made.sent("a", tuple(range(5000, 5100)), 0.0)
    stream.streamed = True
    made.prefill_wait(stream, 0.0)
    made.first_token(stream, 0.5)
    made.ended(stream)
    return made


def test_behind_a_plain_reply_that_goes_on_nobody_waits_longer_than_computing_takes() -> None:
    made = paced()
    leader, other = burst(made, 2)
    made.prefill_wait(leader, 0.0)
    wait = made.prefill_wait(other, 0.0)
    assert wait is not None
    assert 0.5 < wait.until < 1.1
    assert made.prefill_wait(other, wait.until) is None


def test_behind_a_stream_its_first_token_tells() -> None:
    made = paced()
    leader, other = burst(made, 2)
    leader.streamed = True
    made.prefill_wait(leader, 0.0)
    wait = made.prefill_wait(other, 0.0)
    assert wait is not None
    assert wait.until == MAX_WAIT_SECONDS
