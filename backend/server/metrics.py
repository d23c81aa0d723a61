"""What /metrics shows: latencies and outcomes measured here, counts read from the engine.

Each application has a registry of its own, so that two in one process do not mix.
"""

from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from backend.core.types import EngineStats

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_TOKEN_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
_FIRST_TOKEN_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_REQUEST_SECONDS = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)


class _EngineCollector(Collector):
    """Reads the engine's counters when it is asked for them."""

    def __init__(self, stats: Callable[[], EngineStats | None]) -> None:
        self._stats = stats

    def collect(self) -> Iterator[Metric]:
        stats = self._stats()
        if stats is None:
            return
        gauges = (
            ("sequences_running", "Sequences that hold KV blocks", stats.running),
            ("sequences_waiting", "Sequences that wait for KV blocks", stats.waiting),
            ("kv_blocks_used", "KV blocks in use", stats.kv_blocks_used),
            ("kv_blocks", "KV blocks in the pool", stats.kv_blocks_total),
            (
                "kv_use_ratio",
                "Share of KV blocks in use",
                stats.kv_blocks_used / stats.kv_blocks_total if stats.kv_blocks_total else 0.0,
            ),
        )
        counters = (
            ("preemptions", "Sequences that lost their blocks and began anew", stats.preemptions),
            ("prompt_tokens", "Tokens of prompts", stats.prompt_tokens),
            ("generation_tokens", "Tokens generated", stats.generated_tokens),
        )
        for name, text, value in gauges:
            yield GaugeMetricFamily(f"refrain_engine_{name}", text, value)
        for name, text, value in counters:
            yield CounterMetricFamily(f"refrain_engine_{name}", text, value)

    def describe(self) -> list[Metric]:
        """Say nothing: reading the engine while registering would be too early."""
        return []


class _EmbeddingCollector(Collector):
    def __init__(self, waiting: Callable[[], int | None]) -> None:
        self._waiting = waiting

    def collect(self) -> Iterator[Metric]:
        waiting = self._waiting()
        if waiting is not None:
            yield GaugeMetricFamily(
                "refrain_engine_embeddings_waiting", "Inputs that wait to be embedded", waiting
            )

    def describe(self) -> list[Metric]:
        """Say nothing; see above."""
        return []


class Metrics:
    """Counters and histograms of one application."""

    def __init__(
        self,
        stats: Callable[[], EngineStats | None],
        embeddings_waiting: Callable[[], int | None] = lambda: None,
    ) -> None:
        """``stats`` returns None until there is an engine, the other where nothing is embedded."""
        self._registry = CollectorRegistry()
        self._registry.register(_EngineCollector(stats))
        self._registry.register(_EmbeddingCollector(embeddings_waiting))
        self._embedded = Counter(
            "refrain_engine_embedded_tokens",
            "Tokens of inputs that were embedded",
            registry=self._registry,
        )
        self._requests = Counter(
            "refrain_engine_requests",
            "Requests by outcome: ok, client_error, server_error, unavailable, cancelled",
            ("endpoint", "outcome"),
            registry=self._registry,
        )
        self._first_token = Histogram(
            "refrain_engine_time_to_first_token_seconds",
            "From a request's arrival to a choice's first text (TTFT)",
            buckets=_FIRST_TOKEN_SECONDS,
            registry=self._registry,
        )
        self._next_token = Histogram(
            "refrain_engine_inter_token_latency_seconds",
            "Between two pieces of one choice's text (ITL)",
            buckets=_TOKEN_SECONDS,
            registry=self._registry,
        )
        self._request = Histogram(
            "refrain_engine_request_seconds",
            "From a request's arrival to its answer's end (E2E), for those that ended well",
            ("endpoint",),
            buckets=_REQUEST_SECONDS,
            registry=self._registry,
        )

    def count_request(self, endpoint: str, outcome: str) -> None:
        """Count a request that ended, however it did."""
        self._requests.labels(endpoint, outcome).inc()

    def count_embedded(self, num_tokens: int) -> None:
        """Count the tokens of a request whose inputs were embedded."""
        self._embedded.inc(num_tokens)

    def observe_first_token(self, seconds: float) -> None:
        """Record a choice's TTFT."""
        self._first_token.observe(seconds)

    def observe_next_token(self, seconds: float) -> None:
        """Record an ITL."""
        self._next_token.observe(seconds)

    def observe_request(self, endpoint: str, seconds: float) -> None:
        """Record an E2E."""
        self._request.labels(endpoint).observe(seconds)

    def render(self) -> bytes:
        """Return Prometheus text."""
        return generate_latest(self._registry)
