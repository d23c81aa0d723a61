"""The pipeline and the coalescer of a gateway that exports traces or metrics by OpenTelemetry.

They do what their bases do, and note the time of each step. Without OpenTelemetry the bases run
alone: what is not traced costs nothing.
"""

from typing import Any

from gateway.cache.lookup import (
    FetchCandidate,
    Forward,
    Hit,
    LookUpExact,
    LookUpPersonal,
    ScanPrompt,
    SearchSemantic,
    State,
    Unfinished,
    VerifyCandidate,
)
from gateway.protocol.errors import UpstreamError
from gateway.protocol.streaming.decode import StreamedAnswer
from gateway.server.context import RequestContext
from gateway.server.pipeline import Pipeline
from gateway.telemetry.otel.attributes import answer_facts
from gateway.upstream.coalescer import Coalescer
from gateway.upstream.request import Exchange
from gateway.upstream.shared_response import SharedResponse

LOOKUP = "refrain.lookup"
SCAN = "refrain.pii_scan"
EMBEDDING = "refrain.embedding"
VERIFICATION = "refrain.verification"
REWRITE = "refrain.rewrite"
ADMISSION = "refrain.admission"


class TracedPipeline(Pipeline):
    """Notes lookups, scans, embeddings, verifications and rewrites."""

    async def _next(self, state: Unfinished, context: RequestContext) -> State:
        trace, seen = context.observation.trace, context.observation
        if trace is None or isinstance(state, SearchSemantic):
            return await super()._next(state, context)
        began = seen.clock()
        after = await super()._next(state, context)
        match state:
            case LookUpExact() | LookUpPersonal() | FetchCandidate():
                kind = "candidate" if isinstance(state, FetchCandidate) else "exact"
                found = isinstance(after, Hit | VerifyCandidate)
                trace.note_step(LOOKUP, began, {"refrain.lookup": kind, "refrain.found": found})
            case ScanPrompt():
                trace.note_step(SCAN, began, {})
            case VerifyCandidate() if seen.verified:
                result, score = seen.verified[-1]
                noted = {"refrain.verification": result, "refrain.semantic_score": score}
                trace.note_step(VERIFICATION, began, noted)
        return after

    async def _search(
        self, state: SearchSemantic, context: RequestContext
    ) -> list[tuple[bytes, float]]:
        trace, seen = context.observation.trace, context.observation
        began = seen.clock()
        near = await super()._search(state, context)
        if trace is not None and self.semantic is not None:
            noted = {
                "refrain.candidates": len(near),
                "refrain.similarity": near[0][1] if near else None,
                "refrain.semantic_fault": seen.semantic_fault,
            }
            trace.note_step(EMBEDDING, began, noted)
        return near

    async def _exchange(self, context: RequestContext, state: Forward) -> Exchange:
        trace, seen = context.observation.trace, context.observation
        began = seen.clock()
        exchange = await super()._exchange(context, state)
        changed = exchange.rewrites or exchange.not_rewritten or exchange.compression is not None
        if trace is not None and changed:
            applied = [each.value for each in exchange.rewrites]
            trace.note_step(REWRITE, began, {"refrain.rewrites": applied or None})
        return exchange


class TracedCoalescer(Coalescer):
    """Notes the requests of each call, what the answer says of itself, and its admission."""

    async def call(self, exchange: Exchange, shared: SharedResponse) -> None:
        """Make the call, and record it once it is over."""
        try:
            await super().call(exchange, shared)
        finally:
            if (trace := exchange.observation.trace) is not None:
                fault, served = shared.fault, shared.served
                reason = fault.reason if isinstance(fault, UpstreamError) else None
                tried = served.tried if served is not None else getattr(fault, "tried", ())
                trace.end_call(shared.facts, exchange.request, reason, dict(tried))

    async def _store_streamed(
        self, status: int, stream: StreamedAnswer, exchange: Exchange, shared: SharedResponse
    ) -> bool:
        if exchange.state.store is None and exchange.observation.trace is not None:
            shared.facts.answer = answer_facts(stream.result())
        return await super()._store_streamed(status, stream, exchange, shared)

    async def _store(
        self, status: int, result: Any, plain: bytes, exchange: Exchange, shared: SharedResponse
    ) -> bool:
        trace, seen = exchange.observation.trace, exchange.observation
        began = seen.clock()
        stored = await super()._store(status, result, plain, exchange, shared)
        if trace is not None:
            shared.facts.answer = answer_facts(result)
            if exchange.state.store is not None:
                declined = None if shared.declined is None else shared.declined.value
                noted = {"refrain.stored": stored, "refrain.declined": declined}
                trace.note_step(ADMISSION, began, noted)
        return stored
