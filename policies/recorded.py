"""Decisions over requests that were written down without their text.

Law: unknown facts are not guessed. A recorded request holds the truth of every condition that
the policy of its time asked for; a condition it does not hold may be true or false, and a rule
that depends on it makes the decision unknown (Kleene's three values: None is unknown).
"""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from policies.decision import Decision
from policies.policy import ANONYMOUS, Policy, RequestFacts, Tenant, Test, condition

_PLAIN = frozenset({"endpoint", "model"})
"""Conditions on facts that every record holds."""


@dataclass(frozen=True)
class Atom:
    """One condition on one value; equal conditions have equal ``name``s.

    It is compiled when it is first asked for: there may be thousands, and few ever are.
    """

    name: str
    key: str
    """The first word of its place in ``match``."""
    make: Callable[[], Test]

    @cached_property
    def holds(self) -> Test:
        return self.make()


@dataclass(frozen=True, slots=True)
class RecordedFacts:
    """A recorded request. ``facts`` has texts only if ``has_text``."""

    facts: RequestFacts
    truths: Mapping[str, bool]
    has_text: bool

    def holds(self, atom: Atom) -> bool | None:
        """Tell whether a condition held; None where nothing tells."""
        if atom.key in _PLAIN or (atom.key == "content" and self.has_text):
            return atom.holds(self.facts)
        return self.truths.get(atom.name)


@dataclass(frozen=True, slots=True)
class Clause:
    """One key of a match: ``holds`` when any of its atoms does, found without a test of each."""

    atoms: tuple[Atom, ...]
    holds: Test

    def truths(self, facts: RequestFacts) -> dict[str, bool]:
        """Return the truth of each atom; if the clause is false, every atom counts as false."""
        held = self.holds(facts)
        if not held or len(self.atoms) == 1:
            return {atom.name: held for atom in self.atoms}
        return {atom.name: atom.holds(facts) for atom in self.atoms}


@dataclass(frozen=True, slots=True)
class RecordedPolicy:
    """A policy that decides on recorded requests."""

    rules: tuple[tuple[tuple[Clause, ...], Decision], ...]
    default: Decision

    def decide(self, recorded: RecordedFacts) -> Decision | None:
        """Return the decision, or None if it depends on facts that the record does not hold."""
        for clauses, decision in self.rules:
            held = _all(_any(recorded.holds(atom) for atom in clause.atoms) for clause in clauses)
            if held is None:
                return None
            if held:
                return decision
        return self.default

    def truths(self, facts: RequestFacts) -> dict[str, bool]:
        """Return the facts of a request to record, so that this policy can be replayed."""
        found: dict[str, bool] = {}
        for clauses, _ in self.rules:
            for clause in clauses:
                if clause.atoms[0].key not in _PLAIN:
                    found |= clause.truths(facts)
        return found


def recorded_policy(policy: Policy) -> RecordedPolicy:
    """Return the policy in a form that decides on records."""
    rules = []
    for rule in policy.rules:
        clauses = (
            Clause(
                tuple(_atom(each.key, value, policy.tenants) for value in each.wanted), each.holds
            )
            for each in rule.conditions
        )
        rules.append((tuple(clauses), rule.decision))
    return RecordedPolicy(tuple(rules), policy.default)


def _atom(key: str, value: str, tenants: Mapping[str, Tenant]) -> Atom:
    group, _, name = key.partition(".")
    meaning: list[Any] = [name or group, value]
    if group == "tenant":
        # By the tenant's definition, not by its name: a name may be reused for another tenant.
        meaning = [group, None if value == ANONYMOUS else asdict(tenants[value])]
    written = json.dumps(meaning, sort_keys=True, ensure_ascii=False)
    digest = hashlib.sha256(written.encode("utf-8", "replace")).hexdigest()[:16]
    return Atom(digest, group, lambda: condition(key, [value], tenants).holds)


def _any(held: Iterator[bool | None]) -> bool | None:
    values = list(held)
    return True if True in values else None if None in values else False


def _all(held: Iterator[bool | None]) -> bool | None:
    values = list(held)
    return False if False in values else None if None in values else True
