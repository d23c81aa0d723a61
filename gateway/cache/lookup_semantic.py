"""The lookup by meaning: candidates near the question, fetched and verified one after the other.

Law: a candidate is served only where its entry is of this very partition, and its verification
keeps the rule's budget; whatever is missing, odd or refused leads to the next one, and at last to
``otherwise``.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import isfinite

from gateway.cache.entry import Entry
from gateway.cache.outcomes import End, Forward, Hit, forward
from gateway.cache.plan import Plan
from gateway.cache.shadow_eval.comparison import Check, Kind
from gateway.protocol.cache_status import HitStatus
from gateway.protocol.reasons import Reason
from gateway.semantic.verification import Verification
from policies.freshness import Verdict

NEAREST = 4
"""Candidates to search for: a near miss may stand nearer than the question that fits."""


@dataclass(frozen=True, slots=True)
class SearchSemantic:
    """Needs the (key, similarity) pairs nearest to ``plan.question``, nearest first."""

    plan: Plan
    otherwise: Forward

    def next(self, nearest: Sequence[tuple[bytes, float]]) -> "AfterSearch":
        """Take what the index found; nothing is what an index that failed has found."""
        plan = self.plan
        near = tuple(
            (key, cosine) for key, cosine in nearest if cosine >= plan.decision.min_similarity
        )
        return _next_candidate(plan, self.otherwise, near)

    def off(self) -> "AfterSearch":
        """Take it that too many hits of this rule were wrong: it has none until told otherwise."""
        status = replace(self.otherwise.status, reason=Reason.SEMANTIC_OFF)
        return forward(self.plan, replace(self.otherwise, status=status))


@dataclass(frozen=True, slots=True)
class FetchCandidate:
    """Needs the store's entry for ``key``, or None."""

    plan: Plan
    otherwise: Forward
    key: bytes
    similarity: float
    rest: tuple[tuple[bytes, float], ...]

    def next(self, entry: Entry | None, now: float) -> "AfterSearch":
        """Take the candidate's entry; whatever the index said, it must be of this partition.

        A stale one is passed over: revalidating it would ask another question than this one.
        """
        plan = self.plan
        if (
            entry is not None
            and entry.key == self.key
            and plan.belongs(entry)
            and entry.fingerprint == plan.fingerprint
            and entry.question is not None
            and plan.question is not None
        ):
            fresh = plan.freshness_of(entry, now, graceful=False)
            if fresh.verdict is Verdict.FRESH:
                status = HitStatus(Reason.SEMANTIC, fresh.ttl, self.similarity)
                hit = Hit(entry, status, fresh.age)
                pair = (plan.question, entry.question)
                return VerifyCandidate(plan, self.otherwise, *pair, hit, self.rest)
        return _next_candidate(plan, self.otherwise, self.rest)


@dataclass(frozen=True, slots=True)
class VerifyCandidate:
    """Needs to know how surely one answer fits ``asked`` and ``stored``, and the threshold."""

    plan: Plan
    otherwise: Forward
    asked: str
    stored: str
    hit: Hit
    rest: tuple[tuple[bytes, float], ...]

    @property
    def pair(self) -> tuple[str, str, float]:
        """Both questions and their cosine."""
        return self.asked, self.stored, self.hit.status.similarity or 0.0

    def next(
        self, verification: Verification, threshold: float | None, *, alias: bool = False
    ) -> "AfterSearch":
        """Take how sure it is, the least score that keeps the rule's budget, and what was learnt.

        For ``alias`` see ``Verification.refused``.
        """
        if verification.refused(threshold, alias=alias) is None:
            by_alias = verification.refused(threshold) is not None
            return self._found(verification, threshold, alias=by_alias)
        scored = verification.refusal is None and isfinite(verification.score)
        otherwise = self._near_miss(verification) if scored else self.otherwise
        return _next_candidate(self.plan, otherwise, self.rest)

    def _found(
        self, verification: Verification, threshold: float | None, *, alias: bool
    ) -> "AfterSearch":
        decision = self.plan.decision
        if decision.shadow:
            status = replace(self.otherwise.status, reason=Reason.SHADOW)
            check = self._check(Kind.SHADOW, verification, alias=alias)
            return forward(self.plan, replace(self.otherwise, status=status, check=check))
        shown = self.hit.status._replace(score=verification.score, threshold=threshold)
        # Who wants a stored answer only wants no call of ours either.
        if not decision.sample or self.plan.directives.only_if_cached:
            return replace(self.hit, status=shown)
        check = self._check(Kind.SERVED, verification, alias=alias)
        return replace(self.hit, status=shown, plan=self.plan, check=check)

    def _near_miss(self, verification: Verification) -> Forward:
        """Return the forward with this candidate to compare, if it is the likeliest so far."""
        decision, before = self.plan.decision, self.otherwise.check
        if not (decision.shadow or decision.promote):
            return self.otherwise
        if before is not None and before.score >= verification.score:
            return self.otherwise
        check = self._check(Kind.NEAR_MISS, verification)
        return replace(self.otherwise, check=check)

    def _check(self, kind: Kind, verification: Verification, *, alias: bool = False) -> Check:
        entry, similarity = self.hit.entry, self.hit.status.similarity or 0.0
        score, verifier = verification.score, verification.verifier
        return Check(kind, entry, similarity, score, verifier, alias)


AfterSearch = FetchCandidate | VerifyCandidate | End
"""What a state of this lookup may lead to."""


def _next_candidate(
    plan: Plan, otherwise: Forward, near: tuple[tuple[bytes, float], ...]
) -> AfterSearch:
    if not near:
        return forward(plan, otherwise)
    (key, similarity), *rest = near
    return FetchCandidate(plan, otherwise, key, similarity, tuple(rest))
