"""One request's way: parse, plan, drive the lookup machine, then render a hit or forward.

Law: this is the only driver, also of an explanation. The pipeline does what a state needs and hands
the result back; no answer comes from a store by another path. A fault of a store, an index or a
scanner ends as a miss or a bypass, never as an error to the client.
"""

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from http import HTTPStatus
from typing import Any, NamedTuple, assert_never

from gateway.cache.key import identify
from gateway.cache.lookup import (
    NEAREST,
    End,
    FetchCandidate,
    Forward,
    Hit,
    LookUpExact,
    LookUpPersonal,
    Refused,
    ScanPrompt,
    SearchSemantic,
    State,
    Unfinished,
    VerifyCandidate,
    bypass,
    forward,
    miss,
    rebind,
    sharing_key,
    start,
)
from gateway.cache.pii_scan import ScanFailedError, Scans
from gateway.cache.plan import plan_request
from gateway.cache.ports import Entry, Store, StoreError
from gateway.cache.quality.comparison_journal import ComparisonJournal
from gateway.cache.single_flight import SingleFlight
from gateway.protocol.endpoints.embeddings import item_body, items_of
from gateway.protocol.endpoints.registry import SPECS
from gateway.protocol.errors import UpstreamError
from gateway.protocol.http.cache_status import (
    Forwarded,
    ForwardStatus,
    Reason,
)
from gateway.protocol.http.messages import Reply
from gateway.protocol.request import LARGE_BYTES, CacheRequest
from gateway.protocol.tokens import refuse_long_prompt
from gateway.semantic.ports import (
    SemanticIndex,
    SemanticUnavailableError,
    SurestCandidate,
    Verifier,
)
from gateway.server.batch import AT_ONCE, end_of, for_each, forward_missing, without_refused
from gateway.server.context import (
    RequestContext,
    Step,
    Trace,
    Verdict,
    facts_of,
    scan_names,
    scan_prompt,
)
from gateway.server.model_fallback import (
    IsOverloaded,
    fallback_for,
    never_overloaded,
    with_model_header,
)
from gateway.server.open.local_encoder import LocalModel
from gateway.server.open.policy_file import PolicySource
from gateway.server.prepare import Outbox
from gateway.server.stored_reply import Answer, refuse, render_hit
from gateway.telemetry.decision_log import Recorder
from gateway.telemetry.observation import Asked, Observation, OnStep, Outcome
from gateway.upstream.pool.retry_budget import Forwarding
from gateway.upstream.request import Exchange, without_salt
from gateway.upstream.sharing.coalescer import Coalescer
from gateway.upstream.sharing.follower import Answered
from policies.decision import Decision, Endpoint, Priority
from policies.freshness import NOTHING_ASKED, parse_directives

MOST_BATCHES = 4
"""Long batches looked up at a time: each has its entries in memory until it is sent."""


class Near(NamedTuple):
    """The step in which a question is embedded and searched; the candidates that were found."""

    found: Sequence[tuple[bytes, float]]


def _note(context: RequestContext, state: State, result: object = None) -> None:
    """Add a step to the trace of a request that is explained."""
    if context.steps is not None:
        context.steps.append(Step(state, result))


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
    """From here on a semantic lookup begins nothing more and is a miss."""
    local: LocalModel | None = None
    overloaded: IsOverloaded = never_overloaded
    aliases: Mapping[str, str] = field(default_factory=dict)
    """What keys say of an alias in place of the upstream's name."""
    refuse_unknown: Callable[[str], None] | None = None
    """Raises ClientError for a model that no upstream declares."""
    on_step: OnStep | None = None
    on_surest: Callable[[SurestCandidate], None] | None = None
    """Takes the surest candidate of each semantic lookup."""
    """Takes each step of a request; None costs nothing."""
    learned: ComparisonJournal | None = None
    draw: Callable[[], float] = field(default_factory=lambda: random.Random().random)
    misses: SingleFlight[Hit | Forward | Refused] = field(default_factory=SingleFlight)
    batches: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(MOST_BATCHES))

    async def answer(self, request: CacheRequest, observation: Observation) -> Answer:
        """Return the reply to a request, and its outcome, which is noted in the observation.

        Raises RequestError for faults to report to the client.
        """
        if len(request.raw) > LARGE_BYTES:
            context = await asyncio.to_thread(self._decide, request, observation)
        else:
            context = self._decide(request, observation)
        self._refuse_unknown(context)
        table = context.coalescer.table
        table.looking += 1
        context.forwarding.is_looking = True
        try:
            end, items = await self._look_up(context)
            if context.decision.fallback_model is None or not isinstance(end, Forward):
                reply, outcome = await self._reply(context, end, items)
            else:
                reply, outcome = await self._reply_or_fall_back(context, end, items)
        finally:
            if context.forwarding.is_looking:
                table.looking -= 1
        observation.outcome, observation.reason = outcome.outcome, outcome.reason
        observation.status = reply.status
        if (hit := outcome.hit) is not None:
            observation.lookup = observation.lookup._replace(key=hit.entry.key, hit=hit)
        return reply, outcome

    async def _reply_or_fall_back(
        self, context: RequestContext, end: Forward, items: Sequence[Hit | Forward]
    ) -> Answer:
        """Forward, or let the rule's fallback model answer. Raises RequestError."""
        result: Answer | UpstreamError | None = None
        while True:
            came = result[0] if isinstance(result, tuple) else result
            if (fallback := fallback_for(context, self.overloaded, came)) is not None:
                break
            if isinstance(result, UpstreamError):
                raise result
            if result is not None:
                return result
            try:
                result = await self._reply(context, end, items)
            except UpstreamError as error:
                result = error
        if isinstance(came, Reply):
            came.close()
        if not context.forwarding.is_looking:
            context.forwarding.is_looking = True
            context.coalescer.table.looking += 1
        other, items = await self._look_up(fallback)
        reply, outcome = await self._reply(fallback, other, items)
        return with_model_header(reply, fallback), outcome

    async def explain(self, request: CacheRequest, trace: Trace) -> End:
        """Return how a request would end, and note in ``trace`` why. Raises RequestError."""
        observation = Observation(request.endpoint.value, self.clock(), self.clock, ())
        context = self._decide(request, observation, trace)
        self._refuse_unknown(context)
        end, _ = await self._look_up(context)
        return end

    async def close(self) -> None:
        """End the calls that are under way."""
        await self.outbox.summariser.close()
        await self.coalescer.close()
        if self.local is not None:
            await self.local.coalescer.close()

    def _decide(
        self, request: CacheRequest, observation: Observation, trace: Trace | None = None
    ) -> RequestContext:
        """Find the tenant of a request, and the policy's decision."""
        active = self.policies.active
        tenant = identify(request.headers, request.holder, request.team)
        # Only rules read the facts.
        policy = active.policy
        decision = policy.decide(facts_of(request, tenant)) if policy.rules else policy.default
        coalescer, local = self.coalescer, False
        if self.local is not None and request.endpoint is Endpoint.EMBEDDINGS:
            local = self.local.serves(request.model)
            coalescer = self.local.coalescer if local else coalescer
        context = RequestContext(
            *(request, active, tenant, decision, coalescer, local, observation, Forwarding()),
            trace=trace,
        )
        if trace is not None:
            trace.context = context
        odd, record = request.odd, None
        if odd is None and self.recorder is not None:
            record = self._record(context, self.recorder)
        holder, team = request.holder or "", request.team or ""
        observation.asked = Asked(
            request.model, decision.rule, holder, team, request.streamed, record=record
        )
        if decision.max_prompt_tokens is not None:
            refuse_long_prompt(request, decision.max_prompt_tokens)
        if local and odd is not None:
            raise odd.error
        return context

    async def _look_up(self, context: RequestContext) -> tuple[End, Sequence[Hit | Forward]]:
        """Look the request up; of a batch return the end of all items, and the end of each."""
        request = context.request
        batch = SPECS[request.endpoint].is_batch and request.odd is None
        items = items_of(request.body) if batch else ()
        if len(items) > 1:
            context = context._replace(batch_scan=[])
            turn = self.batches if len(items) > AT_ONCE else contextlib.nullcontext()
            async with turn:
                ends: Sequence[End] = await for_each(
                    lambda item: self._look_up_body(context, item_body(request.body, item)), items
                )
        else:
            ends = [await self._look_up_body(context, request.body)]
        first = ends[0]
        if len(ends) == 1 and isinstance(first, Hit) and first.revalidate is None:
            return first, ()
        if not SPECS[request.endpoint].neutral.isdisjoint(request.body):
            ends = await scan_names(request, ends, self.scans, context.active.scanner)
        if len(items) <= 1:
            return ends[0], ()
        states = without_refused(ends)
        return (end_of(states) if len(states) == len(items) else Refused()), states

    async def _reply(
        self, context: RequestContext, end: End, items: Sequence[Hit | Forward]
    ) -> Answer:
        """Answer from the store, or forward; ``items`` are the ends of a batch."""
        request = context.request
        if isinstance(end, Refused):
            return refuse(request.endpoint.value)
        if isinstance(end, Hit):
            if end.to_compare is not None:
                self._sample(context, end)
            if end.revalidate is None:
                return render_hit(request, end, context)
            stale = Forward(ForwardStatus(Forwarded.STALE), end.revalidate)
            self._refresh(context, stale, "refresh")
            return render_hit(request, end)
        exchange = await self._exchange(context, end)
        if items:
            send = forward_missing(context.coalescer, exchange, items)
        else:
            send = context.coalescer.forward(exchange)
        return await self._forward(exchange, send)

    def _sample(self, context: RequestContext, hit: Hit) -> None:
        """Ask the upstream as well, for one of some hits, so that the answers can be compared."""
        if self.draw() >= context.decision.sample:
            return
        state = Forward(ForwardStatus(Forwarded.MISS), hit.plan, to_compare=hit.to_compare)
        decision = replace(context.decision, priority=Priority.LOW)
        self._refresh(context._replace(decision=decision), state, "sample")

    def _refresh(self, context: RequestContext, state: Forward, outcome: str) -> None:
        """Begin a call in the background. It is prepared there: no hit waits for that."""
        seen = context.observation.of_background(outcome)
        context = context._replace(observation=seen, forwarding=Forwarding())
        # Nobody is charged for it.
        context = context._replace(request=replace(context.request, needs_usage=False))
        request, scanner = context.request, context.active.scanner
        exchange = Exchange(request, state, scanner, context.observation)
        context.coalescer.refresh(exchange, partial(self._exchange, context, state))

    async def _forward(self, exchange: Exchange, send: Awaitable[Answered]) -> Answer:
        """Return the upstream's reply, or the stale answer that stands in for its failure."""
        state, observation = exchange.state, exchange.observation
        observation.reason = state.status.reason
        observation.lookup = observation.lookup._replace(
            key=b"" if state.store is None else state.store.key,
            forward=state.status,
            ineligible=state.ineligible,
        )
        is_bypass = state.status.forwarded is Forwarded.BYPASS
        observation.outcome = outcome = "bypass" if is_bypass else "miss"
        try:
            reply, status, call = await send
        except UpstreamError:
            if (instead := state.instead(self.now())) is None:
                raise
            return render_hit(exchange.request, instead)
        if reply.status in _UPSTREAM_FAILED and (instead := state.instead(self.now())) is not None:
            reply.close()
            observation.note_call((call or observation.call_so_far())._replace(declined=None))
            return render_hit(exchange.request, instead)
        if call is not None:
            observation.note_call(call)
        if reply.status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            return reply, Outcome("error", Reason.UPSTREAM_STATUS, call=call)
        if reply.status == HTTPStatus.TOO_MANY_REQUESTS:
            return reply, Outcome("error", Reason.UPSTREAM_LIMITED, call=call)
        reason = Reason.COLLAPSED if status.collapsed else status.reason
        return reply, Outcome(outcome, reason, call=call)

    async def _look_up_body(self, context: RequestContext, body: dict[str, Any]) -> End:
        """Drive the machine to its end, for a request or for one item of it.

        Identical misses that are under way share a search.
        """
        state: State
        if len(context.request.raw) > LARGE_BYTES:
            state = await asyncio.to_thread(self._plan, context, body)
        else:
            state = self._plan(context, body)
        if context.trace is not None:
            return await self._drive(state, context._replace(steps=context.trace.begin_lookup()))
        while True:
            match state:
                case Hit() | Forward() | Refused():
                    return state
                case LookUpExact(plan) if (
                    # An end user may have an entry of a scope that others do not see.
                    context.coalescer.calls
                    and plan.personal is None
                    and context.coalescer.has_missed(plan)
                    and not plan.directives.only_if_cached
                ):
                    # The leader of the call under way looked and found nothing. Who takes only a
                    # stored answer looks again: the store may have been out meanwhile.
                    state = forward(plan, miss(plan))
                case SearchSemantic() if (key := sharing_key(state)) is not None:
                    end = await self.misses.ask(key, partial(self._drive, state, context))
                    return rebind(end, state.plan)
                case _:
                    state = await self._next(state, context)

    async def _drive(self, state: State, context: RequestContext) -> End:
        while not isinstance(state, Hit | Forward | Refused):
            state = await self._next(state, context)
        _note(context, state)
        return state

    async def _next(self, state: Unfinished, context: RequestContext) -> State:
        """Do what a state needs, tell of it, and return the state that follows."""
        if self.on_step is None:
            return await self._do(state, context)
        seen = context.observation
        began = seen.clock()
        after = await self._do(state, context)
        self.on_step(state, began, seen, after)
        return after

    async def _do(self, state: Unfinished, context: RequestContext) -> State:
        match state:
            case LookUpExact():
                return state.next(await self._get(state, state.plan.key, context), self.now())
            case LookUpPersonal():
                return state.next(await self._get(state, state.personal.key, context), self.now())
            case ScanPrompt():
                return await self._scan(state, context)
            case SearchSemantic() if self._is_off(state.plan.decision):
                _note(context, state, Reason.SEMANTIC_OFF)
                return state.off()
            case SearchSemantic():
                return await self._look_up_semantic(state, context)
            case FetchCandidate():
                return state.next(await self._get(state, state.key, context), self.now())
            case VerifyCandidate():
                verification = await self.verifier.verify(*state.pair)
                budget = state.plan.decision.max_wrong_hits
                threshold = self.verifier.threshold(budget, verification.verifier)
                learned, entry = self.learned, state.hit.entry
                alias = learned is not None and learned.alias(state.plan, entry, self.now())
                result = verification.result(threshold, alias=alias)
                found = verification.known_score, state.scored(verification)
                context.observation.note_verified(result, *found)
                _note(context, state, Verdict(verification, threshold, alias))
                return state.next(verification, threshold, alias=alias)
            case _:
                assert_never(state)

    async def _look_up_semantic(self, state: SearchSemantic, context: RequestContext) -> State:
        """Drive the semantic lookup to its end, in bounded time altogether.

        Each wait has its own bound, and slow parts would add them up, candidate by candidate.
        """
        if len(context.request.raw) > LARGE_BYTES:
            await asyncio.to_thread(state.plan.prepare)
        until = self.clock() + self.semantic_seconds
        began = self.clock()
        near = await self._search(state, context)
        if self.on_step is not None and self.semantic is not None:
            self.on_step(Near(near), began, context.observation, None)
        after: State = state.next(near)
        while isinstance(after, FetchCandidate | VerifyCandidate):
            if self.clock() >= until:
                context.observation.note_semantic_fault("timeout")
                _note(context, after, TimeoutError("no time was left"))
                return forward(after.plan, after.otherwise)
            after = await self._next(after, context)
        surest = context.observation.lookup.surest
        if surest is not None and self.on_surest is not None:
            self.on_surest(surest)
        return after

    def _refuse_unknown(self, context: RequestContext) -> None:
        """Refuse an unknown model: on the loop, which owns what is known of the upstreams."""
        if self.refuse_unknown is not None and not context.local:
            self.refuse_unknown(context.request.model)

    def _record(self, context: RequestContext, recorder: Recorder) -> dict[str, Any]:
        request = context.request
        facts = facts_of(request, context.tenant)
        return recorder.record(
            request.body,
            context.tenant,
            facts,
            context.decision,
            truths=context.active.recorded.truths(facts),
            upstream=self._identity(context),
            query=request.query,
        )

    def _identity(self, context: RequestContext) -> str:
        """Return what keys say of the upstream; for an alias, what it stands for."""
        name = context.coalescer.caller.upstream.name
        if not self.aliases or context.local:
            return name
        return self.aliases.get(context.request.model, name)

    def _plan(self, context: RequestContext, body: dict[str, Any]) -> State:
        request = context.request
        cache_control = request.headers.get("cache-control")
        directives = NOTHING_ASKED if cache_control is None else parse_directives(cache_control)
        if request.odd is not None:
            return bypass(Reason.UNKNOWN_SHAPE, directives)
        plan = plan_request(
            without_salt(body) if request.endpoint in self.outbox.salted else body,
            endpoint=request.endpoint,
            upstream=self._identity(context),
            query=request.query,
            tenant=context.tenant,
            secret=self.secret,
            decision=context.decision,
            pii_identity=context.active.pii_identities[context.decision.pii],
            directives=directives,
            headers=request.headers,
        )
        return bypass(plan, directives) if isinstance(plan, Reason) else start(plan)

    async def _exchange(self, context: RequestContext, state: Forward) -> Exchange:
        if context.local and state.status == ForwardStatus(Forwarded.MISS):
            state = replace(state, status=ForwardStatus(Forwarded.MISS, Reason.LOCAL))
        if len(context.request.raw) > LARGE_BYTES and state.store is not None:
            await asyncio.to_thread(state.store.prepare)
        if self.on_step is None:
            return await self.outbox.exchange(context, state)
        seen = context.observation
        began = seen.clock()
        exchange = await self.outbox.exchange(context, state)
        self.on_step(exchange, began, seen, None)
        return exchange

    async def _get(self, state: Unfinished, key: bytes, context: RequestContext) -> Entry | None:
        """Return the entry; where the index named it, an absent one leaves the index, too."""
        explained = context.trace is not None
        try:
            entry = await self.store.get(key, touch=not explained)
        except StoreError as error:
            _note(context, state, error)
            # A fault that lasts is logged once, by the store's guard.
            log.debug("store: lookup failed, treated as a miss: %s", error)
            return None
        if explained:
            _note(context, state, entry)
        if entry is None and isinstance(state, FetchCandidate) and not explained:
            # The entry was evicted: its vector would stand before living ones.
            with contextlib.suppress(SemanticUnavailableError):
                if self.semantic is not None:
                    await self.semantic.remove([key])
        return entry

    async def _scan(self, state: ScanPrompt, context: RequestContext) -> State:
        try:
            found = await scan_prompt(context, state.plan, self.scans)
        except ScanFailedError as error:
            _note(context, state, error)
            return state.fail()
        _note(context, state, found)
        return state.next(found)

    def _is_off(self, decision: Decision) -> bool:
        """Tell whether the rule's semantic hits are switched off; in shadow none are served."""
        if self.learned is None or decision.shadow:
            return False
        return self.learned.off(decision, self.verifier.threshold)

    async def _search(
        self, state: SearchSemantic, context: RequestContext
    ) -> list[tuple[bytes, float]]:
        plan = state.plan
        if self.semantic is None or plan.question is None:
            _note(context, state, None)
            return []
        try:
            found = await self.semantic.search(plan.fingerprint, plan.question, NEAREST)
        except SemanticUnavailableError as error:
            context.observation.note_semantic_fault(error.reason)
            _note(context, state, error)
            return []
        # Not only when it is added: the index may have been down when the hit was called wrong.
        barred = self.coalescer.caller.writer.quarantine.holds
        near = [(each.key, each.similarity) for each in found if not barred(each.key)]
        _note(context, state, near)
        return near
