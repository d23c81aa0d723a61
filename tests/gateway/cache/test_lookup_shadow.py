"""The lookup machine where what is found by meaning is compared: shadow, samples, near misses."""

from dataclasses import replace

import pytest
from example_requests import plan_of
from lookup_driver import FRESH, LATE, asked_like, directed, header_of, own

from gateway.cache.lookup import (
    FetchCandidate,
    Forward,
    Hit,
    Refused,
    SearchSemantic,
    VerifyCandidate,
    start,
)
from gateway.cache.quality.shadow_eval import Kind
from gateway.protocol.http.cache_status import Reason
from gateway.semantic.ports import Verification

SURE, UNSURE = Verification(0.9, verifier="v"), Verification(0.4, verifier="v")
GUARDED = Verification(0.9, "number")


def searching(plan, entry=None, now=FRESH):
    """Return the state that needs the index's answer."""
    state = start(plan).next(entry, now)
    return state if isinstance(state, SearchSemantic) else state.next(None)


def ended(plan, *verifications, threshold=0.5, alias=False, entry=None, now=FRESH):
    """Drive to the end past one candidate for each verification; return the end and them."""
    stored = [asked_like(plan, f"question {n}") for n, _ in enumerate(verifications)]
    if now != FRESH:
        stored = [replace(each, expires_at=now + 9, stored_at=now) for each in stored]
    state = searching(plan, entry, now).next(
        [(each.key, 0.99 - n / 100) for n, each in enumerate(stored)]
    )
    for each, verification in zip(stored, verifications, strict=True):
        if not isinstance(state, FetchCandidate):
            break
        state = state.next(each, now)
        assert isinstance(state, VerifyCandidate)
        state = state.next(verification, threshold, alias=alias)
    return state, stored


def test_in_shadow_a_hit_is_forwarded_and_carried_along():
    end, [stored] = ended(plan_of(shadow=True), SURE)
    assert isinstance(end, Forward)
    assert header_of(end) == "refrain; fwd=miss; detail=shadow"
    assert (end.to_compare.kind, end.to_compare.entry, end.to_compare.score) == (
        Kind.SHADOW,
        stored,
        0.9,
    )
    assert (end.to_compare.similarity, end.to_compare.verifier) == (0.99, "v")


def test_in_shadow_a_stale_entry_of_the_request_stays_what_stands_in_for_a_failure():
    plan = plan_of(shadow=True, grace_error=900.0)
    [entry] = own(plan, grace=900.0).values()
    end, _ = ended(plan, SURE, entry=entry, now=LATE)
    assert header_of(end) == "refrain; fwd=stale; detail=shadow"
    assert end.instead(LATE).entry == entry


def test_in_shadow_who_wants_a_stored_answer_only_gets_none():
    end, _ = ended(directed("only-if-cached", shadow=True), SURE)
    assert end == Refused()


def test_a_hit_that_may_be_sampled_carries_what_it_is_compared_by():
    plan = plan_of(sample=0.01)
    end, [stored] = ended(plan, SURE)
    assert isinstance(end, Hit)
    assert (end.entry, end.plan, end.to_compare.kind) == (stored, plan, Kind.SERVED)


def test_who_wants_a_stored_answer_only_is_not_sampled():
    end, _ = ended(directed("only-if-cached", sample=1.0), SURE)
    assert isinstance(end, Hit)
    assert end.to_compare is None


def test_a_hit_of_a_rule_that_samples_nothing_carries_nothing():
    end, _ = ended(plan_of(), SURE)
    assert isinstance(end, Hit)
    assert end.to_compare is None


@pytest.mark.parametrize("decided", [{"shadow": True}, {"promote": True}])
@pytest.mark.parametrize("threshold", [0.5, None])
def test_the_surest_near_miss_is_compared(decided, threshold):
    unsure = [Verification(0.3), Verification(0.4), Verification(0.2), GUARDED]
    end, stored = ended(plan_of(**decided), *unsure, threshold=threshold)
    assert isinstance(end, Forward)
    assert header_of(end) == "refrain; fwd=miss"
    assert (end.to_compare.kind, end.to_compare.entry) == (Kind.NEAR_MISS, stored[1])


def test_a_near_miss_is_forgotten_where_another_candidate_fits():
    end, stored = ended(plan_of(promote=True), UNSURE, SURE)
    assert isinstance(end, Hit)
    assert end.entry == stored[1]


@pytest.mark.parametrize(
    "verification", [GUARDED, Verification(0.0, "fault"), Verification(float("nan"))]
)
def test_what_a_guard_or_a_fault_refused_is_no_near_miss(verification):
    end, _ = ended(plan_of(shadow=True, promote=True), verification)
    assert end.to_compare is None


def test_without_shadow_and_promotion_nothing_is_compared():
    assert ended(plan_of(sample=1.0), UNSURE)[0].to_compare is None


def test_an_alias_makes_up_for_the_score():
    end, [stored] = ended(plan_of(), UNSURE, alias=True)
    assert isinstance(end, Hit)
    assert end.entry == stored


@pytest.mark.parametrize("decided", [{"shadow": True}, {"sample": 1.0}])
def test_the_check_of_an_alias_says_so(decided):
    assert ended(plan_of(**decided), UNSURE, alias=True)[0].to_compare.alias
    assert not ended(plan_of(**decided), SURE, alias=True)[0].to_compare.alias


@pytest.mark.parametrize(
    ("verification", "threshold"),
    [
        (GUARDED, 0.5),
        (Verification(0.4, "fault"), 0.5),
        (Verification(float("nan")), 0.5),
        (UNSURE, None),
    ],
)
def test_an_alias_makes_up_for_nothing_else(verification, threshold):
    end, _ = ended(plan_of(), verification, threshold=threshold, alias=True)
    assert isinstance(end, Forward)


def test_a_rule_that_is_off_is_not_looked_up():
    end = searching(plan_of()).off()
    assert header_of(end) == "refrain; fwd=miss; detail=semantic-off"
    assert end.status.reason is Reason.SEMANTIC_OFF
    assert searching(directed("only-if-cached")).off() == Refused()
