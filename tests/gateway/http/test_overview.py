"""The overview that the operator's page polls."""

import asyncio
import contextlib
import importlib.metadata
import itertools
from types import SimpleNamespace

import pytest
from aiohttp import web

from gateway.server.admin.overview import HISTORY_SECONDS, Overview, kind_of
from running_gateway import start_app

VLLM = """
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{model_name="a"} 5
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{model_name="a"} 3
vllm:num_requests_waiting{model_name="b"} 1
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{model_name="a"} 0.25
vllm:kv_cache_usage_perc{model_name="b"} 0.75
"""


async def overview(gateway):
    reply = await gateway.get("/admin/overview")
    assert reply.status == 200, reply.raw
    return reply.json


async def test_requests_are_counted_by_kind_and_rule(gateway):
    await gateway.ask("Where is my parcel?")
    for _ in range(2):
        await gateway.ask("Where is my parcel?")
    await gateway.ask("Where is my parcel?", headers={"Cache-Control": "no-store"})
    await gateway.post("/v1/chat/completions", b"{}")
    await gateway.settle()
    found = await overview(gateway)
    assert found["requests"] == {"miss": 1, "exact": 2, "bypass": 1, "refused": 1}
    assert found["rules"]["default"] == {"miss": 1, "exact": 2, "bypass": 1}
    assert found["errors"] == {"invalid-request": 1}
    assert found["saved"]["exact"]["tokens"] == 20
    assert found["store"]["entries"] == 1
    for outcome, number in (("hit", 2), ("miss", 1)):
        bounds, counts = zip(*found["ttft"][outcome], strict=True)
        assert bounds[-1] is None
        assert counts[-1] == number
        assert list(counts) == sorted(counts)
    assert found["ready"]["status"] == "ready"
    assert found["calls"] == 0
    assert found["version"] == importlib.metadata.version("refrain-gateway")
    assert 0 < found["started"] <= found["time"]


async def test_all_pages_share_one_look(gateway, monkeypatch):
    first = await overview(gateway)
    assert await overview(gateway) == first
    monkeypatch.setattr("gateway.server.admin.overview.SHARED_SECONDS", 0.0)
    assert (await overview(gateway))["time"] > first["time"]


async def test_an_engine_s_queue_and_memory_are_in_it(start_gateway):
    app = web.Application()

    async def metrics(_request):
        return web.Response(text=VLLM)

    app.router.add_get("/metrics", metrics)
    runner, url = await start_app(app)
    gateway = await start_gateway(upstream=(f"{url}/v1",))
    [figures] = (await overview(gateway))["engines"].values()
    assert figures == {"running": 5, "waiting": 4, "kv_use": 0.75}
    await runner.cleanup()


async def test_figures_that_routing_has_are_not_asked_for_again(start_gateway, monkeypatch):
    monkeypatch.setattr("gateway.upstream.pool.watch.probes.LOAD_SECONDS", 3600.0)
    monkeypatch.setattr("gateway.upstream.pool.watch.engine_load.STALE_SECONDS", 3600.0)
    app, reads = web.Application(), []

    async def metrics(request):
        reads.append(request.path)
        return web.Response(text=VLLM)

    app.router.add_get("/{name}/metrics", metrics)
    runner, url = await start_app(app)
    upstreams = [{"name": name, "url": f"{url}/{name}", "load_signal": True} for name in "ab"]
    gateway = await start_gateway(upstream=(), upstreams=upstreams)
    async with asyncio.timeout(30):
        for name in "ab":
            sample = f'refrain_upstream_kv_use_ratio{{upstream="{name}"}}'
            while sample not in (await gateway.get("/metrics")).raw.decode():
                pass
    figures = {"running": 5, "waiting": 4, "kv_use": 0.75}
    assert (await overview(gateway))["engines"] == {"a": figures, "b": figures}
    assert sorted(reads) == ["/a/metrics", "/b/metrics"]
    await runner.cleanup()


async def test_an_upstream_without_such_figures_is_left_alone(gateway, upstream, monkeypatch):
    monkeypatch.setattr("gateway.server.admin.overview.SHARED_SECONDS", 0.0)
    for _ in range(3):
        assert (await overview(gateway))["engines"] == {}
    assert [each.path for each in upstream.requests].count("/metrics") == 1


class Engine:
    """An upstream whose page of metrics is read while ``on_read`` runs."""

    def __init__(self, running, on_read=lambda: None):
        self.page = f"vllm:num_requests_running {running}\nvllm:num_requests_waiting 0\n"
        self.on_read = on_read

    @contextlib.asynccontextmanager
    async def request(self, *_):
        parts = [self.page.encode(), b""]

        async def read():
            self.on_read()
            return parts.pop(0)

        yield SimpleNamespace(status=200, read=read)


class Ready:
    def __init__(self, **found):
        self.found = found

    async def report(self):
        return self.found


async def nothing(*_):
    return []


def look_at(upstreams, clock=lambda: 0.0, **changes):
    parts = {
        "families": nothing,
        "readiness": Ready().report,
        "check_store": nothing,
        "rules": dict,
        "load": lambda _name: None,
        "events": nothing,
        "now": float,
    }
    return Overview(upstreams=upstreams, clock=clock, **(parts | changes))


@pytest.mark.parametrize("leaving", [(), ("a",), ("b",), ("a", "b")])
async def test_replicas_come_and_go_during_a_look(leaving):
    def change():
        upstreams["c"] = Engine(3)
        for name in leaving:
            upstreams.pop(name, None)

    upstreams = {"a": Engine(1, change), "b": Engine(2)}
    page = await look_at(upstreams).page()
    assert {name: each["running"] for name, each in page["engines"].items()} == {"a": 1, "b": 2}
    assert page["upstreams"] == ["a", "b"]


async def test_the_pause_of_a_replica_that_left_is_forgotten():
    reads, times = [], itertools.count(step=2.0)
    silent = Engine("no number", lambda: reads.append(1))
    upstreams = {"a": silent}
    overview = look_at(upstreams, lambda: next(times))
    for _ in range(2):
        assert (await overview.page())["engines"] == {}
    once = len(reads)
    del upstreams["a"]
    await overview.page()
    upstreams["a"] = silent
    await overview.page()
    assert len(reads) == 2 * once


async def test_the_page_opens_with_what_was_sampled_before(start_gateway, monkeypatch):
    monkeypatch.setattr("gateway.server.admin.overview.EVERY_SECONDS", 0.01)
    gateway = await start_gateway()
    await gateway.ask("Where is my parcel?")
    async with asyncio.timeout(30):
        samples = []
        while not samples or not samples[-1]["requests"]:
            samples = (await gateway.get("/admin/overview/history")).json["samples"]
    last = samples[-1]
    assert last["requests"] == {"miss": 1}
    assert {"saved", "ttft", "calls", "waiting", "engines"} < set(last)
    times = [each["time"] for each in samples]
    assert times == sorted(times)


async def test_the_history_is_bounded_and_goes_on_after_a_fault(monkeypatch, caplog):
    reads, enough = itertools.count(1), asyncio.Event()

    async def families():
        if (number := next(reads)) == 3:
            raise OSError("disk full")
        if number == 200:
            enough.set()
        return []

    overview = look_at({"a": Engine(1)}, families=families)
    monkeypatch.setattr("gateway.server.admin.overview.EVERY_SECONDS", 0)
    watching = asyncio.create_task(overview.watch())
    async with asyncio.timeout(30):
        await enough.wait()
    watching.cancel()
    assert len((await overview.history())["samples"]) == HISTORY_SECONDS / 5
    assert "could not be taken" in caplog.text


async def test_a_worker_that_takes_the_place_of_another_has_its_history(monkeypatch, tmp_path):
    async def families():
        return []

    kept = tmp_path / "history.json"
    now = itertools.count(1000.0)
    before = look_at({}, families=families, kept=kept, now=lambda: next(now))
    monkeypatch.setattr("gateway.server.admin.overview.EVERY_SECONDS", 1e-6)
    watching = asyncio.create_task(before.watch())
    async with asyncio.timeout(30):
        while len((await before.history())["samples"]) < 3:
            pass
    watching.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await watching
    sampled = (await before.history())["samples"]
    last = sampled[-1]["time"]
    after = look_at({}, families=families, kept=kept, now=lambda: last + 1)
    assert await after.history() == {"samples": sampled}
    late = look_at({}, families=families, kept=kept, now=lambda: last + HISTORY_SECONDS)
    assert await late.history() == {"samples": []}
    for damaged in (b"{", b"[1]", b'[{"time": "x"}]', b"{}", b"null"):
        kept.write_bytes(damaged)
        assert await after.history() == {"samples": []}


async def test_without_the_page_there_is_no_history():
    overview = look_at({}, keeps_history=False)
    await overview.watch()
    assert await overview.history() == {"samples": []}


DOWN, UP = {"event": "store", "level": "warning"}, {"event": "store", "level": "info"}
OTHER = {"event": "policy", "level": "info"}


@pytest.mark.parametrize(
    ("events", "since"),
    [
        ([], 100.0),
        ([DOWN | {"time": 100.0}, OTHER | {"time": 95.0}, DOWN | {"time": 90.0}], 90.0),
        ([DOWN | {"time": 90.0}, UP | {"time": 80.0}, DOWN | {"time": 70.0}], 90.0),
        ([UP | {"time": 80.0}, DOWN | {"time": 70.0}], 100.0),
    ],
)
async def test_a_store_is_down_since_the_first_worker_found_out(events, since):
    async def listed():
        return events

    store = {"kind": "redis", "problem": "not answering", "since": 100.0, "why": "gone"}
    overview = look_at({}, events=listed, readiness=Ready(store=store).report)
    page = await overview.page()
    assert page["ready"]["store"] == store | {"since": since}
    assert page["events"] == events[:5]


async def test_events_that_cannot_be_read_leave_the_other_figures(gateway, caplog):
    (gateway.data_dir / "events.jsonl").mkdir()
    assert (await overview(gateway))["events"] == []
    reply = await gateway.get("/admin/events")
    assert (reply.status, reply.json["error"]["message"]) == (
        500,
        "A file in the data directory cannot be read.",
    )


async def test_what_an_operator_does_is_among_the_events(gateway):
    await gateway.ask("Where is my parcel?")
    await gateway.settle()
    await gateway.post("/admin/purge", b'{"all": true, "dry_run": false}')
    [event] = (await gateway.get("/admin/events")).json["events"]
    assert event["text"] == "an operator purged entries (all True, entries: 1)"
    assert event["event"] == "operator"


@pytest.mark.parametrize(
    ("outcome", "reason", "kind"),
    [
        ("hit", "stale-while-revalidate", "stale"),
        ("miss", "collapsed", "shared"),
        ("miss", "no-cache", "miss"),
        ("pass", "", "bypass"),
        ("refused", "only-if-cached", "refused"),
        ("error", "client-gone", "left"),
        ("error", "client-timeout", "left"),
        ("error", "upstream-timeout", "error"),
        ("refresh", "", None),
        ("sample", "", None),
    ],
)
def test_kinds(outcome, reason, kind):
    assert kind_of(outcome, reason) == kind
