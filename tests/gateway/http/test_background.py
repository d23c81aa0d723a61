"""Background work of a running gateway that raises: the requests go on, and so does the work."""

import asyncio
import time

import pytest
from host_requests import until

from gateway.background import problems
from gateway.server.hot_path import HotPath
from gateway.server.keys.usage_sync import UsageSync
from gateway.server.open.telemetry import Telemetry
from gateway.server.open.watched_file import WatchedFile
from gateway.telemetry.usage import UsageLedger
from gateway.upstream.pool.watch.probes import Prober

WORK = {
    "watch of the policy": (WatchedFile, "reload", "gateway.app.POLICY_POLL_SECONDS"),
    "sweep of repeated hits": (HotPath, "sweep", "gateway.server.hot_path.SWEEP_SECONDS"),
    "flush of the metrics": (Telemetry, "_flush", "gateway.server.open.telemetry.FLUSH_SECONDS"),
    "sums of usage": (UsageLedger, "flush", "gateway.telemetry.usage.FLUSH_SECONDS"),
    "probes of": (Prober, "_probe_when_due", None),
}


@pytest.mark.parametrize("name", WORK)
async def test_work_that_raises_is_a_problem_and_goes_on(
    start_gateway, upstream, monkeypatch, name
):
    owner, method, seconds = WORK[name]
    real, calls = getattr(owner, method), []

    def fail_once(self, *arguments, **options):
        calls.append(self)
        if len(calls) == 1:
            raise TypeError("a defect")
        return real(self, *arguments, **options)

    if seconds is not None:
        monkeypatch.setattr(seconds, 0.01)
        gateway = await start_gateway()
        monkeypatch.setattr(owner, method, fail_once)
    else:
        monkeypatch.setattr(owner, method, fail_once)
        urls = (f"{upstream.url}/v1", "http://127.0.0.1:1/v1")
        gateway = await start_gateway(upstream=urls)
    await until(lambda: calls)
    async with asyncio.timeout(60):
        while not (told := (await gateway.get("/readyz")).json["background"]):
            pass
    assert told[0].startswith(name)
    assert (await gateway.get("/readyz")).status == 200
    assert (await gateway.ask()).status == 200
    await until(lambda: len(calls) > 1)


async def test_the_exchange_of_the_counts_of_keys_goes_on(monkeypatch):
    usage_sync, calls = UsageSync(None, time.time), []

    async def fail_once(*, near=False):
        calls.append(near)
        if len(calls) == 1:
            raise TypeError("a defect")

    async with usage_sync.lifespan():
        monkeypatch.setattr(usage_sync, "exchange", fail_once)
        usage_sync.touch("shop")
        await until(lambda: any("counts of keys" in problem for problem in problems()))
        await until(lambda: len(calls) > 1)
