"""Observations as a request leaves them, built from single facts."""

from collections.abc import Callable
from typing import Any

from gateway.telemetry.observation import Asked, CallShare, Lookup, Observation, Sink

_OF_CALL = frozenset(CallShare._fields) - {"started", "fault"}


def observation_of(
    *sinks: Sink,
    endpoint: str = "/v1/chat/completions",
    started: float = 0.0,
    clock: Callable[[], float] = lambda: 0.0,
    call_started: float | None = None,
    **facts: Any,
) -> Observation:
    """Return an observation; a fact is a field of it, of ``Asked``, ``Lookup`` or ``CallShare``."""
    asked = {name: facts.pop(name) for name in Asked._fields if name in facts}
    call = {name: facts.pop(name) for name in _OF_CALL if name in facts}
    lookup = {name: facts.pop(name) for name in Lookup._fields if name in facts}
    values = {"asked": Asked(**asked), "call": CallShare(call_started, **call)}
    values["lookup"] = Lookup(**lookup)
    return Observation(endpoint, started, clock, sinks, **values, **facts)
