"""How a lookup ends: with a hit, a forward or a refusal; and what an entry under a key leads to."""

from dataclasses import dataclass, replace

from gateway.cache.entry import Entry
from gateway.cache.plan import Plan
from gateway.cache.shadow_eval.comparison import Check
from gateway.protocol.cache_status import Forwarded, ForwardStatus, HitStatus
from gateway.protocol.reasons import Ineligible, Reason
from policies.freshness import Verdict


@dataclass(frozen=True, slots=True)
class Hit:
    """Serve this entry. ``revalidate`` is the plan under which a fresh answer is to be fetched.

    ``plan`` is that under which it was found, where it may have to be judged again. ``check`` is
    what a sample of such hits is compared by, ``plan`` then that of the request.
    """

    entry: Entry
    status: HitStatus
    age: int
    revalidate: Plan | None = None
    plan: Plan | None = None
    check: Check | None = None


@dataclass(frozen=True, slots=True)
class Forward:
    """Ask the upstream. ``store`` is the plan under which the answer may be admitted.

    ``fallback`` is what is served instead when the upstream fails before its answer has begun.
    ``ineligible`` is why nothing was looked up by meaning, where the policy would have had it.
    ``check`` is what was found by meaning and not served, to be compared with the answer.
    """

    status: ForwardStatus
    store: Plan | None
    fallback: Hit | None = None
    ineligible: Ineligible | None = None
    check: Check | None = None

    def instead(self, now: float) -> Hit | None:
        """Return what is served where the upstream has failed by now, if anything still may be.

        It may have taken its time to fail: the fallback's age and its grace are those of now.
        """
        fallback = self.fallback
        if fallback is None or fallback.plan is None:
            return fallback
        found = judged(fallback.plan, fallback.entry, now)
        return replace(found, revalidate=None) if isinstance(found, Hit) else found.fallback


@dataclass(frozen=True, slots=True)
class Refused:
    """Answer 504: the request wants a stored answer only, and there is none (RFC 9111 5.2.1.7)."""


End = Hit | Forward | Refused


def kept_plan(end: End) -> Plan | None:
    """Return the plan under which an answer may come to be stored, if any."""
    match end:
        case Hit():
            return end.revalidate
        case Forward():
            return end.store
        case Refused():
            return None


def set_apart(end: End, reason: Reason, *, personal: bool) -> End:
    """Return the end of a request that sends personal data beside what its key is made of.

    What is found for it may be served; its own answer is kept ``personal``, or not at all.
    """
    plan = kept_plan(end)
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


def judged(plan: Plan, entry: Entry | None, now: float) -> Hit | Forward:
    """Return the hit that an entry under ``plan.key`` is, or the forward that it leads to."""
    if entry is None or entry.key != plan.key or not plan.belongs(entry):
        return miss(plan)
    fresh = plan.freshness_of(entry, now)
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
