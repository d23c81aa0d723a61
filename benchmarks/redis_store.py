"""Entries in Redis: a hot hit beside the memory store, a cold one beside a bare GET, round trips.

The server is real, on loopback. First the stores themselves, in this process: what a lookup takes
alone, and with 32 waiting at any time; the floor is redis-py's own ``get`` of the same bytes on the
same kind of client, without decoding an entry. Then exact hits through whole gateways, one
connection and 32, servers on core 0 and wrk on the last. They ask in other bytes each time, since
the same bytes are answered without the store. Rounds alternate; medians are of rounds.

    python benchmarks/redis_store.py [--rounds N] [--seconds S]
"""

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from pathlib import Path

import uvloop
from load import OTHER_BYTES, Client, post, question, run_wrk
from servers import (
    CLIENT_CORE,
    EXACT_ONLY,
    Server,
    processor_seconds,
    start_gateway,
    start_upstream,
)

from gateway.cache.stores.entry_codec import encode_entry
from gateway.cache.stores.memory import MemoryStore
from gateway.cache.stores.redis.link import client, client_options
from gateway.cache.stores.redis.store import RedisStore
from gateway.cache.stores.tiered import TieredStore

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests" / "support"))
from gateway.cache.stores.conformance import example_entry
from running_redis import RunningRedis

KEY = bytes(range(32))
ENTRY = example_entry(KEY, b"x" * 2048)
GETS = 2000

Get = Callable[[], Awaitable[object]]


async def timed(get: Get, count: int, tasks: int) -> float:
    """Return microseconds a lookup: the median where one waits, else of all, by their number."""

    async def some() -> list[float]:
        samples = []
        for _ in range(count // tasks):
            before = time.perf_counter()
            await get()
            samples.append(time.perf_counter() - before)
        return samples

    started = time.perf_counter()
    samples = [s for part in await asyncio.gather(*(some() for _ in range(tasks))) for s in part]
    if tasks > 1:
        return 1e6 * (time.perf_counter() - started) / len(samples)
    return 1e6 * statistics.median(samples)


async def stores(url: str, rounds: int) -> dict[str, float]:
    """Measure lookups in the stores themselves."""
    memory = MemoryStore(max_bytes=1 << 24)
    redis = RedisStore(url, max_bytes=1 << 24)
    hot = TieredStore(MemoryStore(max_bytes=1 << 24), redis, redis.touch, redis.invalidations)
    bare = client(client_options(url, 1.0) | {"max_connections": 64})
    await memory.put(ENTRY)
    await hot.get(KEY)
    await redis.invalidations.proven.wait()
    await hot.put(ENTRY)
    await bare.set("bare", encode_entry(ENTRY))
    gets: dict[str, tuple[Get, int]] = {
        "memory": (lambda: memory.get(KEY), 20 * GETS),
        "hot": (lambda: hot.get(KEY), 20 * GETS),
        "cold": (lambda: redis.get(KEY), GETS),
        "bare_get": (lambda: bare.get("bare"), GETS),
    }
    samples: dict[str, list[float]] = {}
    for _ in range(rounds):
        for name, (get, count) in gets.items():
            samples.setdefault(f"{name}_us", []).append(await timed(get, count, 1))
            if name in ("cold", "bare_get"):
                samples.setdefault(f"{name}_32_us", []).append(await timed(get, count, 32))
    await bare.config_resetstat()
    for _ in range(100):
        await redis.get(KEY)
    figures = await bare.info("commandstats")
    lookups = sum(figures.get(f"cmdstat_{name}", {"calls": 0})["calls"] for name in ("mget", "get"))
    found = {name: statistics.median(values) for name, values in samples.items()}
    found["round_trips_a_cold_hit"] = lookups / 100
    await hot.close()
    await bare.aclose()
    return found


def gateways(url: str, rounds: int, seconds: float) -> dict[str, float]:
    """Measure exact hits through gateways that differ in their store alone."""
    kinds: dict[str, dict[str, object]] = {
        "memory": {"store": "memory"},
        "disk": {"store": "disk"},
        "hot": {"store": f"{url}/1"},
        "cold": {"store": f"{url}/2", "memory_bytes": 0},
    }
    rates: dict[str, list[float]] = {name: [] for name in kinds}
    alone: dict[str, list[float]] = {name: [] for name in kinds}
    work: dict[str, list[float]] = {name: [] for name in kinds}
    with ExitStack() as stack:
        upstream = start_upstream(stack)
        servers: dict[str, Server] = {}
        for name, changes in kinds.items():
            servers[name] = start_gateway(stack, upstream, policy=EXACT_ONLY, settings=changes)
            with Client(servers[name].port) as client:
                client.ask(post(question()))
                if "; hit" not in client.ask(post(question())).cache_status:
                    raise SystemExit(f"the gateway with {name} does not hit")
        for _ in range(rounds):
            for name, server in servers.items():
                before = processor_seconds(server.process)
                loaded, single = (
                    run_wrk(
                        server.port,
                        question(),
                        core=CLIENT_CORE,
                        connections=connections,
                        seconds=seconds,
                        vary=OTHER_BYTES,
                    )
                    for connections in (32, 1)
                )
                used = processor_seconds(server.process) - before
                work[name].append(1e6 * used / (loaded.requests + single.requests))
                rates[name].append(1e6 / loaded.rate)
                alone[name].append(1e6 * single.p50)
    figures = {f"hit_{name}_us": statistics.median(values) for name, values in rates.items()}
    figures |= {f"hit_{name}_alone_us": statistics.median(v) for name, v in alone.items()}
    figures |= {f"hit_{name}_cpu_us": statistics.median(v) for name, v in work.items()}
    for name in ("disk", "hot", "cold"):
        figures[f"{name}_to_memory"] = statistics.median(
            ours / floor for ours, floor in zip(rates[name], rates["memory"], strict=True)
        )
        figures[f"{name}_to_memory_alone"] = statistics.median(
            ours / floor for ours, floor in zip(alone[name], alone["memory"], strict=True)
        )
        figures[f"{name}_to_memory_cpu"] = statistics.median(
            ours / floor for ours, floor in zip(work[name], work["memory"], strict=True)
        )
    return figures


def main() -> None:
    """Print a table and, last, one line of JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0, help="of load in each round")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        redis = RunningRedis(Path(folder))
        redis.start()
        try:
            figures = uvloop.run(stores(redis.url, options.rounds))
            figures |= gateways(redis.url, options.rounds, options.seconds)
        finally:
            redis.kill()
    print(f"{'lookup in the store':36}{'alone us':>10}{'of 32, us':>12}")
    for name, label in (
        ("memory", "memory"),
        ("hot", "Redis, hot"),
        ("cold", "Redis, cold"),
        ("bare_get", "bare GET by redis-py (floor)"),
    ):
        of_many = figures.get(f"{name}_32_us")
        many = f"{of_many:12.1f}" if of_many is not None else ""
        print(f"{label:36}{figures[f'{name}_us']:10.1f}{many}")
    print(
        f"{'exact hit through the gateway':36}{'alone us':>10}{'of 32, us':>12}{'CPU us':>10}"
        f"{'to memory':>12}"
    )
    for name in ("memory", "disk", "hot", "cold"):
        ratio = figures.get(f"{name}_to_memory_cpu", 1.0)
        print(
            f"{name:36}{figures[f'hit_{name}_alone_us']:10.0f}{figures[f'hit_{name}_us']:12.0f}"
            f"{figures[f'hit_{name}_cpu_us']:10.0f}{ratio:12.2f}"
        )
    print(f"round trips a cold hit: {figures['round_trips_a_cold_hit']:g} (target 1)")
    print(
        f"hot to memory: {figures['hot_to_memory_cpu']:.2f} in processor time of the gateway, "
        f"{figures['hot_to_memory']:.2f} by the clock (target 1.2)"
    )
    print(json.dumps({"benchmark": "redis_store", **{k: round(v, 3) for k, v in figures.items()}}))


if __name__ == "__main__":
    main()
