"""An engine's figures as Prometheus metrics, read when they are asked for.

Law: every label has few values. Tenants are the ten with the most blocks and the others together.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from backend.scheduler.stats import Distribution, EngineStats, Recording

PREFIX = "refrain_engine_"

_MOST_TENANTS = 10
_NO_SALT = "shared"
_OTHERS = "other"

_DISTRIBUTIONS = {
    "time_to_first_token_seconds": (
        "From a request's arrival to a choice's first token (TTFT)",
        (),
    ),
    "inter_token_latency_seconds": ("Between two tokens of one choice (ITL)", ()),
    "time_per_output_token_seconds": ("Mean time of a choice's tokens after the first (TPOT)", ()),
    "queue_seconds": ("From a request's arrival to a choice's first step", ()),
    "prefill_seconds": ("From a choice's first step to its first token", ()),
    "decode_seconds": ("From a choice's first token to its last", ()),
    "step_seconds": ("Time of a step", ("phase", "batch_size")),
    "batch_size": ("Sequences in a step", ()),
    "step_tokens": ("Tokens computed in a step", ()),
    "sequence_prompt_tokens": ("Length of a choice's prompt", ()),
    "sequence_generation_tokens": ("Tokens generated for a choice", ()),
}
_COUNTS = {"sequences_finished": ("Choices that ended, by reason", ("reason",))}


class EngineCollector(Collector):
    """Of an engine that generates."""

    def __init__(self, stats: Callable[[], EngineStats | None]) -> None:
        """``stats`` returns None until there is an engine."""
        self._stats = stats

    def collect(self) -> Iterator[Metric]:
        """See Collector."""
        stats = self._stats()
        if stats is None:
            return
        yield from _gauges(stats)
        yield from _counters(stats)
        yield _tenants(stats.tenants)
        yield from _recorded(stats.recording)

    def describe(self) -> list[Metric]:
        """Say nothing: reading the engine while registering would be too early."""
        return []


class EmbeddingCollector(Collector):
    """Of an engine that embeds."""

    def __init__(self, waiting: Callable[[], int | None]) -> None:
        """Read ``waiting``, which is None where nothing is embedded."""
        self._waiting = waiting

    def collect(self) -> Iterator[Metric]:
        """See Collector."""
        waiting = self._waiting()
        if waiting is not None:
            yield GaugeMetricFamily(
                f"{PREFIX}embeddings_waiting", "Inputs that wait to be embedded", waiting
            )

    def describe(self) -> list[Metric]:
        """Say nothing; see above."""
        return []


def _gauges(stats: EngineStats) -> Iterator[Metric]:
    total = stats.kv_blocks_total
    rows: list[tuple[str, str, float | None]] = [
        ("sequences_running", "Sequences that hold KV blocks", stats.running),
        ("sequences_waiting", "Sequences that wait for KV blocks", stats.waiting),
        ("kv_blocks_used", "KV blocks in use", stats.kv_blocks_used),
        ("kv_blocks", "KV blocks in the pool", total),
        ("kv_use_ratio", "Share of KV blocks in use", stats.kv_blocks_used / total if total else 0),
    ]
    if (memory := stats.memory) is not None:
        rows += [
            ("resident_bytes", "Memory of the engine's process", memory.resident),
            ("device_used_bytes", "Memory of the device in use", memory.device_used),
            ("device_bytes", "Memory of the device", memory.device_total),
        ]
    for name, text, value in rows:
        if value is not None:
            yield GaugeMetricFamily(PREFIX + name, text, value)


def _counters(stats: EngineStats) -> Iterator[Metric]:
    rows = (
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
        ("restarts", "Times that the engine started over", stats.restarts),
    )
    for name, text, value in rows:
        yield CounterMetricFamily(PREFIX + name, text, value)


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


def _recorded(recording: Recording) -> Iterator[Metric]:
    histograms = {
        name: HistogramMetricFamily(PREFIX + name, text, labels=labels)
        for name, (text, labels) in _DISTRIBUTIONS.items()
    }
    for (name, labels), distribution in sorted(recording.distributions.items()):
        histograms[name].add_metric(labels, _buckets(distribution), distribution.total)
    counters = {
        name: CounterMetricFamily(PREFIX + name, text, labels=labels)
        for name, (text, labels) in _COUNTS.items()
    }
    for (name, labels), count in sorted(recording.counts.items()):
        counters[name].add_metric(labels, count)
    yield from histograms.values()
    yield from counters.values()


def _buckets(distribution: Distribution) -> list[tuple[str, float]]:
    bounds = [*(str(float(bound)) for bound in distribution.bounds), "+Inf"]
    return list(zip(bounds, map(float, accumulate(distribution.counts)), strict=True))
