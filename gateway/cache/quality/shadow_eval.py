"""Shadow evaluation: answers found by meaning compared with fresh ones, and the rate of wrong hits.

Laws: a line of the journal holds digests and figures, and texts only where the operator lets the
decision log hold them. A line that was written is read back unchanged; any other line is passed
over. The ledger is made of the lines alone, in their order, so processes that have read the same
lines agree. A rule is off from the line that says so until a line says otherwise, or until its
rate holds for something else (``basis``).
"""

import hmac
from collections import Counter, deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache
from typing import Annotated, Any

from cachetools import FIFOCache
from pydantic import StrictBool, StringConstraints, TypeAdapter, ValidationError

from embeddings.verify.binomial import at_most, lower_bound, upper_bound
from gateway.cache.plan import Plan
from gateway.cache.ports import Entry
from gateway.cache.quality.same_answer import Outcome
from gateway.semantic.ports import Features
from policies.decision import Decision

_ID_BYTES = 16

Hex = Annotated[str, StringConstraints(pattern=r"^(?:[0-9a-f]{2})+$")]


class Kind(StrEnum):
    """The lookup's outcome for the semantic candidate."""

    SERVED = "served"
    SHADOW = "shadow"
    """Would have been served."""
    NEAR_MISS = "near-miss"
    """Its score was too low; nothing else spoke against it."""


@dataclass(frozen=True, slots=True)
class ComparisonCandidate:
    """An entry found by meaning, to be compared with the fresh answer.

    ``verifier`` is the digest of the verifier that gave the score. ``alias``: the entry was chosen
    because its answer had once been the same, though its score was too low. So it says nothing of
    other entries with that score.
    """

    kind: Kind
    entry: Entry
    similarity: float
    score: float
    verifier: str
    alias: bool = False
    features: Features | None = None


@dataclass(frozen=True, slots=True)
class Comparison:
    """The result of a comparison. ``key`` and ``entry`` are cache keys, hex: request and entry."""

    time: float
    kind: Kind
    rule: str
    basis: str
    budget: float
    key: Hex
    entry: Hex
    similarity: float
    score: float
    verifier: str
    alias: StrictBool
    outcome: Outcome
    why: str
    """The ground of the outcome, in one word."""
    asked: str
    """Identity of the question, hex (see ``question_id``)."""
    promoted: StrictBool
    """Whether the entry answers this question from now on, ``until`` when."""
    until: float
    characters: int | None = None
    overlap: float | None = None
    """Features of the pair of questions; None in older lines, and of two equal texts."""
    shadow: StrictBool = False
    """Whether the rule was in shadow mode, which compares each would-be hit."""


@cache
def _reader() -> TypeAdapter[Comparison]:
    """Return what reads a line; making it takes as long as importing all else here."""
    return TypeAdapter(Comparison)


def make_comparison(
    candidate: ComparisonCandidate,
    plan: Plan,
    outcome: Outcome,
    why: str,
    *,
    threshold: float | None,
    now: float,
) -> Comparison:
    """Return the comparison of a candidate for the request of this plan.

    ``threshold`` is the rule's, whichever verifier gave the score.
    """
    decision, entry, features = plan.decision, candidate.entry, candidate.features
    promoted = candidate.kind is Kind.NEAR_MISS and outcome is Outcome.EQUAL and decision.promote
    return Comparison(
        time=now,
        kind=candidate.kind,
        rule=decision.rule,
        basis=basis_of(decision, threshold),
        budget=decision.max_wrong_hits,
        key=plan.key.hex(),
        entry=entry.key.hex(),
        similarity=round(candidate.similarity, 6),
        score=round(candidate.score, 6),
        verifier=candidate.verifier,
        alias=candidate.alias,
        outcome=outcome,
        why=why,
        asked=question_id(plan),
        promoted=promoted,
        until=entry.expires_at,
        characters=None if features is None else features.characters,
        overlap=None if features is None else features.overlap,
        shadow=decision.shadow,
    )


def basis_of(decision: Decision, threshold: float | None) -> str:
    """Return the basis of a rate of wrong hits: if it changes, the counts start again."""
    return f"{decision.generation}/{decision.max_wrong_hits:g}/{threshold}"


def question_id(plan: Plan) -> str:
    """Return the identity of the request's question, hex: its words, in any case.

    It contains the compatibility fingerprint, so it differs in another conversation or scope.
    """
    words = " ".join((plan.question or "").casefold().split())
    identity = b"alias" + plan.fingerprint + words.encode("utf-8", "surrogatepass")
    return hmac.digest(plan.secret, identity, "sha256")[:_ID_BYTES].hex()


WINDOW = 500
"""Number of latest hits of a rule in its rate."""
MAX_RULES = 1000
MAX_ALIASES = 10_000

GATE_CONFIDENCE = 0.999
"""That the rate is over the budget. The test runs after each comparison, so a confidence of 95 %
would be reached by chance sooner or later."""

_EACH_SIDE = 0.975
_WORTH_TELLING = 30
"""Hits compared before their rate says much."""


@dataclass(slots=True)
class RuleComparisons:
    """The comparisons of one rule: hits, served or not, and near misses apart from them."""

    basis: str
    budget: float
    hits: deque[Outcome] = field(default_factory=lambda: deque(maxlen=WINDOW))
    near: deque[Outcome] = field(default_factory=lambda: deque(maxlen=WINDOW))
    latest: float = 0.0
    off: bool = False
    """Whether the rule has no semantic hits, for this basis."""

    def over_budget(self) -> bool:
        """Tell whether the share of wrong hits is over the budget beyond doubt."""
        wrong = self.hits.count(Outcome.DIFFERENT)
        # The lower bound is over the budget if this many wrong hits are unlikely within the budget.
        within = at_most(wrong - 1, len(self.hits), self.budget)
        return wrong > 0 and 1 - within < 1 - GATE_CONFIDENCE

    def off_line(self, rule: str) -> dict[str, Any]:
        return {"kind": "off", "rule": rule, "basis": self.basis, "budget": self.budget}

    def report(self) -> dict[str, Any]:
        """Return the figures; the interval allows for unsure ones of either kind."""
        counts, near = Counter(self.hits), Counter(self.near)
        wrong, unsure, of = counts[Outcome.DIFFERENT], counts[Outcome.UNSURE], len(self.hits)
        decided = of - unsure
        return {
            "comparisons": of,
            **{outcome.value: counts[outcome] for outcome in Outcome},
            "wrong_hits": wrong / decided if decided else None,
            "interval": [
                lower_bound(wrong, of, _EACH_SIDE),
                upper_bound(wrong + unsure, of, _EACH_SIDE),
            ],
            "budget": self.budget,
            "budget_met": upper_bound(wrong + unsure, of, 0.95) if of else None,
            "near_misses": {outcome.value: near[outcome] for outcome in Outcome},
            "off": self.off,
            "latest": self.latest,
            "next": self._advice(wrong, unsure, of),
        }

    def _advice(self, wrong: int, unsure: int, of: int) -> str:
        if self.off:
            return "semantic hits are off: look at the wrong ones, then reset"
        if of < _WORTH_TELLING:
            return "too few comparisons to say: let it run"
        if upper_bound(wrong + unsure, of, 0.95) <= self.budget:
            return "the budget is kept"
        if upper_bound(wrong, of, 0.95) <= self.budget:
            return f"{unsure} comparisons are unsure: look at them, and label pairs by hand"
        if lower_bound(wrong, of, 0.95) > self.budget:
            return "over the budget: calibrate on this traffic, or switch semantic off"
        return "not told yet: more comparisons are needed"


class ComparisonLedger:
    """Built from the journal's lines, in their order."""

    def __init__(self) -> None:
        self.rules: FIFOCache[str, RuleComparisons] = FIFOCache(MAX_RULES)
        self._aliases: FIFOCache[tuple[str, str], tuple[str, float]] = FIFOCache(MAX_ALIASES)

    def take(self, line: Mapping[str, Any]) -> None:
        """Take the next line; an unknown one is passed over."""
        match line:
            case {"kind": "reset", "rule": str(rule)}:
                self.rules.pop(rule, None)
            case {"kind": "reset"}:
                self.rules.clear()
            case {"kind": "off", "rule": str(rule), "budget": int() | float() as budget}:
                self._rule(rule, str(line.get("basis")), budget).off = True
            case _:
                with suppress(ValidationError):
                    self._add(_reader().validate_python(line))

    def to_switch_off(self, rule: str) -> dict[str, Any] | None:
        """Return the line that switches a rule off, if it is to be and is not."""
        comparisons = self.rules.get(rule)
        if comparisons is None or comparisons.off or not comparisons.over_budget():
            return None
        wrong, of = comparisons.hits.count(Outcome.DIFFERENT), len(comparisons.hits)
        return comparisons.off_line(rule) | {"wrong": wrong, "comparisons": of}

    def lines_to_carry_over(self) -> list[dict[str, Any]]:
        """Return the first lines of a new journal, so that rules stay off."""
        return [
            comparisons.off_line(rule)
            for rule, comparisons in self.rules.items()
            if comparisons.off
        ]

    def alias(
        self,
        question: str,
        entry: str,
        until: float,
        *,
        now: float,
        barred: Callable[[bytes], bool],
    ) -> bool:
        """Tell whether the entry that ends at ``until`` is known to answer the question.

        An entry that ends at another time holds another answer under the same key. ``barred`` tells
        whether an answer was reported wrong; if the fresh answer was, its alias goes too.
        """
        found = self._aliases.get((question, entry))
        if found is None:
            return False
        key, its_end = found
        if now < until == its_end and not barred(bytes.fromhex(key)):
            return True
        del self._aliases[question, entry]
        return False

    def report(self) -> dict[str, dict[str, Any]]:
        return {rule: comparisons.report() for rule, comparisons in sorted(self.rules.items())}

    def rules_off(self) -> dict[str, bool]:
        return {rule: comparisons.off for rule, comparisons in self.rules.items()}

    @property
    def aliases(self) -> int:
        return len(self._aliases)

    def _add(self, comparison: Comparison) -> None:
        comparisons = self._rule(comparison.rule, comparison.basis, comparison.budget)
        near = comparison.kind is Kind.NEAR_MISS
        (comparisons.near if near else comparisons.hits).append(comparison.outcome)
        comparisons.latest = comparison.time
        pair = comparison.asked, comparison.entry
        if comparison.outcome is Outcome.DIFFERENT:
            self._aliases.pop(pair, None)
        elif comparison.promoted:
            self._aliases[pair] = comparison.key, comparison.until

    def _rule(self, rule: str, basis: str, budget: float) -> RuleComparisons:
        comparisons = self.rules.get(rule)
        if comparisons is None or comparisons.basis != basis:
            comparisons = RuleComparisons(basis, budget)
        self.rules[rule] = comparisons
        return comparisons
