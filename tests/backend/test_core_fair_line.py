"""Tenants take turns, and who has least is refused last."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from backend.scheduler.fair_line import FairLine


def filled(jobs, most=100):
    line = FairLine(most)
    put_out = [line.add(job[0], job) for job in jobs]
    return line, [each for each in put_out if each is not None]


def emptied(line, busy=()):
    return [taken[1] for _ in range(len(line)) if (taken := line.take(busy)) is not None]


def test_tenants_take_turns_and_their_own_stay_in_order():
    line, _ = filled(["a1", "a2", "a3", "b1", "b2", "c1"])
    assert emptied(line) == ["a1", "b1", "c1", "a2", "b2", "a3"]


def test_a_full_line_puts_out_the_newest_of_who_has_most():
    line, put_out = filled(["a1", "a2", "a3", "b1", "c1", "b2", "b3"], most=4)
    assert put_out == ["a3", "b2", "b3"]
    assert emptied(line) == ["a1", "b1", "c1", "a2"]


def test_a_tenant_that_is_busy_is_passed_over_and_keeps_its_turn():
    line, _ = filled(["a1", "b1", "b2"])
    assert line.take({"a"}) == ("b", "b1")
    assert line.take({"a", "b"}) is None
    assert emptied(line) == ["a1", "b2"]


def test_who_leaves_frees_a_place():
    line, _ = filled(["a1", "a2"], most=2)
    line.leave("a", "a1")
    line.leave("a", "a1")
    line.leave("c", "c1")
    assert line.add("b", "b1") is None
    assert emptied(line) == ["a2", "b1"]


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.integers()), max_size=40), st.integers(1, 8))
def test_nobody_is_lost_and_nobody_with_less_is_put_out(arrivals, most):
    line, waiting = FairLine(most), []
    for number, (tenant, _) in enumerate(arrivals):
        job = (tenant, number)
        waiting.append(job)
        if (loser := line.add(tenant, job)) is not None:
            counts = Counter(each for each, _ in waiting)
            assert counts[loser[0]] == max(counts.values())
            waiting.remove(loser)
        assert len(line) == len(waiting) <= most
    assert sorted(emptied(line)) == sorted(waiting)
