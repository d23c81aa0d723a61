"""The lookup state machine: from a planned request to a hit, a forward or a refusal.

Each state that needs I/O names it by its type; the driver performs it and hands the result to
``next``, which returns the following state. Terminal states are ``Hit``, ``Forward`` and
``Refused``. No state performs I/O or reads a clock.

The prompt is scanned only after the exact lookup missed: a key is bound to the scan that its
prompt passed (``core.key.Partition``), so an entry under that key is the proof that this prompt
is clean, and a hit pays nothing for it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from gateway.core.plan import Plan
from gateway.core.status import Forwarded, ForwardStatus, HitStatus
from gateway.core.types import Entry, Reason
from policies.freshness import Directives, Verdict


@dataclass(frozen=True, slots=True)
class Hit:
    """Serve this entry. ``revalidate`` is the plan under which a fresh answer is to be fetched."""

    entry: Entry
    status: HitStatus
    age: int
    revalidate: Plan | None = None


@dataclass(frozen=True, slots=True)
class Forward:
    """Ask the upstream. ``store`` is the plan under which the answer may be admitted.

    ``fallback`` is what is served instead when the upstream fails before its answer has begun.
    """

    status: ForwardStatus
    store: Plan | None
    fallback: Hit | None = None


@dataclass(frozen=True, slots=True)
class Refused:
    """Answer 504: the request wants a stored answer only, and there is none (RFC 9111 5.2.1.7)."""


@dataclass(frozen=True, slots=True)
class LookUpExact:
    """Needs the store's entry for ``plan.key``, or None."""

    plan: Plan

    def next(self, entry: Entry | None, now: float) -> "State":
        """Take the entry found."""
        plan = self.plan
        if entry is None or entry.key != plan.key or not plan.belongs(entry):
            return _after_exact(plan, ForwardStatus(Forwarded.MISS))
        fresh = plan.freshness_of(entry, now)
        match fresh.verdict:
            case Verdict.FRESH:
                return Hit(entry, HitStatus(Reason.EXACT, fresh.ttl), fresh.age)
            case Verdict.STALE:
                return _after_exact(plan, ForwardStatus(Forwarded.STALE))
            case Verdict.REFUSED:
                no_cache = plan.directives.no_cache
                reason = Reason.NO_CACHE if no_cache else Reason.FRESHNESS
                return _after_exact(plan, ForwardStatus(Forwarded.REQUEST, reason))


@dataclass(frozen=True, slots=True)
class ScanPrompt:
    """Needs the PII scan of the prompt: the kind found, or None."""

    plan: Plan
    otherwise: ForwardStatus

    def next(self, found: str | None) -> "State":
        """Take the scan's finding."""
        if found is not None:
            return _forward(self.plan, ForwardStatus(Forwarded.BYPASS, Reason.PII), store=False)
        return _after_scan(self.plan, self.otherwise)

    def failed(self) -> "State":
        """Fail closed: what could not be scanned is neither looked up nor stored."""
        status = ForwardStatus(Forwarded.BYPASS, Reason.SCAN_FAULT)
        return _forward(self.plan, status, store=False)


@dataclass(frozen=True, slots=True)
class SearchSemantic:
    """Needs the (key, similarity) pairs nearest to ``plan.question``, nearest first."""

    plan: Plan
    otherwise: ForwardStatus

    def next(self, nearest: Sequence[tuple[bytes, float]]) -> "State":
        """Take what the index found; nothing is what an index that failed has found."""
        plan = self.plan
        near = tuple(
            (key, cosine) for key, cosine in nearest if cosine >= plan.decision.min_similarity
        )
        return _next_candidate(plan, self.otherwise, near)


@dataclass(frozen=True, slots=True)
class FetchCandidate:
    """Needs the store's entry for ``key``, or None."""

    plan: Plan
    otherwise: ForwardStatus
    key: bytes
    similarity: float
    rest: tuple[tuple[bytes, float], ...]

    def next(self, entry: Entry | None, now: float) -> "State":
        """Take the candidate's entry; whatever the index said, it must be of this partition."""
        plan = self.plan
        if (
            entry is not None
            and entry.key == self.key
            and plan.belongs(entry)
            and entry.fingerprint == plan.fingerprint
            and entry.question is not None
            and plan.question is not None
        ):
            fresh = plan.freshness_of(entry, now)
            if fresh.verdict is Verdict.FRESH:
                status = HitStatus(Reason.SEMANTIC, fresh.ttl, self.similarity)
                hit = Hit(entry, status, fresh.age)
                pair = (plan.question, entry.question)
                return VerifyCandidate(plan, self.otherwise, *pair, hit, self.rest)
        return _next_candidate(plan, self.otherwise, self.rest)


@dataclass(frozen=True, slots=True)
class VerifyCandidate:
    """Needs the verifier's word on whether one answer fits ``asked`` and ``stored``."""

    plan: Plan
    otherwise: ForwardStatus
    asked: str
    stored: str
    hit: Hit
    rest: tuple[tuple[bytes, float], ...]

    def next(self, refused: str | None) -> "State":
        """Take why the answer may not fit; None serves it."""
        if refused is None:
            return self.hit
        return _next_candidate(self.plan, self.otherwise, self.rest)


State = (
    LookUpExact
    | ScanPrompt
    | SearchSemantic
    | FetchCandidate
    | VerifyCandidate
    | Hit
    | Forward
    | Refused
)


def start(plan: Plan) -> State:
    """Return the first state of a request that may be looked up."""
    if plan.decision.exact:
        return LookUpExact(plan)
    return _after_exact(plan, ForwardStatus(Forwarded.MISS))


def bypass(reason: Reason, directives: Directives) -> State:
    """Return the only state of a request that is not looked up at all."""
    if directives.only_if_cached:
        return Refused()
    return Forward(ForwardStatus(Forwarded.BYPASS, reason), store=None)


def _after_exact(plan: Plan, otherwise: ForwardStatus) -> State:
    if plan.scans:
        return ScanPrompt(plan, otherwise)
    return _after_scan(plan, otherwise)


def _after_scan(plan: Plan, otherwise: ForwardStatus) -> State:
    refused = plan.directives.no_cache or otherwise.forwarded is Forwarded.REQUEST
    if plan.question is None or refused:
        return _forward(plan, otherwise, store=True)
    return SearchSemantic(plan, otherwise)


def _next_candidate(
    plan: Plan, otherwise: ForwardStatus, near: tuple[tuple[bytes, float], ...]
) -> State:
    if not near:
        return _forward(plan, otherwise, store=True)
    (key, similarity), *rest = near
    return FetchCandidate(plan, otherwise, key, similarity, tuple(rest))


def _forward(plan: Plan, status: ForwardStatus, *, store: bool) -> State:
    if plan.directives.only_if_cached:
        return Refused()
    return Forward(status, plan if store else None)
