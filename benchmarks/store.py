"""What holds entries: LMDB and SQLite as engines, then our own stores, beside a dict (the floor).

Engines hold the same values under 32-byte random keys, read and written in random order; `put`
commits each value by itself, `put_64` 64 at a time. Stores are the adapters as the gateway uses
them: encoding, threads and eviction included, on uvloop. The page cache is warm throughout. Nothing
waits for the disk at every commit except `lmdb-metasync`: with that setting a power loss cannot
corrupt LMDB, as it cannot corrupt SQLite in WAL mode with synchronous=NORMAL; `lmdb-nosync` it can.

    python benchmarks/store.py [--entries N] [--bytes N] [--dir D]
"""

import argparse
import asyncio
import hashlib
import json
import random
import sqlite3
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

import lmdb
import uvloop

from gateway.cache.ports import Entry, Store
from gateway.cache.stores.memory import MemoryStore
from gateway.cache.stores.sqlite.store import SqliteStore
from gateway.cache.stores.tiered import TieredStore

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests" / "support"))
from gateway.cache.stores.conformance import example_entry

GROUP = 64

T = TypeVar("T")
Figures = dict[str, float]
Result = dict[str, float | Figures]


class Engine(Protocol):
    """What is measured: a point read, a committed write, and a commit around several."""

    def get(self, key: bytes) -> bytes | None: ...
    def put(self, pairs: Sequence[tuple[bytes, bytes]]) -> None: ...
    def close(self) -> None: ...


class DictEngine:
    """The floor: no disk, no copy, no lock."""

    def __init__(self, _: Path) -> None:
        self._entries: dict[bytes, bytes] = {}

    def get(self, key: bytes) -> bytes | None:
        return self._entries.get(key)

    def put(self, pairs: Sequence[tuple[bytes, bytes]]) -> None:
        self._entries.update(pairs)

    def close(self) -> None:
        self._entries.clear()


class LmdbEngine:
    """LMDB: a B+tree read through mmap; one writer."""

    def __init__(self, folder: Path, *, sync: bool) -> None:
        self._env = lmdb.open(
            str(folder / "data.lmdb"), subdir=False, map_size=4 << 30, sync=sync, metasync=False
        )

    def get(self, key: bytes) -> bytes | None:
        with self._env.begin() as transaction:
            found: bytes | None = transaction.get(key)
            return found

    def put(self, pairs: Sequence[tuple[bytes, bytes]]) -> None:
        with self._env.begin(write=True) as transaction:
            for key, value in pairs:
                transaction.put(key, value)

    def close(self) -> None:
        self._env.close()


class SqliteEngine:
    """SQLite in WAL mode; the table is the plain one, without the store's indexes."""

    def __init__(self, folder: Path, *, page_size: int, rowid: bool) -> None:
        self._connection = sqlite3.connect(folder / "data.sqlite3", isolation_level=None)
        for pragma in (f"page_size={page_size}", "journal_mode=WAL", "synchronous=NORMAL"):
            self._connection.execute(f"PRAGMA {pragma}")
        self._connection.execute(
            "CREATE TABLE entry (key BLOB PRIMARY KEY NOT NULL, value BLOB NOT NULL)"
            + ("" if rowid else " WITHOUT ROWID")
        )

    def get(self, key: bytes) -> bytes | None:
        rows = self._connection.execute("SELECT value FROM entry WHERE key = ?", (key,)).fetchall()
        return rows[0][0] if rows else None

    def put(self, pairs: Sequence[tuple[bytes, bytes]]) -> None:
        self._connection.execute("BEGIN IMMEDIATE")
        self._connection.executemany("INSERT OR REPLACE INTO entry VALUES (?, ?)", pairs)
        self._connection.execute("COMMIT")

    def close(self) -> None:
        self._connection.close()


@dataclass(frozen=True)
class Plan:
    """What is stored, and how often it is read and written."""

    keys: list[bytes]
    size: int
    gets: int
    puts: int


ENGINES: dict[str, Callable[[Path], Engine]] = {
    "dict": DictEngine,
    "lmdb-nosync": lambda folder: LmdbEngine(folder, sync=False),
    "lmdb-metasync": lambda folder: LmdbEngine(folder, sync=True),
    "sqlite-rowid-4k": lambda folder: SqliteEngine(folder, page_size=4096, rowid=True),
    "sqlite-rowid-8k": lambda folder: SqliteEngine(folder, page_size=8192, rowid=True),
    "sqlite-rowid-16k": lambda folder: SqliteEngine(folder, page_size=16384, rowid=True),
    "sqlite-norowid-4k": lambda folder: SqliteEngine(folder, page_size=4096, rowid=False),
    "sqlite-norowid-16k": lambda folder: SqliteEngine(folder, page_size=16384, rowid=False),
}


def tiered(folder: Path) -> Store:
    cold = sqlite(folder)
    return TieredStore(MemoryStore(max_bytes=1 << 30), cold, cold.touch)


def sqlite(folder: Path) -> SqliteStore:
    return SqliteStore(folder / "entries.sqlite3", max_bytes=4 << 30, write_seconds=30)


STORES: dict[str, Callable[[Path], Store]] = {
    "store-memory": lambda _: MemoryStore(max_bytes=4 << 30),
    "store-sqlite": sqlite,
    "store-tiered": tiered,
}


def summary(samples: list[int], elapsed_ns: int) -> Figures:
    """Rate per second, median and 99th percentile in microseconds of samples in nanoseconds."""
    samples.sort()
    return {
        "per_s": round(len(samples) * 1e9 / elapsed_ns),
        "p50_us": round(samples[len(samples) // 2] / 1e3, 1),
        "p99_us": round(samples[len(samples) * 99 // 100] / 1e3, 1),
    }


def timed(operation: Callable[[T], object], arguments: Iterable[T]) -> Figures:
    """Call it with one argument after another; making an argument is not counted."""
    samples: list[int] = []
    for argument in arguments:
        before = time.perf_counter_ns()
        operation(argument)
        samples.append(time.perf_counter_ns() - before)
    return summary(samples, sum(samples))


async def timed_tasks(
    operation: Callable[[T], Awaitable[object]], arguments: Sequence[T], tasks: int
) -> Figures:
    """The same for coroutines, with so many tasks waiting at any time."""
    samples: list[int] = []

    async def run(share: Sequence[T]) -> None:
        for argument in share:
            before = time.perf_counter_ns()
            await operation(argument)
            samples.append(time.perf_counter_ns() - before)

    started = time.perf_counter_ns()
    await asyncio.gather(*(run(arguments[n::tasks]) for n in range(tasks)))
    return summary(samples, time.perf_counter_ns() - started)


def measure_engine(make: Callable[[Path], Engine], plan: Plan, folder: Path) -> Result:
    rng = random.Random(1)
    keys = plan.keys
    engine = make(folder)

    def pairs(count: int) -> list[tuple[bytes, bytes]]:
        return [(key, rng.randbytes(plan.size)) for key in rng.choices(keys, k=count)]

    started = time.perf_counter()
    for at in range(0, len(keys), GROUP):
        engine.put([(key, rng.randbytes(plan.size)) for key in keys[at : at + GROUP]])
    load_s = time.perf_counter() - started
    result: Result = {
        "load_per_s": round(len(keys) / load_s),
        "get": timed(engine.get, rng.choices(keys, k=plan.gets)),
        "put": timed(engine.put, (pairs(1) for _ in range(plan.puts))),
        "put_64": timed(engine.put, (pairs(GROUP) for _ in range(plan.puts // GROUP))),
    }
    if engine.get(keys[0]) is None or engine.get(b"absent") is not None:
        raise RuntimeError("the engine lost an entry or made one up")
    engine.close()
    on_disk = sum(path.stat().st_size for path in folder.iterdir() if "lock" not in path.name)
    result["file_per_byte"] = round(on_disk / (len(keys) * (plan.size + 32)), 2)
    return result


async def measure_store(make: Callable[[Path], Store], plan: Plan, folder: Path) -> Result:
    rng = random.Random(1)
    store = make(folder)

    def entries(keys: Sequence[bytes]) -> list[Entry]:
        return [example_entry(key, rng.randbytes(plan.size)) for key in keys]

    load = await timed_tasks(store.put, entries(plan.keys[: plan.puts]), 32)
    known = plan.keys[: plan.puts]
    result: Result = {
        "put_32_tasks": load,
        "put": await timed_tasks(store.put, entries(rng.choices(known, k=plan.puts // 4)), 1),
        "get": await timed_tasks(store.get, rng.choices(known, k=plan.gets // 4), 1),
        "get_32_tasks": await timed_tasks(store.get, rng.choices(known, k=plan.gets // 4), 32),
        "get_hot": await timed_tasks(store.get, [known[-1]] * plan.gets, 1),
    }
    await store.close()
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description="SQLite, LMDB and a dict as entry stores")
    parser.add_argument("--entries", type=int, default=100_000)
    parser.add_argument("--bytes", type=int, default=2048)
    parser.add_argument("--dir", type=Path, help="where to make the files (default: a temp dir)")
    arguments = parser.parse_args()
    keys = [hashlib.sha256(str(n).encode()).digest() for n in range(arguments.entries)]
    plan = Plan(keys, arguments.bytes, gets=arguments.entries, puts=arguments.entries // 10)
    results: dict[str, Result] = {}

    def note(name: str, result: Result) -> None:
        results[name] = result
        print(f"{name:20}", json.dumps(result), flush=True)

    for name, engine in ENGINES.items():
        with tempfile.TemporaryDirectory(dir=arguments.dir) as folder:
            note(name, measure_engine(engine, plan, Path(folder)))
    for name, store in STORES.items():
        with tempfile.TemporaryDirectory(dir=arguments.dir) as folder:
            note(name, uvloop.run(measure_store(store, plan, Path(folder))))
    print(
        json.dumps(
            {
                "benchmark": "store",
                "entries": arguments.entries,
                "bytes": arguments.bytes,
                "floor": "dict",
                "results": results,
            }
        )
    )


if __name__ == "__main__":
    main()
