"""The spans of the engine's server, for OpenTelemetry: a request, its queue, prefill and decode.

Imported only if traces are exported. No span holds a prompt or an answer. A collector that is down
delays no request: what it does not take is dropped, with one line in the log.
"""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from threading import Thread
from typing import Any

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExportResult
from opentelemetry.semconv._incubating.attributes import gen_ai_attributes as gen_ai
from opentelemetry.semconv.attributes import error_attributes as error
from opentelemetry.semconv.attributes import http_attributes as http
from opentelemetry.semconv.attributes import service_attributes as service
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, Tracer, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from backend.server.pipeline import GenerationFacts

SERVICE = "refrain-engine"
PROVIDER = "refrain"
CLOSE_SECONDS = 3.0
"""For the spans that wait to be sent."""

_OPERATIONS = {
    "/v1/chat/completions": "chat",
    "/v1/responses": "chat",
    "/v1/completions": "text_completion",
    "/v1/embeddings": "embeddings",
    "/v1/rerank": "rerank",
    "/v1/score": "rerank",
}
_LIBRARY = (
    "opentelemetry.exporter.otlp.proto.http.trace_exporter",
    "opentelemetry.sdk._shared_internal",
)
"""Loggers with a line or more for each batch that is lost."""

_NANO = 1_000_000_000

log = logging.getLogger(__name__)


class _Exporter(OTLPSpanExporter):
    """Logs whether the collector takes spans, where that changes."""

    _failing = False

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        result = super().export(spans)
        failed = result is not SpanExportResult.SUCCESS
        if failed and not self._failing:
            log.warning(
                "OpenTelemetry: the collector does not take spans, which are dropped until it does"
            )
        elif self._failing and not failed:
            log.info("OpenTelemetry: the collector takes spans again")
        self._failing = failed
        return result


class Tracing:
    """Records the requests to a server of ``model``."""

    def __init__(self, model: str) -> None:
        for name in _LIBRARY:
            logging.getLogger(name).setLevel(logging.CRITICAL)
        resource = Resource.create()
        if str(resource.attributes[service.SERVICE_NAME]).startswith("unknown_service"):
            resource = resource.merge(Resource({service.SERVICE_NAME: SERVICE}))
        self._model = model
        self._exporter = _Exporter()
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(self._exporter))
        self._tracer = self._provider.get_tracer("refrain.engine")
        self._propagator = TraceContextTextMapPropagator()

    def begin(self, endpoint: str, headers: Mapping[str, str]) -> "Trace":
        """Begin the span of a request, as the child of the client's if it has one."""
        carrier = {name: headers[name] for name in ("traceparent", "tracestate") if name in headers}
        operation, began = _OPERATIONS.get(endpoint), time.time_ns()
        attributes: dict[str, Any] = {http.HTTP_REQUEST_METHOD: "POST", http.HTTP_ROUTE: endpoint}
        name = f"POST {endpoint}"
        if operation is not None:
            name = f"{operation} {self._model}"
            attributes |= {
                gen_ai.GEN_AI_OPERATION_NAME: operation,
                gen_ai.GEN_AI_PROVIDER_NAME: PROVIDER,
                gen_ai.GEN_AI_REQUEST_MODEL: self._model,
            }
        parent = self._propagator.extract(carrier, Context())
        span = self._tracer.start_span(name, parent, SpanKind.SERVER, attributes, start_time=began)
        return Trace(self._tracer, span, (time.monotonic(), began))

    def close(self) -> None:
        """Send the spans that wait; bounded in time."""
        # A daemon: a collector that accepts and never answers does not hold the process up.
        thread = Thread(target=self._provider.shutdown, name="otel-close", daemon=True)
        thread.start()
        thread.join(CLOSE_SECONDS)
        if thread.is_alive():
            self._exporter.shutdown()  # type: ignore[no-untyped-call]


class Trace:
    """The trace of one request. ``began`` is one moment by the clock and by the time of day."""

    def __init__(self, tracer: Tracer, span: Span, began: tuple[float, int]) -> None:
        self._tracer, self._span, self._began = tracer, span, began
        self._facts: Callable[[], GenerationFacts] | None = None

    def watch(self, facts: Callable[[], GenerationFacts]) -> None:
        """Record a generation: ``facts`` returns what is known of it when the request ends."""
        self._facts = facts

    def _note(self, facts: GenerationFacts) -> None:
        """Note what was generated, and make the spans of its phases."""
        usage, sampling = facts.usage, facts.request.sampling
        attributes = {
            gen_ai.GEN_AI_REQUEST_STREAM: facts.request.stream or None,
            gen_ai.GEN_AI_REQUEST_MAX_TOKENS: sampling.max_tokens,
            gen_ai.GEN_AI_REQUEST_TEMPERATURE: sampling.temperature,
            gen_ai.GEN_AI_REQUEST_TOP_P: sampling.top_p,
            gen_ai.GEN_AI_RESPONSE_ID: facts.id,
            gen_ai.GEN_AI_RESPONSE_FINISH_REASONS: facts.finish_reasons or None,
            gen_ai.GEN_AI_USAGE_INPUT_TOKENS: usage.prompt_tokens,
            gen_ai.GEN_AI_USAGE_OUTPUT_TOKENS: usage.completion_tokens,
            gen_ai.GEN_AI_USAGE_CACHE_READ_INPUT_TOKENS: usage.cached_tokens,
        }
        self._span.set_attributes(
            {name: value for name, value in attributes.items() if value is not None}
        )
        if facts.times is None:
            return
        arrived = self._began[0] if facts.request.arrived is None else facts.request.arrived
        first_step, first_token = facts.times
        moments = (arrived, first_step, first_token, time.monotonic())
        for name, since, until in zip(
            ("refrain.queue", "refrain.prefill", "refrain.decode"),
            moments,
            moments[1:],
            strict=False,
        ):
            context = set_span_in_context(self._span, Context())
            phase = self._tracer.start_span(name, context, start_time=self._nano(since))
            phase.end(self._nano(until))

    def end(self, outcome: str, status: int | None) -> None:
        """End the span; ``outcome`` is the word of the metrics."""
        if self._facts is not None and self._span.is_recording():
            self._note(self._facts())
        if status is not None:
            self._span.set_attribute(http.HTTP_RESPONSE_STATUS_CODE, status)
        if outcome not in ("ok", "client_error"):
            self._span.set_attribute(error.ERROR_TYPE, outcome)
            self._span.set_status(Status(StatusCode.ERROR, outcome))
        self._span.end()

    def _nano(self, reading: float) -> int:
        since, nano = self._began
        return nano + int((reading - since) * _NANO)
