"""A process that puts entries without end, to be killed, and what must be found of them after.

``python store_writer.py sqlite|redis PLACE START`` prints ``lane n`` after each put.
"""

import asyncio
import subprocess
import sys
from pathlib import Path

from gateway.cache.ports import Entry, Store
from gateway.cache.stores.conformance import example_entry

MAX_BYTES = 2 << 20
LANES = 8
KEYS_A_LANE = 10


def key(lane: int, n: int) -> bytes:
    """Return the key of a lane's n-th put; keys are reused."""
    return b"%d:%d" % (lane, n % KEYS_A_LANE)


def written(lane: int, n: int) -> Entry:
    """Return a lane's n-th entry; the answer tells which put it was."""
    size = 50 + (n * 7919 + lane) % 20_000
    return example_entry(key(lane, n), b"%d " % n + bytes([n % 256]) * size)


def killed_writer(kind: str, place: object, start: int, lines: int) -> dict[int, int]:
    """Run a writer until it has reported so many puts, kill it, return the last put by lane."""
    process = subprocess.Popen(
        [sys.executable, __file__, kind, str(place), str(start)],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    acknowledged = {}
    try:
        for _ in range(lines):
            lane, n = map(int, process.stdout.readline().split())
            acknowledged[lane] = n
        process.kill()
        for line in process.stdout:
            if line.endswith("\n"):
                lane, n = map(int, line.split())
                acknowledged[lane] = n
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
    return acknowledged


async def whole(store: Store) -> dict[tuple[int, int], tuple[int, Entry]]:
    """Return what is found by lane and place, after checking that each is what was once put."""
    found = {}
    for lane in range(LANES):
        for place in range(KEYS_A_LANE):
            entry = await store.get(key(lane, place))
            if entry is not None:
                n = int(entry.result.split(b" ", 1)[0])
                assert entry == written(lane, n)
                found[lane, place] = n, entry
    return found


def check_kept(
    found: dict[tuple[int, int], tuple[int, Entry]], acknowledged: dict[int, int]
) -> None:
    """Check that each reported put is there, or the one after it that took its key meanwhile."""
    for lane, n in acknowledged.items():
        assert found[lane, n % KEYS_A_LANE][0] >= n


def _opened(kind: str, place: str) -> Store:
    if kind == "sqlite":
        from gateway.cache.stores.sqlite.store import SqliteStore

        return SqliteStore(Path(place), max_bytes=MAX_BYTES, upkeep_seconds=0.01)
    from gateway.cache.stores.redis.store import RedisStore

    return RedisStore(place, max_bytes=MAX_BYTES, seconds=10, upkeep_seconds=0.01)


async def _main(kind: str, place: str, start: int) -> None:
    store = _opened(kind, place)

    async def write(lane: int) -> None:
        n = start
        while True:
            await store.put(written(lane, n))
            # In one write: lines of a killed process are whole but for the last.
            sys.stdout.write(f"{lane} {n}\n")
            sys.stdout.flush()
            n += 1

    await asyncio.gather(*map(write, range(LANES)))


if __name__ == "__main__":
    asyncio.run(_main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
