"""Decisions over requests that were written down without their text.

Law: what is not known is not guessed. A recorded request holds the truth of every condition that
the policy of its time asked for; a condition it does not hold may be true or false, and a rule
that depends on it makes the decision unknown (Kleene's three values: None is unknown).
"""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from typing import Any

from policies.conditions import conditions
from policies.decide import Decision, Policy, RequestFacts, Rule, Test
from policies.fields import ANONYMOUS
from policies.schema import ContentSpec, MatchSpec, PolicySpec, TenantSpec


class Kind(Enum):
    """What a condition looks at, and so whether a record alone can tell."""

    PLAIN = "plain"
    """Endpoint and model, which every record holds."""
    TENANT = "tenant"
    HEADER = "header"
    CONTENT = "content"


@dataclass(frozen=True)
class Atom:
    """One condition on one value; ``name`` is the same wherever the same is asked.

    It is compiled when it is first asked for: there may be thousands, and few ever are.
    """

    name: str
    kind: Kind
    make: Callable[[], Test]

    @cached_property
    def holds(self) -> Test:
        """Tell whether facts meet it."""
        return self.make()


@dataclass(frozen=True, slots=True)
class Recorded:
    """A request as it was written down. ``facts`` has texts only where ``has_text``."""

    facts: RequestFacts
    truths: Mapping[str, bool]
    has_text: bool

    def holds(self, atom: Atom) -> bool | None:
        """Tell whether a condition held; None where nothing tells."""
        if atom.kind is Kind.PLAIN or (atom.kind is Kind.CONTENT and self.has_text):
            return atom.holds(self.facts)
        return self.truths.get(atom.name)


@dataclass(frozen=True, slots=True)
class Clause:
    """One key of a match: ``holds`` when any of its atoms does, found without asking each."""

    atoms: tuple[Atom, ...]
    holds: Test

    def truths(self, facts: RequestFacts) -> dict[str, bool]:
        """Return what each atom came to; none did where all of them together did not."""
        held = self.holds(facts)
        if not held or len(self.atoms) == 1:
            return {atom.name: held for atom in self.atoms}
        return {atom.name: atom.holds(facts) for atom in self.atoms}


@dataclass(frozen=True, slots=True)
class RecordedPolicy:
    """A policy that decides on recorded requests."""

    rules: tuple[tuple[tuple[Clause, ...], Decision], ...]
    default: Decision

    def decide(self, recorded: Recorded) -> Decision | None:
        """Return the decision, or None where it depends on what the record does not hold."""
        for clauses, decision in self.rules:
            held = _all(_any(recorded.holds(atom) for atom in clause.atoms) for clause in clauses)
            if held is None:
                return None
            if held:
                return decision
        return self.default

    def truths(self, facts: RequestFacts) -> dict[str, bool]:
        """Return what is to be written down of a request, so that this policy can be replayed."""
        found: dict[str, bool] = {}
        for clauses, _ in self.rules:
            for clause in clauses:
                if clause.atoms[0].kind is not Kind.PLAIN:
                    found |= clause.truths(facts)
        return found


def recorded_policy(spec: PolicySpec, policy: Policy) -> RecordedPolicy:
    """Return the policy in a form that decides on records; ``policy`` is ``spec`` compiled."""
    rules = tuple(
        (tuple(_joined(rule.match, spec.tenants, compiled)), compiled.decision)
        for rule, compiled in zip(spec.rules, policy.rules, strict=True)
    )
    return RecordedPolicy(rules, policy.default)


def _joined(match: MatchSpec, tenants: Mapping[str, TenantSpec], rule: Rule) -> Iterator[Clause]:
    tests = {condition.key: condition.holds for condition in rule.conditions}
    for key, atoms in _clauses(match, tenants):
        yield Clause(atoms, tests[key])


def _clauses(
    match: MatchSpec, tenants: Mapping[str, TenantSpec]
) -> Iterator[tuple[str, tuple[Atom, ...]]]:
    if match.endpoint is not None:
        yield "endpoint", _clause(Kind.PLAIN, "endpoint", match.endpoint, tenants)
    if match.model is not None:
        yield "model", _clause(Kind.PLAIN, "model", match.model, tenants)
    if match.tenant is not None:
        yield "tenant", tuple(_tenant(name, tenants) for name in match.tenant)
    for header, globs in (match.header or {}).items():
        atoms = (
            _atom(Kind.HEADER, [header, glob], MatchSpec(header={header: [glob]}), tenants)
            for glob in globs
        )
        yield f"header.{header}", tuple(atoms)
    if match.content is not None:
        for field in ContentSpec.model_fields:
            values = getattr(match.content, field)
            if values is not None:
                atoms = (
                    _atom(
                        Kind.CONTENT,
                        [field, value],
                        MatchSpec(content=ContentSpec.model_validate({field: [value]})),
                        tenants,
                    )
                    for value in values
                )
                yield f"content.{field}", tuple(atoms)


def _clause(
    kind: Kind, field: str, values: Sequence[str], tenants: Mapping[str, TenantSpec]
) -> tuple[Atom, ...]:
    return tuple(
        _atom(kind, [field, value], MatchSpec.model_validate({field: [value]}), tenants)
        for value in values
    )


def _tenant(name: str, tenants: Mapping[str, TenantSpec]) -> Atom:
    # By what the tenant is, not by its name: the same name may mean another one tomorrow.
    meaning = None if name == ANONYMOUS else tenants[name].model_dump(mode="json")
    return _atom(Kind.TENANT, ["tenant", meaning], MatchSpec(tenant=[name]), tenants)


def _atom(kind: Kind, meaning: Any, match: MatchSpec, tenants: Mapping[str, TenantSpec]) -> Atom:
    written = json.dumps(meaning, sort_keys=True, ensure_ascii=False)
    digest = hashlib.sha256(written.encode("utf-8", "replace")).hexdigest()[:16]

    def make() -> Test:
        (condition,) = conditions(match, tenants)
        return condition.holds

    return Atom(digest, kind, make)


def _any(held: Iterator[bool | None]) -> bool | None:
    values = list(held)
    return True if True in values else None if None in values else False


def _all(held: Iterator[bool | None]) -> bool | None:
    values = list(held)
    return False if False in values else None if None in values else True
