"""Whatever store, index and scan return, no answer crosses a scope, and the machine ends."""

import math
from dataclasses import replace
from typing import Any

from example_requests import STORED_AT, chat, entry_of, plan_of, user
from hypothesis import given, target
from hypothesis import strategies as st

from gateway.cache.key import identify
from gateway.cache.lookup import (
    FetchCandidate,
    Forward,
    Hit,
    LookUpExact,
    LookUpPersonal,
    Refused,
    ScanPrompt,
    SearchSemantic,
    State,
    VerifyCandidate,
    start,
)
from gateway.cache.plan import Plan
from gateway.cache.ports import Entry
from gateway.protocol.http.cache_status import Reason
from gateway.semantic.ports import Verification
from policies.decision import PiiAction, Scope
from policies.freshness import Directives, Grace, Verdict, freshness, jittered

BODIES = st.builds(
    lambda question, system, fields: chat(
        *([{"role": "system", "content": system}] if system else []), user(question), **fields
    ),
    st.sampled_from(["How do I pay?", "How can I pay?", "May I leave?"]),
    st.sampled_from(["", "Be kind."]),
    st.fixed_dictionaries({}, optional={"seed": st.integers(0, 1), "user": st.just("ann")}),
)
DIRECTIVES = st.builds(
    Directives,
    no_cache=st.booleans(),
    only_if_cached=st.booleans(),
    max_age=st.none() | st.integers(0, 700),
    min_fresh=st.none() | st.integers(0, 700),
    max_stale=st.none() | st.integers(0, 700),
    stale_if_error=st.none() | st.integers(0, 700),
)


def _plan(body: Any, tenant: str, scope: Scope, **options: Any) -> Plan:
    known = identify({"authorization": tenant} if tenant else {})
    return plan_of({**body, "user": body.get("user", "bob")}, tenant=known, scope=scope, **options)


PLANS = st.builds(
    _plan,
    BODIES,
    st.sampled_from(["", "Bearer a", "Bearer b"]),
    st.sampled_from(Scope),
    exact=st.booleans(),
    pii=st.sampled_from(PiiAction),
    generation=st.integers(1, 2),
    directives=DIRECTIVES,
)


GRACES = st.sampled_from([0.0, 30.0, 300.0, 3_000.0])


def _step(state: State, data: st.DataObject, now: float, world: Any) -> State:
    """Answer what the state asks for with anything a store, scan, index or verifier may say."""
    entries, nearest = world
    anything = st.none() | st.sampled_from(entries)
    match state:
        case LookUpExact() | LookUpPersonal() | FetchCandidate():
            return state.next(data.draw(anything), now)
        case ScanPrompt():
            found = data.draw(st.sampled_from([None, None, None, "email"]))
            after = state.next(found)
            if found and isinstance(after, Forward) and after.store is not None:
                assert after.store is state.plan.personal
            return after
        case SearchSemantic():
            return state.next(nearest)
        case VerifyCandidate():
            verification = Verification(
                data.draw(st.sampled_from([1.0, 0.5, 0.0, math.nan])),
                data.draw(st.sampled_from([None, "number"])),
            )
            threshold = data.draw(st.sampled_from([None, 0.0, 0.5, 1.0]))
            after = state.next(verification, threshold)
            if isinstance(after, Hit):
                assert verification.refusal is None
                assert threshold is not None
                assert verification.score >= threshold
            return after
        case Hit() | Forward() | Refused():
            raise AssertionError("the machine has ended")


def _mine(plan: Plan, entry: Entry) -> bool:
    """Tell whether an entry is of the request's partition, or of its end user's own."""
    own = [plan, *([plan.personal] if plan.personal is not None else [])]
    keys = {mine.key for mine in own}
    return any(
        entry.scope == mine.partition.scope
        and entry.generation == mine.partition.generation
        and (entry.key in keys or entry.fingerprint == mine.fingerprint)
        for mine in own
    )


def _stale_by(entry: Entry, now: float) -> float:
    return now - entry.expires_at


@given(PLANS, st.lists(PLANS, max_size=5), st.data())
def test_only_what_may_be_served_is_served(plan, others, data):
    revalidate, error = data.draw(GRACES), data.draw(GRACES)
    jitter = data.draw(st.sampled_from([0, 0.5]))
    settings = {"grace_revalidate": revalidate, "grace_error": error, "jitter": jitter}
    plan, *others = (
        replace(one, decision=replace(one.decision, **settings)) for one in (plan, *others)
    )
    own = [plan, *([plan.personal] if plan.personal else [])]
    entries = [entry_of(one) for one in (*others, *own)]
    now = STORED_AT + data.draw(st.integers(0, 4_000))
    nearest = data.draw(
        st.lists(st.tuples(st.sampled_from(entries).map(lambda e: e.key), st.floats(0, 1)))
    )
    state = start(plan)
    steps = 0
    while not isinstance(state, Hit | Forward | Refused):
        state = _step(state, data, now, (entries, nearest))
        steps += 1
        assert steps <= 5 + 2 * len(nearest)
    target(float(steps))
    asked = plan.directives
    if isinstance(state, Hit):
        assert _mine(plan, state.entry)
        assert not asked.no_cache
        stale_by = _stale_by(state.entry, now)
        grace = revalidate if state.status.stale is Reason.STALE_WHILE_REVALIDATE else 0.0
        accepted = -1 if asked.max_stale is None else asked.max_stale
        assert stale_by < grace or stale_by <= accepted
        assert asked.max_stale is None or stale_by <= max(asked.max_stale, 0)
        assert asked.max_age is None or state.age <= asked.max_age
        if state.revalidate is not None:
            assert state.revalidate.key == state.entry.key
            assert state.status.stale is Reason.STALE_WHILE_REVALIDATE
            assert not asked.only_if_cached
    elif isinstance(state, Forward):
        assert not asked.only_if_cached
        if state.fallback is not None:
            assert _mine(plan, state.fallback.entry)
            assert not asked.no_cache
            assert _stale_by(state.fallback.entry, now) < error or not state.fallback.status.stale
        if state.store is not None:
            assert state.store in (plan, plan.personal)


@given(
    st.floats(0, 1e6),
    st.floats(0, 1),
    st.binary(min_size=32, max_size=32),
)
def test_jitter_only_shortens_and_by_no_more_than_its_share(lifetime, jitter, digest):
    shortened = jittered(lifetime, jitter, digest)
    assert lifetime * (1 - jitter) * (1 - 1e-9) <= shortened <= lifetime
    assert jittered(lifetime, jitter, digest) == shortened


@given(DIRECTIVES, st.integers(0, 2_000), st.integers(1, 1_000), GRACES, GRACES)
def test_freshness_arithmetic(asked, age, lifetime, revalidate, error):
    found = freshness(
        stored_at=STORED_AT,
        expires_at=STORED_AT + lifetime,
        now=STORED_AT + age,
        directives=asked,
        grace=Grace(revalidate, error),
    )
    assert (found.age, found.ttl) == (age, lifetime - age)
    match found.verdict:
        case Verdict.FRESH:
            assert found.ttl > 0 or (asked.max_stale is not None and -found.ttl <= asked.max_stale)
        case Verdict.REVALIDATE:
            assert 0 <= -found.ttl < revalidate
        case Verdict.STALE:
            assert found.ttl <= 0
        case Verdict.REFUSED:
            assert found.ttl > 0
    if found.if_error:
        assert found.verdict in (Verdict.STALE, Verdict.REFUSED)
        assert -found.ttl < max(error, 1)
        assert not asked.no_cache
        assert asked.stale_if_error is None or -found.ttl <= asked.stale_if_error
    # A longer grace never makes an entry less usable.
    longer = freshness(
        stored_at=STORED_AT,
        expires_at=STORED_AT + lifetime,
        now=STORED_AT + age,
        directives=asked,
        grace=Grace(revalidate, error + 100),
    )
    assert longer.verdict is found.verdict
    assert longer.if_error or not found.if_error
