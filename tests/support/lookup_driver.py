"""What the lookup machine meets in tests, the driver that meets it, and short names of states."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, assert_never

from example_requests import LIFETIME, STORED_AT, entry_of, plan_of, user

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
from gateway.semantic.ports import Verification
from policies.freshness import parse_directives

EXACT, PERSONAL, SCAN, SEARCH, FETCH, VERIFY, HIT, FORWARD, REFUSED = (
    LookUpExact,
    LookUpPersonal,
    ScanPrompt,
    SearchSemantic,
    FetchCandidate,
    VerifyCandidate,
    Hit,
    Forward,
    Refused,
)
FRESH = STORED_AT + 100
LATE = STORED_AT + LIFETIME + 12


@dataclass
class World:
    """What the driver would find: entries by key, the scan's finding, the index's answer."""

    entries: Mapping[bytes, Entry | None] = field(default_factory=dict)
    found: str | None = None
    scan_fails: bool = False
    nearest: list[tuple[bytes, float]] = field(default_factory=list)
    now: float = FRESH
    refused_pairs: set[str] = field(default_factory=set)

    def verify(self, asked: str, stored: str) -> str | None:
        return "number" if stored in self.refused_pairs else None


def drive(state: State, world: World) -> tuple[list[type], State]:
    """Perform what each state asks for; return the path and the last state."""
    path: list[type] = []
    while True:
        path.append(type(state))
        match state:
            case LookUpExact():
                state = state.next(world.entries.get(state.plan.key), world.now)
            case LookUpPersonal():
                state = state.next(world.entries.get(state.personal.key), world.now)
            case ScanPrompt() if world.scan_fails:
                state = state.fail()
            case ScanPrompt():
                state = state.next(world.found)
            case SearchSemantic():
                state = state.next(world.nearest)
            case FetchCandidate():
                state = state.next(world.entries.get(state.key), world.now)
            case VerifyCandidate():
                state = state.next(
                    Verification(1.0, world.verify(state.question, state.stored)), 0.5
                )
            case Hit() | Forward() | Refused():
                return path, state
            case _:
                assert_never(state)


def header_of(state: State) -> str:
    match state:
        case Hit():
            return state.status.header()
        case Forward():
            return state.status.header()
        case _:
            return "refused"


def run(plan: Plan, **world: Any) -> tuple[list[type], State]:
    return drive(start(plan), World(**world))


def directed(header: str, **options: Any) -> Plan:
    return plan_of(directives=parse_directives(header), **options)


def own(plan: Plan, **changes: Any) -> dict[bytes, Entry | None]:
    """The store holds the request's own entry."""
    return {plan.key: entry_of(plan, **changes)}


def asked_like(plan: Plan, question: str, **changes: Any) -> Entry:
    """The entry of the same request with another question."""
    other = replace(plan, body={**plan.body, "messages": [user(question)]})
    return entry_of(other, **changes)
