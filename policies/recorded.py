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
from typing import Any

from policies.conditions import conditions
from policies.decide import Decision, Policy, RequestFacts
from policies.fields import ANONYMOUS
from policies.schema import ContentSpec, MatchSpec, PolicySpec, TenantSpec


class Kind(Enum):
    """What a condition looks at, and so whether a record alone can tell."""

    PLAIN = "plain"
    """Endpoint and model, which every record holds."""
    TENANT = "tenant"
    HEADER = "header"
    CONTENT = "content"


@dataclass(frozen=True, slots=True)
class Atom:
    """One condition on one value; ``name`` is the same wherever the same is asked."""

    name: str
    kind: Kind
    holds: Callable[[RequestFacts], bool]


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


Clause = tuple[Atom, ...]
"""Holds when any of its atoms does."""


@dataclass(frozen=True, slots=True)
class RecordedPolicy:
    """A policy that decides on recorded requests."""

    rules: tuple[tuple[tuple[Clause, ...], Decision], ...]
    default: Decision

    def decide(self, recorded: Recorded) -> Decision | None:
        """Return the decision, or None where it depends on what the record does not hold."""
        for clauses, decision in self.rules:
            held = _all(_any(recorded.holds(atom) for atom in clause) for clause in clauses)
            if held is None:
                return None
            if held:
                return decision
        return self.default

    def truths(self, facts: RequestFacts) -> dict[str, bool]:
        """Return what is to be written down of a request, so that this policy can be replayed."""
        return {
            atom.name: atom.holds(facts)
            for clauses, _ in self.rules
            for clause in clauses
            for atom in clause
            if atom.kind is not Kind.PLAIN
        }


def recorded_policy(spec: PolicySpec, policy: Policy) -> RecordedPolicy:
    """Return the policy in a form that decides on records; ``policy`` is ``spec`` compiled."""
    rules = tuple(
        (tuple(_clauses(rule.match, spec.tenants)), compiled.decision)
        for rule, compiled in zip(spec.rules, policy.rules, strict=True)
    )
    return RecordedPolicy(rules, policy.default)


def _clauses(match: MatchSpec, tenants: Mapping[str, TenantSpec]) -> Iterator[Clause]:
    if match.endpoint is not None:
        yield _clause(Kind.PLAIN, "endpoint", match.endpoint, tenants)
    if match.model is not None:
        yield _clause(Kind.PLAIN, "model", match.model, tenants)
    if match.tenant is not None:
        yield tuple(_tenant(name, tenants) for name in match.tenant)
    for header, globs in (match.header or {}).items():
        yield tuple(
            _atom(Kind.HEADER, [header, glob], MatchSpec(header={header: [glob]}), tenants)
            for glob in globs
        )
    if match.content is not None:
        for field in ContentSpec.model_fields:
            values = getattr(match.content, field)
            if values is not None:
                yield tuple(
                    _atom(
                        Kind.CONTENT,
                        [field, value],
                        MatchSpec(content=ContentSpec.model_validate({field: [value]})),
                        tenants,
                    )
                    for value in values
                )


def _clause(
    kind: Kind, field: str, values: Sequence[str], tenants: Mapping[str, TenantSpec]
) -> Clause:
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
    (condition,) = conditions(match, tenants)
    return Atom(digest, kind, condition.holds)


def _any(held: Iterator[bool | None]) -> bool | None:
    values = list(held)
    return True if True in values else None if None in values else False


def _all(held: Iterator[bool | None]) -> bool | None:
    values = list(held)
    return False if False in values else None if None in values else True
