"""What /metrics shows: requests are counted here, all else is read from the engine.

Each application has a registry of its own, so that two in one process do not mix.
"""

import importlib.metadata
from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Histogram, Info, generate_latest

from backend.scheduler.stats import REQUEST_SECONDS, EngineStats
from backend.server.engine_collector import EmbeddingCollector, EngineCollector

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Metrics:
    """Counters and histograms of one application."""

    def __init__(
        self,
        stats: Callable[[], EngineStats | None],
        embeddings_waiting: Callable[[], int | None] = lambda: None,
        *,
        model: str = "",
    ) -> None:
        """``stats`` returns None until there is an engine, the other where nothing is embedded.

        ``model`` is the name that clients use.
        """
        self._registry = CollectorRegistry()
        self._registry.register(EngineCollector(stats))
        self._registry.register(EmbeddingCollector(embeddings_waiting))
        build = Info("refrain_engine_build", "What runs, always 1", registry=self._registry)
        build.info({"version": _version(), "model": model})
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
        """Count the tokens of a request whose inputs were embedded."""
        self._embedded.inc(num_tokens)

    def observe_request(self, endpoint: str, seconds: float) -> None:
        """Record an E2E."""
        self._request.labels(endpoint).observe(seconds)

    def render(self) -> bytes:
        """Return Prometheus text."""
        return generate_latest(self._registry)


def _version() -> str:
    try:
        return importlib.metadata.version("refrain")
    except importlib.metadata.PackageNotFoundError:  # run from its sources
        return "unknown"
