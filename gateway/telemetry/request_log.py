"""A line a request in the log, when debugging: a sink of observations."""

import logging

from gateway.prompts.outcome import rewrites_told
from gateway.telemetry.observation import Observation

log = logging.getLogger(__name__)


def log_request(seen: Observation) -> None:
    """Write one line a request when debugging; figures and reasons, never text.

    What the head of a stream could not say, because it was sent before, is told at any time.
    """
    if seen.streamed and seen.declined is not None:
        log.info(
            "%s rule=%s: a streamed answer was not stored: %s",
            seen.endpoint,
            seen.rule,
            seen.declined,
        )
    if log.isEnabledFor(logging.DEBUG) and seen.ended is not None:
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
