"""Nearest neighbours in one partition: the index that the service uses, beside exact search.

    python benchmarks/vector_index.py [--vectors N ...] [--texts N] [--data DIR] [--url QDRANT]

Vectors of real sentences (the texts of CLINC150 and BANKING77, read in place) are recombined in
pairs, with noise, to the number asked for; `--vectors 1000000 --texts 28000` is the full run. Asked
are sentences held out of that, and stored vectors with noise, which are what hits look like.
Recall at 4: the share of the four nearest by an exact search of 32-bit vectors that were found.

The store is filled, the index opened (a restart), searched while it builds and afterwards. The peer
is FAISS's flat index of 32-bit vectors. With --url a Qdrant server is filled and searched, too,
round trip included; its embedded mode filters in Python and says nothing of a server.
"""

import argparse
import asyncio
import json
import logging
import os
import statistics
import tempfile
import time
import uuid
from collections.abc import Awaitable, Callable, Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import faiss
import numpy as np

from embeddings.encoder.encoder import EncoderSettings, load_encoder
from embeddings.encoder.model_files import DEFAULT_MODEL
from embeddings.index.local import LocalIndex, open_local_index, search_on_one_core
from embeddings.index.partition import FLAT_VECTORS
from embeddings.index.qdrant import QdrantIndex, connect
from embeddings.index.store import FILE_NAME, Put, VectorStore
from embeddings.index.vector_index import VectorIndex
from embeddings.service import give_large_blocks_back
from embeddings.settings import QdrantSettings

DATA = Path(__file__).resolve().parents[2] / "shared" / "data"
FILES = ("clinc150.jsonl", "banking77.jsonl")
DIMENSIONS, K = 384, 4
PARTITION, DIGEST = b"p" * 32, "be" * 32
NOW, LATER = 1_700_000_000.0, 2_000_000_000.0
NOISE, ASKED_NOISE = 0.3, 0.3
CHUNK, HELD_OUT, SEARCHES, ADDS = 20_000, 300, 300, 100


def sentence_vectors(data: Path, count: int) -> np.ndarray | None:
    """Return unit vectors of up to `count` texts, kept in the temp directory for the next run."""
    paths = [data / name for name in FILES]
    if missing := [path for path in paths if not path.exists()]:
        print(f"skipped: {missing[0]} is not there (--data names its directory)")
        return None
    rows = [json.loads(line) for path in paths for line in path.read_text().splitlines()]
    texts = sorted({row["text"].strip() for row in rows})
    np.random.default_rng(1).shuffle(texts)
    texts = texts[:count]
    name = sha256("\n".join(texts).encode()).hexdigest()[:16]
    cached = Path(tempfile.gettempdir()) / f"refrain-sentences-{name}.npy"
    if cached.exists():
        kept: np.ndarray = np.load(cached)
        return kept
    encoder = load_encoder(EncoderSettings(DEFAULT_MODEL, "cpu", threads=1))
    texts.sort(key=len)
    vectors = [encoder.encode(texts[start : start + 32]) for start in range(0, len(texts), 32)]
    encoded = np.array([vector for batch in vectors for vector in batch], dtype=np.float32)
    np.save(cached, encoded)
    return encoded


def unit(rows: np.ndarray) -> np.ndarray:
    directions: np.ndarray = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    return directions.astype(np.float32)


def noised(rows: np.ndarray, noise: float, random: np.random.Generator) -> np.ndarray:
    """Add noise of that length to unit vectors; 0.3 leaves a cosine of 0.96."""
    added = random.standard_normal(rows.shape, dtype=np.float32) * (noise / DIMENSIONS**0.5)
    return unit(rows + added)


def recombined(sentences: np.ndarray, count: int) -> Iterator[np.ndarray]:
    """Yield chunks of vectors, the same ones each time."""
    for start in range(0, count, CHUNK):
        random = np.random.default_rng([2, start])
        size = min(CHUNK, count - start)
        first, second = random.integers(0, len(sentences), (2, size))
        share = random.uniform(0.5, 1.0, (size, 1)).astype(np.float32)
        yield noised(
            unit(share * sentences[first] + (1 - share) * sentences[second]), NOISE, random
        )


def asked(held_out: np.ndarray, sentences: np.ndarray, count: int) -> dict[str, np.ndarray]:
    random = np.random.default_rng(3)
    stored = next(recombined(sentences, count))
    some = stored[random.integers(0, len(stored), SEARCHES)]
    return {"held out": held_out, "noised": noised(some, ASKED_NOISE, random)}


def key(number: int) -> bytes:
    return b"%032d" % number


class Nearest:
    """The nearest vectors to each query, by exact comparison of all that were shown."""

    def __init__(self, queries: dict[str, np.ndarray]) -> None:
        self._queries = queries
        self._best = {name: np.full((len(rows), K), -2.0) for name, rows in queries.items()}
        self._numbers = {
            name: np.zeros((len(rows), K), dtype=np.int64) for name, rows in queries.items()
        }

    def show(self, first: int, chunk: np.ndarray) -> None:
        """Compare vectors that are numbered from `first` on."""
        for name, rows in self._queries.items():
            numbers = np.broadcast_to(np.arange(first, first + len(chunk)), (len(rows), len(chunk)))
            similarities = np.hstack([self._best[name], rows @ chunk.T])
            best = np.argpartition(-similarities, K, axis=1)[:, :K]
            self._best[name] = np.take_along_axis(similarities, best, axis=1)
            self._numbers[name] = np.take_along_axis(
                np.hstack([self._numbers[name], numbers]), best, axis=1
            )

    def recall(self, found: dict[str, list[set[bytes]]]) -> dict[str, float]:
        """Return the share that was found, for each kind of query and over all."""
        shares = {
            name: statistics.fmean(
                len(keys & {key(number) for number in numbers}) / K
                for keys, numbers in zip(found[name], self._numbers[name].tolist(), strict=True)
            )
            for name in found
        }
        each = {f"recall {name}": share for name, share in shares.items()}
        return {**each, "recall": statistics.fmean(shares.values())}


def fill(directory: Path, sentences: np.ndarray, count: int, truth: Nearest) -> None:
    store = VectorStore(directory, encoder_digest=DIGEST, dimensions=DIMENSIONS, now=NOW)
    number = 0
    for chunk in recombined(sentences, count):
        store.apply([Put(key(number + n), PARTITION, LATER, row) for n, row in enumerate(chunk)])
        truth.show(number, chunk)
        number += len(chunk)
    store.close()


def opening(directory: Path, count: int) -> Awaitable[LocalIndex]:
    return open_local_index(
        directory,
        encoder_digest=DIGEST,
        dimensions=DIMENSIONS,
        max_vectors=max(count, 1_000_000),
        clock=lambda: NOW,
    )


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def milliseconds(took: list[float]) -> dict[str, float]:
    took = sorted(took)
    return {
        "p50_ms": round(statistics.median(took) * 1000, 3),
        "p99_ms": round(took[int(len(took) * 0.99)] * 1000, 3),
    }


async def timed(run: Callable[[int], Awaitable[object]], count: int) -> list[float]:
    """Return the seconds of each call, after a few that do not count."""
    took = []
    for number in range(-5, count):
        began = time.perf_counter()
        await run(number)
        if number >= 0:
            took.append(time.perf_counter() - began)
    return took


async def searched(
    index: VectorIndex, queries: dict[str, np.ndarray]
) -> tuple[dict[str, list[set[bytes]]], list[float]]:
    """Return the keys that each search found, and its seconds."""
    found: dict[str, list[set[bytes]]] = {}
    took = []
    for name, rows in queries.items():
        keys = found[name] = [set() for _ in rows]

        async def search(
            number: int, rows: np.ndarray = rows, keys: list[set[bytes]] = keys
        ) -> None:
            matches = await index.search(PARTITION, rows[number], K, NOW)
            keys[number] = {match.key for match in matches}

        took += await timed(search, len(rows))
    return found, took


async def added(index: VectorIndex, rows: np.ndarray) -> list[float]:
    async def add(number: int) -> None:
        await index.add(PARTITION, b"new-%d" % number, rows[number], LATER, NOW)

    return await timed(add, ADDS)


def flat(sentences: np.ndarray, count: int, queries: np.ndarray) -> list[float]:
    """Return the seconds of searches in FAISS's flat index of 32-bit vectors, on one thread."""
    search_on_one_core()
    index = faiss.IndexFlatIP(DIMENSIONS)
    for chunk in recombined(sentences, count):
        index.add(chunk)
    took: list[float] = []
    for row in queries[:50]:
        began = time.perf_counter()
        index.search(row.reshape(1, -1), K)
        took.append(time.perf_counter() - began)
    return took


async def until_built(index: LocalIndex, queries: np.ndarray) -> list[float]:
    """Search until all is built; return the seconds of each search."""
    took: list[float] = []
    while index.building:
        began = time.perf_counter()
        await index.search(PARTITION, queries[len(took) % len(queries)], K, NOW)
        took.append(time.perf_counter() - began)
        await asyncio.sleep(0.5)
    return took


async def run(directory: Path, vectors: np.ndarray, count: int) -> dict[str, Any]:
    held_out, sentences = vectors[:HELD_OUT], vectors[HELD_OUT:]
    queries = asked(held_out, sentences, count)
    truth = Nearest(queries)
    fill(directory, sentences, count, truth)
    figures: dict[str, Any] = {}
    before, began, cpu = resident(), time.perf_counter(), time.process_time()
    index = await opening(directory, count)
    figures["start_s"] = time.perf_counter() - began
    figures["start_cpu_s"] = time.process_time() - cpu
    cpu = time.process_time()
    while_building = await until_built(index, queries["noised"])
    if while_building:
        figures["build_s"] = time.perf_counter() - began - figures["start_s"]
        figures["build_cpu_s"] = time.process_time() - cpu
        figures["while building"] = milliseconds(while_building)
    figures["bytes_a_vector"] = (resident() - before) / count
    cpu = time.process_time()
    found, took = await searched(index, queries)
    figures["search_cpu_ms"] = (time.process_time() - cpu) * 1000 / len(took)
    figures["search"] = milliseconds(took)
    figures["add"] = milliseconds(await added(index, queries["noised"]))
    await index.close()
    del index
    figures.update(truth.recall(found))
    few = min(count, FLAT_VECTORS)
    figures[f"flat 32-bit, {few}"] = milliseconds(flat(sentences, few, queries["noised"]))
    figures["disk_bytes_a_vector"] = (directory / FILE_NAME).stat().st_size / count
    return figures


async def qdrant(url: str, vectors: np.ndarray, count: int) -> dict[str, Any]:
    """Return the figures of a Qdrant server with the same vectors."""
    held_out, sentences = vectors[:HELD_OUT], vectors[HELD_OUT:]
    queries = asked(held_out, sentences, count)
    client = connect(QdrantSettings(url))
    index = QdrantIndex(
        client,
        encoder_digest=DIGEST,
        dimensions=DIMENSIONS,
        max_vectors=1 << 20,
        prefix=uuid.uuid4().hex,
    )
    await index.prepare()
    truth = Nearest(queries)
    try:
        number = 0
        for chunk in recombined(sentences, count):
            for start in range(0, len(chunk), 500):
                points = [
                    index.point(PARTITION, key(number + n), row, LATER, NOW)
                    for n, row in enumerate(chunk[start : start + 500], start)
                ]
                await client.upsert(index.collection, points, wait=True)
            truth.show(number, chunk)
            number += len(chunk)
        found, took = await searched(index, queries)
        adds = await added(index, queries["noised"])
    finally:
        await client.delete_collection(index.collection)
        await index.close()
    return {"search": milliseconds(took), "add": milliseconds(adds), **truth.recall(found)}


def show(name: str, count: int, figures: dict[str, Any]) -> None:
    figures = {
        name: round(value, 4) if isinstance(value, float) else value
        for name, value in figures.items()
    }
    print(f"{name}: {count} vectors in one partition, load average {os.getloadavg()[0]:.1f}")
    for label, value in figures.items():
        print(f"    {label:24}{value}")
    line = {"benchmark": "vector_index", "index": name, "vectors": count, **figures}
    print(json.dumps(line), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--vectors", type=int, nargs="+", default=[20_000])
    parser.add_argument("--texts", type=int, default=2_000)
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--url", help="a Qdrant server to measure, too")
    options = parser.parse_args()
    give_large_blocks_back()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", datefmt="%H:%M:%S")
    vectors = sentence_vectors(options.data, options.texts)
    if vectors is None:
        return
    for count in options.vectors:
        with tempfile.TemporaryDirectory() as directory:
            show("local", count, asyncio.run(run(Path(directory), vectors, count)))
        if options.url:
            show("qdrant", count, asyncio.run(qdrant(options.url, vectors, count)))


if __name__ == "__main__":
    main()
