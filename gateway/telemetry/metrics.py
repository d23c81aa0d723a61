"""Prometheus metrics of the gateway: one sink for observations, gauges read at scrape time.

What is observed waits here for ``flush``: the library takes a lock for each figure, and in several
workers it writes to a shared file. Used from one thread.
"""

import asyncio
import os
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector

from gateway.cache.ports import StoreStats
from gateway.telemetry.observation import Observation
from gateway.telemetry.prefix_metrics import PrefixMetrics

_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_SCORES = (0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.98, 0.99, 0.995, 0.998, 0.999, 1)

PAGE_REST = 9
"""After a page no other is made for so many times as long: who looks costs others a tenth."""
LONGEST_REST = 1.0

Waiting = defaultdict[tuple[str, ...], float]

_COUNTERS = (
    (
        "requests",
        "endpoint rule outcome reason",
        "Requests below /v1, by the word in Cache-Status.",
    ),
    ("declined", "rule reason", "Answers that were not stored, by reason."),
    ("model_fallbacks", "rule model", "Requests that the rule's fallback_model answered."),
    ("semantic_faults", "reason", "Semantic lookups that failed and counted as misses."),
    ("semantic_not_added", "reason", "Stored answers that only an exact lookup finds."),
    ("semantic_candidates", "result", "Similar stored questions that were examined, by result."),
    ("semantic_checks", "rule kind outcome", "Semantic hits that were compared with a new answer."),
    ("ineligible", "rule reason", "Misses that could only have hit exactly, by reason."),
    ("rewrites", "rule rewrite", "Prompts that a rewrite changed on their way to the upstream."),
    ("rewrites_declined", "rule rewrite reason", "Prompts that a rewrite left as they were."),
    ("compressed", "rule step", "Prompts whose declared context was made shorter, by step."),
    ("compress_declined", "rule reason", "Prompts whose declared context was sent unchanged."),
    ("compress_tokens", "rule kind", "Tokens of declared context that came, and that were saved."),
    ("tokens_used", "model upstream kind", "Tokens of calls, as upstreams count them."),
    ("tokens_saved", "by", "Tokens of calls that were not made, or were shorter, or cheaper."),
    ("cost_saved_dollars", "by", "Dollars not spent, for models whose price is known."),
    ("seconds_saved", "by", "Seconds for which no client had to wait."),
    ("policy_reloads", "result", "Edits of the policy file, taken or refused."),
)
"""Name, labels and help of each counter."""


class Metrics:
    """Figures of one gateway; several workers share files when PROMETHEUS_MULTIPROC_DIR is set."""

    def __init__(self, store_stats: Callable[[], StoreStats]) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]  # half the page, and nobody reads it
        self.registry = registry = CollectorRegistry()
        self._at_scrape = CollectorRegistry()
        """Figures of this process that are read for each page."""
        self._waiting: Waiting = defaultdict(int)
        """Counts by the counter's name and labels."""
        self.collect: Callable[[], None] = lambda: None
        """Called before each flush, for counts that wait elsewhere."""
        self._times: dict[str, _Times] = {}
        """By outcome."""
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
        upstream = Histogram(
            "refrain_upstream_seconds",
            "From forwarding to the upstream's head.",
            buckets=_SECONDS,
            registry=registry,
        )
        self._upstream = _Durations(upstream)
        self.prefixes = PrefixMetrics(registry)
        self._sums: list[tuple[Gauge, Callable[[], float]]] = []
        self.add(self.prefixes)
        self.add(_StoreCollector(store_stats))
        self._next_page: asyncio.Task[tuple[bytes, str]] | None = None
        """The page that is to be made next, if anybody waits for it."""
        self._page_lock = asyncio.Lock()
        self._no_page_until = 0.0

    def observe(self, seen: Observation) -> None:
        reason = seen.reason.value if seen.reason is not None else ""
        asked, call = seen.asked, seen.call
        self._waiting["requests", seen.endpoint, asked.rule, seen.outcome, reason] += 1
        times = self._times_of(seen.outcome)
        if seen.ended is not None:
            times.e2e.add(seen.ended - seen.started)
        if seen.first_token is not None:
            times.ttft.add(seen.first_token - seen.started)
        if call.started is not None and call.head is not None:
            self._upstream.add(call.head - call.started)
        if asked.fallback_model is not None:
            self.count("model_fallbacks", asked.rule, asked.fallback_model)
        if call.declined is not None:
            self.count("declined", asked.rule, call.declined.value)
        self._observe_semantic(seen)
        self._observe_prompt(seen)

    def _observe_semantic(self, seen: Observation) -> None:
        lookup = seen.lookup
        if lookup.ineligible is not None:
            self.count("ineligible", seen.asked.rule, lookup.ineligible.value)
        if lookup.semantic_fault is not None:
            self.count("semantic_faults", lookup.semantic_fault)
        for result, score in lookup.verified:
            self.count("semantic_candidates", result)
            if score is not None:
                self._scores.observe(score)

    def _observe_prompt(self, seen: Observation) -> None:
        rule, call, compression = seen.asked.rule, seen.call, seen.call.compression
        if call.usage.cached is not None:
            self.prefixes.observe(seen)
        for rewrite in call.rewrites:
            self.count("rewrites", rule, rewrite.value)
        for each in call.not_rewritten:
            self.count("rewrites_declined", rule, each.rewrite.value, each.why.value)
        if compression is None:
            return
        for step in compression.steps:
            self.count("compressed", rule, step.value)
        if compression.refused is not None:
            self.count("compress_declined", rule, compression.refused.value)
        if compression.saved:
            self.count("compress_tokens", rule, "came", by=compression.tokens)
            self.count("compress_tokens", rule, "saved", by=compression.saved)

    def count(self, name: str, *labels: str, by: float = 1) -> None:
        self._waiting[name, *labels] += by

    def _times_of(self, outcome: str) -> "_Times":
        times = self._times.get(outcome)
        if times is None:
            ttft, e2e = self._ttft.labels(outcome), self._e2e.labels(outcome)
            times = self._times[outcome] = _Times(_Durations(ttft), _Durations(e2e))
        return times

    def hits(self, endpoint: str, rule: str, reason: str) -> "HitBatch":
        """Return a batch for hits that are too many to observe one by one."""
        labels = ("requests", endpoint, rule, "hit", reason)
        found = self._batches.get(labels)
        if found is None:
            found = self._batches[labels] = HitBatch(self._waiting, labels, self._times_of("hit"))
        return found

    def flush(self) -> None:
        """Hand what waits to the library, and never twice: what cannot be counted is lost."""
        self.collect()
        for batch in self._batches.values():
            batch.flush()
        for counted in tuple(self._waiting):
            number = self._waiting.pop(counted)
            name, *labels = counted
            self._counters[name].labels(*labels).inc(number)
        self._upstream.flush()
        for times in self._times.values():
            times.ttft.flush()
            times.e2e.flush()
        for gauge, read in self._sums:
            gauge.set(read())

    def count_policy_reload(self, good: bool) -> None:
        self.count("policy_reloads", "taken" if good else "refused")

    def count_comparison(self, rule: str, kind: str, outcome: str) -> None:
        self.count("semantic_checks", rule, kind, outcome)

    def add_rules_off(self, rules_off: Callable[[], Mapping[str, bool]]) -> None:
        """Show for each rule whether its semantic hits are off."""
        text = "1 where too many semantic hits of the rule were wrong."
        self.add(_GaugeCollector("refrain_semantic_rule_off", text, "rule", rules_off))

    def add_distances(self, distances: Callable[[], Mapping[str, float]]) -> None:
        """Show for each feature how far the traffic is from the calibration."""
        text = "How far would-be hits are from the calibration's (PSI); over 0.25 they differ."
        self.add(
            _GaugeCollector("refrain_semantic_calibration_distance", text, "feature", distances)
        )

    def add(self, collector: Collector) -> None:
        self._at_scrape.register(collector)

    def add_sum(self, name: str, text: str, read: Callable[[], float]) -> None:
        """Show a gauge that is the sum over the workers that run; ``read`` gives this one's."""
        gauge = Gauge(f"refrain_{name}", text, registry=self.registry, multiprocess_mode="livesum")
        self._sums.append((gauge, read))

    async def page(self) -> tuple[bytes, str]:
        """Return the text format and its content type.

        All who wait for a page get the same one, made after the last of them came.
        """
        if self._next_page is None:
            self._next_page = asyncio.create_task(self._make_page())
        return await asyncio.shield(self._next_page)

    async def _make_page(self) -> tuple[bytes, str]:
        now = asyncio.get_running_loop().time
        async with self._page_lock:
            await asyncio.sleep(self._no_page_until - now())
            self._next_page, began = None, now()
            self.flush()
            of_this_process = generate_latest(self._at_scrape)
            # In several workers, these are many files: the loop does not wait for them.
            counted = await asyncio.to_thread(lambda: generate_latest(self._counted()))
            self._no_page_until = now() + min(PAGE_REST * (now() - began), LONGEST_REST)
            return counted + of_this_process, CONTENT_TYPE_LATEST

    async def families(self) -> list[Metric]:
        self.flush()
        of_this_process = [*self._at_scrape.collect()]
        return await asyncio.to_thread(lambda: [*self._counted().collect(), *of_this_process])

    def own_families(self) -> Iterator[Metric]:
        """Yield the figures of this worker alone."""
        self.flush()
        yield from self.registry.collect()
        yield from self._at_scrape.collect()

    def _counted(self) -> CollectorRegistry:
        """Return what all workers have counted."""
        if "PROMETHEUS_MULTIPROC_DIR" not in os.environ:
            return self.registry
        registry = CollectorRegistry()
        MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
        return registry


class _Durations:
    __slots__ = ("_histogram", "buckets", "seconds")

    def __init__(self, histogram: Histogram) -> None:
        self._histogram = histogram
        self.buckets = [0] * (len(_SECONDS) + 1)
        self.seconds = 0.0

    def add(self, seconds: float) -> None:
        self.buckets[bisect_left(_SECONDS, seconds)] += 1
        self.seconds += seconds

    def flush(self) -> None:
        numbers, seconds = self.buckets, self.seconds
        if not any(numbers):
            return
        self.buckets, self.seconds = [0] * len(numbers), 0.0
        # The library observes one value a call.
        for bucket, number in zip(self._histogram._buckets, numbers, strict=True):  # noqa: SLF001
            if number:
                bucket.inc(number)
        self._histogram._sum.inc(seconds)  # noqa: SLF001


class _Times(NamedTuple):
    ttft: _Durations
    e2e: _Durations


class HitBatch:
    """Counts hits of one kind until ``flush``: to observe a hit costs more than to serve it."""

    __slots__ = ("_labels", "_number", "_seconds", "_times", "_waiting")

    def __init__(self, waiting: Waiting, labels: tuple[str, ...], times: _Times) -> None:
        self._waiting, self._labels, self._times = waiting, labels, times
        self._number = 0
        self._seconds = 0.0

    def add(self, seconds: float) -> None:
        if seconds <= _SECONDS[0]:
            self._number += 1
            self._seconds += seconds
            return
        self._waiting[self._labels] += 1
        for durations in self._times:
            durations.add(seconds)

    def flush(self) -> None:
        """Move the counts of quick hits to the others: all of them belong to the first bucket."""
        number, seconds = self._number, self._seconds
        if not number:
            return
        self._number, self._seconds = 0, 0.0
        self._waiting[self._labels] += number
        for durations in self._times:
            durations.buckets[0] += number
            durations.seconds += seconds


class _GaugeCollector(Collector):
    """Reads a gauge with one label for each page."""

    def __init__(
        self, name: str, text: str, label: str, read: Callable[[], Mapping[str, float]]
    ) -> None:
        self._about = name, text
        self._label = label
        self._read = read

    def collect(self) -> Iterator[Metric]:
        family = GaugeMetricFamily(*self._about, labels=[self._label])
        for label, value in self._read().items():
            family.add_metric([label], float(value))
        yield family


class _StoreCollector(Collector):
    """Reads the store's figures for each page, so that hits need not update gauges."""

    def __init__(self, stats: Callable[[], StoreStats]) -> None:
        self._stats = stats

    def collect(self) -> Iterator[Metric]:
        stats = self._stats()
        for name, text, value in (
            ("refrain_entries", "Entries in the store.", stats.entries),
            ("refrain_entry_bytes", "Bytes of entries, keys and metadata included.", stats.bytes),
            ("refrain_evicted_entries", "Entries evicted since start.", stats.evictions),
        ):
            family = GaugeMetricFamily(name, text)
            family.add_metric([], value)
            yield family
