"""What an engine itself says of its load, read from its Prometheus text."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from prometheus_client.parser import text_string_to_metric_families

STALE_SECONDS = 6.0
"""After so long without a new figure, an engine counts like the busiest of those beside it."""

CROWDED_KV = 0.95
"""The share of KV blocks in use from which on new requests wait, or push others out."""


class EngineLoad(NamedTuple):
    """Requests that run and wait at an engine, and the share of its KV blocks in use."""

    running: int
    waiting: int
    kv_use: float


class _Names(NamedTuple):
    running: str
    waiting: str
    kv_use: tuple[str, ...]


_ENGINES: Final = (
    _Names(
        "vllm:num_requests_running",
        "vllm:num_requests_waiting",
        ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),  # before its version 1
    ),
    _Names("sglang:num_running_reqs", "sglang:num_queue_reqs", ("sglang:token_usage",)),
    _Names(
        "refrain_engine_sequences_running",
        "refrain_engine_sequences_waiting",
        ("refrain_engine_kv_use_ratio",),
    ),
)
_ALL: Final = tuple(
    name.encode() for one in _ENGINES for name in (one.running, one.waiting, *one.kv_use)
)


def parse_load(page: bytes) -> EngineLoad | None:
    """Return the load on a page of metrics, None if it has no figures of a known engine.

    Several engines of one server add up; of their KV use the highest counts.
    """
    # A page has thousands of lines, of which a handful is parsed.
    wanted = b"\n".join(line for line in page.split(b"\n") if line.startswith(_ALL))
    values: dict[str, list[float]] = {}
    try:
        for family in text_string_to_metric_families(f"{wanted.decode(errors='replace')}\n"):
            for sample in family.samples:
                if not 0 <= sample.value < 1e9:  # NaN, too
                    return None
                values.setdefault(sample.name, []).append(sample.value)
    except ValueError:
        return None
    for names in _ENGINES:
        if names.running in values and names.waiting in values:
            use = next((values[name] for name in names.kv_use if name in values), [0.0])
            running, waiting = sum(values[names.running]), sum(values[names.waiting])
            return EngineLoad(int(running), int(waiting), max(use))
    return None


@dataclass(frozen=True, slots=True)
class LoadSignal:
    """An engine's load at a time; ``others`` are its requests that came from elsewhere."""

    load: EngineLoad
    others: int
    at: float

    def is_fresh(self, now: float) -> bool:
        """Tell whether it still counts."""
        return now - self.at < STALE_SECONDS

    @property
    def is_crowded(self) -> bool:
        """Tell whether the engine has no KV blocks left."""
        return self.load.kv_use >= CROWDED_KV


def elsewhere(signals: Sequence[LoadSignal | None], now: float) -> list[tuple[int, bool]]:
    """Return each engine's requests from elsewhere, and whether it is crowded.

    An engine whose figures are stale may be too busy to answer. It counts like the busiest of the
    others, so that its silence attracts no requests. One that never had figures has no load here.
    """
    fresh = [one for one in signals if one is not None and one.is_fresh(now)]
    if not fresh:
        return [(0, False)] * len(signals)
    silent = max(one.others for one in fresh), all(one.is_crowded for one in fresh)
    return [
        (0, False) if one is None else (one.others, one.is_crowded) if one.is_fresh(now) else silent
        for one in signals
    ]
