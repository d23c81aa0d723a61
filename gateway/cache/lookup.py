"""The lookup state machine: from a planned request to a hit, a forward or a refusal.

A state that needs I/O says by its type what it needs. The driver does it and hands the result to
``next``, which returns the following state. Terminal states are ``Hit``, ``Forward`` and
``Refused``. No state does I/O or reads a clock. ``otherwise`` is how the request goes on to the
upstream if nothing more is found.

The prompt is scanned only after the exact lookup missed. A key is bound to the scan that its
prompt passed (``cache.key.Partition``). So an entry under that key, stale or not, proves that the
prompt is clean. An entry under the end user's own key (``Plan.personal``) does not prove it.

A semantic candidate is served only if its entry is of this very partition and its verification
keeps the rule's budget. If anything is missing, odd or refused, the next candidate is tried, and at
last ``otherwise``.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace

from gateway.cache.plan import Plan
from gateway.cache.ports import Entry
from gateway.cache.quality.shadow_eval import ComparisonCandidate, Kind, question_id
from gateway.protocol.http.cache_status import Forwarded, ForwardStatus, HitStatus, Reason
from gateway.semantic.ports import SurestCandidate, Verification
from policies.freshness import Directives, Verdict


@dataclass(frozen=True, slots=True)
class Hit:
    """Serve this entry. ``revalidate`` is the plan under which a fresh answer is to be fetched.

    ``plan`` is the plan under which the entry was found, if it may have to be judged again. A hit
    that is sampled has ``to_compare``, and ``plan`` is the plan of the request.
    ``parts`` is the body of a batch, whose entry has no vectors.
    """

    entry: Entry
    status: HitStatus
    age: int
    revalidate: Plan | None = None
    plan: Plan | None = None
    to_compare: ComparisonCandidate | None = None
    parts: Sequence[bytes | memoryview] = field(default=(), repr=False)


@dataclass(frozen=True, slots=True)
class Forward:
    """Ask the upstream. ``store`` is the plan under which the answer may be admitted.

    ``fallback`` is what is served instead when the upstream fails before its answer has begun.
    ``ineligible`` is why nothing was looked up by meaning, where the policy would have had it.
    ``to_compare`` is what was found by meaning and not served, to be compared with the answer.
    """

    status: ForwardStatus
    store: Plan | None
    fallback: Hit | None = None
    ineligible: Reason | None = None
    to_compare: ComparisonCandidate | None = None

    def instead(self, now: float) -> Hit | None:
        """Return the stale answer to serve after the upstream failed, if one is still allowed.

        The upstream may have failed late: the fallback's age and its grace are computed at ``now``.
        """
        fallback = self.fallback
        if fallback is None or fallback.plan is None:
            return fallback
        found = evaluate_entry(fallback.plan, fallback.entry, now)
        return replace(found, revalidate=None) if isinstance(found, Hit) else found.fallback


@dataclass(frozen=True, slots=True)
class Refused:
    """Answer 504: the request accepts only a stored answer, which is missing (RFC 9111 5.2.1.7)."""


End = Hit | Forward | Refused


def storage_plan(end: End) -> Plan | None:
    """Return the plan under which an answer may be stored, if any."""
    match end:
        case Hit():
            return end.revalidate
        case Forward():
            return end.store
        case Refused():
            return None


def restrict_storage(end: End, reason: Reason, *, personal: bool) -> End:
    """Return the end of a request that sends personal data outside its key fields.

    What is found for it may be served; its own answer is kept ``personal``, or not at all.
    """
    plan = storage_plan(end)
    own = plan.personal if plan is not None and personal else None
    match end:
        case Hit():
            return replace(end, revalidate=own)
        case Forward() if own is not None:
            return replace(end, store=own)
        case Forward():
            return Forward(ForwardStatus(Forwarded.BYPASS, reason), None, end.fallback)
        case Refused():
            return end


def miss(plan: Plan) -> Forward:
    """Return how a request goes on where nothing was found for it."""
    return Forward(ForwardStatus(Forwarded.MISS), plan)


def evaluate_entry(plan: Plan, entry: Entry | None, now: float) -> Hit | Forward:
    """Return the hit that an entry under ``plan.key`` is, or the forward that it leads to."""
    if entry is None or entry.key != plan.key:
        return miss(plan)
    fresh = plan.freshness_of(entry, now)
    if fresh is None:
        return miss(plan)
    match fresh.verdict:
        case Verdict.FRESH:
            return Hit(entry, HitStatus(Reason.EXACT, fresh.ttl), fresh.age, plan=plan)
        case Verdict.REVALIDATE:
            status = HitStatus(Reason.EXACT, fresh.ttl, stale=Reason.STALE_WHILE_REVALIDATE)
            return Hit(entry, status, fresh.age, None if plan.directives.only_if_cached else plan)
        case Verdict.STALE:
            forwarded = ForwardStatus(Forwarded.STALE)
        case Verdict.REFUSED:
            no_cache = plan.directives.no_cache
            reason = Reason.NO_CACHE if no_cache else Reason.FRESHNESS
            forwarded = ForwardStatus(Forwarded.REQUEST, reason)
    fallback = None
    if fresh.if_error:
        status = HitStatus(Reason.EXACT, fresh.ttl, stale=Reason.STALE_IF_ERROR)
        fallback = Hit(entry, status, fresh.age, plan=plan)
    return Forward(forwarded, plan, fallback)


def forward(plan: Plan, otherwise: Forward) -> Forward | Refused:
    """Return the end of a request that finds nothing more."""
    return Refused() if plan.directives.only_if_cached else otherwise


NEAREST = 4
"""Candidates to search for: a near miss may stand nearer than the question that fits."""


@dataclass(frozen=True, slots=True)
class SearchSemantic:
    """Needs the (key, similarity) pairs nearest to ``plan.question``, nearest first."""

    plan: Plan
    otherwise: Forward

    def next(self, nearest: Sequence[tuple[bytes, float]]) -> "AfterSearch":
        """Take the candidates of the index; a failed index has none."""
        plan = self.plan
        near = tuple(
            (key, cosine) for key, cosine in nearest if cosine >= plan.decision.min_similarity
        )
        return _next_candidate(plan, self.otherwise, near)

    def off(self) -> "AfterSearch":
        """End without semantic hits: too many hits of this rule were wrong."""
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
            and entry.fingerprint == plan.fingerprint
            and entry.question is not None
            and plan.question is not None
        ):
            fresh = plan.freshness_of(entry, now, graceful=False)
            if fresh is not None and fresh.verdict is Verdict.FRESH:
                status = HitStatus(Reason.SEMANTIC, fresh.ttl, self.similarity)
                hit = Hit(entry, status, fresh.age)
                pair = (plan.question, entry.question)
                return VerifyCandidate(plan, self.otherwise, *pair, hit, self.rest)
        return _next_candidate(plan, self.otherwise, self.rest)


@dataclass(frozen=True, slots=True)
class VerifyCandidate:
    """Needs the score of an answer to ``stored`` for ``question``, and the threshold."""

    plan: Plan
    otherwise: Forward
    question: str
    stored: str
    hit: Hit
    rest: tuple[tuple[bytes, float], ...]

    @property
    def pair(self) -> tuple[str, str, float]:
        """Both questions and their cosine."""
        return self.question, self.stored, self.hit.status.similarity or 0.0

    def scored(self, verification: Verification) -> SurestCandidate | None:
        """Return the candidate with its features, None if it has none."""
        if verification.features is None:
            return None
        pair = hash((question_id(self.plan), self.hit.entry.key))
        return SurestCandidate(verification.features, pair, self.plan.decision.min_similarity)

    def next(
        self, verification: Verification, threshold: float | None, *, alias: bool = False
    ) -> "AfterSearch":
        """Take the verification, the least score that keeps the rule's budget, and the alias.

        For ``alias`` see ``Verification.result``.
        """
        result = verification.result(threshold, alias=alias)
        if result in ("hit", "alias"):
            return self._accept(verification, threshold, alias=result == "alias")
        scored = verification.refusal is None and verification.is_finite
        otherwise = self._near_miss(verification) if scored else self.otherwise
        return _next_candidate(self.plan, otherwise, self.rest)

    def _accept(
        self, verification: Verification, threshold: float | None, *, alias: bool
    ) -> "AfterSearch":
        decision = self.plan.decision
        if decision.shadow:
            status = replace(self.otherwise.status, reason=Reason.SHADOW)
            candidate = self._candidate(Kind.SHADOW, verification, alias=alias)
            return forward(self.plan, replace(self.otherwise, status=status, to_compare=candidate))
        shown = self.hit.status._replace(score=verification.score, threshold=threshold)
        # A request that accepts only a stored answer causes no call of ours either.
        if not decision.sample or self.plan.directives.only_if_cached:
            return replace(self.hit, status=shown)
        candidate = self._candidate(Kind.SERVED, verification, alias=alias)
        return replace(self.hit, status=shown, plan=self.plan, to_compare=candidate)

    def _near_miss(self, verification: Verification) -> Forward:
        """Return the forward with this candidate to compare, if it is the likeliest so far."""
        decision, before = self.plan.decision, self.otherwise.to_compare
        if not (decision.shadow or decision.promote):
            return self.otherwise
        if before is not None and before.score >= verification.score:
            return self.otherwise
        candidate = self._candidate(Kind.NEAR_MISS, verification)
        return replace(self.otherwise, to_compare=candidate)

    def _candidate(
        self, kind: Kind, verification: Verification, *, alias: bool = False
    ) -> ComparisonCandidate:
        entry, similarity = self.hit.entry, self.hit.status.similarity or 0.0
        score, verifier = verification.score, verification.verifier
        features = verification.features
        return ComparisonCandidate(kind, entry, similarity, score, verifier, alias, features)


AfterSearch = FetchCandidate | VerifyCandidate | End
"""The states that may follow this lookup."""


def _next_candidate(
    plan: Plan, otherwise: Forward, near: tuple[tuple[bytes, float], ...]
) -> AfterSearch:
    if not near:
        return forward(plan, otherwise)
    (key, similarity), *rest = near
    return FetchCandidate(plan, otherwise, key, similarity, tuple(rest))


@dataclass(frozen=True, slots=True)
class LookUpExact:
    """Needs the store's entry for ``plan.key``, or None."""

    plan: Plan

    def next(self, entry: Entry | None, now: float) -> "State":
        plan = self.plan
        found = evaluate_entry(plan, entry, now)
        if isinstance(found, Hit):
            return found
        # Any entry at all proves that the prompt is clean.
        clean = found.status.forwarded is not Forwarded.MISS
        personal = None if plan.personal_partition is None else plan.personal
        if personal is not None and found.status.forwarded is not Forwarded.REQUEST:
            return LookUpPersonal(plan, personal, found, clean)
        return _after_lookup(plan, found, clean=clean)


@dataclass(frozen=True, slots=True)
class LookUpPersonal:
    """Needs the store's entry for ``personal.key``, in the end user's own scope, or None."""

    plan: Plan
    personal: Plan
    otherwise: Forward
    clean: bool

    def next(self, entry: Entry | None, now: float) -> "State":
        found = evaluate_entry(self.personal, entry, now)
        if isinstance(found, Hit):
            return found
        otherwise = self.otherwise
        if found.status.forwarded is not Forwarded.MISS:
            fallback = found.fallback or otherwise.fallback
            otherwise = Forward(found.status, otherwise.store, fallback)
        return _after_lookup(self.plan, otherwise, clean=self.clean)


@dataclass(frozen=True, slots=True)
class ScanPrompt:
    """Needs the PII scan of the prompt: the kind found, or None."""

    plan: Plan
    otherwise: Forward

    def next(self, found: str | None) -> "State":
        """Take the scan's finding; personal data stays within its end user's own scope."""
        if found is None:
            return _after_scan(self.plan, self.otherwise)
        personal = self.plan.personal
        if personal is not None:
            return _after_scan(personal, replace(self.otherwise, store=personal))
        status = ForwardStatus(Forwarded.BYPASS, Reason.PII)
        return forward(self.plan, Forward(status, store=None))

    def fail(self) -> "State":
        """Fail closed: a request that could not be scanned is neither looked up nor stored."""
        status = ForwardStatus(Forwarded.BYPASS, Reason.SCAN_FAULT)
        return forward(self.plan, Forward(status, None, self.otherwise.fallback))


Unfinished = (
    LookUpExact | LookUpPersonal | ScanPrompt | SearchSemantic | FetchCandidate | VerifyCandidate
)
State = Unfinished | End


def start(plan: Plan) -> State:
    """Return the first state of a request that may be looked up."""
    if plan.decision.exact:
        return LookUpExact(plan)
    return _after_lookup(plan, miss(plan), clean=False)


def sharing_key(state: SearchSemantic) -> Hashable | None:
    """Return the key under which concurrent equal misses share one search.

    None where there was an entry: then the ends may differ.
    """
    plan = state.plan
    if state.otherwise != miss(plan):
        return None
    return plan.key, plan.coalescing_key, plan.decision, plan.directives


def rebind(end: End, plan: Plan) -> End:
    """Return the end of another request, bound to this request's own plan."""
    if not isinstance(end, Forward) or end.store is None:
        return end
    if end.store.key == plan.key:
        return replace(end, store=plan)
    return replace(end, store=plan.personal or plan)


def bypass(reason: Reason, directives: Directives) -> State:
    """Return the only state of a request that is not looked up at all."""
    if directives.only_if_cached:
        return Refused()
    return Forward(ForwardStatus(Forwarded.BYPASS, reason), store=None)


def _after_lookup(plan: Plan, otherwise: Forward, *, clean: bool) -> State:
    if plan.scans and not clean:
        return ScanPrompt(plan, otherwise)
    return _after_scan(plan, otherwise)


def _after_scan(plan: Plan, otherwise: Forward) -> State:
    if plan.directives.no_cache or otherwise.status.forwarded is Forwarded.REQUEST:
        return forward(plan, otherwise)
    if not plan.decision.semantic:
        return forward(plan, otherwise)
    if plan.question is None:
        found = plan.semantic_query
        reason = found if isinstance(found, Reason) else None
        return forward(plan, replace(otherwise, ineligible=reason))
    return SearchSemantic(plan, otherwise)
