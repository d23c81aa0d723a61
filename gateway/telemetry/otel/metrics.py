"""Metrics over OTLP: the page of Prometheus, and the conventions' metrics of calls to models.

The registry of Prometheus stays the one place where requests are counted. It is read for each
export. Only what the conventions define for a client of models is counted here, by their names.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Any

from opentelemetry.metrics import CallbackOptions, Observation
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Gauge,
    Histogram,
    HistogramDataPoint,
    Metric,
    MetricsData,
    NumberDataPoint,
    PeriodicExportingMetricReader,
    Sum,
)
from opentelemetry.sdk.resources import Resource
from opentelemetry.semconv._incubating.attributes import gen_ai_attributes as gen_ai
from opentelemetry.semconv._incubating.metrics import gen_ai_metrics
from opentelemetry.semconv._incubating.metrics.process_metrics import create_process_uptime
from opentelemetry.semconv.attributes import error_attributes as error
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.samples import Sample

from gateway.protocol.tokens import PromptUsage
from gateway.telemetry.observation import Attempt
from gateway.telemetry.otel import export

SCOPE = "refrain.gateway"
READ_SECONDS = 5.0
"""For the event loop to read the registry: its figures are used from there alone."""

_SECONDS = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)
_TOKENS = tuple(4**power for power in range(14))
"""The buckets that the conventions advise."""

_CUMULATIVE = AggregationTemporality.CUMULATIVE

log = logging.getLogger(__name__)


class CallMetrics:
    """Counts requests to upstreams by the conventions for clients of models."""

    def __init__(self, provider: MeterProvider) -> None:
        meter = provider.get_meter(SCOPE)
        self._duration, self._first_chunk, self._usage = (
            meter.create_histogram(
                name, unit, description, explicit_bucket_boundaries_advisory=buckets
            )
            for name, unit, description, buckets in (
                (
                    gen_ai_metrics.GEN_AI_CLIENT_OPERATION_DURATION,
                    "s",
                    "GenAI operation duration.",
                    _SECONDS,
                ),
                (
                    gen_ai_metrics.GEN_AI_CLIENT_OPERATION_TIME_TO_FIRST_CHUNK,
                    "s",
                    "Time to receive the first chunk of a stream.",
                    _SECONDS,
                ),
                (
                    gen_ai_metrics.GEN_AI_CLIENT_TOKEN_USAGE,
                    "{token}",
                    "Number of input and output tokens used.",
                    _TOKENS,
                ),
            )
        )

    def count(
        self,
        attempt: Attempt,
        labels: Mapping[str, Any],
        usage: PromptUsage,
        kind: str | None,
        *,
        streamed: bool,
    ) -> None:
        """Count one request to an upstream; ``kind`` is the kind of its error, if it failed."""
        failed = {} if kind is None else {error.ERROR_TYPE: kind}
        ended = attempt.began if attempt.ended is None else attempt.ended
        self._duration.record(ended - attempt.began, {**labels, **failed})
        if streamed and attempt.first_chunk is not None:
            self._first_chunk.record(attempt.first_chunk - attempt.began, {**labels, **failed})
        token_type = gen_ai.GenAiTokenTypeValues
        for which, tokens in (
            (token_type.INPUT, usage.prompt),
            (token_type.OUTPUT, usage.completion),
        ):
            if tokens is not None:
                self._usage.record(tokens, {**labels, gen_ai.GEN_AI_TOKEN_TYPE: which.value})


class OtlpMetrics:
    """Exports metrics every ``OTEL_METRIC_EXPORT_INTERVAL`` milliseconds, a minute by default.

    ``families`` reads the registry. It is called in the event loop that ``start`` is called in.
    """

    def __init__(self, families: Callable[[], Iterable[Family]], resource: Resource) -> None:
        self._families = families
        self._loop: asyncio.AbstractEventLoop | None = None
        self._started = time.time_ns()
        self._exporter = export.MetricExporter(self._with_registry)
        reader = PeriodicExportingMetricReader(self._exporter)
        try:
            self._provider = MeterProvider([reader], resource=resource, shutdown_on_exit=False)
        except ValueError:
            # Its thread would go on exporting.
            reader.shutdown()
            raise
        # The SDK exports nothing while it has no metric itself.
        create_process_uptime(self._provider.get_meter(SCOPE), [self._uptime])
        self.calls = CallMetrics(self._provider)

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()

    def close(self) -> None:
        """Export for the last time; bounded in time. Not called in the event loop."""
        export.close_in_time(self._provider.shutdown, self._exporter.shutdown)

    def _uptime(self, _: CallbackOptions) -> Iterator[Observation]:
        yield Observation((time.time_ns() - self._started) / 1e9)

    def _with_registry(self, data: MetricsData) -> MetricsData:
        if self._loop is None or self._loop.is_closed():
            return data
        try:
            reading = asyncio.run_coroutine_threadsafe(self._read(), self._loop)
            families = reading.result(READ_SECONDS)
        except Exception:  # noqa: BLE001 - such as a store that is closed already
            log.warning("OpenTelemetry: the metrics could not be read, and are not sent this time")
            return data
        now = time.time_ns()
        metrics = [metric for family in families for metric in _metrics(family, self._started, now)]
        [ours] = data.resource_metrics
        [scope] = ours.scope_metrics
        scope = replace(scope, metrics=[*scope.metrics, *metrics])
        return MetricsData([replace(ours, scope_metrics=[scope])])

    async def _read(self) -> list[Family]:
        return list(self._families())


def _metrics(family: Family, started: int, now: int) -> Iterator[Metric]:
    """Yield a family of Prometheus in OTLP's form, by the name it has there."""
    data: Gauge | Sum | Histogram
    name = family.name
    if family.type == "histogram":
        data = Histogram(list(_histograms(family.samples, started, now)), _CUMULATIVE)
    elif family.type == "counter":
        name = f"{family.name}_total"
        counts = [one for one in family.samples if one.name == name]
        points = [NumberDataPoint(one.labels, started, now, one.value) for one in counts]
        data = Sum(points, _CUMULATIVE, is_monotonic=True)
    else:
        points = [NumberDataPoint(one.labels, started, now, one.value) for one in family.samples]
        data = Gauge(points)
    if data.data_points:
        yield Metric(name, family.documentation, "", data)


def _histograms(samples: Iterable[Sample], started: int, now: int) -> Iterator[HistogramDataPoint]:
    buckets: dict[tuple[tuple[str, str], ...], list[tuple[float, float]]] = {}
    sums: dict[tuple[tuple[str, str], ...], float] = {}
    for sample in samples:
        labels = tuple((name, value) for name, value in sample.labels.items() if name != "le")
        if sample.name.endswith("_bucket"):
            buckets.setdefault(labels, []).append((float(sample.labels["le"]), sample.value))
        elif sample.name.endswith("_sum"):
            sums[labels] = sample.value
    for labels, cumulated in buckets.items():
        counts = [0, *(int(count) for _, count in cumulated)]
        yield HistogramDataPoint(
            attributes=dict(labels),
            start_time_unix_nano=started,
            time_unix_nano=now,
            count=counts[-1],
            sum=sums.get(labels, 0.0),
            bucket_counts=[after - before for before, after in pairwise(counts)],
            explicit_bounds=[bound for bound, _ in cumulated[:-1]],
            min=None,  # type: ignore[arg-type]  # Prometheus knows neither, and the field may lack
            max=None,  # type: ignore[arg-type]
        )
