"""Prometheus metrics of the gateway: one sink for observations, gauges read at scrape time."""

import os
from collections.abc import Callable, Iterator, Mapping

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector

from gateway.cache.ports import StoreStats
from gateway.prompts.outcome import Compression
from gateway.telemetry.observation import Observation
from gateway.telemetry.prefix_metrics import NeverHitCollector, PrefixMetrics

_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_SCORES = (0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.98, 0.99, 0.995, 0.998, 0.999, 1)


class Metrics:
    """Figures of one gateway; several workers share files when PROMETHEUS_MULTIPROC_DIR is set."""

    def __init__(self, store_stats: Callable[[], StoreStats]) -> None:
        self.registry = CollectorRegistry()
        self._children: dict[tuple[str, ...], _Children] = {}
        self._batches: dict[tuple[str, ...], HitBatch] = {}
        self._requests = Counter(
            "refrain_requests_total",
            "Requests below /v1; reason is the word in Cache-Status.",
            ("endpoint", "rule", "outcome", "reason"),
            registry=self.registry,
        )
        self._declined = Counter(
            "refrain_declined_total",
            "Answers that were not stored, by reason.",
            ("rule", "reason"),
            registry=self.registry,
        )
        self._fallbacks = Counter(
            "refrain_model_fallbacks_total",
            "Requests that were answered by the rule's fallback_model.",
            ("rule", "model"),
            registry=self.registry,
        )
        self._semantic_faults = Counter(
            "refrain_semantic_faults_total",
            "Semantic lookups that failed and counted as misses.",
            ("reason",),
            registry=self.registry,
        )
        self._candidates = Counter(
            "refrain_semantic_candidates_total",
            "Stored questions near one asked that were looked into, by what came of them.",
            ("result",),
            registry=self.registry,
        )
        self._scores = Histogram(
            "refrain_semantic_score",
            "How sure the verifier was of a candidate that no guard refused.",
            buckets=_SCORES,
            registry=self.registry,
        )
        self._ineligible = Counter(
            "refrain_ineligible_total",
            "Misses that could only have hit exactly, by reason.",
            ("rule", "reason"),
            registry=self.registry,
        )
        self._checks = Counter(
            "refrain_semantic_checks_total",
            "Answers found by meaning that were compared with a fresh one.",
            ("rule", "kind", "outcome"),
            registry=self.registry,
        )
        self._rewrites = Counter(
            "refrain_rewrites_total",
            "Prompts rewritten on their way to the upstream, by what of them was.",
            ("rule", "rewrite"),
            registry=self.registry,
        )
        self._not_rewritten = Counter(
            "refrain_rewrites_declined_total",
            "Prompts that a rewrite left as they were, by reason.",
            ("rule", "rewrite", "reason"),
            registry=self.registry,
        )
        self._compressed = Counter(
            "refrain_compressed_total",
            "Prompts whose declared context was made shorter, by what was done.",
            ("rule", "step"),
            registry=self.registry,
        )
        self._not_compressed = Counter(
            "refrain_compress_declined_total",
            "Prompts whose declared context was sent as it was, by reason.",
            ("rule", "reason"),
            registry=self.registry,
        )
        self._context_tokens = Counter(
            "refrain_compress_tokens_total",
            "Tokens of declared context, about: as it came, and of these saved.",
            ("rule", "kind"),
            registry=self.registry,
        )
        self._ttft = Histogram(
            "refrain_time_to_first_token_seconds",
            "From the request's head to the first piece of the answer.",
            ("outcome",),
            buckets=_SECONDS,
            registry=self.registry,
        )
        self._e2e = Histogram(
            "refrain_request_seconds",
            "From the request's head to the end of the answer.",
            ("outcome",),
            buckets=_SECONDS,
            registry=self.registry,
        )
        self._upstream = Histogram(
            "refrain_upstream_seconds",
            "From forwarding to the upstream's head.",
            buckets=_SECONDS,
            registry=self.registry,
        )
        self._policy_reloads = Counter(
            "refrain_policy_reloads_total",
            "Edits of the policy file, taken or refused.",
            ("result",),
            registry=self.registry,
        )
        self.prefixes = PrefixMetrics(self.registry)
        self._collectors: list[Collector] = []
        self.add(NeverHitCollector(lambda: self.prefixes.shares))
        self.add(_StoreCollector(store_stats))

    def observe(self, seen: Observation) -> None:
        """Count one finished request."""
        reason = seen.reason.value if seen.reason is not None else ""
        labels = (seen.endpoint, seen.rule, seen.outcome, reason)
        children = self._children.get(labels)
        if children is None:
            # Looking a child up by label costs as much as counting: keep it.
            children = self._children[labels] = _Children(
                self._requests.labels(*labels),
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
            self._fallbacks.labels(seen.rule, seen.fallback_model).inc()
        if seen.declined is not None:
            self._declined.labels(seen.rule, seen.declined.value).inc()
        self._count_by_meaning(seen)
        if seen.ineligible is not None:
            self._ineligible.labels(seen.rule, seen.ineligible.value).inc()
        self._count_prompt(seen)

    def hits(self, endpoint: str, rule: str, reason: str) -> "HitBatch":
        """Return what counts hits that are too many to be observed one by one."""
        labels = (endpoint, rule, "hit", reason)
        found = self._batches.get(labels)
        if found is None:
            found = self._batches[labels] = HitBatch(
                self._requests.labels(*labels), self._ttft.labels("hit"), self._e2e.labels("hit")
            )
        return found

    def flush(self) -> None:
        """Hand the batches of hits over."""
        for batch in self._batches.values():
            batch.flush()

    def _count_by_meaning(self, seen: Observation) -> None:
        if seen.semantic_fault is not None:
            self._semantic_faults.labels(seen.semantic_fault).inc()
        for result, score in seen.verified:
            self._candidates.labels(result).inc()
            if score is not None:
                self._scores.observe(score)

    def _count_prompt(self, seen: Observation) -> None:
        if seen.compression is not None:
            self._count_compression(seen.rule, seen.compression)
        if seen.cached_tokens is not None:
            self.prefixes.observe(seen)
        for rewrite in seen.rewrites:
            self._rewrites.labels(seen.rule, rewrite.value).inc()
        for each in seen.not_rewritten:
            self._not_rewritten.labels(seen.rule, each.rewrite.value, each.why.value).inc()

    def _count_compression(self, rule: str, told: Compression) -> None:
        for step in told.steps:
            self._compressed.labels(rule, step.value).inc()
        if told.refused is not None:
            self._not_compressed.labels(rule, told.refused.value).inc()
        if told.saved:
            self._context_tokens.labels(rule, "came").inc(told.tokens)
            self._context_tokens.labels(rule, "saved").inc(told.saved)

    def policy_reloaded(self, good: bool) -> None:
        """Count an edit of the policy file."""
        self._policy_reloads.labels("taken" if good else "refused").inc()

    def tell_rules_off(self, rules_off: Callable[[], Mapping[str, bool]]) -> None:
        """Tell of the rules, whenever asked, whether their semantic hits are off."""
        self.add(_RuleCollector(rules_off))

    def add(self, collector: Collector) -> None:
        """Have a collector asked for its figures whenever the page is."""
        self._collectors.append(collector)
        self.registry.register(collector)

    def compared(self, rule: str, kind: str, outcome: str) -> None:
        """Count a comparison of answers."""
        self._checks.labels(rule, kind, outcome).inc()

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


class _Children:
    __slots__ = ("e2e", "requests", "ttft")

    def __init__(self, requests: Counter, ttft: Histogram, e2e: Histogram) -> None:
        self.requests = requests
        self.ttft = ttft
        self.e2e = e2e


class HitBatch:
    """Counts hits of one kind until ``flush``: to observe each costs more than to answer it."""

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
        """Count what was added: all of it belongs to the first bucket."""
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
    """Reads what the journal of comparisons says."""

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
    """Reads the store's figures when asked, so that hits do not keep gauges up to date."""

    def __init__(self, stats: Callable[[], StoreStats]) -> None:
        self._stats = stats

    def collect(self) -> Iterator[Metric]:
        """Yield entries, bytes and evictions."""
        stats = self._stats()
        for name, text, value in (
            ("refrain_entries", "Entries in the store.", stats.entries),
            ("refrain_entry_bytes", "Bytes of entries, keys and metadata included.", stats.bytes),
            ("refrain_evicted_entries", "Entries evicted since start.", stats.evictions),
        ):
            family = GaugeMetricFamily(name, text)
            family.add_metric([], value)
            yield family
