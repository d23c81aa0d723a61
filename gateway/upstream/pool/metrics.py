"""Metrics of the upstreams: counters of calls, and a collector of what the table knows."""

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry, Counter
from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from gateway.protocol.http.messages import declared_name
from gateway.upstream.pool.health import State
from gateway.upstream.pool.routing import Route
from gateway.upstream.pool.table import states

if TYPE_CHECKING:
    from gateway.upstream.pool.pool import UpstreamPool


class UpstreamMetrics:
    """Prometheus counters of what goes to a pool's upstreams."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.requests = Counter(
            "refrain_upstream_requests_total",
            "Requests sent to an upstream, tries that failed among them.",
            ("upstream", "route"),
            registry=registry,
        )
        self._of_route: dict[tuple[str, Route], Counter] = {}
        self.failures = Counter(
            "refrain_upstream_failures_total",
            "Requests that failed at an upstream, by reason.",
            ("upstream", "reason"),
            registry=registry,
        )
        self.warmed = Counter(
            "refrain_upstream_warmed_total",
            "Beginnings of prompts that a fresh upstream has computed before clients came.",
            ("upstream",),
            registry=registry,
        )

    def count_request(self, name: str, route: Route) -> None:
        """Count a request that is sent."""
        # Replicas come and go, and a series stays: so they are counted together.
        upstream = declared_name(name)
        counter = self._of_route.get((upstream, route))
        if counter is None:
            counter = self._of_route[upstream, route] = self.requests.labels(upstream, route.value)
        counter.inc()


class UpstreamCollector(Collector):
    """Reads the state of a pool's upstreams for each scrape.

    ``discovery`` returns the number of replicas and the problem of each upstream that has a list.
    """

    def __init__(
        self,
        pool: "UpstreamPool",
        discovery: Callable[[], Mapping[str, Mapping[str, Any]]] = dict,
    ) -> None:
        self._pool, self._discovery = pool, discovery

    def collect(self) -> Iterator[Metric]:
        """Yield calls under way, state and remaining pause of each upstream."""
        names = ["upstream"]
        in_flight, states_of = _in_flight_and_state()
        text = "Seconds for which an upstream still gets no requests."
        pauses = GaugeMetricFamily("refrain_upstream_pause_seconds", text, labels=names)
        text = "Former name of refrain_upstream_pause_seconds; it goes with the next release."
        former = GaugeMetricFamily("refrain_upstream_rest_seconds", text, labels=names)
        text = "Requests that wait at an upstream's engine, as it reports."
        queued = GaugeMetricFamily("refrain_upstream_engine_waiting", text, labels=names)
        text = "Share of an upstream's KV blocks in use, as it reports."
        kv_use = GaugeMetricFamily("refrain_upstream_kv_use_ratio", text, labels=names)
        now = self._pool.clock()
        for upstream, state, seconds in states(self._pool.table, now):
            name = upstream.member.name
            if upstream.signal is not None and upstream.signal.is_fresh(now):
                queued.add_metric([name], upstream.signal.load.waiting)
                kv_use.add_metric([name], upstream.signal.load.kv_use)
            pauses.add_metric([name], seconds)
            former.add_metric([name], seconds)
            _add(in_flight, states_of, name, upstream.in_flight, state)
        text = "Replicas that were found for an upstream."
        replicas = GaugeMetricFamily("refrain_upstream_replicas", text, labels=names)
        text = "1 if the list of an upstream's replicas cannot be renewed."
        failing = GaugeMetricFamily("refrain_upstream_discovery_failing", text, labels=names)
        for name, found in self._discovery().items():
            replicas.add_metric([name], found["replicas"])
            failing.add_metric([name], float(found["problem"] is not None))
        yield from (in_flight, states_of, pauses, former, queued, kv_use, replicas, failing)


def _in_flight_and_state() -> tuple[GaugeMetricFamily, GaugeMetricFamily]:
    text = "Requests under way."
    in_flight = GaugeMetricFamily("refrain_upstream_in_flight", text, labels=["upstream"])
    text, labels = "1 for the state an upstream is in.", ["upstream", "state"]
    return in_flight, GaugeMetricFamily("refrain_upstream_state", text, labels=labels)


def _add(
    in_flight: GaugeMetricFamily,
    states_of: GaugeMetricFamily,
    name: str,
    calls: int,
    state: State,
) -> None:
    in_flight.add_metric([name], calls)
    for one in State:
        states_of.add_metric([name, one.value], float(one is state))
