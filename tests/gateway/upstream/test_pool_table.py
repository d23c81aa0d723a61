"""The pool's decisions: health, tiers, limits, what is tried again; the clock is the test's."""

from dataclasses import replace
from typing import ClassVar

import pytest

from gateway.protocol.http.cache_status import Reason
from gateway.upstream.pool import health as healths
from gateway.upstream.pool.health import (
    CALM_SECONDS,
    FIRST_EJECTION,
    LONGEST_EJECTION,
    LONGEST_RETRY_AFTER,
    Open,
    State,
    Trial,
    Up,
)
from gateway.upstream.pool.retry_budget import Budget
from gateway.upstream.pool.routing import LeastLoaded
from gateway.upstream.pool.table import Call, PoolTable
from gateway.upstream.pool.upstream_state import Member, NoRoom, Rate
from gateway.upstream.pool.waiting_queue import Waiting
from gateway.upstream.request import LONGEST_MODEL, Outgoing
from gateway.upstream.tries import Failure, Kind, refusal_of, retry_after

BROKE = Failure(Kind.BROKE, Reason.UPSTREAM_BROKE)
SENT_NOWHERE = Failure(Kind.UNREACHABLE, Reason.UPSTREAM_UNREACHABLE)
TIMEOUT = Failure(Kind.STALLED, Reason.UPSTREAM_TIMEOUT)
REFUSED = Failure(Kind.LIMITED, Reason.UPSTREAM_LIMITED, retry_after=5.0)


def asked(model="m"):
    return Outgoing("/v1/chat/completions", (), b"{}", model)


def table(*members, changes=None):
    noted = changes if changes is not None else []
    return PoolTable(members, LeastLoaded(), 0.0, noted.append)


def failing(health, times, now=100.0):
    for _ in range(times):
        health = healths.record_failure(health, Reason.UPSTREAM_BROKE, now)
    return health


def test_three_failures_in_a_row_open_and_a_good_call_between_does_not():
    up = healths.new(0.0)
    assert failing(up, 2).state(100.0) is State.UP
    assert failing(up, 3).breaker == Open(
        100.0 + FIRST_EJECTION, FIRST_EJECTION, Reason.UPSTREAM_BROKE
    )
    between = failing(healths.record_answer(failing(up, 2), 100.0), 2)
    assert between.state(100.0) is State.UP


def test_who_fails_every_other_call_opens_too():
    health, failed = healths.new(0.0), 0
    while health.state(100.0) is State.UP:
        health = failing(healths.record_answer(health, 1.0), 1)
        failed += 1
    assert failed == healths.FAILED_OF_WINDOW


def test_a_probe_that_is_answered_brings_nobody_back_but_lets_a_call_try():
    opened = failing(healths.new(0.0), 3)
    trial = healths.record_probe(opened, None, 101.0)
    assert trial.state(101.0) is State.TRIAL
    assert healths.record_answer(trial, 102.0).breaker == Up(102.0, FIRST_EJECTION)


def test_who_lies_about_its_health_is_ejected_twice_as_long_each_time():
    health, pauses = failing(healths.new(0.0), 3), []
    for _ in range(9):
        assert isinstance(health.breaker, Open)
        pauses.append(health.breaker.ejection)
        health = healths.record_probe(health, None, health.breaker.until)
        health = healths.record_failure(health, Reason.UPSTREAM_STATUS, 0.0)
    assert pauses == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, *[LONGEST_EJECTION] * 3]


def test_who_does_not_answer_probes_is_probed_less_and_less_often():
    health = failing(healths.new(0.0), 3)
    for _ in range(9):
        health = healths.record_probe(health, Reason.UPSTREAM_TIMEOUT, 200.0)
    assert health.breaker == Open(
        200.0 + LONGEST_EJECTION, LONGEST_EJECTION, Reason.UPSTREAM_TIMEOUT
    )


@pytest.mark.parametrize(
    ("calm", "pause"), [(1.0, 2 * FIRST_EJECTION), (CALM_SECONDS, FIRST_EJECTION)]
)
def test_who_flaps_is_ejected_longer_until_it_was_calm_for_a_while(calm, pause):
    back = healths.record_answer(failing(healths.new(0.0), 3), 200.0)
    again = failing(back, 3, 200.0 + calm)
    assert again.breaker == Open(200.0 + calm + pause, pause, Reason.UPSTREAM_BROKE)


def test_one_failed_probe_is_none_but_an_upstreams_own_word_is():
    up = healths.new(0.0)
    once = healths.record_probe(up, Reason.UPSTREAM_TIMEOUT, 1.0)
    assert once.state(1.0) is State.UP
    assert healths.record_probe(once, Reason.UPSTREAM_TIMEOUT, 2.0).state(2.0) is State.OPEN
    assert (
        healths.record_probe(
            healths.record_probe(once, None, 2.0), Reason.UPSTREAM_TIMEOUT, 3.0
        ).state(3.0)
        is State.UP
    )
    told = healths.record_probe(up, Reason.UPSTREAM_STATUS, 1.0, for_sure=True)
    assert told.state(1.0) is State.OPEN


def test_rest_is_bounded_never_shortened_and_no_failure():
    paused = healths.record_pause(healths.new(0.0), 1e9, Reason.UPSTREAM_LIMITED, 10.0)
    assert paused.paused_until == 10.0 + LONGEST_RETRY_AFTER
    shorter = healths.record_pause(paused, 0.0, Reason.UPSTREAM_LIMITED, 11.0)
    assert shorter.paused_until == paused.paused_until
    assert (paused.state(11.0), paused.why(11.0)) == (State.PAUSED, Reason.UPSTREAM_LIMITED)
    assert (paused.state(71.0), paused.why(71.0)) == (State.UP, None)


@pytest.mark.parametrize(
    ("fields", "seconds"),
    [
        ([("Retry-After", "7")], 7.0),
        ([("retry-after", " 0 ")], 0.0),
        ([("Retry-After", "9" * 400)], LONGEST_RETRY_AFTER),
        ([("Retry-After", "-1")], None),
        ([("Retry-After", "soon")], None),
        ([("Retry-After", "٣")], None),
        ([], None),
        ([("Retry-After", "9"), ("Retry-After-Ms", "250")], 0.25),
        ([("Retry-After", "Thu, 01 Jan 1970 00:00:30 GMT")], 20.0),
        ([("Retry-After", "Thu, 01 Jan 1970 00:00:01 GMT")], 0.0),
        ([("Retry-After", "Thu, 99 Jan 1970 00:00:01 GMT")], None),
    ],
)
def test_retry_after_in_every_form(fields, seconds):
    assert retry_after(fields, 10.0) == seconds


@pytest.mark.parametrize(
    ("status", "reason", "risky"),
    [
        *((status, Reason.UPSTREAM_LIMITED, False) for status in (429, 503, 529)),
        *((status, Reason.UPSTREAM_STATUS, True) for status in (500, 522)),
    ],
)
def test_what_an_error_status_means(status, reason, risky):
    failure = refusal_of(status, [], 0.0)
    assert (failure.reason, failure.risky) == (reason, risky)


@pytest.mark.parametrize("status", [200, 204, 301, 400, 401, 403, 404, 408, 413, 422, 501, 505])
def test_any_other_status_is_an_answer(status):
    assert refusal_of(status, [], 0.0) is None


def test_second_tries_are_a_share_of_the_requests_and_some_more_after_a_calm_time():
    budget, spent = Budget(), 0
    for _ in range(100):
        budget.earn()
        spent += budget.spend()
    assert 20 <= spent <= 30
    for _ in range(1000):
        budget.earn()
    assert [budget.spend() for _ in range(11)] == [True] * 10 + [False]


def test_the_least_loaded_of_the_lowest_tier_that_serves_the_model():
    pool = table(
        Member("a", ("gpt*",)),
        Member("b", ("qwen*",), tier=2),
        Member("c", ("qwen*",)),
        Member("d", ("qwen-small", "qwen-big")),
    )
    names = [pool.acquire(asked("qwen-big"), 1.0).name for _ in range(4)]
    assert sorted(names) == ["c", "c", "d", "d"]
    assert pool.acquire(asked("gpt-9"), 1.0).name == "a"
    assert pool.acquire(asked("qwen-big"), 1.0, {"c", "d"}).name == "b"


def test_a_model_that_nobody_declares_goes_to_somebody_who_says_so():
    pool = table(Member("a", ("gpt*",)), Member("b", ("qwen*",)))
    assert isinstance(pool.acquire(asked("unknown"), 1.0), Call)


@pytest.mark.parametrize(
    ("globs", "model", "serves"),
    [
        (("*",), "", True),
        (("qwen*",), "Qwen", False),
        (("org/*",), "org/model", True),
        (("a?c", "x"), "abc", True),
        (("a",), "a\n", False),
        (("a", "[bc]"), "c", True),
    ],
)
def test_globs_of_models(globs, model, serves):
    assert Member("a", globs).serves(model) is serves


def test_a_limit_is_kept_and_a_slot_comes_back_once():
    pool = table(Member("a", max_concurrency=2))
    first, second = pool.acquire(asked(), 1.0), pool.acquire(asked(), 1.0)
    none = pool.acquire(asked(), 1.0)
    assert none == NoRoom(429, Reason.UPSTREAM_BUSY, None, waits=True)
    pool.release(first)
    pool.release(first)
    assert isinstance(pool.acquire(asked(), 2.0), Call)
    assert isinstance(pool.acquire(asked(), 2.0), NoRoom)
    assert second.upstream.in_flight == 2


def test_a_rate_is_exact_in_any_minute():
    rate = Rate(3)
    for now in (0.0, 10.0, 20.0):
        assert rate.free_at(now) == now
        rate.take(now)
    assert rate.free_at(21.0) == 60.0
    assert rate.free_at(60.0) == 60.0
    rate.take(60.0)
    assert rate.free_at(60.0) == 70.0


def test_at_its_rate_it_is_told_when_there_is_room():
    pool = table(Member("a", requests_per_minute=1))
    assert isinstance(pool.acquire(asked(), 5.0), Call)
    none = pool.acquire(asked(), 6.0)
    assert (none.at, none.waits) == (65.0, True)


def test_the_last_upstream_is_never_shut_out_but_one_call_at_a_time_tries_it():
    changes = []
    pool = table(Member("a"), changes=changes)
    for _ in range(3):
        call = pool.acquire(asked(), 1.0)
        pool.record_failure(call, BROKE, 1.0)
        pool.release(call)
    assert [(change.after, change.why) for change in changes] == [
        (State.OPEN, Reason.UPSTREAM_BROKE)
    ]
    trial = pool.acquire(asked(), 1.1)
    none = pool.acquire(asked(), 1.1)
    assert (none.status, none.why, none.waits) == (503, Reason.UPSTREAM_BROKE, False)
    pool.first_byte(trial, 1.2)
    assert changes[-1].after is State.UP
    assert isinstance(pool.acquire(asked(), 1.2), Call)


def test_a_trial_whose_client_left_lets_the_next_try():
    pool = table(Member("a"), Member("b"))
    upstream = pool.upstreams["a"]
    upstream.health = replace(upstream.health, breaker=Trial(1.0, Reason.UPSTREAM_BROKE))
    trial = pool.acquire(asked(), 1.0)
    assert (trial.name, pool.acquire(asked(), 1.0).name) == ("a", "b")
    pool.release(trial)
    assert pool.acquire(asked(), 1.0).name == "a"


def test_what_is_kept_at_an_upstream_is_asked_for_there_while_it_is_well():
    pool = table(Member("a"), Member("b"), Member("c"))
    pool.acquire(asked(), 1.0)
    assert pool.first_available(None, 1.0) == ["a", "b", "c"]
    upstream = pool.upstreams["a"]
    upstream.health = failing(upstream.health, 3, 1.0)
    assert pool.first_available(None, 1.0) == ["b", "c", "a"]


def test_who_waits_is_let_in_by_model_in_the_order_of_coming():
    pool = table(Member("a", ("x",), max_concurrency=1), Member("b", ("y",), max_concurrency=1))
    waiting = Waiting(8)
    held = pool.acquire(asked("x"), 1.0)
    pool.acquire(asked("y"), 1.0)
    for number, model in enumerate(["x", "y", "x"]):
        waiting.add(asked(model), number)
    pool.release(held)
    begun, again = waiting.admit(pool, 2.0)
    assert [(holder, call.name) for holder, call in begun] == [(0, "a")]
    assert (len(waiting), again) == (2, None)
    assert ("y", "", False) in waiting.lanes


def test_who_came_first_is_let_in_first_also_where_models_share_an_upstream():
    pool, waiting = table(Member("a", max_concurrency=1)), Waiting(8)
    held = pool.acquire(asked("x"), 1.0)
    tickets = [waiting.add(asked(model), model + str(n)) for n, model in enumerate("yxyx")]
    waiting.remove(tickets[1])
    waiting.remove(tickets[1])
    assert let_in_one_by_one(waiting, pool, held) == ["y0", "y2", "x3"]
    assert ("x", "", False) not in waiting.lanes


def by(client, model="m"):
    return Outgoing("/v1/chat/completions", (), b"{}", model, client=client)


def let_in_one_by_one(waiting, pool, held):
    let_in = []
    while waiting:
        pool.release(held)
        [(holder, held)], _ = waiting.admit(pool, 2.0)
        let_in.append(holder)
    return let_in


def test_clients_take_turns_also_where_one_spreads_over_models():
    pool, waiting = table(Member("a", max_concurrency=1)), Waiting(16)
    held = pool.acquire(asked(), 1.0)
    for number, model in enumerate("xyzx"):
        waiting.add(by("many", model), f"many{number}")
    for client in ("few", "one", "few"):
        waiting.add(by(client), client)
    assert let_in_one_by_one(waiting, pool, held) == [
        "many0",
        "few",
        "one",
        "many1",
        "few",
        "many2",
        "many3",
    ]


def test_in_a_full_queue_who_holds_most_gives_his_last_place_to_who_holds_fewer():
    waiting = Waiting(4)
    for client in ("many", "many", "one", "many"):
        waiting.add(by(client), client)
    last = waiting.ticket_to_displace(by("new"))
    assert (last.holder, last.number) == ("many", 4)
    assert waiting.ticket_to_displace(by("one")) is last
    assert waiting.ticket_to_displace(by("many")) is None
    waiting.remove(last)
    waiting.add(by("one"), "one")
    # Two and two: a place that changes hands would make nobody's share fairer.
    assert waiting.ticket_to_displace(by("one")) is waiting.ticket_to_displace(by("many")) is None
    assert waiting.full


class Looked(Outgoing):
    """Counts how often it is looked at what it waits for."""

    looks: ClassVar[list[str]] = []

    @property
    def lane(self):
        self.looks.append(self.model)
        return super().lane


def looks_of(waiting_for):
    pool, waiting = table(Member("a", max_concurrency=1)), Waiting(waiting_for)
    pool.acquire(asked(), 1.0)
    for number in range(waiting_for):
        waiting.add(Looked("", (), b"", f"m{number}", client="one"), number)
    Looked.looks.clear()
    assert waiting.admit(pool, 1.0) == ([], None)
    return len(Looked.looks)


def test_each_who_waits_is_looked_at_once_however_many_models_they_wait_for():
    assert looks_of(60) == 2 * looks_of(30)


class Declared(Member):
    """Notes for models of what lengths it was looked up whether it serves them."""

    lengths: ClassVar[list[int]] = []

    def serves(self, model):
        self.lengths.append(len(model))
        return super().serves(model)


def test_the_upstreams_of_a_model_are_remembered_but_not_by_a_long_name():
    Declared.lengths.clear()
    pool = table(Declared("a"))
    for _ in range(2):
        for length in (LONGEST_MODEL, LONGEST_MODEL + 1):
            pool.acquire(asked("m" * length), 1.0)
    assert Declared.lengths == [LONGEST_MODEL, LONGEST_MODEL + 1, LONGEST_MODEL + 1]


def test_who_left_holds_no_place_and_no_turn():
    pool, waiting = table(Member("a", max_concurrency=1)), Waiting(8)
    held = pool.acquire(asked(), 1.0)
    tickets = [waiting.add(by(client), client) for client in ("first", "other", "first")]
    for ticket in (tickets[0], tickets[2], tickets[2]):
        waiting.remove(ticket)
    waiting.add(by("first"), "back")
    assert (len(waiting), let_in_one_by_one(waiting, pool, held)) == (2, ["other", "back"])
    assert ("m", "", False) not in waiting.lanes


def test_a_probe_is_due_when_the_pause_is_over_or_nothing_was_heard():
    pool = table(Member("a"))
    assert pool.probe_at("a", 10.0) == 10.0
    call = pool.acquire(asked(), 4.0)
    pool.first_byte(call, 5.0)
    assert pool.probe_at("a", 10.0) == 15.0
    pool.record_probe("a", Reason.UPSTREAM_TIMEOUT, 15.0, for_sure=False)
    assert pool.probe_at("a", 10.0) == 16.0
    pool.record_probe("a", Reason.UPSTREAM_TIMEOUT, 16.0, for_sure=False)
    assert pool.probe_at("a", 10.0) == 16.0 + FIRST_EJECTION
