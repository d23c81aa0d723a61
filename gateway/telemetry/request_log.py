"""A line a request in the log: a sink of observations, for debugging."""

import logging

from gateway.prompts.outcome import rewrites_told
from gateway.telemetry.observation import Observation, Sink

log = logging.getLogger(__name__)


def request_sinks() -> tuple[Sink, ...]:
    """Return the sink that logs each request, where the log level asks for it."""
    return (log_request,) if log.isEnabledFor(logging.DEBUG) else ()


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
