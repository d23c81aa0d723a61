"""The lookup machine: each case asserts the whole path of states and the header at its end."""

from dataclasses import replace

import pytest
from example_requests import LIFETIME, STORED_AT, chat, entry_of, plan_of, user
from lookup_driver import (
    EXACT,
    FETCH,
    FORWARD,
    FRESH,
    HIT,
    LATE,
    REFUSED,
    SCAN,
    SEARCH,
    VERIFY,
    World,
    asked_like,
    directed,
    drive,
    header_of,
    own,
    run,
)

from gateway.cache.lookup import Forward, Refused, bypass
from gateway.cache.ports import KEY_VERSION
from gateway.protocol.http.cache_status import Reason
from policies.decision import Endpoint, PiiAction
from policies.freshness import Directives

STORED_HIT = f"refrain; hit; ttl={int(LIFETIME) - 100}; detail=exact"
SEMANTIC_HIT = f'refrain; hit; ttl={int(LIFETIME) - 100}; detail="semantic; similarity=0.950"'
MISSED = [EXACT, SCAN, SEARCH, FORWARD]
AFTER_EXACT = [EXACT, SCAN, FORWARD]
# An entry of its own proves that the prompt is clean.
PROVEN = [EXACT, FORWARD]
WENT_STALE = [EXACT, SEARCH, FORWARD]


@pytest.mark.parametrize(
    ("directives", "now", "path", "header"),
    [
        # The request's own entry, fresh.
        ("", FRESH, [EXACT, HIT], STORED_HIT),
        ("only-if-cached", FRESH, [EXACT, HIT], STORED_HIT),
        ("no-cache", FRESH, PROVEN, "refrain; fwd=request; detail=no-cache"),
        ("max-age=99", FRESH, PROVEN, "refrain; fwd=request; detail=freshness"),
        ("no-cache, only-if-cached", FRESH, [EXACT, REFUSED], "refused"),
        # Stale.
        ("", LATE, WENT_STALE, "refrain; fwd=stale"),
        ("only-if-cached", LATE, [EXACT, SEARCH, REFUSED], "refused"),
        ("no-cache", LATE, PROVEN, "refrain; fwd=stale"),
        ("max-stale", LATE, [EXACT, HIT], "refrain; hit; ttl=-12; detail=exact"),
    ],
)
def test_paths_with_an_own_entry(directives, now, path, header):
    plan = directed(directives)
    seen, last = run(plan, entries=own(plan), now=now)
    assert seen == path
    assert header_of(last) == header


@pytest.mark.parametrize(
    ("directives", "path", "header"),
    [
        ("", MISSED, "refrain; fwd=miss"),
        ("max-age=10", MISSED, "refrain; fwd=miss"),
        ("no-cache", AFTER_EXACT, "refrain; fwd=miss"),
        ("only-if-cached", [EXACT, SCAN, SEARCH, REFUSED], "refused"),
        ("only-if-cached, no-cache", [EXACT, SCAN, REFUSED], "refused"),
    ],
)
def test_paths_with_an_empty_store(directives, path, header):
    seen, last = run(directed(directives))
    assert seen == path
    assert header_of(last) == header
    if isinstance(last, Forward):
        assert last.store is not None, "a miss is stored"


@pytest.mark.parametrize(
    ("options", "path"),
    [
        ({}, MISSED),
        ({"semantic": False}, AFTER_EXACT),
        ({"exact": False}, [SCAN, SEARCH, FORWARD]),
        ({"pii": PiiAction.ALLOW}, [EXACT, SEARCH, FORWARD]),
        ({"pii": PiiAction.ALLOW, "semantic": False}, [EXACT, FORWARD]),
        ({"pii": PiiAction.ALLOW, "exact": False}, [SEARCH, FORWARD]),
        ({"body": chat(tools=[{"type": "function"}])}, AFTER_EXACT),
        ({"endpoint": Endpoint.COMPLETIONS, "body": {"model": "m", "prompt": "p"}}, AFTER_EXACT),
    ],
)
def test_the_policy_chooses_the_lookups_of_a_miss(options, path):
    seen, last = run(plan_of(**options))
    assert seen == path
    assert header_of(last) == "refrain; fwd=miss"


def test_a_hit_costs_no_scan():
    plan = plan_of()
    seen, last = run(plan, entries=own(plan), scan_fails=True)
    assert seen == [EXACT, HIT]
    assert last.age == 100


@pytest.mark.parametrize("directives", ["", "no-cache", "only-if-cached"])
@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize(
    ("world", "reason"), [({"found": "email"}, Reason.PII), ({"scan_fails": True}, "scan-fault")]
)
def test_a_prompt_with_personal_data_is_neither_looked_up_nor_stored(
    directives, exact, world, reason
):
    plan = directed(directives, exact=exact)
    seen, last = run(plan, nearest=[(b"k" * 32, 1.0)], **world)
    assert seen[:-1] == ([EXACT, SCAN] if exact else [SCAN])
    if "only-if-cached" in directives:
        assert isinstance(last, Refused)
    else:
        assert header_of(last) == f"refrain; fwd=bypass; detail={reason}"
        assert last.store is None


@pytest.mark.parametrize(
    "change",
    [
        {"key": b"k" * 32},
        {"scope": b"o" * 32},
        {"model": "n"},
        {"endpoint": "/v1/completions"},
        {"upstream": "http://other/v1"},
        {"generation": 2},
        {"key_version": KEY_VERSION + 1},
    ],
)
def test_what_a_store_returns_is_checked_against_the_request(change):
    plan = plan_of()
    seen, last = run(plan, entries=own(plan, **change))
    assert seen == MISSED
    assert header_of(last) == "refrain; fwd=miss"


NEAR = "How can I pay?"


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("directives", ["", "only-if-cached", "max-age=100"])
def test_a_semantic_hit(exact, directives):
    plan = directed(directives, exact=exact)
    entry = asked_like(plan, NEAR)
    seen, last = run(plan, entries={entry.key: entry}, nearest=[(entry.key, 0.95)])
    assert seen == [*([EXACT] if exact else []), SCAN, SEARCH, FETCH, VERIFY, HIT]
    assert last.entry is entry
    assert header_of(last) == SEMANTIC_HIT


@pytest.mark.parametrize(
    "change",
    [
        {"scope": b"o" * 32},
        {"fingerprint": b"f" * 32},
        {"fingerprint": bytes(32)},
        {"question": None},
        {"key": b"k" * 32},
        {"model": "n"},
        {"upstream": "http://other/v1"},
        {"generation": 2},
        {"key_version": KEY_VERSION + 1},
        {"expires_at": FRESH},
        {"stored_at": STORED_AT - LIFETIME},
    ],
)
def test_a_candidate_that_does_not_fit_is_passed_over(change):
    plan = plan_of()
    entry = asked_like(plan, NEAR)
    world = {"entries": {entry.key: replace(entry, **change)}, "nearest": [(entry.key, 0.99)]}
    seen, last = run(plan, **world)
    assert seen == [EXACT, SCAN, SEARCH, FETCH, FORWARD]
    assert header_of(last) == "refrain; fwd=miss"
    assert last.store is plan


@pytest.mark.parametrize(
    ("directives", "header"),
    [("max-age=99", "refrain; fwd=miss"), ("min-fresh=501", "refrain; fwd=miss")],
)
def test_a_candidate_that_the_request_finds_too_old_is_passed_over(directives, header):
    plan = directed(directives)
    entry = asked_like(plan, NEAR)
    seen, last = run(plan, entries={entry.key: entry}, nearest=[(entry.key, 0.99)])
    assert seen == [EXACT, SCAN, SEARCH, FETCH, FORWARD]
    assert header_of(last) == header


def test_a_refused_exact_entry_is_not_replaced_by_a_semantic_one():
    plan = directed("max-age=99")
    entry = asked_like(plan, NEAR, stored_at=FRESH, expires_at=FRESH + LIFETIME)
    seen, last = run(plan, entries=own(plan) | {entry.key: entry}, nearest=[(entry.key, 0.99)])
    assert seen == PROVEN
    assert header_of(last) == "refrain; fwd=request; detail=freshness"


def test_a_stale_exact_entry_may_be_replaced_by_a_fresh_semantic_one():
    plan = plan_of()
    entry = asked_like(plan, NEAR, stored_at=LATE - 1, expires_at=LATE + 9)
    seen, last = run(
        plan,
        entries=own(plan) | {entry.key: entry},
        # The stale entry is in the index as well, and nearest.
        nearest=[(plan.key, 1.0), (entry.key, 0.95)],
        now=LATE,
    )
    assert seen == [EXACT, SEARCH, FETCH, FETCH, VERIFY, HIT]
    assert header_of(last) == 'refrain; hit; ttl=9; detail="semantic; similarity=0.950"'


def test_verification_goes_on_to_the_next_candidate():
    plan = plan_of()
    wrong, gone, right = (asked_like(plan, text) for text in ("Can I pay in 3?", "Gone", NEAR))
    seen, last = run(
        plan,
        entries={wrong.key: wrong, right.key: right},
        nearest=[(wrong.key, 0.99), (gone.key, 0.98), (right.key, 0.95)],
        refused_pairs={"Can I pay in 3?"},
    )
    assert seen == [EXACT, SCAN, SEARCH, FETCH, VERIFY, FETCH, FETCH, VERIFY, HIT]
    assert last.entry is right


def test_when_all_candidates_are_refused_it_is_a_miss():
    plan = plan_of()
    entries = [asked_like(plan, text) for text in ("a", "b")]
    seen, last = run(
        plan,
        entries={entry.key: entry for entry in entries},
        nearest=[(entry.key, 0.99) for entry in entries],
        refused_pairs={"a", "b"},
    )
    assert seen == [EXACT, SCAN, SEARCH, FETCH, VERIFY, FETCH, VERIFY, FORWARD]
    assert header_of(last) == "refrain; fwd=miss"


@pytest.mark.parametrize("similarity", [0.8999, 0.0, -1.0, float("nan")])
def test_what_is_not_near_enough_is_not_fetched(similarity):
    plan = plan_of()
    entry = asked_like(plan, NEAR)
    seen, _ = run(plan, entries={entry.key: entry}, nearest=[(entry.key, similarity)])
    assert seen == MISSED


def test_the_threshold_itself_is_near_enough():
    plan = plan_of()
    entry = asked_like(plan, NEAR)
    seen, _ = run(plan, entries={entry.key: entry}, nearest=[(entry.key, 0.9)])
    assert seen[-3:] == [FETCH, VERIFY, HIT]


@pytest.mark.parametrize(
    "other",
    [
        chat({"role": "system", "content": "s"}, user(NEAR)),
        chat(user("before"), {"role": "assistant", "content": "x"}, user(NEAR)),
        chat({"role": "user", "name": "Ann", "content": NEAR}),
        chat(user(NEAR), temperature=0.5),
        chat(user(NEAR), made_up_tomorrow=1),
        {**chat(user(NEAR)), "model": "n"},
    ],
)
def test_the_same_question_elsewhere_never_hits(other):
    """History, system prompt and parameters are in the fingerprint; the index is not trusted."""
    entry = entry_of(plan_of(other))
    seen, last = run(plan_of(), entries={entry.key: entry}, nearest=[(entry.key, 1.0)])
    assert seen == [EXACT, SCAN, SEARCH, FETCH, FORWARD]
    assert header_of(last) == "refrain; fwd=miss"


@pytest.mark.parametrize("reason", [Reason.NO_STORE, Reason.STORE_TRUE, Reason.POLICY])
def test_a_bypass_is_forwarded_and_not_stored(reason):
    path, last = drive(bypass(reason, Directives()), World())
    assert path == [FORWARD]
    assert header_of(last) == f"refrain; fwd=bypass; detail={reason}"
    assert last.store is None


def test_a_bypass_that_only_a_stored_answer_could_satisfy_is_refused():
    path, _ = drive(bypass(Reason.POLICY, Directives(only_if_cached=True)), World())
    assert path == [REFUSED]
