"""From the facts of a request to what the cache may do with it.

A policy is compiled once (``policies.parse``) and then only read: deciding is a pure function of
the facts, the first rule that matches wins, and ``default`` answers for all that no rule matches.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum


class Scope(StrEnum):
    """Who shares an entry: one tenant, one end user of one tenant, or everybody."""

    TENANT = "tenant"
    USER = "user"
    PUBLIC = "public"


class PiiAction(StrEnum):
    """What personal data in the prompt or the answer does."""

    BYPASS = "bypass"
    ALLOW = "allow"


@dataclass(frozen=True, slots=True)
class RequestFacts:
    """All that a policy may look at."""

    endpoint: str
    """Path, such as ``/v1/chat/completions``."""
    model: str
    headers: Mapping[str, str]
    """Names in lower case."""
    credential_sha256: str | None
    """Lower-case hex digest of the API key; None when the client sent none."""
    organization: str | None
    project: str | None
    last_user_text: str | None
    """All text parts of the last user message; None when it has none."""
    system_text: str | None
    """System and developer messages joined by line feeds; hashed only if a rule asks."""


@dataclass(frozen=True, slots=True)
class Decision:
    """What the cache may do with a request, and which rule said so."""

    rule: str
    """Name of the rule, or ``default``."""
    exact: bool
    semantic: bool
    min_similarity: float
    """Least cosine similarity of a semantic hit, 0 to 1."""
    lifetime: float
    """Freshness lifetime in seconds."""
    scope: Scope
    pii: PiiAction
    generation: int
    """Part of every key: raised by the operator, it drops what is older."""


Condition = Callable[[RequestFacts], bool]


@dataclass(frozen=True, slots=True)
class Rule:
    """A decision for the requests that meet all conditions."""

    conditions: tuple[Condition, ...]
    decision: Decision

    @property
    def name(self) -> str:
        """Unique within the policy."""
        return self.decision.rule


@dataclass(frozen=True, slots=True)
class Policy:
    """A compiled policy file."""

    source: str
    """Where the text came from, for messages."""
    generation: int
    regions: tuple[str, ...]
    """ISO 3166 codes of the regions whose phone numbers the PII scan knows."""
    rules: tuple[Rule, ...]
    default: Decision

    def decide(self, facts: RequestFacts) -> Decision:
        """Return the decision of the first rule that matches, else the default. Never raises."""
        for rule in self.rules:
            for condition in rule.conditions:
                if not condition(facts):
                    break
            else:
                return rule.decision
        return self.default
