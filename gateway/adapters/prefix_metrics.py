"""Prometheus metrics of the upstreams' prefix caches, and the warning where hints never help.

A sink of observations: what each call says of its prompt is counted to rule and model.
"""

import logging
from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, Counter
from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from gateway.core.outcome import Rewrite
from gateway.core.prefix_share import ENOUGH, PrefixShares
from gateway.observation import Observation

log = logging.getLogger(__name__)

HINTS = frozenset({Rewrite.BREAKPOINTS, Rewrite.CACHE_KEY})
"""What should make a prefix cache hit."""
_LABELS = ("rule", "model")


class PrefixMetrics:
    """What the upstreams say of their prefix caches, by route."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.shares = PrefixShares()
        self._prompt = Counter(
            "refrain_prompt_tokens_total",
            "Tokens of prompts whose upstream says what it found in its prefix cache.",
            _LABELS,
            registry=registry,
        )
        self._cached = Counter(
            "refrain_prompt_tokens_cached_total",
            "Of those, the tokens that it found.",
            _LABELS,
            registry=registry,
        )
        self._written = Counter(
            "refrain_prompt_tokens_written_total",
            "Of those, the tokens that it says it put into the cache.",
            _LABELS,
            registry=registry,
        )

    def observe(self, seen: Observation) -> None:
        """Count a call whose upstream said what it found."""
        prompt, cached, written = seen.prompt_tokens, seen.cached_tokens, seen.written_tokens or 0
        if prompt is None or cached is None:
            return
        route = self.shares.route(seen.rule, seen.fallback_model or seen.model)
        self._prompt.labels(*route).inc(prompt)
        self._cached.labels(*route).inc(cached)
        self._written.labels(*route).inc(written)
        hinted = not HINTS.isdisjoint(seen.rewrites)
        if self.shares.add(route, prompt=prompt, cached=cached, written=written, hinted=hinted):
            log.warning(
                "the hints of rule %s never hit: %d calls of %r found nothing in a prefix cache",
                route[0],
                ENOUGH,
                route[1],
            )


class NeverHitCollector(Collector):
    """Reads on which routes hints never hit."""

    def __init__(self, shares: Callable[[], PrefixShares]) -> None:
        self._shares = shares

    def collect(self) -> Iterator[Metric]:
        """Yield a gauge for each route that was told hints."""
        family = GaugeMetricFamily(
            "refrain_hints_never_hit",
            "1 where hints were sent often enough and nothing was ever found.",
            labels=list(_LABELS),
        )
        for route, share in self._shares().routes.items():
            if share.hinted:
                family.add_metric(list(route), float(share.never_hits))
        yield family
