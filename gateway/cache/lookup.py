"""The lookup state machine: from a planned request to a hit, a forward or a refusal.

Each state that needs I/O names it by its type; the driver performs it and hands the result to
``next``, which returns the following state. Terminal states are ``Hit``, ``Forward`` and
``Refused``. No state performs I/O or reads a clock. ``otherwise`` is how the request goes on to the
upstream if nothing more is found. How it ends is in ``lookup_ends``, the states of the lookup by
meaning are in ``semantic_lookup``.

The prompt is scanned only after the exact lookup missed: a key is bound to the scan that its
prompt passed (``core.key.Partition``), so an entry under that key, stale or not, is the proof that
this prompt is clean, and a hit pays nothing for it. An entry under the end user's own key
(``Plan.personal``) proves nothing of the kind.
"""

from collections.abc import Hashable
from dataclasses import dataclass, replace

from gateway.cache.entry import Entry
from gateway.cache.lookup_semantic import FetchCandidate, SearchSemantic, VerifyCandidate
from gateway.cache.outcomes import End, Forward, Hit, Refused, forward, judged, miss
from gateway.cache.plan import Plan
from gateway.protocol.cache_status import Forwarded, ForwardStatus
from gateway.protocol.reasons import Reason
from policies.freshness import Directives


@dataclass(frozen=True, slots=True)
class LookUpExact:
    """Needs the store's entry for ``plan.key``, or None."""

    plan: Plan

    @property
    def collapses(self) -> bool:
        """Tell whether another's call for the same key would say all that this look-up can."""
        return self.plan.personal is None

    def missed(self) -> "State":
        """Take it that another request has just looked for the same, and asks the upstream."""
        return forward(self.plan, miss(self.plan))

    def next(self, entry: Entry | None, now: float) -> "State":
        """Take the entry found."""
        plan = self.plan
        found = judged(plan, entry, now)
        if isinstance(found, Hit):
            return found
        # Any entry at all proves that the prompt is clean.
        clean = found.status.forwarded is not Forwarded.MISS
        if found.status.forwarded is not Forwarded.REQUEST and plan.personal is not None:
            return LookUpPersonal(plan, plan.personal, found, clean)
        return _after_lookup(plan, found, clean=clean)


@dataclass(frozen=True, slots=True)
class LookUpPersonal:
    """Needs the store's entry for ``personal.key``, in the end user's own scope, or None."""

    plan: Plan
    personal: Plan
    otherwise: Forward
    clean: bool

    def next(self, entry: Entry | None, now: float) -> "State":
        """Take the entry found."""
        found = judged(self.personal, entry, now)
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

    def failed(self) -> "State":
        """Fail closed: what could not be scanned is neither looked up nor stored."""
        status = ForwardStatus(Forwarded.BYPASS, Reason.SCAN_FAULT)
        return forward(self.plan, Forward(status, None, self.otherwise.fallback))


Unended = (
    LookUpExact | LookUpPersonal | ScanPrompt | SearchSemantic | FetchCandidate | VerifyCandidate
)
State = Unended | End


def start(plan: Plan) -> State:
    """Return the first state of a request that may be looked up."""
    if plan.decision.exact:
        return LookUpExact(plan)
    return _after_lookup(plan, miss(plan), clean=False)


def common(state: ScanPrompt | SearchSemantic) -> Hashable | None:
    """Return what a request must have in common with this one to come to the same end from here.

    None where that is never certain: where there was an entry.
    """
    plan = state.plan
    if state.otherwise != miss(plan):
        return None
    return type(state), plan.key, plan.coalescing_key, plan.decision, plan.directives


def as_own(end: End, plan: Plan) -> End:
    """Return the end that another request came to, as that of one with ``plan``."""
    if not isinstance(end, Forward) or end.store is None:
        return end
    personal = plan.personal
    return replace(end, store=personal if personal and personal.key == end.store.key else plan)


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
    if plan.question is None:
        return forward(plan, replace(otherwise, ineligible=plan.sought.ineligible))
    return SearchSemantic(plan, otherwise)
