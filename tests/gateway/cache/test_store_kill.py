"""kill -9 at any moment of writing: the file opens, and what is there is whole."""

import asyncio
import random

from store_writer import MAX_BYTES, check_kept, killed_writer, whole

from gateway.cache.stores.entry_codec import encoded_size
from gateway.cache.stores.sqlite.store import SqliteStore


async def test_no_kill_leaves_a_broken_file_or_entry_or_loses_a_put(tmp_path):
    path = tmp_path / "entries.sqlite3"
    rng = random.Random(3)
    start = 0
    for _ in range(5):
        lines = rng.randrange(8, 150)
        acknowledged = await asyncio.to_thread(killed_writer, "sqlite", path, start, lines)
        store = SqliteStore(path, max_bytes=MAX_BYTES, read_seconds=30, write_seconds=30)
        try:
            found = await whole(store)
            check_kept(found, acknowledged)
            await store.delete(b"absent")
            assert store.stats().entries == len(found)
            assert store.stats().bytes == sum(encoded_size(entry) for _, entry in found.values())
        finally:
            await store.close()
        start = max(acknowledged.values()) + 1
    assert list(tmp_path.glob("*corrupt*")) == []
