"""One request's way: parse, plan, drive the lookup machine, then render a hit or forward.

Law: this is the only driver, also of an explanation. The pipeline does what a state needs and hands
the result back; no answer comes from a store by another path. A fault of a store, an index or a
scanner ends as a miss or a bypass, never as an error to the client.
"""

import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, assert_never

import orjson

from gateway.cache.comparison_journal import ComparisonJournal
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
    Unended,
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
from gateway.cache.ports import Entry, PolicySource, Store, StoreError, StoreUnavailableError
from gateway.cache.shadow_eval import Sampling
from gateway.cache.single_flight import SingleFlight
from gateway.protocol import exact_json
from gateway.protocol.cache_status import (
    Forwarded,
    ForwardStatus,
    Reason,
    RefusedStatus,
    hit_fields,
)
from gateway.protocol.endpoints.embeddings import item_body, items_of
from gateway.protocol.endpoints.table import SPECS
from gateway.protocol.errors import RequestError, UpstreamError
from gateway.protocol.messages import Inbound, Reply
from gateway.protocol.tokens import refuse_long_prompt
from gateway.semantic.ports import SemanticIndex, SemanticUnavailableError, Verifier
from gateway.server.batch import MissingItems, end_of, for_each, to_be_had
from gateway.server.model_fallback import (
    Overloaded,
    fallback_for,
    never_overloaded,
    with_model_header,
)
from gateway.server.prepare import Outbox
from gateway.server.request import (
    LocalModel,
    RequestContext,
    Trace,
    Verdict,
    facts_of,
    parse_request,
    plan_to_scan,
    scan_prompt,
    without_names,
)
from gateway.telemetry.decision_log import Recorder
from gateway.telemetry.observation import Observation
from gateway.upstream.coalescing.coalescer import Coalescer
from gateway.upstream.request import Exchange, without_salt
from policies.decision import Decision, Endpoint, Priority
from policies.freshness import NOTHING_ASKED, parse_directives

JSON_TYPE = "application/json"
SSE_TYPE = "text/event-stream; charset=utf-8"


def render_hit(
    endpoint: Endpoint,
    body: dict[str, Any],
    hit: Hit,
    seen: Observation,
    *,
    fresh_until: float | None = None,
) -> Reply:
    """Return the stored answer in the form that the request asks for.

    For ``fresh_until`` see ``Reply``.
    """
    status = hit.status
    seen.outcome = "hit"
    seen.reason = status.reason if status.stale is None else status.stale
    seen.entry, seen.key, seen.similarity = hit.entry, hit.entry.key, status.similarity
    seen.score, seen.threshold = status.score, status.threshold
    seen.status = 200
    spec, plain = SPECS[endpoint], hit.entry.result
    if spec.render is not None:
        plain = spec.render(body, hit.entry.key, plain)
    if spec.streaming is None or not seen.streamed:
        headers = hit_fields(JSON_TYPE, status, hit.age, hit.entry.key)
        return Reply(200, headers, plain, fresh_until=fresh_until)
    options = body.get("stream_options") or {}
    stream = spec.streaming.render(
        exact_json.loads(plain), include_usage=options.get("include_usage") is True
    )
    headers = hit_fields(SSE_TYPE, status, hit.age, hit.entry.key)
    return Reply(200, headers, stream, fresh_until=fresh_until)


def refuse(seen: Observation) -> Reply:
    """Return the 504 of a request that wants a stored answer only, where there is none."""
    seen.outcome = "refused"
    seen.reason = Reason.ONLY_IF_CACHED
    seen.status = 504
    error = RequestError(
        504,
        "No stored answer fits, and the request asked for a stored answer only.",
        kind="cache_error",
        code=Reason.ONLY_IF_CACHED.value,
    )
    header = RefusedStatus(Reason.ONLY_IF_CACHED).header()
    return Reply(
        504, (("Content-Type", JSON_TYPE), ("Cache-Status", header)), orjson.dumps(error.body())
    )


def fresh_until(asked: RequestContext, hit: Hit) -> float | None:
    """Return until when the same request gets this hit again, None where that is not sure.

    It is sure of a fresh entry that the exact lookup found first, if the request asked for nothing.
    """
    plan, status = hit.plan, hit.status
    if (
        plan is None
        or plan.decision is not asked.decision
        or plan.directives is not NOTHING_ASKED
        or status.reason is not Reason.EXACT
        or status.stale is not None
        or hit.check is not None
        or asked.odd_body is not None
    ):
        return None
    return plan.fresh_until(hit.entry)


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
    learned: ComparisonJournal | None = None
    sampling: Sampling = field(default_factory=Sampling)
    misses: SingleFlight[Hit | Forward | Refused] = field(default_factory=SingleFlight)

    async def answer(self, endpoint: Endpoint, inbound: Inbound, seen: Observation) -> Reply:
        """Return the reply to one request. Raises RequestError for faults the client is told."""
        asked = self._asked(endpoint, inbound, seen)
        end, items = await self._end(asked)
        if asked.decision.fallback_model is None or not isinstance(end, Forward):
            return await self._reply_to(asked, end, items)
        came: Reply | UpstreamError | None = None
        while (fallback := fallback_for(asked, self.overloaded, came)) is None:
            if isinstance(came, UpstreamError):
                raise came
            if came is not None:
                return came
            try:
                came = await self._reply_to(asked, end, items)
            except UpstreamError as error:
                came = error
        if isinstance(came, Reply) and came.resources is not None:
            await came.resources.aclose()
        end, items = await self._end(fallback)
        return with_model_header(await self._reply_to(fallback, end, items), fallback)

    async def explain(self, endpoint: Endpoint, inbound: Inbound, trace: Trace) -> End:
        """Return how a request would end, and note in ``trace`` why. Raises RequestError."""
        seen = Observation(endpoint.value, self.clock(), self.clock, ())
        end, _ = await self._end(self._asked(endpoint, inbound, seen, trace))
        return end

    async def _end(self, asked: RequestContext) -> tuple[End, Sequence[Hit | Forward]]:
        """Look the request up; of a batch return the end of all items and that of each."""
        batch = SPECS[asked.endpoint].is_batch and asked.odd_body is None
        items = items_of(asked.body) if batch else ()
        if len(items) > 1:
            asked = asked._replace(beside=[])
            ends = await for_each(
                lambda item: self._looked_up(asked, item_body(asked.body, item)), items
            )
        else:
            ends = [await self._looked_up(asked, asked.body)]
        first = ends[0]
        if len(ends) == 1 and isinstance(first, Hit) and first.revalidate is None:
            return first, ()
        if (plan := plan_to_scan(ends, asked.endpoint, asked.body)) is not None:
            ends = await without_names(ends, asked.body, plan, self.scans, asked.active.scanner)
        if len(items) <= 1:
            return ends[0], ()
        states = to_be_had(ends)
        return (end_of(states) if len(states) == len(items) else Refused()), states

    async def _reply_to(
        self, asked: RequestContext, end: End, items: Sequence[Hit | Forward]
    ) -> Reply:
        if isinstance(end, Refused):
            return refuse(asked.seen)
        if isinstance(end, Hit) and end.check is not None:
            await self._sample(asked, end)
        if isinstance(end, Hit) and end.revalidate is None:
            until = fresh_until(asked, end)
            return render_hit(asked.endpoint, asked.body, end, asked.seen, fresh_until=until)
        return await self._replied(asked, end, items)

    async def close(self) -> None:
        """End the calls that are under way."""
        await self.outbox.summariser.close()
        await self.coalescer.close()
        if self.local is not None:
            await self.local.coalescer.close()

    def _asked(
        self, endpoint: Endpoint, inbound: Inbound, seen: Observation, trace: Trace | None = None
    ) -> RequestContext:
        parsed = parse_request(endpoint, inbound.raw)
        body = parsed.body
        seen.model = body.get("model") or ""
        seen.streamed = body.get("stream") is True
        active = self.policies.active
        tenant = identify(inbound.headers, inbound.holder)
        policy = active.policy
        # Without rules nobody looks at the facts.
        decision = (
            policy.decide(facts_of(endpoint, body, inbound, tenant))
            if policy.rules
            else policy.default
        )
        seen.rule = decision.rule
        coalescer, local = self.coalescer, False
        if self.local is not None and endpoint is Endpoint.EMBEDDINGS:
            local = self.local.serves(seen.model)
            coalescer = self.local.coalescer if local else coalescer
        asked = RequestContext(
            endpoint, inbound, body, active, tenant, decision, coalescer, local, seen
        )
        if trace is not None:
            trace.odd = parsed.odd
            asked = trace.asked = asked._replace(trace=trace)
        if parsed.odd is None:
            seen.record = self._recorded(asked)
        if decision.max_prompt_tokens is not None:
            refuse_long_prompt(endpoint, parsed.whole, decision.max_prompt_tokens)
        if local and parsed.odd is not None:
            raise parsed.odd
        return asked if parsed.odd is None else asked._replace(odd_body=parsed.whole)

    async def _replied(
        self, asked: RequestContext, end: Hit | Forward, items: Sequence[Hit | Forward]
    ) -> Reply:
        """Forward a miss, or a hit to be revalidated; ``items`` are those of a batch."""
        if isinstance(end, Hit):
            stale = Forward(ForwardStatus(Forwarded.STALE), end.revalidate)
            exchange = await self._exchange(asked, stale)
            asked.coalescer.refresh(
                replace(exchange, observation=asked.seen.of_background("refresh"))
            )
            return render_hit(asked.endpoint, asked.body, end, asked.seen)
        exchange = await self._exchange(asked, end)
        if items:
            send = MissingItems(asked.coalescer, exchange, items).forward()
        else:
            send = asked.coalescer.forward(exchange)
        return await self._forwarded(exchange, send)

    async def _sample(self, asked: RequestContext, hit: Hit) -> None:
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
        state, seen = exchange.state, exchange.observation
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

    async def _looked_up(self, asked: RequestContext, body: dict[str, Any]) -> End:
        """Drive the machine to its end, for a request or for one item of it.

        From where it is the same, the way is that of identical misses that are under way.
        """
        state = self._plan(asked, body)
        if asked.trace is not None:
            return await self._driven(state, asked._replace(steps=asked.trace.begin_lookup()))
        while True:
            match state:
                case Hit() | Forward() | Refused():
                    return state
                case LookUpExact() if asked.coalescer.calls and self._is_asked(state, asked):
                    state = forward(state.plan, miss(state.plan))
                case ScanPrompt() | SearchSemantic() if (about := sharing_key(state)) is not None:
                    end = await self.misses.ask(about, partial(self._driven, state, asked))
                    return rebind(end, state.plan)
                case _:
                    state = await self._next(state, asked)

    def _is_asked(self, state: LookUpExact, asked: RequestContext) -> bool:
        """Tell whether a call under way says all that this lookup could: its maker found nothing.

        With a scope of its own, an end user may still have an entry that others do not see.
        """
        return state.plan.personal is None and asked.coalescer.has_missed(state.plan)

    async def _driven(self, state: State, asked: RequestContext) -> End:
        while not isinstance(state, Hit | Forward | Refused):
            state = await self._next(state, asked)
        asked.note(state)
        return state

    async def _next(self, state: Unended, asked: RequestContext) -> State:
        """Do what a state asks for, and hand it back."""
        match state:
            case LookUpExact():
                return state.next(await self._get(state, state.plan.key, asked), self.now())
            case LookUpPersonal():
                return state.next(await self._get(state, state.personal.key, asked), self.now())
            case ScanPrompt():
                return await self._scan(state, asked)
            case SearchSemantic() if self._off(state.plan.decision):
                asked.note(state, Reason.SEMANTIC_OFF)
                return state.off()
            case SearchSemantic():
                return await self._by_meaning(state, asked)
            case FetchCandidate():
                return state.next(await self._get(state, state.key, asked), self.now())
            case VerifyCandidate():
                verification = await self.verifier.verify(*state.pair)
                budget = state.plan.decision.max_wrong_hits
                threshold = self.verifier.threshold(budget, verification.verifier)
                learned, entry = self.learned, state.hit.entry
                alias = learned is not None and learned.alias(state.plan, entry, self.now())
                result = verification.result(threshold, alias=alias)
                asked.seen.verified.append((result, verification.measured))
                asked.note(state, Verdict(verification, threshold, alias))
                return state.next(verification, threshold, alias=alias)
            case _:
                assert_never(state)

    async def _by_meaning(self, state: SearchSemantic, asked: RequestContext) -> State:
        """Drive the lookup by meaning to its end, in bounded time altogether.

        Each wait has its own bound, and slow parts would add them up, candidate by candidate.
        """
        until = self.clock() + self.semantic_seconds
        after: State = state.next(await self._search(state, asked))
        while isinstance(after, FetchCandidate | VerifyCandidate):
            if self.clock() >= until:
                asked.seen.semantic_fault = "timeout"
                asked.note(after, TimeoutError("no time was left"))
                return forward(after.plan, after.otherwise)
            after = await self._next(after, asked)
        return after

    def _recorded(self, asked: RequestContext) -> dict[str, Any] | None:
        if self.recorder is None:
            return None
        facts = facts_of(asked.endpoint, asked.body, asked.inbound, asked.tenant)
        return self.recorder.record(
            asked.body,
            asked.tenant,
            facts,
            asked.decision,
            truths=asked.active.recorded.truths(facts),
            upstream=self.coalescer.upstream.name,
            query=asked.inbound.query,
        )

    def _plan(self, asked: RequestContext, body: dict[str, Any]) -> State:
        cache_control = asked.inbound.headers.get("cache-control")
        directives = NOTHING_ASKED if cache_control is None else parse_directives(cache_control)
        if asked.odd_body is not None:
            return bypass(Reason.UNKNOWN_SHAPE, directives)
        plan = plan_request(
            without_salt(body) if self.outbox.salts_caches and self.outbox.salts(asked) else body,
            endpoint=asked.endpoint,
            upstream=asked.coalescer.upstream.name,
            query=asked.inbound.query,
            tenant=asked.tenant,
            secret=self.secret,
            decision=asked.decision,
            pii_identity=asked.active.pii_identities[asked.decision.pii],
            directives=directives,
        )
        if isinstance(plan, Reason):
            return bypass(plan, directives)
        return LookUpExact(plan) if asked.decision.exact else start(plan)

    async def _exchange(self, asked: RequestContext, state: Forward) -> Exchange:
        if asked.local and state.status == ForwardStatus(Forwarded.MISS):
            state = replace(state, status=ForwardStatus(Forwarded.MISS, Reason.LOCAL))
        return await self.outbox.exchange(asked, state)

    async def _get(self, state: Unended, key: bytes, asked: RequestContext) -> Entry | None:
        """Return the entry; where the index named it, an absent one leaves the index, too."""
        explained = asked.trace is not None
        try:
            entry = await (self.store.get(key, touch=False) if explained else self.store.get(key))
        except StoreError as error:
            asked.note(state, error)
            # An outage is told once, by whoever stopped asking.
            level = logging.DEBUG if isinstance(error, StoreUnavailableError) else logging.WARNING
            log.log(level, "store: lookup failed, treated as a miss: %s", error)
            return None
        if explained:
            asked.note(state, entry)
        if entry is None and isinstance(state, FetchCandidate) and not explained:
            # The entry was evicted: its vector would stand before living ones.
            with contextlib.suppress(SemanticUnavailableError):
                if self.semantic is not None:
                    await self.semantic.remove([key])
        return entry

    async def _scan(self, state: ScanPrompt, asked: RequestContext) -> State:
        try:
            found = await scan_prompt(asked, state.plan, self.scans)
        except ScanFailedError as error:
            asked.note(state, error)
            return state.failed()
        asked.note(state, found)
        return state.next(found)

    def _off(self, decision: Decision) -> bool:
        """Tell whether the rule's semantic hits are switched off; in shadow none are served."""
        if self.learned is None or decision.shadow:
            return False
        return self.learned.off(decision, self.verifier.threshold(decision.max_wrong_hits))

    async def _search(
        self, state: SearchSemantic, asked: RequestContext
    ) -> list[tuple[bytes, float]]:
        plan = state.plan
        if self.semantic is None or plan.question is None:
            asked.note(state, None)
            return []
        try:
            found = await self.semantic.search(plan.fingerprint, plan.question, NEAREST)
        except SemanticUnavailableError as error:
            asked.seen.semantic_fault = error.reason
            asked.note(state, error)
            return []
        # Not only when it is added: the index may have been down when the hit was called wrong.
        barred = self.coalescer.writer.quarantine.holds
        near = [(each.key, each.similarity) for each in found if not barred(each.key)]
        asked.note(state, near)
        return near
