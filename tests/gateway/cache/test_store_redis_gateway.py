"""Redis frozen, killed, full and back, under a whole gateway: no request fails for it."""

import asyncio
import logging

import pytest
from redis.asyncio import Redis

from gateway.cache.stores.guarded import LONGEST_PAUSE
from running_redis import RunningRedis

SECONDS = 60


@pytest.fixture
def server(redis_version, tmp_path):
    redis = RunningRedis(tmp_path / "redis")
    redis.start()
    yield redis
    redis.kill()


@pytest.fixture(params=["cold", "hot"])
async def gateway(request, start_gateway, server):
    return await start_gateway(
        store=server.url, memory_bytes=0 if request.param == "cold" else 1 << 20
    )


async def settled(gateway, problem):
    """Wait until the gateway says that of its store."""
    async with asyncio.timeout(SECONDS):
        while (await gateway.get("/readyz")).json["store"]["problem"] != problem:
            pass


async def hit_again(gateway, question):
    """Wait until what was asked before is answered from the store."""
    async with asyncio.timeout(SECONDS):
        while not (await gateway.ask(question)).cache.startswith("refrain; hit"):
            pass


async def burst(gateway, prefix, count=30):
    """Ask many things at once, plain and streamed; all must be answered whole."""
    asked = await asyncio.gather(
        *(gateway.ask(f"{prefix} {n}", stream=bool(n % 2)) for n in range(count))
    )
    assert {reply.status for reply in asked} == {200}
    assert all(reply.text for reply in asked)
    return asked


async def test_while_redis_is_frozen_every_request_is_answered_and_after_it_hits_are_back(
    gateway, server
):
    await gateway.ask("known")
    await hit_again(gateway, "known")
    server.freeze()
    try:
        await burst(gateway, "frozen")
        await settled(gateway, "not answering")
        await burst(gateway, "still frozen")
        assert (await gateway.get("/readyz")).status == 200
    finally:
        server.thaw()
    await settled(gateway, None)
    await hit_again(gateway, "known")
    await gateway.ask("new")
    await hit_again(gateway, "new")


async def test_a_frozen_redis_has_one_line_in_the_log_and_not_one_for_each_stream(
    start_gateway, server, caplog
):
    caplog.set_level(logging.INFO, "gateway")
    gateway = await start_gateway(store=server.url)
    server.freeze()
    try:
        await burst(gateway, "frozen")
    finally:
        server.thaw()
    lines = [record.getMessage() for record in caplog.records]
    assert sum("store: not used until it answers again" in line for line in lines) == 1
    assert not [line for line in lines if "store-fault" in line]


async def test_once_it_is_known_to_be_frozen_nobody_waits_for_it(gateway, server, upstream):
    server.freeze()
    try:
        await gateway.ask("the one that finds out")
        await settled(gateway, "not answering")
        seen = []
        gateway_store = gateway  # asked through HTTP only
        for n in range(20):
            asked = await gateway_store.ask(f"{n}")
            seen.append(asked.cache)
        assert all("fwd=miss" in cache and "stored" not in cache for cache in seen)
    finally:
        server.thaw()


async def test_a_redis_that_was_killed_and_is_back_is_used_again(gateway, server):
    await gateway.ask("known")
    server.kill()
    await burst(gateway, "gone")
    await settled(gateway, "not answering")
    server.start()
    await settled(gateway, None)
    await gateway.ask("known")
    await hit_again(gateway, "known")


async def test_killed_and_restarted_again_and_again_under_load_no_request_fails(gateway, server):
    stop = asyncio.Event()

    async def ask(n):
        count = 0
        while not stop.is_set():
            asked = await gateway.ask(f"{n} {count % 5}", stream=bool(count % 2))
            assert asked.status == 200
            assert asked.text
            count += 1
        return count

    asking = [asyncio.create_task(ask(n)) for n in range(4)]
    for _ in range(3):
        await hit_again(gateway, "known")
        server.kill()
        await settled(gateway, "not answering")
        await asyncio.to_thread(server.start)
        await settled(gateway, None)
    stop.set()
    assert min(await asyncio.gather(*asking)) > 3


async def test_a_redis_that_is_full_of_other_things_costs_only_the_hits_and_is_a_problem(
    gateway, server
):
    async with Redis.from_url(server.url) as redis:
        await gateway.ask("known")
        await redis.config_set("maxmemory", 1)
        await burst(gateway, "full")
        await settled(gateway, "refuses writes")
        assert "(OOM)" in (await gateway.get("/readyz")).json["store"]["why"]
        await redis.config_set("maxmemory", 0)
        await gateway.ask("new")
        await settled(gateway, None)
        await hit_again(gateway, "new")


REFUSALS = {
    "NOREPLICAS": ("CONFIG SET min-replicas-to-write 1", "CONFIG SET min-replicas-to-write 0"),
    "READONLY": ("REPLICAOF 127.0.0.1 1", "REPLICAOF NO ONE"),
}


@pytest.mark.parametrize(("code", "commands"), REFUSALS.items(), ids=REFUSALS)
async def test_a_redis_that_refuses_writes_is_read_and_says_so_once_until_it_takes_them(
    gateway, server, caplog, code, commands
):
    caplog.set_level(logging.INFO, "gateway")
    refuse, accept = commands
    async with Redis.from_url(server.url) as redis:
        await gateway.ask("known")
        await hit_again(gateway, "known")
        await redis.execute_command(*refuse.split())
        asked = await burst(gateway, code)
        assert not any("stored" in reply.cache for reply in asked)
        await settled(gateway, "refuses writes")
        ready = await gateway.get("/readyz")
        assert ready.status == 200
        assert f"({code})" in ready.json["store"]["why"]
        await hit_again(gateway, "known")
        await redis.execute_command(*accept.split())
        await gateway.ask("new")
        await settled(gateway, None)
        await hit_again(gateway, "new")
    told = [line for line in caplog.messages if line.startswith("store: it refuses to store")]
    assert len(told) == 1


class MovingName:
    """An address that leads to one server, and later to another: old connections stay."""

    def __init__(self, target):
        self.target = target
        self._pipes = set()

    async def __aenter__(self):
        self._server = await asyncio.start_server(self._join, "127.0.0.1", 0)
        self.url = f"redis://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_):
        self._server.close()
        for pipe in self._pipes:
            pipe.cancel()
        await asyncio.gather(*self._pipes, return_exceptions=True)

    async def _join(self, reader, writer):
        there, to = await asyncio.open_connection("127.0.0.1", self.target.port)
        for source, sink in ((reader, to), (there, writer)):
            self._pipes.add(asyncio.create_task(self._copy(source, sink)))

    async def _copy(self, source, sink):
        try:
            while data := await source.read(65536):
                sink.write(data)
        finally:
            sink.close()


async def test_after_a_failover_behind_the_same_name_the_new_primary_gets_the_writes(
    start_gateway, server, tmp_path
):
    other = RunningRedis(tmp_path / "other")
    other.start()
    try:
        async with MovingName(server) as name, Redis.from_url(server.url) as old:
            gateway = await start_gateway(store=name.url)
            await burst(gateway, "before")
            name.target = other
            await old.execute_command("REPLICAOF", "127.0.0.1", other.port)
            await burst(gateway, "meanwhile")
            await settled(gateway, None)
            await gateway.ask("after")
            await hit_again(gateway, "after")
    finally:
        other.kill()


def test_recovery_is_used_within_five_seconds_by_the_breakers_own_times():
    probe_that_fails, probe_that_succeeds = 0.05, 0.05
    assert LONGEST_PAUSE + probe_that_fails + probe_that_succeeds < 5


async def test_a_full_redis_that_takes_one_answer_in_the_place_of_another_is_a_problem_too(
    gateway, server, caplog
):
    caplog.set_level(logging.INFO, "gateway")
    async with Redis.from_url(server.url) as redis:
        for n in range(20):
            await gateway.ask(f"before {n}")
        await redis.config_set("maxmemory", 1)
        for n in range(5):
            await gateway.ask(f"full {n}")
        store = (await gateway.get("/readyz")).json["store"]
        assert (store["problem"], "(OOM)" in store["why"]) == ("refuses writes", True)
        await redis.config_set("maxmemory", 0)
        await gateway.ask("new")
        await settled(gateway, None)
    assert len([line for line in caplog.messages if line.startswith("store: it refuses")]) == 1
