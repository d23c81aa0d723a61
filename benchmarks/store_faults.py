"""A whole gateway while its Redis is frozen, killed and back: what requests wait, when hits return.

A real server on loopback is stopped with SIGSTOP, then killed; a client asks for the same stored
question without a pause, and for new ones. Told are the slowest request of each phase beside the
slowest with the store in memory (the floor: what this machine takes without any store to wait
for), requests that failed, and seconds from recovery to the next hit.

    python benchmarks/store_faults.py [--seconds S]
"""

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import AsyncExitStack, ExitStack
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

import orjson
import uvloop
from load import Client, LoadResult, post, run_load
from servers import start_upstream

from gateway.app import create_app
from gateway.cache.stores.guarded import GuardedStore
from gateway.settings import Settings

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests" / "support"))
from running_gateway import start_app
from running_redis import RunningRedis

T = TypeVar("T")
CLIENTS = 4
WAITS: list[float] = []
"""What calls waited for the store, in seconds, since this was last emptied."""


def record_waits() -> None:
    """Have every guarded call of a store note what it waited."""
    guarded = GuardedStore._call  # noqa: SLF001 - there is no other place that sees each wait

    async def noted(self: GuardedStore, call: Coroutine[Any, Any, T], seconds: float) -> T:
        before = time.perf_counter()
        try:
            return await guarded(self, call, seconds)
        finally:
            WAITS.append(time.perf_counter() - before)

    GuardedStore._call = noted  # type: ignore[method-assign]  # noqa: SLF001


def figures(result: LoadResult) -> dict[str, float]:
    """Return what clients saw while something was the matter."""
    return {
        "requests": result.requests,
        "failed": result.failed,
        "median_ms": round(1e3 * result.percentile(0.5), 2),
        "slowest_ms": round(1e3 * result.percentile(1), 2),
        "slowest_store_wait_ms": round(1e3 * max(WAITS, default=0.0), 2),
    }


def request(text: str) -> bytes:
    """Return a request."""
    body = {"model": "m", "messages": [{"role": "user", "content": text}]}
    return post(orjson.dumps(body))


NEW = count()


def known_and_new() -> Iterator[bytes]:
    """Ask what is known and what is new, by turns."""
    while True:
        yield request("known")
        yield request(f"new {next(NEW)}")


async def during(port: int, seconds: float) -> dict[str, float]:
    """Load a gateway of this process from another thread."""
    WAITS.clear()
    load = partial(run_load, connections=CLIENTS, seconds=seconds, may_fail=True)
    return figures(await asyncio.to_thread(load, port, known_and_new()))


def until_hit(port: int, patience: float = 20.0) -> float:
    """Return the seconds until what was asked before is a hit again."""
    started = time.perf_counter()
    with Client(port) as client:
        while time.perf_counter() - started < patience:
            if "; hit" in client.ask(request("known")).cache_status:
                return round(time.perf_counter() - started, 3)
            time.sleep(0.01)
    raise SystemExit(f"no hit within {patience:g} s")


async def measure(
    redis: RunningRedis, folder: Path, upstream: int, seconds: float
) -> dict[str, object]:
    """Run the phases."""
    async with AsyncExitStack() as stack:

        async def gateway(store: str) -> int:
            settings = Settings(
                upstream=(f"http://127.0.0.1:{upstream}/v1",),
                store=store,
                data_dir=folder / store[:5],
            )
            runner, url = await start_app(create_app(settings, semantic_socket=None))
            stack.push_async_callback(runner.cleanup)
            return int(url.rpartition(":")[2])

        floor, ours = await gateway("memory"), await gateway(redis.url)
        found: dict[str, object] = {}
        found["memory"] = await during(floor, seconds)
        await asyncio.to_thread(until_hit, ours)
        found["redis"] = await during(ours, seconds)
        for fault, begin, end in faults(redis):
            begin()
            found[fault] = await during(ours, seconds)
            end()
            found[f"{fault}_recovery_s"] = await asyncio.to_thread(until_hit, ours)
        return found


def faults(redis: RunningRedis) -> list[tuple[str, Callable[[], None], Callable[[], None]]]:
    """Return each fault's name, its beginning and its end."""
    return [("frozen", redis.freeze, redis.thaw), ("killed", redis.kill, redis.start)]


def main() -> None:
    """Print a table and, last, one line of JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=5.0, help="of each phase")
    options = parser.parse_args()
    record_waits()
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        upstream = start_upstream(stack)
        redis = RunningRedis(Path(folder) / "redis")
        redis.start()
        try:
            found = uvloop.run(measure(redis, Path(folder), upstream, options.seconds))
        finally:
            redis.kill()
    print(
        f"{'store':16}{'requests':>10}{'failed':>8}{'median ms':>11}{'slowest ms':>12}"
        f"{'store wait':>13}"
    )
    for name, figures in found.items():
        if isinstance(figures, dict):
            print(
                f"{name:16}{figures['requests']:>10}{figures['failed']:>8}"
                f"{figures['median_ms']:>11.2f}{figures['slowest_ms']:>12.2f}"
                f"{figures['slowest_store_wait_ms']:>13.2f}"
            )
    for name in ("frozen_recovery_s", "killed_recovery_s"):
        print(f"{name}: {found[name]} (target 5)")
    print(json.dumps({"benchmark": "store_faults", "seconds": options.seconds, **found}))


if __name__ == "__main__":
    main()
