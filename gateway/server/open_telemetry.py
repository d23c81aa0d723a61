"""What is recorded of requests: metrics, request log, decision log, traces."""

import asyncio
import logging
import os
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gateway.cache.ports import StoreStats
from gateway.prompts.outcome import rewrites_told
from gateway.settings import Settings
from gateway.telemetry.decision_log import DecisionLog, Recorder
from gateway.telemetry.metrics import Metrics
from gateway.telemetry.observation import Observation, Sink

if TYPE_CHECKING:
    from gateway.telemetry.tracing import Tracing

log = logging.getLogger(__name__)


def log_request(seen: Observation) -> None:
    """Write one line a request; figures and reasons, never text."""
    if seen.ended is not None:
        log.debug(
            "%s model=%r rule=%s outcome=%s reason=%s declined=%s rewrites=%s compress=%s "
            "status=%d ms=%.1f",
            seen.endpoint,
            seen.model[:128],
            seen.rule,
            seen.outcome,
            seen.reason,
            seen.declined,
            rewrites_told(seen.rewrites, seen.not_rewritten),
            seen.compression,
            seen.status,
            (seen.ended - seen.started) * 1000,
        )


@dataclass(frozen=True, slots=True)
class Telemetry:
    """Where observations of requests go."""

    metrics: Metrics
    decision_log: DecisionLog | None
    recorder: Recorder | None
    """Makes the records of the decision log."""
    tracing: "Tracing | None"

    @property
    def sinks(self) -> tuple[Sink, ...]:
        """Take each observation once its request has ended."""
        sinks: list[Sink] = [self.metrics.observe]
        if log.isEnabledFor(logging.DEBUG):
            sinks.append(log_request)
        if self.decision_log is not None:
            sinks.append(self.decision_log.observe)
        return tuple(sinks)

    @property
    def counts_only(self) -> bool:
        """Tell whether nothing but figures is kept of a request."""
        return self.tracing is None and len(self.sinks) == 1

    @property
    def trace(self) -> Callable[[Observation, Mapping[str, str]], None] | None:
        """Begin the trace of an observation; None where no traces are exported."""
        return None if self.tracing is None else self.tracing.begin

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        """Write out at the end what is left."""
        try:
            yield
        finally:
            for part in (self.decision_log, self.tracing):
                if part is not None:
                    await asyncio.to_thread(part.close)


def open_telemetry(
    settings: Settings, *, secret: bytes, store_stats: Callable[[], StoreStats]
) -> Telemetry:
    """Start what the settings and the environment name; figures are always kept."""
    decision_log = recorder = None
    if settings.decision_log is not None:
        decision_log = DecisionLog(
            settings.decision_log, max_bytes=settings.decision_log_bytes, clock=time.time
        )
        recorder = Recorder(
            secret,
            with_text=settings.decision_log_text,
            with_requests=settings.decision_log_requests,
        )
    return Telemetry(Metrics(store_stats), decision_log, recorder, _tracing(os.environ))


def _tracing(environment: Mapping[str, str]) -> "Tracing | None":
    names = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
    if not any(map(environment.get, names)):
        return None
    from gateway.telemetry.tracing import Tracing  # noqa: PLC0415 - costs 200 ms to import

    return Tracing()
