"""Graphs on disk: what comes back, and that nothing damaged or foreign is trusted."""

import asyncio
import os
import signal
import stat
import subprocess
import sys
import textwrap

import numpy as np
import pytest

from embeddings.index.faiss import FaissIndex
from embeddings.index.graph_files import DIRECTORY, GraphFiles
from embeddings.index.local import open_local_index
from embeddings.index.partition import Sizes
from embeddings.index.restoring import restore
from embeddings.index.store import Put

DIMENSIONS, LATER, NOW = 16, 2_000_000_000.0, 1_700_000_000.0
SIZES = Sizes(block=8, graph=64, unbuilt=8)
OURS, OTHERS = "aa" * 32, "bb" * 32


def unit_rows(count: int, seed: int = 1) -> np.ndarray:
    rows = np.random.default_rng(seed).standard_normal((count, DIMENSIONS))
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


ROWS = unit_rows(200)
PUTS = [Put(b"%d" % number, b"p", LATER, row) for number, row in enumerate(ROWS)]


def files_in(directory, *, digest: str = OURS, dimensions: int = DIMENSIONS) -> GraphFiles:
    return GraphFiles(directory, encoder_digest=digest, dimensions=dimensions)


def built(puts=PUTS) -> FaissIndex:
    index = FaissIndex(DIMENSIONS, 1000, SIZES)
    restore(index, puts, [])
    while index.build():
        pass
    return index


@pytest.fixture
def saved(tmp_path):
    """Return a directory with the graphs of all PUTS but the last block."""
    for graph in built().graphs():
        files_in(tmp_path).save(graph)
    return tmp_path


def restored(directory, puts=PUTS) -> FaissIndex:
    index = FaissIndex(DIMENSIONS, 1000, SIZES)
    assert restore(index, puts, files_in(directory).load()) == []
    return index


def own_nearest(index, puts) -> int:
    found = (index.search(b"p", put.vector, 1, NOW) for put in puts)
    return sum(matches[0].key == put.key for matches, put in zip(found, puts, strict=True))


def test_a_restart_builds_nothing_anew(saved):
    index = restored(saved)
    assert sum(graph.live for graph in index.graphs()) == 192
    assert not index.unbuilt
    assert own_nearest(index, PUTS) == 200


def test_what_was_removed_replaced_or_moved_meanwhile_is_not_found(saved):
    replaced = [Put(put.key, b"p", LATER, -put.vector) for put in PUTS[50:60]]
    moved = [Put(put.key, b"q", LATER, put.vector) for put in PUTS[60:70]]
    index = restored(saved, [*PUTS[70:], *replaced, *moved])
    while index.build():
        pass
    assert own_nearest(index, [*PUTS[70:], *replaced]) == 140
    found = index.search(b"p", PUTS[0].vector, 1000, NOW)
    assert {match.key for match in found}.isdisjoint(put.key for put in [*PUTS[:50], *moved])
    assert len(index.search(b"q", PUTS[0].vector, 1000, NOW)) == 10


def test_rows_without_a_vector_still_lead_to_the_others(saved):
    """Nine of ten vectors are gone from the store: only the links of their rows are left."""
    left = PUTS[::10]
    assert own_nearest(restored(saved, left), left) == len(left)


def test_a_graph_that_lost_most_of_its_vectors_is_given_up(saved):
    index = restored(saved, PUTS[::10])
    while index.build():
        pass
    assert sum(len(graph.places) for graph in index.graphs()) < 64


def damaged(path, how):
    content = bytearray(path.read_bytes())
    if how == "cut":
        del content[-100:]
    elif how == "empty":
        content.clear()
    else:
        content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("how", ["cut", "empty", "a bit"])
def test_a_damaged_file_is_removed_and_all_is_found(saved, how, caplog):
    first, *others = sorted((saved / DIRECTORY).iterdir())
    damaged(first, how)
    index = restored(saved)
    assert sorted((saved / DIRECTORY).iterdir()) == others
    assert "is not used" in caplog.text
    assert index.unbuilt
    while index.build():
        pass
    assert own_nearest(index, PUTS) == 200


@pytest.mark.parametrize("other", [{"digest": OTHERS}, {"dimensions": 8}])
def test_graphs_of_other_vectors_are_removed(saved, other):
    assert files_in(saved, **other).load() == []
    assert list((saved / DIRECTORY).iterdir()) == []


def test_files_of_graphs_that_are_gone_and_of_writes_cut_short_are_removed(saved):
    (saved / DIRECTORY / "0123.new").write_bytes(b"half a graph")
    files = files_in(saved)
    files.keep_only([])
    assert list((saved / DIRECTORY).iterdir()) == []


def test_a_file_holds_no_vector_and_only_the_owner_reads_it(saved):
    halves = ROWS.astype(np.float16)
    for path in (saved / DIRECTORY).iterdir():
        content = path.read_bytes()
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert not any(row.tobytes()[:8] in content for row in halves)
    assert stat.S_IMODE((saved / DIRECTORY).stat().st_mode) == 0o700


def test_a_directory_that_cannot_be_written_costs_the_files_only(tmp_path, caplog):
    (tmp_path / DIRECTORY).write_text("not a directory")
    files_in(tmp_path).save(built().graphs()[0])
    assert "was not saved" in caplog.text


WRITER = """
    import asyncio, sys
    from pathlib import Path
    import numpy as np
    from embeddings.index import local as index_local
    from embeddings.index.partition import Sizes

    index_local._SAVE_PERIOD_S = 0.0

    async def main(directory):
        index = await index_local.open_local_index(
            directory, encoder_digest="aa" * 32, dimensions=16, max_vectors=10_000,
            clock=lambda: 1_700_000_000.0, sizes=Sizes(block=8, graph=64, unbuilt=8),
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
    """Add until a graph is on disk and a while longer, kill; return the last acknowledged."""
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(WRITER), str(directory)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    ) as writer:
        for line in writer.stdout:
            if int(line) >= 400 and list((directory / DIRECTORY).glob("*.graph")):
                break
        writer.send_signal(signal.SIGKILL)
        return int(writer.stdout.read().rpartition("\n")[0].rpartition("\n")[2] or line)


async def test_what_was_acknowledged_is_found_after_kill_9_while_graphs_are_written(tmp_path):
    acknowledged = await asyncio.to_thread(killed_while_writing, tmp_path)
    index = await open_local_index(
        tmp_path,
        encoder_digest=OURS,
        dimensions=DIMENSIONS,
        max_vectors=10_000,
        clock=lambda: NOW,
        sizes=Sizes(block=8, graph=64, unbuilt=10_000),
    )
    random = np.random.default_rng(2)
    found = 0
    for number in range(acknowledged + 1):
        row = random.standard_normal(DIMENSIONS).astype(np.float32)
        row /= np.linalg.norm(row)
        (nearest,) = await index.search(b"p", row, 1, NOW)
        found += nearest.key == b"%d" % number
    await index.close()
    assert found == acknowledged + 1
