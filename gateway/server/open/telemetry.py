"""The telemetry of requests: metrics, request log, decision log, traces."""

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass

from gateway import background
from gateway.cache.ports import StoreStats
from gateway.prompts.outcome import format_rewrites
from gateway.server.open.prices import priced
from gateway.settings import Settings
from gateway.telemetry.decision_log import DecisionLog, Recorder
from gateway.telemetry.metrics import Metrics
from gateway.telemetry.observation import Observation, OnStep, RequestTrace, Sink
from gateway.telemetry.usage import UsageLedger, UsageStore

_log = logging.getLogger(__name__)
_access = logging.getLogger("gateway.access")

FLUSH_SECONDS = 1.0
"""Between two flushes of the metrics: another worker may show them."""

_PROTOCOLS = ("OTEL_EXPORTER_OTLP_PROTOCOL", "OTEL_EXPORTER_OTLP_{}_PROTOCOL")
_SPOKEN = "http/protobuf"

Trace = Callable[[float, Callable[[], float], Mapping[str, str]], RequestTrace]
"""Begins a trace: of a start, a clock, and the request's headers."""

_MAX_MODEL = 128
"""Characters of a model's name in a line: it is the client's."""


@dataclass(frozen=True, slots=True)
class AccessLog:
    """A sink that writes one line a request: figures and reasons, no prompt, key or query.

    A path that is passed through is the client's text: its line has ``/v1/*``.
    """

    level: int
    upstream: str
    """The name of the upstream, if there is one alone."""

    def observe(self, seen: Observation) -> None:
        if seen.ended is None:
            return
        asked, call = seen.asked, seen.call
        forwarded = seen.forward is not None or call.started is not None
        failed = call.tried[-1][0] if call.tried else ""
        rewrites = (call.rewrites, call.not_rewritten)
        fields = {
            "method": seen.method,
            "path": seen.endpoint,
            "status": seen.status or None,
            "ms": round((seen.ended - seen.started) * 1000, 1),
            "outcome": seen.outcome,
            "reason": seen.reason,
            "upstream": (call.upstream or self.upstream or failed) if forwarded else "",
            "model": asked.model[:_MAX_MODEL],
            "rule": asked.rule,
            "declined": call.declined,
            "rewrites": format_rewrites(*rewrites) if any(rewrites) else None,
            "compress": None if call.compression is None else str(call.compression),
        }
        known = {name: value for name, value in fields.items() if value not in (None, "")}
        _access.log(self.level, "request", extra={"fields": known})


@dataclass(frozen=True, slots=True)
class Telemetry:
    """Where observations of requests go."""

    metrics: Metrics
    recorder: Recorder | None
    """Makes the records of the decision log."""
    usage: UsageLedger
    sinks: tuple[Sink, ...]
    """Take each observation once its request has ended."""
    trace: Trace | None
    """Begins the trace of an observation; None where OpenTelemetry gets nothing."""
    close: Sequence[Callable[[], None]]
    """Flush the sinks."""
    start: Sequence[Callable[[], None]] = ()
    """Begin what needs the event loop."""
    counts_only: bool = False
    """Whether metrics and sums of usage are the only record of a hit."""

    @property
    def on_step(self) -> OnStep | None:
        """What records the steps of a request, None where OpenTelemetry gets nothing."""
        if self.trace is None:
            return None
        from gateway.server.open import traced  # noqa: PLC0415 - imports OpenTelemetry

        return traced.on_step

    @contextlib.asynccontextmanager
    async def lifespan(self) -> AsyncIterator[None]:
        """Flush the metrics every second, and all sinks at the end."""
        for start in self.start:
            start()
        flushes = background.start("flush of the metrics", self._flush_often)
        try:
            yield
        finally:
            flushes.cancel()
            self._flush()
            await asyncio.gather(*(asyncio.to_thread(close) for close in self.close))

    async def _flush_often(self) -> None:
        while True:
            await asyncio.sleep(FLUSH_SECONDS)
            self._flush()

    def _flush(self) -> None:
        try:
            self.metrics.flush()
        except Exception:  # noqa: BLE001 - the figures to come must still be counted
            # Such as a full disk: several workers keep their figures in files.
            _log.exception("metrics: some figures could not be counted")


def open_telemetry(
    settings: Settings,
    *,
    secret: bytes,
    store_stats: Callable[[], StoreStats],
    usage_store: UsageStore,
) -> Telemetry:
    """Start the telemetry that the settings and the environment name.

    Metrics and sums of usage are always on. Raises PricesError and OSError.
    """
    metrics, recorder = Metrics(store_stats), None
    trace: Trace | None = None
    upstreams = settings.all_upstreams
    alone = upstreams[0].label if len(upstreams) == 1 else ""
    usage = UsageLedger(usage_store, priced(settings), metrics.count, now=time.time, upstream=alone)
    metrics.collect = usage.collect
    sinks: list[Sink] = [metrics.observe, usage.observe]
    close: list[Callable[[], None]] = []
    # An access log that was asked for is written at each log_level.
    _access.setLevel(logging.INFO if settings.access_log else logging.NOTSET)
    if settings.access_log or _access.isEnabledFor(logging.DEBUG):
        level = logging.INFO if settings.access_log else logging.DEBUG
        sinks.append(AccessLog(level, alone).observe)
    if settings.decision_log is not None:
        decision_log = DecisionLog(
            settings.decision_log, max_bytes=settings.decision_log_bytes, clock=time.time
        )
        recorder = Recorder(
            secret,
            with_text=settings.decision_log_text,
            with_requests=settings.decision_log_requests,
        )
        sinks.append(decision_log.observe)
        close.append(decision_log.close)
    counts_only = len(sinks) == 2
    start: list[Callable[[], None]] = []
    if (signals := _exported(os.environ)) and (opened := _open_otel(signals, metrics)) is not None:
        trace, start, closes = opened
        close += closes
        counts_only = counts_only and "TRACES" not in signals
    return Telemetry(metrics, recorder, usage, tuple(sinks), trace, close, start, counts_only)


def _exported(environment: Mapping[str, str]) -> set[str]:
    """Return the signals that OpenTelemetry's own variables want to be exported."""
    if environment.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return set()
    signals = set()
    for signal in ("TRACES", "METRICS"):
        variable = f"OTEL_{signal}_EXPORTER"
        chosen = environment.get(variable, "").strip().lower()
        endpoints = ("OTEL_EXPORTER_OTLP_ENDPOINT", f"OTEL_EXPORTER_OTLP_{signal}_ENDPOINT")
        if chosen == "otlp" or (not chosen and any(map(environment.get, endpoints))):
            signals.add(signal)
        elif chosen not in ("", "none"):
            _log.warning("%s=%s: expected otlp or none; nothing is exported", variable, chosen)
    for signal in sorted(signals):
        variables = [name.format(signal) for name in _PROTOCOLS]
        protocol = next((environment[one] for one in variables[::-1] if environment.get(one)), "")
        if protocol not in ("", _SPOKEN):
            text = "%s over %s is not spoken here; %s is, most often at port 4318"
            _log.warning(text, signal.lower(), protocol, _SPOKEN)
    return signals


def _open_otel(
    signals: set[str], metrics: Metrics
) -> tuple[Trace, list[Callable[[], None]], list[Callable[[], None]]] | None:
    """Start the exports; None if a variable has a value that the SDK does not take."""
    # Takes 200 ms to import.
    from gateway.telemetry.otel import export  # noqa: PLC0415
    from gateway.telemetry.otel.metrics import OtlpMetrics  # noqa: PLC0415
    from gateway.telemetry.otel.tracing import Tracing  # noqa: PLC0415

    export.quiet_library()
    resource = export.resource()
    otlp: OtlpMetrics | None = None
    try:
        if "METRICS" in signals:
            otlp = OtlpMetrics(metrics.own_families, resource)
        calls = None if otlp is None else otlp.calls
        tracing = Tracing(traces="TRACES" in signals, calls=calls, resource=resource)
    except ValueError as error:
        _log.error("OpenTelemetry is off, since a variable OTEL_… has a wrong value: %s", error)
        if otlp is not None:
            otlp.close()
        return None
    if otlp is None:
        return tracing.begin, [], [tracing.close]
    return tracing.begin, [otlp.start], [tracing.close, otlp.close]
