"""Prometheus metrics of the gateway: one sink for observations, gauges read at scrape time."""

import os
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector

from gateway.cache.ports import StoreStats
from gateway.telemetry.observation import Observation
from gateway.telemetry.prefix_metrics import PrefixMetrics

_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_SCORES = (0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.98, 0.99, 0.995, 0.998, 0.999, 1)

_COUNTERS = (
    (
        "requests",
        "endpoint rule outcome reason",
        "Requests below /v1, by the word in Cache-Status.",
    ),
    ("declined", "rule reason", "Answers that were not stored, by reason."),
    ("model_fallbacks", "rule model", "Requests that the rule's fallback_model answered."),
    ("semantic_faults", "reason", "Semantic lookups that failed and counted as misses."),
    ("semantic_candidates", "result", "Similar stored questions that were examined, by result."),
    ("semantic_checks", "rule kind outcome", "Semantic hits that were compared with a new answer."),
    ("ineligible", "rule reason", "Misses that could only have hit exactly, by reason."),
    ("rewrites", "rule rewrite", "Prompts that a rewrite changed on their way to the upstream."),
    ("rewrites_declined", "rule rewrite reason", "Prompts that a rewrite left as they were."),
    ("compressed", "rule step", "Prompts whose declared context was made shorter, by step."),
    ("compress_declined", "rule reason", "Prompts whose declared context was sent unchanged."),
    ("compress_tokens", "rule kind", "Tokens of declared context: those that came, those saved."),
    ("policy_reloads", "result", "Edits of the policy file, taken or refused."),
)
"""Name, labels and help of each counter."""


class Metrics:
    """Figures of one gateway; several workers share files when PROMETHEUS_MULTIPROC_DIR is set."""

    def __init__(self, store_stats: Callable[[], StoreStats]) -> None:
        self.registry = registry = CollectorRegistry()
        self._children: dict[tuple[str, ...], _Children] = {}
        self._batches: dict[tuple[str, ...], HitBatch] = {}
        self._counters = {
            name: Counter(f"refrain_{name}_total", text, labels.split(), registry=registry)
            for name, labels, text in _COUNTERS
        }
        self._scores = Histogram(
            "refrain_semantic_score",
            "How sure the verifier was of a candidate that no guard refused.",
            buckets=_SCORES,
            registry=registry,
        )
        self._ttft, self._e2e = (
            Histogram(
                f"refrain_{name}_seconds", text, ("outcome",), buckets=_SECONDS, registry=registry
            )
            for name, text in (
                ("time_to_first_token", "From the request's head to the answer's first piece."),
                ("request", "From the request's head to the end of the answer."),
            )
        )
        self._upstream = Histogram(
            "refrain_upstream_seconds",
            "From forwarding to the upstream's head.",
            buckets=_SECONDS,
            registry=registry,
        )
        self.prefixes = PrefixMetrics(registry)
        self._collectors: list[Collector] = []
        self.add(self.prefixes)
        self.add(_StoreCollector(store_stats))

    def observe(self, seen: Observation) -> None:
        """Count one finished request."""
        reason = seen.reason.value if seen.reason is not None else ""
        labels = (seen.endpoint, seen.rule, seen.outcome, reason)
        children = self._children.get(labels)
        if children is None:
            # Looking a child up by label costs as much as counting: keep it.
            children = self._children[labels] = _Children(
                self._counters["requests"].labels(*labels),
                self._ttft.labels(seen.outcome),
                self._e2e.labels(seen.outcome),
            )
        children.requests.inc()
        if seen.ended is not None:
            children.e2e.observe(seen.ended - seen.started)
        if seen.first_token is not None:
            children.ttft.observe(seen.first_token - seen.started)
        if seen.upstream_started is not None and seen.upstream_head is not None:
            self._upstream.observe(seen.upstream_head - seen.upstream_started)
        if seen.fallback_model is not None:
            self._count("model_fallbacks", seen.rule, seen.fallback_model)
        if seen.declined is not None:
            self._count("declined", seen.rule, seen.declined.value)
        self._observe_semantic(seen)
        self._observe_prompt(seen)

    def _observe_semantic(self, seen: Observation) -> None:
        if seen.ineligible is not None:
            self._count("ineligible", seen.rule, seen.ineligible.value)
        if seen.semantic_fault is not None:
            self._count("semantic_faults", seen.semantic_fault)
        for result, score in seen.verified:
            self._count("semantic_candidates", result)
            if score is not None:
                self._scores.observe(score)

    def _observe_prompt(self, seen: Observation) -> None:
        rule, compression = seen.rule, seen.compression
        if seen.usage.cached is not None:
            self.prefixes.observe(seen)
        for rewrite in seen.rewrites:
            self._count("rewrites", rule, rewrite.value)
        for each in seen.not_rewritten:
            self._count("rewrites_declined", rule, each.rewrite.value, each.why.value)
        if compression is None:
            return
        for step in compression.steps:
            self._count("compressed", rule, step.value)
        if compression.refused is not None:
            self._count("compress_declined", rule, compression.refused.value)
        if compression.saved:
            self._count("compress_tokens", rule, "came", by=compression.tokens)
            self._count("compress_tokens", rule, "saved", by=compression.saved)

    def _count(self, name: str, *labels: str, by: int = 1) -> None:
        self._counters[name].labels(*labels).inc(by)

    def hits(self, endpoint: str, rule: str, reason: str) -> "HitBatch":
        """Return a batch for hits that are too many to observe one by one."""
        labels = (endpoint, rule, "hit", reason)
        found = self._batches.get(labels)
        if found is None:
            requests = self._counters["requests"].labels(*labels)
            found = HitBatch(requests, self._ttft.labels("hit"), self._e2e.labels("hit"))
            self._batches[labels] = found
        return found

    def flush(self) -> None:
        """Flush the batches of hits."""
        for batch in self._batches.values():
            batch.flush()

    def count_policy_reload(self, good: bool) -> None:
        """Count an edit of the policy file."""
        self._count("policy_reloads", "taken" if good else "refused")

    def count_comparison(self, rule: str, kind: str, outcome: str) -> None:
        """Count a comparison of answers."""
        self._count("semantic_checks", rule, kind, outcome)

    def add_rules_off(self, rules_off: Callable[[], Mapping[str, bool]]) -> None:
        """Show for each rule whether its semantic hits are off."""
        self.add(_RuleCollector(rules_off))

    def add(self, collector: Collector) -> None:
        """Register a collector, which is read for each page."""
        self._collectors.append(collector)
        self.registry.register(collector)

    def page(self) -> tuple[bytes, str]:
        """Return the text format and its content type."""
        self.flush()
        registry = self.registry
        if "PROMETHEUS_MULTIPROC_DIR" in os.environ:
            registry = CollectorRegistry()
            MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
            for collector in self._collectors:
                registry.register(collector)
        return generate_latest(registry), CONTENT_TYPE_LATEST


class _Children(NamedTuple):
    requests: Counter
    ttft: Histogram
    e2e: Histogram


class HitBatch:
    """Counts hits of one kind until ``flush``: to observe a hit costs more than to serve it."""

    __slots__ = ("_e2e", "_number", "_requests", "_seconds", "_ttft")

    def __init__(self, requests: Counter, ttft: Histogram, e2e: Histogram) -> None:
        self._requests, self._ttft, self._e2e = requests, ttft, e2e
        self._number = 0
        self._seconds = 0.0

    def add(self, seconds: float) -> None:
        """Count a hit and the time that it took; a slow one is observed at once."""
        if seconds > _SECONDS[0]:
            self._requests.inc()
            self._ttft.observe(seconds)
            self._e2e.observe(seconds)
            return
        self._number += 1
        self._seconds += seconds

    def flush(self) -> None:
        """Move the counts to the histograms: all of them belong to the first bucket."""
        number, seconds = self._number, self._seconds
        if not number:
            return
        self._number, self._seconds = 0, 0.0
        self._requests.inc(number)
        for histogram in (self._ttft, self._e2e):
            # The library observes one value a call.
            histogram._sum.inc(seconds)  # noqa: SLF001
            histogram._buckets[0].inc(number)  # noqa: SLF001


class _RuleCollector(Collector):
    """Reads the journal of comparisons."""

    def __init__(self, rules_off: Callable[[], Mapping[str, bool]]) -> None:
        self._rules_off = rules_off

    def collect(self) -> Iterator[Metric]:
        """Yield a gauge for each rule that was compared."""
        family = GaugeMetricFamily(
            "refrain_semantic_rule_off",
            "1 where too many semantic hits of the rule were wrong.",
            labels=["rule"],
        )
        for rule, off in self._rules_off().items():
            family.add_metric([rule], float(off))
        yield family


class _StoreCollector(Collector):
    """Reads the store's figures for each page, so that hits need not update gauges."""

    def __init__(self, stats: Callable[[], StoreStats]) -> None:
        self._stats = stats

    def collect(self) -> Iterator[Metric]:
        """Yield entries, bytes, evictions and lost entries."""
        stats = self._stats()
        for name, text, value in (
            ("refrain_entries", "Entries in the store.", stats.entries),
            ("refrain_entry_bytes", "Bytes of entries, keys and metadata included.", stats.bytes),
            ("refrain_evicted_entries", "Entries evicted since start.", stats.evictions),
            ("refrain_lost_entries", "Stored, but then not written, since start.", stats.lost),
        ):
            family = GaugeMetricFamily(name, text)
            family.add_metric([], value)
            yield family
