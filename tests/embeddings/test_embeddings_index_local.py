"""Vectors of one installation after a restart: what the store holds is found, whatever happened."""

import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
import textwrap

import numpy as np
import pytest

from embeddings.index.local import LocalIndex, open_local_index
from embeddings.index.partition import Partition
from embeddings.index.store import FILE_NAME

DIMENSIONS, LATER, NOW = 16, 2_000_000_000.0, 1_700_000_000.0
OURS = "aa" * 32


async def opened(directory, **how) -> LocalIndex:
    return await open_local_index(
        directory,
        encoder_digest=OURS,
        dimensions=DIMENSIONS,
        clock=lambda: NOW,
        **{"max_vectors": 10_000, "flat_vectors": 64, **how},
    )


def unit_rows(count: int, seed: int = 1) -> np.ndarray:
    rows = np.random.default_rng(seed).standard_normal((count, DIMENSIONS))
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


ROWS = unit_rows(200)


async def fill(directory, **how) -> None:
    index = await opened(directory, **how)
    for number, row in enumerate(ROWS):
        await index.add(b"p%d" % (number % 2), b"%d" % number, row, LATER, NOW)
    await index.close()


async def own_nearest(index: LocalIndex) -> list[int]:
    """Return which vectors are there and their own nearest."""
    found = []
    for number, row in enumerate(ROWS):
        matches = await index.search(b"p%d" % (number % 2), row, 1, NOW)
        if matches and matches[0].key == b"%d" % number:
            found.append(number)
    return found


async def test_after_a_restart_all_is_found_while_an_index_is_built_and_afterwards(tmp_path):
    await fill(tmp_path)
    index = await opened(tmp_path)
    assert index.building
    assert await own_nearest(index) == list(range(200))
    while index.building:
        await asyncio.wait([index._building])  # nothing else ends with it
    assert await own_nearest(index) == list(range(200))
    await index.close()


async def test_rows_that_are_no_vectors_leave_the_store_and_the_others_stay(tmp_path, caplog):
    await fill(tmp_path)
    store = sqlite3.connect(tmp_path / FILE_NAME)
    broken = np.full(DIMENSIONS, np.nan, dtype="<f4").tobytes()
    store.execute("UPDATE vectors SET vector = ? WHERE key IN (?, ?)", (broken, b"3", b"4"))
    store.execute("UPDATE vectors SET expires_at = 'later' WHERE key = ?", (b"5",))
    store.execute("UPDATE vectors SET partition = 'p0' WHERE key = ?", (b"6",))
    store.execute("UPDATE vectors SET expires_at = 9e999 WHERE key = ?", (b"7",))
    store.commit()
    store.close()
    index = await opened(tmp_path)
    assert "dropped 2 vectors" in caplog.text
    assert await own_nearest(index) == [0, 1, 2, *range(7, 200)]
    await index.close()
    caplog.clear()
    index = await opened(tmp_path)
    assert index.size == 196
    assert "dropped" not in caplog.text
    await index.close()


async def test_a_smaller_bound_after_a_restart_drops_the_oldest_from_the_store_too(tmp_path):
    await fill(tmp_path)
    for _ in range(2):
        index = await opened(tmp_path, max_vectors=150)
        assert await own_nearest(index) == list(range(50, 200))
        await index.close()


async def test_after_a_failed_addition_memory_and_store_have_the_former_vector(
    tmp_path, monkeypatch
):
    def fail(*_arguments):
        raise MemoryError

    index = await opened(tmp_path)
    await index.add(b"p0", b"0", ROWS[0], LATER, NOW)
    with monkeypatch.context() as failing:
        failing.setattr(Partition, "put", fail)
        with pytest.raises(MemoryError):
            await index.add(b"p0", b"0", ROWS[1], LATER, NOW)
    assert (index.size, await own_nearest(index)) == (1, [0])
    await index.close()
    index = await opened(tmp_path)
    assert (index.size, await own_nearest(index)) == (1, [0])
    await index.close()


async def test_what_former_versions_built_is_removed(tmp_path):
    (tmp_path / "vectors.graphs").mkdir()
    (tmp_path / "vectors.graphs" / "0123.graph").write_bytes(b"links")
    await (await opened(tmp_path)).close()
    assert not (tmp_path / "vectors.graphs").exists()


WRITER = """
    import asyncio, sys
    from pathlib import Path
    import numpy as np
    from embeddings.index.local import open_local_index

    async def main(directory):
        index = await open_local_index(
            directory, encoder_digest="aa" * 32, dimensions=16, max_vectors=10_000,
            clock=lambda: 1_700_000_000.0, flat_vectors=64,
        )
        random = np.random.default_rng(2)
        for number in range(10_000):
            row = random.standard_normal(16).astype(np.float32)
            row /= np.linalg.norm(row)
            await index.add(b"p", b"%d" % number, row, 2e9, 1_700_000_000.0)
            print(number, flush=True)

    asyncio.run(main(Path(sys.argv[1])))
"""


def killed_while_writing(directory) -> int:
    """Add some hundreds, kill; return the last acknowledged."""
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(WRITER), str(directory)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    ) as writer:
        for line in writer.stdout:
            if int(line) >= 400:
                break
        writer.send_signal(signal.SIGKILL)
        return int(writer.stdout.read().rpartition("\n")[0].rpartition("\n")[2] or line)


async def test_what_was_acknowledged_is_found_after_kill_9_while_an_index_is_built(tmp_path):
    acknowledged = await asyncio.to_thread(killed_while_writing, tmp_path)
    index = await opened(tmp_path)
    random = np.random.default_rng(2)
    found = 0
    for number in range(acknowledged + 1):
        row = random.standard_normal(DIMENSIONS).astype(np.float32)
        row /= np.linalg.norm(row)
        (nearest,) = await index.search(b"p", row, 1, NOW)
        found += nearest.key == b"%d" % number
    await index.close()
    assert found == acknowledged + 1
