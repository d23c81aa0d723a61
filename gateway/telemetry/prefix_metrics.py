"""Metrics of the upstreams' prefix caches by route, and the warning where hints never help.

Law: a route is a rule and a model. Only calls count whose upstream reports cached tokens. The
number of routes is bounded, and all routes beyond the bound count together.
"""

import logging
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from prometheus_client import CollectorRegistry, Counter
from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from gateway.prompts.outcome import Rewrite
from gateway.telemetry.observation import Observation

log = logging.getLogger(__name__)

HINTS = frozenset({Rewrite.BREAKPOINTS, Rewrite.CACHE_KEY})
"""Measures that should make a prefix cache hit."""
_LABELS = ["rule", "model"]
OTHERS = "others"
"""The label for the model if there are too many routes."""
MOST_ROUTES = 256
ENOUGH = 50
"""After this many calls without a hit, hints count as useless."""


@dataclass(slots=True)
class Share:
    """Figures of one route, in calls and tokens."""

    calls: int = 0
    prompt: int = 0
    cached: int = 0
    written: int = 0
    hinted: int = 0
    """Calls with hints since the figures began."""
    hinted_cached: int = 0
    """The cached tokens of these calls."""

    @property
    def share(self) -> float:
        """Of all tokens of prompts, the share that was found."""
        return min(1.0, self.cached / self.prompt) if self.prompt else 0.0

    @property
    def never_hits(self) -> bool:
        """Tell whether hints were sent often enough and never helped."""
        return self.hinted >= ENOUGH and not self.hinted_cached


@dataclass(slots=True)
class PrefixShares:
    """Folds calls into figures of their routes."""

    most: int = MOST_ROUTES
    routes: dict[tuple[str, str], Share] = field(default_factory=dict)

    def route(self, rule: str, model: str) -> tuple[str, str]:
        """Return under which name a call counts."""
        named = (rule, model[:128])
        if named in self.routes or len(self.routes) < self.most:
            return named
        return rule, OTHERS

    def add(
        self, route: tuple[str, str], *, prompt: int, cached: int, written: int, hinted: bool
    ) -> bool:
        """Count a call; tell whether it is the one that shows that hints never hit."""
        share = self.routes.setdefault(route, Share())
        before = share.never_hits
        share.calls += 1
        share.prompt += prompt
        share.cached += cached
        share.written += written
        if hinted:
            share.hinted += 1
            share.hinted_cached += cached
        return share.never_hits and not before

    def report(self) -> dict[str, Any]:
        """Return the figures of all routes, those with the longest prompts first."""
        ordered = sorted(self.routes.items(), key=lambda each: -each[1].prompt)
        return {
            "routes": [
                {
                    "rule": rule,
                    "model": model,
                    "calls": share.calls,
                    "prompt_tokens": share.prompt,
                    "cached_tokens": share.cached,
                    "written_tokens": share.written,
                    "share": round(share.share, 4),
                    "hinted_calls": share.hinted,
                    "hints_never_hit": share.never_hits,
                }
                for (rule, model), share in ordered
            ]
        }

    def never_hit(self) -> list[str]:
        return sorted(" ".join(route) for route, share in self.routes.items() if share.never_hits)


class PrefixMetrics(Collector):
    """The metrics of the shares; the gauge of hints that never hit is read at scrape time."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.shares = PrefixShares()
        self._children: dict[tuple[str, str], list[Counter]] = {}
        self._counters = [
            Counter(f"refrain_prompt_tokens{name}_total", text, _LABELS, registry=registry)
            for name, text in (
                ("", "Tokens of prompts whose upstream says what it found in its prefix cache."),
                ("_cached", "Of those, the tokens that it found."),
                ("_written", "Of those, the tokens that it says it put into the cache."),
            )
        ]

    def observe(self, seen: Observation) -> None:
        usage = seen.call.usage
        prompt, cached, written = usage.prompt, usage.cached, usage.written or 0
        if prompt is None or cached is None:
            return
        route = self.shares.route(seen.asked.rule, seen.asked.answering_model)
        children = self._children.get(route)
        if children is None:
            # To look a child up by its labels costs more than to count.
            children = [counter.labels(*route) for counter in self._counters]
            self._children[route] = children
        for child, tokens in zip(children, (prompt, cached, written), strict=True):
            child.inc(tokens)
        hinted = not HINTS.isdisjoint(seen.call.rewrites)
        if self.shares.add(route, prompt=prompt, cached=cached, written=written, hinted=hinted):
            log.warning(
                "the hints of rule %s never hit: %d calls of %r found nothing in a prefix cache",
                route[0],
                ENOUGH,
                route[1],
            )

    def collect(self) -> Iterator[Metric]:
        family = GaugeMetricFamily(
            "refrain_hints_never_hit",
            "1 where hints were sent often enough and nothing was ever found.",
            labels=_LABELS,
        )
        for route, share in self.shares.routes.items():
            if share.hinted:
                family.add_metric(list(route), float(share.never_hits))
        yield family
