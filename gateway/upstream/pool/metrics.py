"""Prometheus metrics of a pool's upstreams; states are read when asked."""

from collections.abc import Callable, Iterable, Iterator

from prometheus_client import CollectorRegistry, Counter
from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from gateway.protocol.reasons import Reason
from gateway.upstream.pool.health import State
from gateway.upstream.pool.upstream_state import Standing
from gateway.upstream.routing.routing import Route

Standings = Callable[[], Iterable[tuple[Standing, State, float]]]
"""Each upstream, its state, and for how many seconds it is left alone."""


class UpstreamMetrics:
    """What a pool tells of its upstreams."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._requests = Counter(
            "refrain_upstream_requests_total",
            "Requests sent to an upstream of a pool, tries that failed among them.",
            ("upstream", "route"),
            registry=registry,
        )
        self._failures = Counter(
            "refrain_upstream_failures_total",
            "Requests that an upstream of a pool failed, by reason.",
            ("upstream", "reason"),
            registry=registry,
        )
        self._warmed = Counter(
            "refrain_upstream_warmed_total",
            "Beginnings of prompts that a fresh upstream has computed before clients came.",
            ("upstream",),
            registry=registry,
        )

    def warmed(self, name: str) -> None:
        """Count a beginning of prompts that a fresh upstream has computed."""
        self._warmed.labels(name).inc()

    def asked(self, name: str, route: Route) -> None:
        """Count a request, by why it goes there."""
        self._requests.labels(name, route.value).inc()

    def failed(self, name: str, reason: Reason) -> None:
        """Count a failure."""
        self._failures.labels(name, reason.value).inc()


class UpstreamCollector(Collector):
    """Reads what is known of the upstreams now."""

    def __init__(self, standings: Standings, waiting: Callable[[], int]) -> None:
        self._standings = standings
        self._waiting = waiting

    def collect(self) -> Iterator[Metric]:
        """Yield calls under way, state, time left alone, and who waits for room."""
        in_flight = GaugeMetricFamily(
            "refrain_upstream_in_flight", "Requests under way.", labels=["upstream"]
        )
        states = GaugeMetricFamily(
            "refrain_upstream_state",
            "1 for the state an upstream is in.",
            labels=["upstream", "state"],
        )
        rests = GaugeMetricFamily(
            "refrain_upstream_rest_seconds",
            "For how long an upstream is still left alone.",
            labels=["upstream"],
        )
        for standing, state, seconds in self._standings():
            name = standing.member.name
            in_flight.add_metric([name], standing.in_flight)
            rests.add_metric([name], seconds)
            for one in State:
                states.add_metric([name, one.value], float(one is state))
        waiting = GaugeMetricFamily(
            "refrain_upstream_waiting", "Requests that wait for room at an upstream."
        )
        waiting.add_metric([], self._waiting())
        yield from (in_flight, states, rests, waiting)
