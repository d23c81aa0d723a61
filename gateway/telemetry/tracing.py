"""One OpenTelemetry span a request, after the GenAI conventions; never any prompt or answer.

Off unless an OTLP endpoint is configured by the standard OTEL_EXPORTER_OTLP_* variables.
"""

import os
from collections.abc import Mapping
from typing import Any

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from gateway.protocol.endpoints.registry import SPECS
from gateway.telemetry.observation import Observation

_OPERATIONS = {endpoint.value: spec.operation for endpoint, spec in SPECS.items()}


class Tracing:
    """Starts a span for each observation and ends it with the observed facts."""

    def __init__(self, exporter: SpanExporter | None = None) -> None:
        name = os.environ.get("OTEL_SERVICE_NAME", "refrain")
        resource = Resource.create({SERVICE_NAME: name})
        self._provider = TracerProvider(resource=resource)
        self._provider.add_span_processor(BatchSpanProcessor(exporter or OTLPSpanExporter()))
        self._tracer = self._provider.get_tracer("refrain.gateway")
        self._propagator = TraceContextTextMapPropagator()

    def begin(self, seen: Observation, headers: Mapping[str, str]) -> None:
        """Start the span as a child of the client's, and make the upstream's a child of it."""
        carrier = {name: headers[name] for name in ("traceparent", "tracestate") if name in headers}
        parent = self._propagator.extract(carrier)
        span = self._tracer.start_span(
            _OPERATIONS.get(seen.endpoint, "request"), context=parent, kind=SpanKind.SERVER
        )
        self._propagator.inject(seen.trace_headers, context=set_span_in_context(span))
        seen.span = lambda observed: _end(span, observed)

    def close(self) -> None:
        """Send the queued spans; bounded by the exporter's own time-out."""
        self._provider.shutdown()


def _end(span: Span, seen: Observation) -> None:
    operation = _OPERATIONS.get(seen.endpoint, "request")
    semantic = None if seen.hit is None else seen.hit.status
    span.update_name(f"{operation} {seen.model[:128]}".strip())
    attributes: dict[str, Any] = {
        "gen_ai.operation.name": operation,
        "gen_ai.request.model": seen.model,
        "gen_ai.usage.input_tokens": seen.usage.prompt,
        "gen_ai.usage.output_tokens": seen.usage.completion,
        "http.response.status_code": seen.status,
        "refrain.outcome": seen.outcome,
        "refrain.reason": seen.reason.value if seen.reason else None,
        "refrain.declined": seen.declined.value if seen.declined else None,
        "refrain.ineligible": seen.ineligible.value if seen.ineligible else None,
        "refrain.rule": seen.rule,
        "refrain.rewrites": ", ".join(seen.rewrites) or None,
        "refrain.rewrites_declined": ", ".join(map(str, seen.not_rewritten)) or None,
        **_compression(seen),
        "refrain.similarity": semantic and semantic.similarity,
        "refrain.semantic_score": semantic and semantic.score,
        "refrain.semantic_threshold": semantic and semantic.threshold,
        "refrain.stored": seen.stored,
        "refrain.model": seen.fallback_model,
        "refrain.upstream": seen.upstream,
        "refrain.upstream_tried": [f"{name}={why}" for name, why in seen.tried] or None,
        "refrain.streamed": seen.streamed,
        "refrain.request_bytes": seen.request_bytes,
        "refrain.answer_bytes": seen.answer_bytes,
        "refrain.time_to_first_token": _between(seen.started, seen.first_token),
        "refrain.decode_time": _between(seen.first_token, seen.ended),
        "refrain.upstream_time": _between(seen.upstream_started, seen.upstream_head),
    }
    span.set_attributes({name: value for name, value in attributes.items() if value is not None})
    if seen.outcome == "error":
        span.set_status(Status(StatusCode.ERROR, seen.reason.value if seen.reason else None))
    span.end()


def _compression(seen: Observation) -> dict[str, Any]:
    compression = seen.compression
    if compression is None:
        return {}
    return {
        "refrain.compress": ", ".join(compression.steps) or None,
        "refrain.compress_declined": compression.refused,
        "refrain.compress_saved_tokens": compression.saved,
    }


def _between(start: float | None, end: float | None) -> float | None:
    return end - start if start is not None and end is not None else None
