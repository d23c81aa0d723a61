"""What /metrics shows: requests are counted here, all else is read from the engine.

Each application has a registry of its own, so that two in one process do not mix.
Law: every label has few values. Tenants are the ten with the most blocks and the others together.
"""

import importlib.metadata
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, TypeVar

from prometheus_client import CollectorRegistry, Counter, Histogram, Info, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from backend.scheduler.stats import REQUEST_SECONDS, Distribution, EngineStats, Recording, TierStats

if TYPE_CHECKING:
    from backend.server.batches.runner import Batches

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
PREFIX = "refrain_engine_"

_MOST_TENANTS = 10
_NO_SALT = "shared"
_OTHERS = "other"

_DISTRIBUTIONS = {
    "time_to_first_token_seconds": "From a request's arrival to a choice's first token (TTFT)",
    "inter_token_latency_seconds": "Between two tokens of one choice (ITL)",
    "time_per_output_token_seconds": "Mean time of a choice's tokens after the first (TPOT)",
    "queue_seconds": "From a request's arrival to a choice's first step",
    "prefill_seconds": "From a choice's first step to its first token",
    "decode_seconds": "From a choice's first token to its last",
    "step_seconds": "Time of a step",
    "batch_size": "Sequences in a step",
    "step_tokens": "Tokens computed in a step",
    "sequence_prompt_tokens": "Length of a choice's prompt",
    "sequence_generation_tokens": "Tokens generated for a choice",
}
_COUNTS = {
    "sequences_finished": "Choices that ended, by reason",
    "draft_verifications": "Rows of a step whose guessed tokens were verified, by their source",
    "drafts_proposed": "Guessed tokens that were verified, by their source",
    "drafts_accepted": "Guessed tokens that became part of an answer, by their source",
    "kv_transfers": "Prompts that a prefill engine was asked for, by what came of it",
    "kv_transfer_blocks": "KV blocks that came from other engines, or went there",
}
_LABELS = {
    "step_seconds": ("phase", "batch_size"),
    "sequences_finished": ("reason",),
    "draft_verifications": ("source",),
    "drafts_proposed": ("source",),
    "drafts_accepted": ("source",),
    "kv_transfers": ("result",),
    "kv_transfer_blocks": ("direction",),
}
_TIER_GAUGES = {
    "kv_tier_blocks": "KV blocks that a tier (host memory, disk) holds",
    "kv_tier_capacity_blocks": "KV blocks that fit into a tier",
    "kv_tier_bytes": "Bytes of the KV blocks that a tier holds",
}
_TIERS = _TIER_GAUGES | {
    "kv_tier_saves": "KV blocks that went to a tier",
    "kv_tier_failed_saves": "KV blocks that a tier could not take",
    "kv_tier_loads": "KV blocks that came back, for prompts that begin with them",
    "kv_tier_failed_loads": "KV blocks that did not come back and were computed again",
}

FamilyT = TypeVar("FamilyT", HistogramMetricFamily, CounterMetricFamily)


class Metrics(Collector):
    """Counters and histograms of one application, and the engine's figures at each scrape."""

    def __init__(
        self,
        stats: Callable[[], EngineStats | None],
        embeddings_waiting: Callable[[], int | None] = lambda: None,
        batches: "Batches | None" = None,
        *,
        model: str = "",
    ) -> None:
        """``stats`` returns None until there is an engine, the other where nothing is embedded.

        ``model`` is the name that clients use.
        """
        self._registry = CollectorRegistry()
        self._stats, self._waiting, self._batches = stats, embeddings_waiting, batches
        self._registry.register(self)
        build = Info("refrain_engine_build", "What runs, always 1", registry=self._registry)
        build.info({"version": _version(), "model": model})
        self._embedded = Counter(
            "refrain_engine_embedded_tokens",
            "Tokens of inputs that were embedded or scored",
            registry=self._registry,
        )
        self._requests = Counter(
            "refrain_engine_requests",
            "Requests by outcome: ok, client_error, server_error, unavailable, cancelled",
            ("endpoint", "outcome"),
            registry=self._registry,
        )
        self._request = Histogram(
            "refrain_engine_request_seconds",
            "From a request's arrival to its answer's end (E2E), for those that ended well",
            ("endpoint",),
            buckets=REQUEST_SECONDS,
            registry=self._registry,
        )

    def count_request(self, endpoint: str, outcome: str) -> None:
        """Count a request that ended, however it did."""
        self._requests.labels(endpoint, outcome).inc()

    def count_embedded(self, num_tokens: int) -> None:
        self._embedded.inc(num_tokens)

    def observe_request(self, endpoint: str, seconds: float) -> None:
        self._request.labels(endpoint).observe(seconds)

    def render(self) -> bytes:
        """Return Prometheus text."""
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        if (stats := self._stats()) is not None:
            yield from _figures(stats)
            yield _tenants(stats.tenants)
            yield from _tiers(stats.tiers)
            yield from _recorded(stats.recording)
        if (waiting := self._waiting()) is not None:
            text = "Inputs that wait to be embedded or scored"
            yield GaugeMetricFamily(f"{PREFIX}embeddings_waiting", text, waiting)
        if self._batches is not None:
            yield from _batch_figures(self._batches)

    def describe(self) -> list[Metric]:
        """Return nothing: reading the engine while registering would be too early."""
        return []


def _version() -> str:
    try:
        return importlib.metadata.version("refrain-gateway")
    except importlib.metadata.PackageNotFoundError:  # run from its sources
        return "unknown"


def _figures(stats: EngineStats) -> Iterator[Metric]:
    total = stats.kv_blocks_total
    gauges: list[tuple[str, str, float | None]] = [
        ("sequences_running", "Sequences that hold KV blocks", stats.running),
        ("sequences_waiting", "Sequences that wait for KV blocks", stats.waiting),
        ("kv_blocks_used", "KV blocks in use", stats.kv_blocks_used),
        ("kv_blocks", "KV blocks in the pool", total),
        ("kv_use_ratio", "Share of KV blocks in use", stats.kv_blocks_used / total if total else 0),
    ]
    if (memory := stats.memory) is not None:
        gauges += [
            ("resident_bytes", "Memory of the engine's process", memory.resident),
            ("device_used_bytes", "Memory of the device in use", memory.device_used),
            ("device_bytes", "Memory of the device", memory.device_total),
        ]
    for name, text, value in gauges:
        if value is not None:
            yield GaugeMetricFamily(PREFIX + name, text, value)
    counters = (
        ("preemptions", "Sequences that lost their blocks and began anew", stats.preemptions),
        ("prompt_tokens", "Tokens of prompts", stats.prompt_tokens),
        ("generation_tokens", "Tokens generated", stats.generated_tokens),
        ("prefix_cache_queries", "Prompt tokens looked up", stats.prefix_queries),
        ("prefix_cache_hits", "Prompt tokens found in the prefix cache", stats.prefix_hits),
        (
            "tokens_after_disconnect",
            "Tokens computed for clients that had left",
            stats.tokens_after_disconnect,
        ),
        ("draft_tokens", "Guessed tokens that were verified", stats.draft_tokens),
        (
            "accepted_draft_tokens",
            "Guessed tokens that became part of an answer",
            stats.accepted_draft_tokens,
        ),
        ("restarts", "Times that the engine started over", stats.restarts),
    )
    for name, text, value in counters:
        yield CounterMetricFamily(PREFIX + name, text, value)


def _batch_figures(batches: "Batches") -> Iterator[Metric]:
    states = GaugeMetricFamily(f"{PREFIX}batches", "Batches, by status", labels=("status",))
    for status, number in batches.num_batches().items():
        states.add_metric((status,), number)
    lines = CounterMetricFamily(
        f"{PREFIX}batch_requests", "Requests of batches that have a result", labels=("outcome",)
    )
    for outcome in ("completed", "failed"):
        lines.add_metric((outcome,), batches.num_lines[outcome])
    yield from (states, lines)


def _tenants(tenants: Sequence[tuple[str, int]]) -> Metric:
    family = GaugeMetricFamily(
        f"{PREFIX}prefix_cache_blocks", "Blocks in the prefix cache, by tenant", labels=("tenant",)
    )
    by_size = sorted(
        (tenant for tenant in tenants if tenant[0] != _OTHERS), key=lambda each: (-each[1], each[0])
    )
    shown, others = by_size[:_MOST_TENANTS], by_size[_MOST_TENANTS:]
    rest = sum(blocks for _, blocks in others) + dict(tenants).get(_OTHERS, 0)
    for tenant, blocks in shown:
        family.add_metric((tenant or _NO_SALT,), blocks)
    family.add_metric((_OTHERS,), rest)
    return family


def _tiers(tiers: Sequence[TierStats]) -> Iterator[Metric]:
    """Yield the figures of host memory and disk, where blocks are kept there."""
    if not tiers:
        return
    values: dict[str, Callable[[TierStats], float]] = {
        "kv_tier_blocks": lambda each: each.figures.blocks,
        "kv_tier_capacity_blocks": lambda each: each.figures.capacity,
        "kv_tier_bytes": lambda each: each.figures.blocks * each.block_bytes,
        "kv_tier_saves": lambda each: each.figures.saves,
        "kv_tier_failed_saves": lambda each: each.figures.failed_saves,
        "kv_tier_loads": lambda each: each.figures.loads,
        "kv_tier_failed_loads": lambda each: each.figures.failed_loads,
    }
    for name, value in values.items():
        kind = GaugeMetricFamily if name in _TIER_GAUGES else CounterMetricFamily
        family = kind(PREFIX + name, _TIERS[name], labels=("tier",))
        for each in tiers:
            family.add_metric((each.name,), value(each))
        yield family


def _recorded(recording: Recording) -> Iterator[Metric]:
    histograms = {name: _family(HistogramMetricFamily, name) for name in _DISTRIBUTIONS}
    for (name, labels), distribution in sorted(recording.distributions.items()):
        family = histograms.setdefault(name, _family(HistogramMetricFamily, name, labels))
        family.add_metric(labels, _buckets(distribution), distribution.total)
    counters = {name: _family(CounterMetricFamily, name) for name in _COUNTS}
    for (name, labels), count in sorted(recording.counts.items()):
        counters.setdefault(name, _family(CounterMetricFamily, name, labels)).add_metric(
            labels, count
        )
    yield from histograms.values()
    yield from counters.values()


def _family(kind: type[FamilyT], name: str, labels: Sequence[str] = ()) -> FamilyT:
    """Return a family without samples; one that is not listed above is shown without its words."""
    text = (_DISTRIBUTIONS | _COUNTS).get(name, name)
    label_names = _LABELS.get(name) or [f"label_{number}" for number in range(len(labels))]
    return kind(PREFIX + name, text, labels=label_names)


def _buckets(distribution: Distribution) -> list[tuple[str, float]]:
    bounds = [*(str(float(bound)) for bound in distribution.bounds), "+Inf"]
    return list(zip(bounds, map(float, accumulate(distribution.counts)), strict=True))
