"""kill -9 at any moment of writing: the file opens, and what is there is whole."""

import asyncio
import random
import subprocess
import sys

from gateway.adapters.store_conformance import example_entry
from gateway.adapters.store_sqlite import SqliteStore
from gateway.core.entry_codec import encoded_size

MAX_BYTES = 2 << 20

WRITER = f"""
import asyncio, sys
from pathlib import Path
from gateway.adapters.store_sqlite import SqliteStore
sys.path.insert(0, sys.argv[2])
from test_store_kill import written

async def write(store, lane, start):
    n = start
    while True:
        await store.put(written(lane, n))
        sys.stdout.write(f"{{lane}} {{n}}\\n")
        sys.stdout.flush()
        n += 1

async def main():
    store = SqliteStore(Path(sys.argv[1]), max_bytes={MAX_BYTES}, upkeep_seconds=0.01)
    start = int(sys.argv[3])
    await asyncio.gather(*(write(store, lane, start) for lane in range(8)))

asyncio.run(main())
"""
KEYS_A_LANE = 10


def written(lane, n):
    """The n-th entry of a lane: keys are reused, the answer tells which put it was."""
    key = b"%d:%d" % (lane, n % KEYS_A_LANE)
    size = 50 + (n * 7919 + lane) % 20_000
    return example_entry(key, b"%d " % n + bytes([n % 256]) * size)


def killed_writer(path, start, lines):
    """Run a writer until it has reported so many puts, kill it, return the last put by lane."""
    process = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path), str(__file__).rpartition("/")[0], str(start)],
        stdout=subprocess.PIPE,
        text=True,
    )
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


async def test_no_kill_leaves_a_broken_file_or_entry_or_loses_a_put(tmp_path):
    path = tmp_path / "entries.sqlite3"
    rng = random.Random(3)
    start = 0
    for _ in range(8):
        acknowledged = await asyncio.to_thread(killed_writer, path, start, rng.randrange(8, 400))
        store = SqliteStore(path, max_bytes=MAX_BYTES, read_seconds=30, write_seconds=30)
        try:
            found = {}
            for lane in range(8):
                for k in range(KEYS_A_LANE):
                    entry = await store.get(b"%d:%d" % (lane, k))
                    if entry is not None:
                        n = int(entry.result.split(b" ", 1)[0])
                        assert entry == written(lane, n)
                        found[lane, k] = (n, entry)
            for lane, n in acknowledged.items():
                # The reported put is there, or the one after it that took its key meanwhile.
                assert found[lane, n % KEYS_A_LANE][0] >= n
            await store.delete(b"absent")
            assert store.stats().entries == len(found)
            assert store.stats().bytes == sum(encoded_size(entry) for _, entry in found.values())
        finally:
            await store.close()
        start = max(acknowledged.values()) + 1
    assert list(tmp_path.glob("*corrupt*")) == []
