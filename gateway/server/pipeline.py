"""One request's way: parse, plan, drive the lookup machine, then render a hit or forward.

Law: this is the only driver. What a state asks for is done here and handed back to it; no answer
comes from a store by any other path. Faults of store, index and scanner end as a miss or a
bypass, never as an error to the client.
"""

import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, assert_never

from gateway.cache.entry import Entry
from gateway.cache.key import Tenant, identify
from gateway.cache.lookup import (
    LookUpExact,
    LookUpPersonal,
    ScanPrompt,
    State,
    Unended,
    as_own,
    bypass,
    common,
    start,
)
from gateway.cache.lookup_semantic import NEAREST, FetchCandidate, SearchSemantic, VerifyCandidate
from gateway.cache.outcomes import Forward, Hit, Refused, forward
from gateway.cache.pii_scan import ScanFailedError, Scans
from gateway.cache.plan import Plan, plan_request
from gateway.cache.ports import Learned, PolicySource, Store, StoreError, StoreUnavailableError
from gateway.cache.shadow_eval.comparison import Sampling
from gateway.cache.single_flight import Together
from gateway.protocol.cache_status import Forwarded, ForwardStatus
from gateway.protocol.conversation import is_readable
from gateway.protocol.embeddings import item_body, items_of
from gateway.protocol.endpoint import Endpoint
from gateway.protocol.errors import UpstreamError
from gateway.protocol.messages import Inbound, Reply
from gateway.protocol.prompt_size import refuse_long_prompt
from gateway.protocol.reasons import Reason
from gateway.semantic.ports import SemanticIndex, SemanticUnavailableError, Verifier
from gateway.server.batch import MissingItems, end_of, for_each, to_be_had
from gateway.server.hit_reply import refuse, render_hit
from gateway.server.model_fallback import REFUSED, Overloaded, named, never_overloaded, smaller
from gateway.server.prepare import Outbox
from gateway.server.request import Asked, LocalModel, Parsed, decide, facts_of, parse_request
from gateway.server.request_scan import plan_to_scan, scan_prompt, without_names
from gateway.telemetry.decision_log import Recorder
from gateway.telemetry.observation import Observation
from gateway.upstream.coalescing.coalescer import Coalescer
from gateway.upstream.exchange import Exchange
from gateway.upstream.request import without_salt
from policies.decide import Decision, Priority
from policies.freshness import parse_directives

log = logging.getLogger(__name__)

_UPSTREAM_FAILED = frozenset({500, 502, 503, 504})
"""Replies that count as errors for stale-if-error (RFC 5861, 4)."""


@dataclass(frozen=True, slots=True)
class Pipeline:
    """Answers requests to the cached endpoints; all its parts are given by the root."""

    store: Store
    semantic: SemanticIndex | None
    verifier: Verifier
    policies: PolicySource
    coalescer: Coalescer
    scans: Scans
    secret: bytes = field(repr=False)
    outbox: Outbox
    recorder: Recorder | None
    now: Callable[[], float]
    clock: Callable[[], float] = time.monotonic
    semantic_seconds: float = 1.0
    """From here on a lookup by meaning begins nothing more and is a miss."""
    local: LocalModel | None = None
    overloaded: Overloaded = never_overloaded
    learned: Learned | None = None
    sampling: Sampling = field(default_factory=Sampling)
    misses: Together[Hit | Forward | Refused] = field(default_factory=Together)

    async def answer(self, endpoint: Endpoint, inbound: Inbound, seen: Observation) -> Reply:
        """Return the reply to one request. Raises RequestError for faults the client is told."""
        asked = self._asked(endpoint, parse_request(endpoint, inbound.raw), inbound, seen)
        try:
            return await self._answered(asked)
        except UpstreamError as error:
            if (small := smaller(asked, self.overloaded, error)) is None:
                raise
        return named(await self._answered(small), small)

    async def _answered(self, asked: Asked) -> Reply:
        endpoint, seen = asked.endpoint, asked.seen
        batch = endpoint is Endpoint.EMBEDDINGS and asked.odd_body is None
        items = items_of(asked.body) if batch else ()
        states: list[Hit | Forward] = []
        if len(items) > 1:
            asked = asked._replace(beside=[])
            ends = await for_each(
                lambda item: self._looked_up(asked, item_body(asked.body, item)), items
            )
        else:
            ends = [await self._looked_up(asked, asked.body)]
        if (plan := plan_to_scan(ends, endpoint, asked.body)) is not None:
            scanner = asked.active.scanner
            ends = await without_names(
                ends, endpoint, asked.body, plan=plan, scans=self.scans, scanner=scanner
            )
        end = ends[0]
        if len(items) > 1:
            states = to_be_had(ends)
            end = end_of(states) if len(states) == len(items) else Refused()
        if isinstance(end, Refused):
            return refuse(seen)
        if isinstance(end, Forward) and (small := smaller(asked, self.overloaded)) is not None:
            return named(await self._answered(small), small)
        if isinstance(end, Hit) and end.check is not None:
            await self._sample(asked, end)
        if isinstance(end, Hit) and end.revalidate is None:
            return render_hit(endpoint, asked.body, end, seen)
        reply = await self._replied(asked, end, states)
        if reply.status in REFUSED and (small := smaller(asked, self.overloaded)) is not None:
            if reply.resources is not None:
                await reply.resources.aclose()
            return named(await self._answered(small), small)
        return reply

    async def close(self) -> None:
        """End the calls that are under way."""
        await self.outbox.summariser.close()
        await self.coalescer.close()
        if self.local is not None:
            await self.local.coalescer.close()

    def _asked(
        self, endpoint: Endpoint, parsed: Parsed, inbound: Inbound, seen: Observation
    ) -> Asked:
        body = parsed.body
        seen.model = body.get("model") or ""
        seen.streamed = body.get("stream") is True
        active = self.policies.active
        tenant = identify(inbound.headers, inbound.holder)
        decision = decide(endpoint, body, inbound, tenant, active)
        seen.rule = decision.rule
        if parsed.odd is None:
            seen.record = self._recorded(endpoint, body, inbound, tenant=tenant, decision=decision)
        refuse_long_prompt(endpoint, parsed.whole, decision.max_prompt_tokens)
        local = self.local is not None and self.local.serves(endpoint, seen.model)
        if local and parsed.odd is not None:
            raise parsed.odd
        coalescer = self.local.coalescer if self.local and local else self.coalescer
        asked = Asked(endpoint, inbound, body, active, tenant, decision, coalescer, local, seen)
        return asked if parsed.odd is None else asked._replace(odd_body=parsed.whole)

    async def _replied(
        self, asked: Asked, end: Hit | Forward, items: Sequence[Hit | Forward]
    ) -> Reply:
        """Forward a miss, or a hit to be revalidated; ``items`` are those of a batch."""
        exchange = await self._exchange(asked, _forward(end))
        if isinstance(end, Hit):
            asked.coalescer.refresh(replace(exchange, seen=asked.seen.of_background("refresh")))
            return render_hit(asked.endpoint, asked.body, end, asked.seen)
        if items:
            send = MissingItems(asked.coalescer, exchange, items).forward()
        else:
            send = asked.coalescer.forward(exchange)
        return await self._forwarded(exchange, send)

    async def _sample(self, asked: Asked, hit: Hit) -> None:
        """Ask the upstream as well, for one of some hits, so that the answers can be compared."""
        if not self.sampling.draws(hit.entry.key, asked.decision.sample):
            return
        state = Forward(ForwardStatus(Forwarded.MISS), hit.plan, check=hit.check)
        decision = replace(asked.decision, priority=Priority.LOW)
        seen = asked.seen.of_background("sample")
        exchange = await self._exchange(asked._replace(decision=decision, seen=seen), state)
        asked.coalescer.refresh(exchange)

    async def _forwarded(self, exchange: Exchange, send: Awaitable[Reply]) -> Reply:
        """Return the upstream's reply, or the stale answer that stands in for its failure."""
        state, seen = exchange.state, exchange.seen
        bypassed = state.status.forwarded is Forwarded.BYPASS
        seen.outcome = "bypass" if bypassed else "miss"
        seen.reason = state.status.reason
        seen.forward = state.status
        seen.ineligible = state.ineligible
        seen.key = None if state.store is None else state.store.key
        try:
            reply = await send
        except UpstreamError:
            if (instead := state.instead(self.now())) is None:
                raise
        else:
            if reply.status not in _UPSTREAM_FAILED:
                return reply
            if (instead := state.instead(self.now())) is None:
                return reply
            if reply.resources is not None:
                await reply.resources.aclose()
        seen.declined = None
        return render_hit(exchange.endpoint, exchange.body, instead, seen)

    async def _looked_up(self, asked: Asked, body: dict[str, Any]) -> Hit | Forward | Refused:
        """Drive the machine to its end, for a request or for one item of it.

        From where it is the same, the way is that of identical misses that are under way.
        """
        state = self._plan(asked, body)
        while True:
            match state:
                case Hit() | Forward() | Refused():
                    return state
                case LookUpExact() if asked.coalescer.has_missed(state.plan) and state.collapses:
                    state = state.missed()
                case ScanPrompt() | SearchSemantic() if (about := common(state)) is not None:
                    end = await self.misses.ask(about, partial(self._driven, state, asked))
                    return as_own(end, state.plan)
                case _:
                    state = await self._next(state, asked)

    async def _driven(self, state: State, asked: Asked) -> Hit | Forward | Refused:
        while not isinstance(state, Hit | Forward | Refused):
            state = await self._next(state, asked)
        return state

    async def _next(self, state: Unended, asked: Asked) -> State:
        """Do what a state asks for, and hand it back."""
        match state:
            case LookUpExact():
                return state.next(await self._get(state.plan.key), self.now())
            case LookUpPersonal():
                return state.next(await self._get(state.personal.key), self.now())
            case ScanPrompt():
                return await self._scan(state, asked)
            case SearchSemantic() if self._off(state.plan.decision):
                return state.off()
            case SearchSemantic():
                return await self._by_meaning(state, asked)
            case FetchCandidate():
                return state.next(await self._get(state.key, indexed=True), self.now())
            case VerifyCandidate():
                verification = await self.verifier.verify(*state.pair)
                budget = state.plan.decision.max_wrong_hits
                threshold = self.verifier.threshold(budget, verification.verifier)
                learned, entry = self.learned, state.hit.entry
                alias = learned is not None and learned.alias(state.plan, entry, self.now())
                result = verification.result(threshold, alias=alias)
                asked.seen.verified.append((result, verification.measured))
                return state.next(verification, threshold, alias=alias)
            case _:
                assert_never(state)

    async def _by_meaning(self, state: SearchSemantic, asked: Asked) -> State:
        """Drive the lookup by meaning to its end, in bounded time altogether.

        Each wait has its own bound, and slow parts would add them up, candidate by candidate.
        """
        until = self.clock() + self.semantic_seconds
        after: State = state.next(await self._search(state.plan, asked.seen))
        while isinstance(after, FetchCandidate | VerifyCandidate):
            if self.clock() >= until:
                asked.seen.semantic_fault = "timeout"
                return forward(after.plan, after.otherwise)
            after = await self._next(after, asked)
        return after

    def _recorded(
        self,
        endpoint: Endpoint,
        body: dict[str, Any],
        inbound: Inbound,
        *,
        tenant: Tenant,
        decision: Decision,
    ) -> dict[str, Any] | None:
        if self.recorder is None:
            return None
        facts = facts_of(endpoint, body, inbound, tenant)
        return self.recorder.record(
            body,
            tenant,
            facts,
            decision,
            truths=self.policies.active.recorded.truths(facts),
            upstream=self.coalescer.upstream.name,
            query=inbound.query,
        )

    def _plan(self, asked: Asked, body: dict[str, Any]) -> State:
        directives = parse_directives(asked.inbound.headers.get("cache-control"))
        if asked.odd_body is not None:
            return bypass(Reason.UNKNOWN_SHAPE, directives)
        plan = plan_request(
            without_salt(body) if self.outbox.salts(asked) else body,
            endpoint=asked.endpoint,
            upstream=asked.coalescer.upstream.name,
            query=asked.inbound.query,
            tenant=asked.tenant,
            secret=self.secret,
            decision=asked.decision,
            pii_identity=asked.active.pii_identities[asked.decision.pii],
            directives=directives,
        )
        return bypass(plan, directives) if isinstance(plan, Reason) else start(plan)

    async def _exchange(self, asked: Asked, state: Forward) -> Exchange:
        if asked.local and state.status == ForwardStatus(Forwarded.MISS):
            state = replace(state, status=ForwardStatus(Forwarded.MISS, Reason.LOCAL))
        return await self.outbox.exchange(asked, state)

    async def _get(self, key: bytes, *, indexed: bool = False) -> Entry | None:
        """Return the entry; where the index named it, an absent one leaves the index, too."""
        try:
            entry = await self.store.get(key)
        except StoreUnavailableError as error:
            # Told once, by whoever stopped asking.
            log.debug("store: lookup failed, treated as a miss: %s", error)
            return None
        except StoreError as error:
            log.warning("store: lookup failed, treated as a miss: %s", error)
            return None
        if entry is None and indexed and self.semantic is not None:
            # The entry was evicted: its vector would stand before living ones.
            with contextlib.suppress(SemanticUnavailableError):
                await self.semantic.remove([key])
        return entry

    async def _scan(self, state: ScanPrompt, asked: Asked) -> State:
        if not is_readable(state.plan.partition.endpoint, state.plan.body):
            return state.next("unreadable")
        try:
            return state.next(await scan_prompt(asked, state.plan, self.scans))
        except ScanFailedError:
            return state.failed()

    def _off(self, decision: Decision) -> bool:
        """Tell whether the rule's semantic hits are switched off; in shadow none are served."""
        if self.learned is None or decision.shadow:
            return False
        return self.learned.off(decision, self.verifier.threshold(decision.max_wrong_hits))

    async def _search(self, plan: Plan, seen: Observation) -> list[tuple[bytes, float]]:
        if self.semantic is None or plan.question is None:
            return []
        try:
            found = await self.semantic.search(plan.fingerprint, plan.question, NEAREST)
        except SemanticUnavailableError as error:
            seen.semantic_fault = error.reason
            return []
        # Not only when it is added: the index may have been down when the hit was called wrong.
        barred = self.coalescer.admitter.quarantine.holds
        return [(each.key, each.similarity) for each in found if not barred(each.key)]


def _forward(end: Hit | Forward) -> Forward:
    """Return how a request goes on to the upstream, be it only to revalidate."""
    return (
        end if isinstance(end, Forward) else Forward(ForwardStatus(Forwarded.STALE), end.revalidate)
    )
