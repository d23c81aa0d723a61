"""Metrics wait in batches: in the end the library has what it would have counted itself."""

import asyncio
import contextlib
import os
import subprocess
import sys
import threading
from functools import partial

import pytest
from observations import observation_of
from prometheus_client import CollectorRegistry, Counter, Histogram, Metric, values
from prometheus_client.registry import Collector

from gateway.cache.ports import StoreStats
from gateway.cli.process.launch import forget_gauges
from gateway.cli.process.supervisor import SEAT
from gateway.cli.process.worker import name_figures
from gateway.protocol.tokens import PromptUsage
from gateway.server.open.telemetry import Telemetry
from gateway.telemetry.metrics import Metrics

BOUNDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)


def new_metrics() -> Metrics:
    return Metrics(lambda: StoreStats(0, 0, 0))


def observe(metrics: Metrics, seconds: float = 0.5) -> None:
    observation_of(
        metrics.observe,
        clock=lambda: seconds,
        rule="default",
        outcome="miss",
        first_token=seconds,
        usage=PromptUsage(8, 1, 4),
    ).finish()


def value(metrics: Metrics, name: str, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(f"refrain_{name}", labels)


def test_each_duration_is_counted_in_the_bucket_of_the_library():
    metrics, registry = new_metrics(), CollectorRegistry()
    expected = Histogram("expected", "", buckets=BOUNDS, registry=registry)
    for bound in (0, *BOUNDS, 61):
        for seconds in (bound - 0.0001, bound, bound + 0.0001):
            observe(metrics, seconds)
            expected.observe(seconds)
    metrics.flush()
    for name in ("request_seconds", "time_to_first_token_seconds"):
        total = registry.get_sample_value("expected_sum")
        assert value(metrics, f"{name}_sum", outcome="miss") == pytest.approx(total)
        for bound in (*map(float, BOUNDS), "+Inf"):
            count = registry.get_sample_value("expected_bucket", {"le": str(bound)})
            assert value(metrics, f"{name}_bucket", outcome="miss", le=str(bound)) == count


def test_what_was_flushed_is_not_counted_again():
    metrics = new_metrics()
    labels = {"endpoint": "/v1/chat/completions", "rule": "default", "outcome": "miss"}
    for number in (1, 2):
        observe(metrics)
        metrics.flush()
        metrics.flush()
        assert value(metrics, "requests_total", **labels, reason="") == number
        assert value(metrics, "request_seconds_count", outcome="miss") == number
        assert value(metrics, "prompt_tokens_cached_total", rule="default", model="") == 4 * number


async def test_other_workers_see_the_counts_soon_and_at_the_end(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("gateway.server.open.telemetry.FLUSH_SECONDS", 0)
    metrics = new_metrics()
    async with asyncio.timeout(20), Telemetry(metrics, None, None, (), None, ()).lifespan():
        observe(metrics)
        seen = partial(value, metrics, "request_seconds_count", outcome="miss")
        while seen() != 1:  # noqa: ASYNC110 - no event tells it
            await asyncio.sleep(0)
        observe(metrics)
    assert value(metrics, "request_seconds_count", outcome="miss") == 2


async def test_a_flush_that_fails_counts_nothing_twice_and_ends_no_later_one(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr("gateway.server.open.telemetry.FLUSH_SECONDS", 0)
    metrics, closed = new_metrics(), []
    inc, full = Counter.inc, True

    def fail_for_reloads(self: Counter, amount: float) -> None:
        if full and "policy_reloads" in repr(self):
            raise OSError("No space left on device")
        inc(self, amount)

    monkeypatch.setattr(Counter, "inc", fail_for_reloads)
    labels = {"endpoint": "/v1/chat/completions", "rule": "default", "outcome": "miss"}
    seen = partial(value, metrics, "requests_total", **labels, reason="")
    close = partial(closed.append, "closed")
    async with asyncio.timeout(20), Telemetry(metrics, None, None, (), None, (close,)).lifespan():
        observe(metrics)
        metrics.count_policy_reload(good=True)
        while "could not be counted" not in caplog.text:  # noqa: ASYNC110 - no event tells it
            await asyncio.sleep(0)
        observe(metrics)
        while seen() != 2:  # noqa: ASYNC110
            await asyncio.sleep(0)
        metrics.count_policy_reload(good=True)
    assert seen() == 2
    assert closed


WORKER = """
import asyncio, sys
from gateway.cache.ports import StoreStats
from gateway.server.admin.overview import summarize
from gateway.telemetry.metrics import Metrics

metrics = Metrics(lambda: StoreStats(0, 0, 0))
metrics.add_sum("calls_in_flight", "Calls.", lambda: 3)
metrics.count("requests", "/v1/chat/completions", "default", "miss", "")
metrics.flush()
print("ready", flush=True)
for line in sys.stdin:
    found = summarize(asyncio.run(metrics.families()))
    page, _ = asyncio.run(metrics.page())
    print(found["calls"], found["requests"]["miss"], b"refrain_calls_in_flight 3.0" in page)
    sys.stdout.flush()
"""


def test_figures_are_those_of_all_workers_and_a_killed_one_has_no_calls(tmp_path):
    environment = {**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(tmp_path)}
    with contextlib.ExitStack() as stack:
        workers = []
        for _ in range(2):
            worker = subprocess.Popen(
                [sys.executable, "-c", WORKER],
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            workers.append(stack.enter_context(worker))
            stack.callback(worker.kill)
            assert worker.stdout.readline() == "ready\n"
        first, second = workers

        def figures():
            first.stdin.write("look\n")
            first.stdin.flush()
            return first.stdout.readline().split()

        assert figures() == ["6", "2", "False"]
        second.kill()
        second.wait()
        forget_gauges(tmp_path, str(second.pid))
        assert figures() == ["3", "2", "True"]


async def test_a_worker_counts_on_for_the_page_and_from_zero_for_otlp(monkeypatch, tmp_path):
    monkeypatch.setattr(values, "ValueClass", values.ValueClass)
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(tmp_path))
    monkeypatch.setenv(SEAT, "gateway-0.0")

    async def count(times):
        """Count in a process that is new at the seat; return what OTLP and the page get."""
        name_figures()
        metrics = new_metrics()
        metrics.add_sum("calls_in_flight", "Calls.", lambda: 3)
        for _ in range(times):
            observe(metrics)
        return [
            {
                sample.name: sample.value
                for family in families
                for sample in family.samples
                if sample.labels.get("le", "+Inf") == "+Inf"
            }
            for families in (metrics.own_families(), await metrics.families())
        ]

    await count(2)
    own, page = await count(3)
    for name, one in (
        ("refrain_requests_total", 1),
        ("refrain_request_seconds_bucket", 1),
        ("refrain_request_seconds_count", 1),
        ("refrain_request_seconds_sum", 0.5),
    ):
        assert (own[name], page[name]) == (3 * one, 5 * one), name
    assert own["refrain_calls_in_flight"] == page["refrain_calls_in_flight"] == 3


async def test_the_loop_goes_on_while_the_figures_are_read(monkeypatch):
    metrics, done = new_metrics(), threading.Event()
    counted = metrics._counted

    def wait_for_the_loop():
        assert done.wait(20)
        return counted()

    monkeypatch.setattr(metrics, "_counted", wait_for_the_loop)
    for read in (metrics.families, metrics.page):
        done.clear()
        asyncio.get_running_loop().call_later(0, done.set)
        await read()


class Looks(Collector):
    """Counts the pages that are made."""

    def __init__(self) -> None:
        self.number = 0
        self.under_way = asyncio.Event()

    def collect(self) -> list[Metric]:
        self.number += 1
        self.under_way.set()
        return []


async def test_a_crowd_that_looks_at_once_gets_one_page():
    metrics, looks = new_metrics(), Looks()
    metrics.add(looks)
    before = looks.number
    pages = await asyncio.gather(*[metrics.page() for _ in range(100)])
    assert looks.number == before + 1
    assert len({id(page) for page, _ in pages}) == 1


async def test_a_page_has_all_that_was_counted_before_it_was_asked_for():
    metrics, looks = new_metrics(), Looks()
    metrics.add(looks)
    looks.under_way.clear()
    first = asyncio.create_task(metrics.page())
    await looks.under_way.wait()
    metrics.count("tokens_saved", "late", by=7)
    page, _ = await metrics.page()
    assert b'refrain_tokens_saved_total{by="late"} 7.0' in page
    assert b"late" not in (await first)[0]


async def test_a_scraper_that_leaves_takes_no_page_from_the_others():
    metrics = new_metrics()
    leaves, stays = (asyncio.create_task(metrics.page()) for _ in range(2))
    await asyncio.sleep(0)
    leaves.cancel()
    page, _ = await stays
    assert b"refrain_requests_total" in page
