"""Replicas that come and go while requests are under way: none of the requests is lost."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from dns_server import DnsServer, dns_server

from gateway.cache.ports import StoreStats
from gateway.server.open.upstreams import open_upstreams
from gateway.settings import Settings
from gateway.telemetry.metrics import Metrics
from gateway.upstream.pool.watch import discovery
from gateway.upstream.pool.watch.discovery import Address
from gateway.upstream.pool.watch.probes import log_upstream
from gateway.upstream.wire.http_client import HttpUpstream
from running_gateway import RunningGateway, StartGateway
from scripted_upstream import DONE, ScriptedUpstream, answer_by_default, chunk

HOST = "llm.test"
SECONDS = 20.0


class Replica(ScriptedUpstream):
    """A model server at an address of its own; ``ready`` and ``metrics`` are what it says."""

    def __init__(self, host: str, port: int) -> None:
        super().__init__(self.reply)
        self.host, self.port = host, port
        self.ready = True
        self.metrics: bytes | None = None
        self.probed, self.read = asyncio.Event(), asyncio.Event()
        self.held: asyncio.Event | None = None

    async def reply(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        if self.held is None:
            return await answer_by_default(request, body)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(chunk(delta={"role": "assistant", "content": "one"}))
        await self.held.wait()
        await response.write(chunk(delta={"content": " two"}, finish_reason="stop") + DONE)
        return response

    async def readyz(self, _request: web.Request) -> web.Response:
        self.probed.set()
        return web.json_response({"reasons": []}, status=200 if self.ready else 503)

    async def models(self, _request: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": "m", "object": "model"}]})

    async def page(self, _request: web.Request) -> web.Response:
        self.read.set()
        if self.metrics is None:
            return web.Response(status=404)
        return web.Response(body=self.metrics)


Start = Callable[..., Any]


@pytest.fixture
async def start_replica() -> AsyncIterator[Start]:
    runners = []

    async def start(host: str = "127.0.0.1", port: int = 0) -> Replica:
        replica = Replica(host, port)
        app = web.Application()
        app.router.add_post("/v1/chat/completions", replica.handle)
        app.router.add_get("/readyz", replica.readyz)
        app.router.add_get("/v1/models", replica.models)
        app.router.add_get("/metrics", replica.page)
        runner = web.AppRunner(app, shutdown_timeout=1.0)
        await runner.setup()
        runners.append(runner)
        await web.TCPSite(runner, host, port).start()
        replica.port = runner.addresses[0][1]
        return replica

    yield start
    for runner in runners:
        await runner.cleanup()


@pytest.fixture
async def dns() -> AsyncIterator[DnsServer]:
    async with dns_server() as server:
        yield server


async def until(gateway: RunningGateway, told: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """Return what /readyz says once it is so."""
    async with asyncio.timeout(SECONDS):
        while not told(page := (await gateway.get("/readyz")).json):
            pass
    return page


def states(page: dict[str, Any]) -> dict[str, str]:
    return {name.partition("#")[2]: one["state"] for name, one in page["upstreams"].items()}


def write(file: Path, *replicas: Replica) -> None:
    file.write_text("".join(f"{one.host}:{one.port}\n" for one in replicas))


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(discovery, "FILE_SECONDS", 0.02)
    return tmp_path / "replicas.txt"


def by_file(file: Path, **changes: Any) -> dict[str, Any]:
    one = {"name": "gpu", "url": "http://gpu/v1", "discover": {"file": file}, **changes}
    return {"upstream": (), "upstreams": (one,), "upstream_routing": "load"}


def by_dns(dns: DnsServer, url: str, discover: str, **changes: Any) -> dict[str, Any]:
    one = {"name": "gpu", "url": url, "discover": discover, **changes}
    return {"upstream": (), "upstreams": (one,), "dns_server": dns.address}


async def test_each_address_of_a_name_is_a_replica(
    start_gateway: StartGateway, start_replica: Start, dns: DnsServer
):
    first = await start_replica("127.0.0.1")
    second = await start_replica("127.0.0.2", first.port)
    dns.set(HOST, "A", "127.0.0.1")
    url = f"http://{HOST}:{first.port}/v1"
    gateway = await start_gateway(**by_dns(dns, url, "dns"))
    reply = await gateway.ask("one")
    assert reply.headers["X-Refrain-Upstream"] == f"gpu#127.0.0.1:{first.port}"
    assert first.requests[-1].headers["Host"] == f"{HOST}:{first.port}"
    dns.set(HOST, "A", "127.0.0.2")
    await until(gateway, lambda page: states(page) == {f"127.0.0.2:{first.port}": "up"})
    assert (await gateway.ask("one")).cache.startswith("refrain; hit")
    assert (await gateway.ask("two")).status == 200
    assert (first.calls, second.calls) == (1, 1)


async def test_each_srv_record_is_a_replica(
    start_gateway: StartGateway, start_replica: Start, dns: DnsServer
):
    near, far = await start_replica(), await start_replica()
    records = f"0 0 {near.port} localhost.", f"1 0 {far.port} localhost."
    dns.set(HOST, "SRV", *records)
    gateway = await start_gateway(**by_dns(dns, f"http://{HOST}/v1", "srv"))
    assert [(await gateway.ask(str(number))).status for number in range(3)] == [200] * 3
    assert (near.calls, far.calls) == (3, 0)
    dns.set(HOST, "SRV", records[1])
    await until(gateway, lambda page: [*states(page)] == [f"localhost:{far.port}"])
    assert (await gateway.ask("more")).status == 200
    assert far.calls == 1


async def test_a_stream_outlives_its_replicas_place_in_the_list(
    start_gateway: StartGateway, start_replica: Start, file: Path
):
    old, new = await start_replica(), await start_replica()
    write(file, old)
    gateway = await start_gateway(**by_file(file))
    old.held = asyncio.Event()
    running = asyncio.create_task(gateway.ask("long", stream=True))
    await old.arrived.wait()
    write(file, new)
    await until(gateway, lambda page: states(page).get(f"127.0.0.1:{old.port}") == "draining")
    replies = await asyncio.gather(*(gateway.ask(str(number)) for number in range(8)))
    assert [reply.status for reply in replies] == [200] * 8
    assert (old.calls, new.calls) == (1, 8)
    old.held.set()
    assert (await running).text == "one two"
    await until(gateway, lambda page: [*states(page)] == [f"127.0.0.1:{new.port}"])


async def test_a_replica_that_comes_back_while_it_drains_gets_requests_again(
    start_gateway: StartGateway, start_replica: Start, file: Path
):
    one, other = await start_replica(), await start_replica()
    write(file, one)
    gateway = await start_gateway(**by_file(file))
    one.held = asyncio.Event()
    running = asyncio.create_task(gateway.ask("long", stream=True))
    await one.arrived.wait()
    write(file, other)
    await until(gateway, lambda page: "draining" in states(page).values())
    write(file, one, other)
    await until(gateway, lambda page: [*states(page).values()] == ["up", "up"])
    one.held.set()
    assert (await running).text == "one two"
    one.held = None
    write(file, one)
    await until(gateway, lambda page: [*states(page)] == [f"127.0.0.1:{one.port}"])
    assert (await gateway.ask("more")).status == 200
    assert one.calls == 2


async def test_a_replica_that_is_not_ready_gets_no_request_until_it_is(
    start_gateway: StartGateway, start_replica: Start, file: Path
):
    old, new = await start_replica(), await start_replica()
    new.ready = False
    write(file, old)
    gateway = await start_gateway(**by_file(file))
    write(file, old, new)
    await asyncio.wait_for(new.probed.wait(), SECONDS)
    page = await until(gateway, lambda page: len(page["upstreams"]) == 2)
    assert states(page)[f"127.0.0.1:{new.port}"] == "open"
    assert [(await gateway.ask(str(number))).status for number in range(6)] == [200] * 6
    assert new.calls == 0
    new.ready = True
    await until(gateway, lambda page: states(page)[f"127.0.0.1:{new.port}"] == "trial")
    replies = await asyncio.gather(*(gateway.ask(f"more {number}") for number in range(6)))
    assert [reply.status for reply in replies] == [200] * 6
    assert new.calls > 0


async def test_no_request_is_lost_while_the_list_changes_again_and_again(
    start_gateway: StartGateway, start_replica: Start, file: Path
):
    replicas = [await start_replica() for _ in range(3)]
    write(file, *replicas)
    gateway = await start_gateway(**by_file(file))
    stop, statuses = asyncio.Event(), []

    async def ask(client: int) -> None:
        number = 0
        while not stop.is_set():
            reply = await gateway.ask(f"{client}.{number}", stream=bool(number % 2))
            statuses.append(reply.status)
            number += 1

    clients = [asyncio.create_task(ask(client)) for client in range(8)]
    for turn in range(9):
        kept = [replicas[turn % 3], replicas[(turn + turn // 3) % 3]]
        write(file, *kept)
        names = {f"127.0.0.1:{one.port}" for one in kept}

        def settled(page: dict[str, Any], names: set[str] = names) -> bool:
            return set(states(page)) == names and "open" not in states(page).values()

        await until(gateway, settled)
    stop.set()
    await asyncio.gather(*clients)
    assert set(statuses) == {200}
    assert len(statuses) > 50


async def test_a_list_with_a_replica_that_cannot_be_made_changes_nothing(
    start_replica: Start, file: Path, monkeypatch: pytest.MonkeyPatch
):
    replicas = [await start_replica() for _ in range(3)]
    write(file, replicas[0])
    upstreams = open_upstreams(
        Settings(**by_file(file)),
        {},
        own_keys=False,
        required=False,
        metrics=Metrics(lambda: StoreStats(0, 0, 0)),
    )
    async with upstreams.lifespan():
        membership = upstreams.membership
        assert membership is not None
        [found] = membership.discovered
        names = [f"gpu#127.0.0.1:{one.port}" for one in replicas]
        addresses = [Address(one.host, one.port) for one in replicas]

        def make(name: str, address: Address) -> HttpUpstream:
            if name == names[2]:
                raise ValueError("no such host")
            return found.make(name, address)

        table = membership.pool.table
        with pytest.raises(ValueError, match="no such host"):
            await membership.apply(replace(found, make=make), addresses[1:])
        assert [*membership.upstreams] == [*table.upstreams] == names[:1]
        assert not table.upstreams[names[0]].draining
        await membership.apply(found, addresses[1:])
        assert {*table.upstreams} == {*names}
        assert table.upstreams[names[0]].draining


async def test_a_replica_that_appears_and_leaves_at_once_leaves_nothing_behind(
    start_gateway: StartGateway,
    start_replica: Start,
    dns: DnsServer,
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(discovery, "SHORTEST_TTL", 0.01)
    kept = await start_replica()
    dns.set(HOST, "SRV", f"0 0 {kept.port} localhost.", ttl=0)
    gateway = await start_gateway(**by_dns(dns, f"http://{HOST}/v1", "srv"))
    for port in range(1, 6):  # nothing listens there
        dns.set(HOST, "SRV", f"0 0 {kept.port} localhost.", f"0 0 {port} localhost.", ttl=0)
        await until(gateway, lambda page: len(page["upstreams"]) == 2)
        dns.set(HOST, "SRV", f"0 0 {kept.port} localhost.", ttl=0)
        await until(gateway, lambda page: len(page["upstreams"]) == 1)
    assert (await gateway.ask("still here")).status == 200


async def test_a_name_that_does_not_exist_makes_not_ready_until_it_does(
    start_gateway: StartGateway,
    start_replica: Start,
    dns: DnsServer,
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(discovery, "RETRY_SECONDS", 0.02)
    replica = await start_replica()
    gateway = await start_gateway(**by_dns(dns, f"http://{HOST}:{replica.port}/v1", "dns"))
    reply = await gateway.get("/readyz")
    assert reply.status == 503
    assert reply.json["discovery"]["gpu"]["replicas"] == 0
    assert "the name llm.test does not exist" in reply.json["discovery"]["gpu"]["problem"]
    assert (
        'refrain_upstream_discovery_failing{upstream="gpu"} 1.0'
        in (await gateway.get("/metrics")).raw.decode()
    )
    refused = await gateway.ask("too early")
    assert (refused.status, "Retry-After" in refused.headers) == (503, True)
    for path in ("/v1/models", "/v1/files/f-1"):
        assert (await gateway.get(path)).status == 503
    dns.set(HOST, "A", "127.0.0.1")
    await until(gateway, lambda page: page["discovery"]["gpu"] == {"replicas": 1, "problem": None})
    assert (await gateway.ask("now")).status == 200
    assert (await gateway.get("/readyz")).status == 200


async def test_a_declared_model_goes_to_no_other_upstream_while_its_replicas_are_not_known(
    start_gateway: StartGateway, start_replica: Start, dns: DnsServer
):
    other = await start_replica()
    settings = by_dns(dns, f"http://{HOST}:1/v1", "dns", models=["qwen*"], rename={"fast": "qwen"})
    second = {"name": "b", "url": f"http://127.0.0.1:{other.port}/v1", "models": ["gpt*"]}
    settings["upstreams"] = (*settings["upstreams"], second)
    gateway = await start_gateway(**settings)
    for model, status in (("qwen-3", 503), ("fast", 503), ("gpt-4", 200), ("llama", 404)):
        assert (await gateway.ask("hi", model=model)).status == status
    assert [body["model"] for body in other.bodies] == ["gpt-4"]


async def test_errors_to_clients_name_no_address(start_gateway: StartGateway, file: Path):
    write(file, Replica("127.0.0.1", 1))
    gateway = await start_gateway(**by_file(file))
    reply = await gateway.ask("hi")
    assert reply.status in (502, 503)
    assert reply.headers["X-Refrain-Upstream"].startswith('tried="gpu=upstream-unreachable')
    assert "127.0.0.1" not in reply.raw.decode() + str(reply.headers)


async def test_the_log_has_a_line_for_each_change_and_how_a_new_replica_answers(
    start_replica: Start,
    file: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
):
    greeted = asyncio.Event()

    async def greet(upstream: HttpUpstream) -> None:
        await log_upstream(upstream)
        greeted.set()

    monkeypatch.setattr("gateway.server.open.upstreams.log_upstream", greet)
    caplog.set_level(logging.INFO)
    one, two = await start_replica(), await start_replica()
    write(file, one)
    upstreams = open_upstreams(
        Settings(**by_file(file)),
        {},
        own_keys=False,
        required=False,
        metrics=Metrics(lambda: StoreStats(0, 0, 0)),
    )
    async with upstreams.lifespan():
        await upstreams.greet()
        assert f"upstream http://127.0.0.1:{one.port}/v1 answers, 1 model" in caplog.messages
        write(file, two)
        await asyncio.wait_for(greeted.wait(), SECONDS)
        assert f"upstream http://127.0.0.1:{two.port}/v1 answers, 1 model" in caplog.messages
    joined, left = f"joined: 127.0.0.1:{two.port}", f"left: 127.0.0.1:{one.port}"
    assert f"upstream gpu: 1 replicas; joined: 127.0.0.1:{one.port}" in caplog.messages
    assert f"upstream gpu: 1 replicas; {joined}; {left}" in caplog.messages


VLLM = """# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{{engine="0",model_name="m"}} {running}
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{{engine="0",model_name="m"}} {waiting}
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{{engine="0",model_name="m"}} {kv}
"""


@pytest.mark.parametrize("figures", [(9, 3, 0.4), (0, 0, 0.99)])
@pytest.mark.parametrize("routing", ["load", "prefix"])
async def test_a_replica_that_says_it_is_busy_gets_no_request_while_another_has_room(
    start_gateway: StartGateway,
    start_replica: Start,
    file: Path,
    figures: tuple[int, int, float],
    routing: str,
):
    busy, idle = await start_replica(), await start_replica()
    running, waiting, kv = figures
    busy.metrics = VLLM.format(running=running, waiting=waiting, kv=kv).encode()
    idle.metrics = VLLM.format(running=0, waiting=0, kv=0).encode()
    write(file, busy, idle)
    settings = by_file(file, load_signal=True) | {"upstream_routing": routing}
    gateway = await start_gateway(**settings)
    async with asyncio.timeout(SECONDS):
        for replica in (busy, idle):
            sample = f'refrain_upstream_kv_use_ratio{{upstream="gpu#127.0.0.1:{replica.port}"}}'
            while sample not in (await gateway.get("/metrics")).raw.decode():
                pass
    assert [(await gateway.ask(str(number))).status for number in range(6)] == [200] * 6
    assert (busy.calls, idle.calls) == (0, 6)


async def test_a_server_without_figures_is_told_once_and_gets_requests(
    start_gateway: StartGateway,
    start_replica: Start,
    file: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr("gateway.upstream.pool.watch.probes.LOAD_SECONDS", 0.01)
    replica = await start_replica()
    write(file, replica)
    gateway = await start_gateway(**by_file(file, load_signal=True))
    for _ in range(3):
        replica.read.clear()
        await asyncio.wait_for(replica.read.wait(), SECONDS)
    assert (await gateway.ask("hi")).status == 200
    lines = [line.getMessage() for line in caplog.records if "/metrics" in line.getMessage()]
    assert len(lines) == 1
    assert "does not tell its load (status 404)" in lines[0]


async def test_nobody_is_asked_for_figures_unless_it_is_on(
    start_gateway: StartGateway, start_replica: Start, file: Path
):
    replica = await start_replica()
    write(file, replica)
    gateway = await start_gateway(**by_file(file))
    assert (await gateway.ask("hi")).status == 200
    assert not replica.read.is_set()
