"""How spans and metrics reach a collector: OTLP over HTTP, from separate threads.

Laws:
- A collector that is down or slow delays no request. What it does not take is dropped.
- It leaves one line in the log when it begins to refuse, and one when it takes data again.
- Closing is bounded, whatever the collector does.
"""

import logging
import uuid
from collections.abc import Callable, Sequence
from threading import Thread
from typing import Any

from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.metrics.export import MetricExportResult, MetricsData
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.semconv.attributes import service_attributes as service

SERVICE = "refrain"
CLOSE_SECONDS = 3.0
"""For what waits to be sent."""
ABORT_SECONDS = 0.5
"""For threads that have to give up. They end with the process in any case."""

_EXPORTERS = (
    "opentelemetry.exporter.otlp.proto.http.trace_exporter",
    "opentelemetry.exporter.otlp.proto.http.metric_exporter",
)
"""Loggers with a line or more for each batch that is lost."""
_QUEUE = "opentelemetry.sdk._shared_internal"
"""The logger with a line for each span that finds the queue full."""

log = logging.getLogger(__name__)


def resource() -> Resource:
    """Return what names this process; the environment's names count first."""
    named = Resource.create()
    ours = {service.SERVICE_INSTANCE_ID: str(uuid.uuid4())}
    if str(named.attributes[service.SERVICE_NAME]).startswith("unknown_service"):
        return named.merge(Resource({**ours, service.SERVICE_NAME: SERVICE}))
    return Resource(ours).merge(named)


def quiet_library() -> None:
    """Leave the lines about lost data to this module."""
    for name in _EXPORTERS:
        logging.getLogger(name).setLevel(logging.CRITICAL)
    queue = logging.getLogger(_QUEUE)
    if not any(isinstance(one, _FullQueue) for one in queue.filters):
        queue.addFilter(_FullQueue())


class _FullQueue(logging.Filter):
    """Replaces the lines about a full queue by one line."""

    _told = False

    def filter(self, record: logging.LogRecord) -> bool:
        if not record.getMessage().startswith("Queue full"):
            return True
        if not self._told:
            self._told = True
            log.warning(
                "OpenTelemetry: there are more spans than the collector takes, and some are"
                " dropped; OTEL_TRACES_SAMPLER records fewer"
            )
        return False


class Reachability:
    """Logs whether the collector takes one kind of data, where that changes."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._failing = False

    def note(self, *, taken: bool) -> None:
        if not taken and not self._failing:
            log.warning(
                "OpenTelemetry: the collector does not take %s, which are dropped until it does;"
                " is OTEL_EXPORTER_OTLP_ENDPOINT right, and the collector started?",
                self._what,
            )
        elif taken and self._failing:
            log.info("OpenTelemetry: the collector takes %s again", self._what)
        self._failing = not taken


class SpanExporter(OTLPSpanExporter):
    """Sends spans."""

    def __init__(self) -> None:
        super().__init__()
        self._reachability = Reachability("spans")

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        result = super().export(spans)
        self._reachability.note(taken=result is SpanExportResult.SUCCESS)
        return result


class MetricExporter(OTLPMetricExporter):
    """Sends metrics: what the SDK has, and what ``more`` adds."""

    def __init__(self, more: Callable[[MetricsData], MetricsData]) -> None:
        super().__init__()
        self._more = more
        self._reachability = Reachability("metrics")

    def export(
        self, metrics_data: MetricsData, timeout_millis: float | None = 10_000, **kwargs: Any
    ) -> MetricExportResult:
        whole = self._more(metrics_data)
        result = super().export(whole, timeout_millis=timeout_millis, **kwargs)
        self._reachability.note(taken=result is MetricExportResult.SUCCESS)
        return result


def close_in_time(shut_down: Callable[[], object], abort: Callable[[], object]) -> None:
    """Send what waits; after ``CLOSE_SECONDS`` give it up."""
    # Daemons: a collector that accepts and never answers does not hold the process up.
    thread = Thread(target=shut_down, name="otel-close", daemon=True)
    thread.start()
    thread.join(CLOSE_SECONDS)
    if thread.is_alive():
        abort()
        thread.join(ABORT_SECONDS)
