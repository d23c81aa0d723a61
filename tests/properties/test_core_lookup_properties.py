"""Whatever store, index and scan return, no answer crosses a scope, and the machine ends."""

from typing import Any

from core_requests import chat, entry_of, plan_of, user
from hypothesis import given, target
from hypothesis import strategies as st

from gateway.core.key import identify
from gateway.core.lookup import (
    FetchCandidate,
    Forward,
    Hit,
    LookUpExact,
    Refused,
    ScanPrompt,
    SearchSemantic,
    State,
    VerifyCandidate,
    start,
)
from gateway.core.plan import Plan
from policies.decide import PiiAction, Scope
from policies.freshness import Directives

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


@given(PLANS, st.lists(PLANS, max_size=5), st.data())
def test_only_a_fresh_entry_of_the_same_partition_is_served(plan, others, data):
    entries = [entry_of(other) for other in (*others, plan)]
    now = 1_000.0 + data.draw(st.integers(0, 1_300))
    anything = st.none() | st.sampled_from(entries)
    nearest = data.draw(
        st.lists(st.tuples(st.sampled_from(entries).map(lambda e: e.key), st.floats(0, 1)))
    )
    scanned = False
    state: State = start(plan)
    steps = 0
    while not isinstance(state, Hit | Forward | Refused):
        steps += 1
        match state:
            case LookUpExact():
                state = state.next(data.draw(anything), now)
            case ScanPrompt():
                found = data.draw(st.sampled_from([None, None, None, "email"]))
                scanned = True
                state = state.next(found)
                if found:
                    assert isinstance(state, Refused) or state.store is None
            case SearchSemantic():
                assert scanned or not plan.scans
                state = state.next(nearest)
            case FetchCandidate():
                state = state.next(data.draw(anything), now)
            case VerifyCandidate():
                state = state.next(data.draw(st.sampled_from([None, "number"])))
    target(float(steps))
    assert steps <= 3 + 2 * len(nearest)
    if isinstance(state, Hit):
        entry = state.entry
        assert entry.scope == plan.partition.scope
        assert entry.generation == plan.partition.generation
        assert entry.key == plan.key or entry.fingerprint == plan.fingerprint
        assert not plan.directives.no_cache
        stale_by = now - entry.expires_at
        assert stale_by < 0 or (plan.directives.max_stale or 0) >= stale_by
        assert plan.directives.max_age is None or state.age <= plan.directives.max_age
    elif isinstance(state, Forward):
        assert not plan.directives.only_if_cached
