"""The spans of a request: the request itself, its steps, and each request to an upstream.

Laws:
- A span is made once all about it is known, from times that were noted on the way. Only the
  request's own span begins with the request, since the sampler decides then.
- The span of a request to an upstream is the parent of what the upstream does. So its id is chosen
  when that request is sent.
- A call may outlive its request, and may be shared. Its spans belong to the request that made it;
  a request that joined it has a link to them.
"""

import random
import time
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Any

import orjson
from opentelemetry.context import Context
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.trace import (
    NonRecordingSpan,
    Span,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    set_span_in_context,
)
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from gateway.cache.lookup import Hit
from gateway.protocol.http.cache_status import Reason
from gateway.protocol.http.headers import Fields
from gateway.protocol.request import CacheRequest
from gateway.protocol.tokens import NOTHING_SAID
from gateway.telemetry.observation import AnswerFacts, Attempt, CallFacts, Observation, Place
from gateway.telemetry.otel import attributes as convention
from gateway.telemetry.otel import export
from gateway.telemetry.otel.metrics import CallMetrics

MOST_STEPS = 64
"""Steps of one request that become spans: a batch of embeddings has some for each item."""

_MOST_READ = 65_536
"""Bytes of a stored answer that is read for its model and finish reasons."""

_NANO = 1_000_000_000


class _Ids(RandomIdGenerator):
    """Takes the id of the next span from ``chosen``, if it was chosen before.

    The SDK's generator draws from the global one, which others may have seeded.
    """

    chosen: int | None = None

    def __init__(self) -> None:
        self._random = random.Random()

    def generate_span_id(self) -> int:
        chosen, self.chosen = self.chosen, None
        return self._random.randrange(1, 1 << 64) if chosen is None else chosen

    def generate_trace_id(self) -> int:
        return self._random.randrange(1, 1 << 128)


class Tracing:
    """Begins the trace of each request. Used from one event loop.

    Without ``traces`` requests are only counted in ``calls``.
    """

    def __init__(
        self,
        exporter: SpanExporter | None = None,
        *,
        resource: Resource | None = None,
        traces: bool = True,
        calls: CallMetrics | None = None,
    ) -> None:
        self.calls = calls
        self.ids = _Ids()
        self._propagator = TraceContextTextMapPropagator()
        self._exporter: SpanExporter | None = None
        if traces:
            self._exporter = exporter or export.SpanExporter()
            self._provider = TracerProvider(
                resource=resource or export.resource(),
                shutdown_on_exit=False,
                id_generator=self.ids,
            )
            self._provider.add_span_processor(BatchSpanProcessor(self._exporter))
            self.tracer = self._provider.get_tracer("refrain.gateway")

    def begin(
        self, started: float, clock: Callable[[], float], headers: Mapping[str, str]
    ) -> "Trace":
        """Return the trace of a request that began at a reading of the clock."""
        span, began = None, time.time_ns()
        if self._exporter is not None:
            carrier = {
                name: headers[name] for name in ("traceparent", "tracestate") if name in headers
            }
            span = self.tracer.start_span(
                "request",
                context=self._propagator.extract(carrier, Context()),
                kind=SpanKind.SERVER,
                start_time=began,
            )
        host = headers.get("host", "")
        return Trace(self, span, clock, (started, began), host)

    def fields(self, span: SpanContext) -> Fields:
        carrier: dict[str, str] = {}
        self._propagator.inject(carrier, context=set_span_in_context(NonRecordingSpan(span)))
        return tuple(carrier.items())

    def close(self) -> None:
        """Send the spans that wait; bounded in time."""
        if self._exporter is not None:
            export.close_in_time(self._provider.shutdown, self._exporter.shutdown)


class Trace:
    """The trace of one request, or of a call of ours; see the port ``RequestTrace``.

    ``span`` is None if nothing but metrics is exported. ``began`` is one moment twice: a reading of
    ``clock``, and the time of day in nanoseconds.
    """

    __slots__ = ("_began", "_clock", "_host", "_sampled", "_span", "_steps", "_tracing")

    def __init__(
        self,
        tracing: Tracing,
        span: Span | None,
        clock: Callable[[], float],
        began: tuple[float, int],
        host: str = "",
    ) -> None:
        self._tracing, self._span, self._host = tracing, span, host
        self._clock, self._began = clock, began
        self._sampled = span is not None and span.get_span_context().trace_flags.sampled
        self._steps = 0

    @property
    def fields(self) -> Fields:
        return () if self._span is None else self._tracing.fields(self._span.get_span_context())

    def note_step(self, name: str, began: float, attributes: Mapping[str, Any]) -> None:
        """Make the span of a step that has ended now."""
        self._steps += 1
        if self._sampled and self._steps <= MOST_STEPS:
            self._child(name, began, attributes).end(self._nano(self._clock()))

    def attempt(self, call: CallFacts, place: Place) -> Attempt:
        attempt = Attempt(place, self._clock, self._clock())
        if self._span is not None:
            parent = self._span.get_span_context()
            attempt.span = parent.trace_id, self._tracing.ids.generate_span_id()
            attempt.fields = self._tracing.fields(
                SpanContext(
                    *attempt.span,
                    is_remote=False,
                    trace_flags=parent.trace_flags,
                    trace_state=parent.trace_state,
                )
            )
        call.attempts.append(attempt)
        return attempt

    def end_call(
        self,
        call: CallFacts,
        request: CacheRequest,
        fault: Reason | None,
        tried: Mapping[str, Reason],
    ) -> None:
        """Make the spans of a call's requests, and count them."""
        for number, attempt in enumerate(call.attempts):
            attempt.end(None)
            is_last = number == len(call.attempts) - 1
            error = attempt.fault
            if error is None and attempt.status >= HTTPStatus.BAD_REQUEST:
                error = str(attempt.status)
            if error is None:
                why = fault if is_last else tried.get(attempt.place.name)
                error = None if why is None else why.value
            answered = is_last and error is None
            operation = convention.of_operation(request, attempt)
            answer = convention.of_answer(call.answer if answered else None)
            if (calls := self._tracing.calls) is not None:
                usage = call.usage if answered else NOTHING_SAID
                labels = convention.present({**operation, **_model_of(answer)})
                calls.count(attempt, labels, usage, error, streamed=request.streamed)
            if self._sampled:
                attributes = {
                    **operation,
                    **convention.of_parameters(request),
                    **answer,
                    **(convention.of_usage(call) if answered else {}),
                    **convention.of_reply(attempt, number, streamed=request.streamed),
                }
                self._end_attempt(attempt, attributes, error)

    def background(self) -> "Trace":
        """Return the trace of a call of ours: a child of the request that gives rise to it."""
        span, began = None, time.time_ns()
        if self._span is not None:
            context = set_span_in_context(self._span, Context())
            span = self._tracing.tracer.start_span("background", context, start_time=began)
        return Trace(self._tracing, span, self._clock, (self._clock(), began))

    def end(self, seen: Observation) -> None:
        span = self._span
        if span is None:
            return
        if self._sampled:
            shared = seen.call.whole or seen.call.followed
            answer = shared.answer if shared is not None else None
            if seen.hit is not None:
                answer = _stored_answer(seen.hit)
            span.update_name(convention.server_span_name(seen))
            attributes = convention.of_server(seen, self._host) | convention.of_answer(answer)
            span.set_attributes(convention.present(attributes))
            for attempt in () if seen.call.followed is None else seen.call.followed.attempts:
                span.add_link(SpanContext(*attempt.span, False, TraceFlags(TraceFlags.SAMPLED)))
            if (error := convention.server_error(seen)) is not None:
                span.set_status(Status(StatusCode.ERROR, error))
        span.end(self._nano(self._clock() if seen.ended is None else seen.ended))

    def _end_attempt(
        self, attempt: Attempt, attributes: Mapping[str, Any], error: str | None
    ) -> None:
        name = convention.client_span_name(attributes)
        attributes = {**attributes, **convention.of_error(error)}
        self._tracing.ids.chosen = attempt.span[1]
        span = self._child(name, attempt.began, attributes, SpanKind.CLIENT)
        if error is not None:
            span.set_status(Status(StatusCode.ERROR, error))
        span.end(self._nano(attempt.ended or attempt.began))

    def _child(
        self,
        name: str,
        began: float,
        attributes: Mapping[str, Any],
        kind: SpanKind = SpanKind.INTERNAL,
    ) -> Span:
        """Return a span that has begun at a reading of the clock."""
        if self._span is None:
            raise RuntimeError("no spans are exported")
        return self._tracing.tracer.start_span(
            name,
            set_span_in_context(self._span, Context()),
            kind,
            convention.present(attributes),
            start_time=self._nano(began),
        )

    def _nano(self, reading: float) -> int:
        """Return the time of day, in nanoseconds, of a reading of the clock."""
        since, nano = self._began
        return nano + int((reading - since) * _NANO)


def _model_of(answer: Mapping[str, Any]) -> dict[str, Any]:
    name = convention.RESPONSE_MODEL
    return {name: answer[name]} if name in answer else {}


def _stored_answer(hit: Hit) -> AnswerFacts | None:
    """Return what the answer of a hit says of itself, if it is not too long to be read here."""
    plain = hit.entry.result
    if len(plain) > _MOST_READ:
        return None
    try:
        return convention.answer_facts(orjson.loads(plain))
    except orjson.JSONDecodeError:
        return None
