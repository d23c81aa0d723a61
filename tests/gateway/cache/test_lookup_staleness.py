"""The lookup machine where an entry is stale, or an end user's own."""

from dataclasses import replace
from typing import Any

import pytest
from example_requests import chat, entry_of, plan_of
from lookup_driver import (
    EXACT,
    FETCH,
    FORWARD,
    HIT,
    LATE,
    PERSONAL,
    REFUSED,
    SCAN,
    SEARCH,
    VERIFY,
    asked_like,
    directed,
    header_of,
    own,
    run,
)

from gateway.cache.lookup import Forward, Hit
from gateway.cache.plan import Plan
from gateway.protocol.http.cache_status import Reason
from policies.decision import PiiAction, Scope

GRACES = {"grace_revalidate": 60.0, "grace_error": 600.0}
REVALIDATED = 'refrain; hit; ttl=-12; detail="exact; stale-while-revalidate"'
ON_ERROR = 'refrain; hit; ttl=-12; detail="exact; stale-if-error"'


@pytest.mark.parametrize(
    ("directives", "path", "header", "fallback"),
    [
        ("", [EXACT, HIT], REVALIDATED, None),
        ("only-if-cached", [EXACT, HIT], REVALIDATED, None),
        ("max-age=900", [EXACT, SEARCH, FORWARD], "refrain; fwd=stale", None),
        ("no-cache", [EXACT, FORWARD], "refrain; fwd=stale", None),
        ("no-cache, stale-if-error=99", [EXACT, FORWARD], "refrain; fwd=stale", None),
        ("max-age=9, stale-if-error=700", [EXACT, SEARCH, FORWARD], "refrain; fwd=stale", ON_ERROR),
        ("max-age=9, stale-if-error=602", [EXACT, SEARCH, FORWARD], "refrain; fwd=stale", None),
        ("max-age=900, only-if-cached", [EXACT, SEARCH, REFUSED], "refused", None),
    ],
)
def test_a_stale_entry_within_both_graces(directives, path, header, fallback):
    plan = directed(directives, **GRACES)
    seen, last = run(plan, entries=own(plan), now=LATE)
    assert seen == path
    assert header_of(last) == header
    if isinstance(last, Hit):
        revalidates = "only-if-cached" not in directives
        assert last.revalidate is (plan if revalidates else None)
    elif isinstance(last, Forward):
        assert (last.fallback and last.fallback.status.header()) == fallback
        assert last.store is plan


def test_a_grace_that_the_policy_took_back_holds_for_what_is_stored():
    entry = entry_of(plan_of(**GRACES))
    plan = plan_of()
    _, last = run(plan, entries={plan.key: entry}, now=LATE)
    assert isinstance(last, Forward)
    assert last.fallback is None


def test_a_grace_that_the_policy_gave_later_does_not_revive_what_is_stored():
    plan = plan_of(**GRACES)
    _, last = run(plan, entries={plan.key: entry_of(plan_of())}, now=LATE)
    assert isinstance(last, Forward)
    assert last.fallback is None


def test_a_stale_candidate_is_passed_over_whatever_its_grace():
    plan = plan_of(**GRACES)
    entry = asked_like(plan, "How can I pay?")
    seen, _ = run(plan, entries={entry.key: entry}, nearest=[(entry.key, 0.99)], now=LATE)
    assert seen == [EXACT, SCAN, SEARCH, FETCH, FORWARD]


def test_a_fallback_is_kept_through_the_semantic_lookup():
    plan = plan_of(grace_error=600.0)
    candidate = asked_like(plan, "How can I pay?", stored_at=LATE - 1, expires_at=LATE + 9)
    world: dict[str, Any] = {
        "entries": own(plan) | {candidate.key: candidate},
        "nearest": [(candidate.key, 0.95)],
        "now": LATE,
    }
    seen, last = run(plan, **world, refused_pairs={"How can I pay?"})
    assert seen == [EXACT, SEARCH, FETCH, VERIFY, FORWARD]
    assert last.fallback.status.header() == ON_ERROR


# PII kept within its end user's own scope.


def users(name: str | None = "ann", **options: Any) -> Plan:
    body = chat() if name is None else chat(user=name)
    return plan_of(body, pii=PiiAction.USER, pii_identity="user/1", **options)


def test_a_clean_prompt_goes_the_shared_way():
    plan = users()
    seen, last = run(plan)
    assert seen == [EXACT, PERSONAL, SCAN, SEARCH, FORWARD]
    assert last.store is plan


def test_a_prompt_with_personal_data_goes_on_wholly_in_its_users_scope():
    plan = users()
    seen, last = run(plan, found="email")
    assert seen == [EXACT, PERSONAL, SCAN, SEARCH, FORWARD]
    assert last.store is plan.personal
    assert last.store.partition.scope != plan.partition.scope
    assert header_of(last) == "refrain; fwd=miss"


def test_without_an_end_user_personal_data_bypasses():
    seen, last = run(users(None), found="email")
    assert seen == [EXACT, SCAN, FORWARD]
    assert header_of(last) == "refrain; fwd=bypass; detail=pii"
    assert last.store is None


def test_a_personal_answer_is_found_again_without_a_scan():
    plan = users()
    entry = entry_of(plan.personal)
    seen, last = run(plan, entries={entry.key: entry}, scan_fails=True)
    assert seen == [EXACT, PERSONAL, HIT]
    assert last.entry is entry


@pytest.mark.parametrize("name", ["bob", None])
def test_a_personal_answer_is_not_found_by_anybody_else(name):
    entry = entry_of(users().personal)
    other = users(name)
    for found in (None, "email"):
        _, last = run(other, entries={entry.key: entry}, nearest=[(entry.key, 1.0)], found=found)
        assert isinstance(last, Forward)


def test_personal_data_is_looked_up_by_meaning_in_its_users_scope_only():
    plan = users()
    shared = asked_like(plan, "How can I pay?")
    mine = asked_like(plan.personal, "How can I pay?")
    world: dict[str, Any] = {
        "entries": {shared.key: shared, mine.key: mine},
        "nearest": [(shared.key, 0.99), (mine.key, 0.98)],
    }
    seen, last = run(plan, **world, found="email")
    assert seen == [EXACT, PERSONAL, SCAN, SEARCH, FETCH, FETCH, VERIFY, HIT]
    assert last.entry is mine
    _, last = run(plan, **world)
    assert last.entry is shared


def test_a_shared_entry_proves_its_prompt_clean_but_a_personal_one_does_not():
    plan = users(grace_error=600.0)
    seen, last = run(plan, entries=own(plan), now=LATE)
    assert seen == [EXACT, PERSONAL, SEARCH, FORWARD]
    assert last.store is plan
    entry = entry_of(plan.personal)
    seen, last = run(plan, entries={entry.key: entry}, now=LATE, found="email")
    assert seen == [EXACT, PERSONAL, SCAN, SEARCH, FORWARD]
    assert header_of(last) == "refrain; fwd=stale"
    assert last.store is plan.personal
    assert last.fallback.entry is entry


def test_a_personal_entry_refused_by_the_request_is_told_and_replaced():
    plan = users()
    refusing = replace(plan, directives=directed("no-cache").directives)
    entry = entry_of(plan.personal)
    seen, last = run(refusing, entries={entry.key: entry}, found="email")
    assert seen == [EXACT, PERSONAL, SCAN, FORWARD]
    assert header_of(last) == "refrain; fwd=request; detail=no-cache"
    assert last.store.key == plan.personal.key


def test_a_scan_that_fails_leaves_a_personal_prompt_out_of_the_cache():
    seen, last = run(users(), scan_fails=True)
    assert seen == [EXACT, PERSONAL, SCAN, FORWARD]
    assert header_of(last) == f"refrain; fwd=bypass; detail={Reason.SCAN_FAULT}"
    assert last.store is None


def test_in_the_user_scope_nothing_is_scanned_and_nothing_else_looked_up():
    plan = users(scope=Scope.USER)
    seen, last = run(plan, found="email")
    assert seen == [EXACT, SEARCH, FORWARD]
    assert last.store is plan
    assert plan.personal is None


def test_misses_share_a_call_within_one_end_user_where_the_answer_may_be_personal():
    assert users("ann").coalescing_key == users("ann").coalescing_key
    assert users("ann").coalescing_key != users("bob").coalescing_key
    assert plan_of(chat(user="ann")).coalescing_key == plan_of(chat(user="bob")).coalescing_key
