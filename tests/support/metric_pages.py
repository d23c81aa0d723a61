"""The pages of metrics that gateway and engine expose once everything happened."""

import asyncio
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from example_requests import chat, entry_of, plan_of, user
from observations import observation_of
from prometheus_client.parser import text_string_to_metric_families

from backend.scheduler.stats import (
    EngineStats,
    Figures,
    MemoryUse,
    Recording,
    SequenceTimes,
    TierStats,
)
from backend.scheduler.tiers import SourceFigures
from backend.server.batches.runner import Batches
from backend.server.batches.store import Store
from backend.server.metrics import Metrics as EngineMetrics
from gateway.cache.lookup import Hit
from gateway.cache.ports import StoreStats
from gateway.prompts.outcome import Compression, Declined, NotRewritten, Rewrite, Step
from gateway.protocol.http.cache_status import HitStatus, Reason
from gateway.protocol.tokens import PromptUsage
from gateway.telemetry.metrics import Metrics as GatewayMetrics
from gateway.telemetry.observation import Observation, Sink
from gateway.upstream.pool.metrics import UpstreamCollector, UpstreamMetrics
from gateway.upstream.pool.pool import UpstreamPool
from gateway.upstream.pool.routing import LeastLoaded, Route
from gateway.upstream.pool.table import PoolTable
from gateway.upstream.pool.upstream_state import Member
from gateway.upstream.pool.waiting_queue import Bounds
from gateway.upstream.pool.watch.engine_load import EngineLoad


def exposed(page: str) -> dict[str, tuple[str, tuple[str, ...]]]:
    """Name, type and labels of every metric on a page of Prometheus text."""
    found = {}
    for family in text_string_to_metric_families(page):
        if family.name.endswith("_created"):  # the client library's own companions
            continue
        name = f"{family.name}_total" if family.type == "counter" else family.name
        labels = {label for sample in family.samples for label in sample.labels}
        found[name] = (family.type, tuple(sorted(labels - {"le"})))
    return found


def seen(*sinks: Sink, **values: Any) -> Observation:
    """An observation in which everything happened."""
    everything: dict[str, Any] = {
        "model": "m",
        "rule": "default",
        "outcome": "miss",
        "reason": Reason.NO_CACHE,
        "declined": Reason.EMPTY,
        "semantic_fault": "timeout",
        "verified": (("score", 0.5),),
        "ineligible": Reason.TIME,
        "hit": Hit(
            entry_of(plan_of(chat(user("hi")))),
            HitStatus(Reason.SEMANTIC, 5, similarity=0.9, score=0.99, threshold=0.98),
            age=1,
        ),
        "rewrites": (Rewrite.TOOLS, Rewrite.BREAKPOINTS),
        "not_rewritten": (Declined(Rewrite.SCHEMA_KEYS, NotRewritten.TOO_LARGE),),
        "compression": Compression((Step.MINIFIED,), 10, 5, NotRewritten.TIMEOUT),
        "status": 200,
        "call_started": 1.0,
        "head": 2.0,
        "first_token": 2.0,
        "usage": PromptUsage(3, 4, 2, 1),
        "upstream": "b",
        "fallback_model": "small",
        "tried": (("a", Reason.UPSTREAM_BROKE),),
    }
    facts = {**everything, **values}
    return observation_of(*sinks, started=1.0, clock=time.perf_counter, **facts)


def gateway_page() -> str:
    metrics = GatewayMetrics(lambda: StoreStats(1, 2, 3))
    seen(metrics.observe, metrics.prefixes.observe).finish()
    metrics.count_policy_reload(True)
    metrics.count("semantic_not_added", "too-many")
    metrics.count("tokens_used", "m", "only", "prompt")
    for name in ("tokens_saved", "cost_saved_dollars", "seconds_saved"):
        metrics.count(name, "exact", by=0.5)
    metrics.count_comparison("default", "served", "equal")
    metrics.add_rules_off(lambda: {"default": True})
    metrics.add_distances(lambda: {"cosine": 0.1})
    counts = UpstreamMetrics(metrics.registry)
    counts.requests.labels("a", Route.PREFIX.value).inc()
    counts.warmed.labels("a").inc()
    counts.failures.labels("a", Reason.UPSTREAM_BROKE.value).inc()
    table = PoolTable([Member("a")], LeastLoaded(), 0.0)
    pool = UpstreamPool("pool", {}, table, Bounds())
    table.record_load("a", EngineLoad(1, 2, 0.5), pool.clock())
    metrics.add(UpstreamCollector(pool, lambda: {"a": {"replicas": 1, "problem": None}}))
    for name in ("upstream_waiting", "calls_in_flight", "unread_bytes"):
        metrics.add_sum(name, "A sum over workers.", lambda: 0)
    return asyncio.run(metrics.page())[0].decode()


def engine_page() -> str:
    figures = Figures()
    figures.step(1, 1, 20, 0.01)
    times = SequenceTimes(0.0)
    figures.first_token(times, None, 1.0)
    figures.finished(times, "stop", 7, 1)
    names = ("draft_verifications", "drafts_proposed", "drafts_accepted")
    counts = {(name, ("draft_model",)): 1 for name in names}
    counts |= {("kv_transfers", ("failed",)): 1, ("kv_transfer_blocks", ("sent",)): 1}
    stats = replace(
        EngineStats(1, 2, 3, 4, 5, 6, 7),
        recording=figures.read() + Recording(counts=counts),
        tenants=(("", 3),),
        memory=MemoryUse(1, 2, 3),
        tiers=(TierStats("host", 1, SourceFigures()),),
    )
    batches = Batches(Store(Path("nowhere"), most_bytes=1, keep_seconds=1), concurrency=1)
    metrics = EngineMetrics(lambda: stats, lambda: 1, batches, model="m")
    metrics.count_request("/v1/completions", "ok")
    metrics.observe_request("/v1/completions", 1.0)
    metrics.count_embedded(1)
    return metrics.render().decode()
