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
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import orjson
import uvloop
from aiohttp import ClientSession
from fake_upstream import application

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


@dataclass
class Phase:
    """What clients saw while something was the matter."""

    waits: list[float] = field(default_factory=list)
    failed: int = 0
    store_wait: float = 0.0

    def figures(self) -> dict[str, float]:
        return {
            "requests": len(self.waits),
            "failed": self.failed,
            "median_ms": round(1e3 * statistics.median(self.waits), 2),
            "slowest_ms": round(1e3 * max(self.waits), 2),
            "slowest_store_wait_ms": round(1e3 * self.store_wait, 2),
        }


class Client:
    """Asks one gateway."""

    def __init__(self, session: ClientSession, url: str) -> None:
        self._session = session
        self._url = f"{url}/v1/chat/completions"
        self._asked = 0

    async def ask(self, question: str, phase: Phase | None = None) -> bool:
        """Ask; tell whether it was a hit."""
        body = {"model": "m", "messages": [{"role": "user", "content": question}]}
        before = time.perf_counter()
        async with self._session.post(self._url, data=orjson.dumps(body)) as reply:
            whole = await reply.read()
            if phase is not None:
                phase.waits.append(time.perf_counter() - before)
                phase.failed += reply.status != 200 or b"answer" not in whole
            return "; hit" in reply.headers.get("Cache-Status", "")

    async def during(self, seconds: float) -> Phase:
        """Ask what is known and what is new, by turns, from several clients at once."""
        phase = Phase()
        WAITS.clear()
        until = time.perf_counter() + seconds

        async def ask() -> None:
            while time.perf_counter() < until:
                self._asked += 1
                await self.ask("known" if self._asked % 2 else f"new {self._asked}", phase)

        await asyncio.gather(*(ask() for _ in range(CLIENTS)))
        phase.store_wait = max(WAITS, default=0.0)
        return phase

    async def until_hit(self, patience: float = 20.0) -> float:
        """Return the seconds until what was asked before is a hit again."""
        started = time.perf_counter()
        while time.perf_counter() - started < patience:
            if await self.ask("known"):
                return round(time.perf_counter() - started, 3)
            await asyncio.sleep(0.01)
        raise SystemExit(f"no hit within {patience:g} s")


async def measure(redis: RunningRedis, folder: Path, seconds: float) -> dict[str, object]:
    """Run the phases."""
    async with AsyncExitStack() as stack:
        session = await stack.enter_async_context(ClientSession())
        upstream, upstream_url = await start_app(application(120))
        stack.push_async_callback(upstream.cleanup)

        async def client(store: str) -> Client:
            settings = Settings(
                upstream=(f"{upstream_url}/v1",), store=store, data_dir=folder / store[:5]
            )
            runner, url = await start_app(create_app(settings, semantic_socket=None))
            stack.push_async_callback(runner.cleanup)
            return Client(session, url)

        floor, ours = await client("memory"), await client(redis.url)
        found: dict[str, object] = {}
        found["memory"] = (await floor.during(seconds)).figures()
        await ours.until_hit()
        found["redis"] = (await ours.during(seconds)).figures()
        for fault, begin, end in faults(redis):
            begin()
            found[fault] = (await ours.during(seconds)).figures()
            end()
            found[f"{fault}_recovery_s"] = await ours.until_hit()
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
    with tempfile.TemporaryDirectory() as folder:
        redis = RunningRedis(Path(folder) / "redis")
        redis.start()
        try:
            found = uvloop.run(measure(redis, Path(folder), options.seconds))
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
