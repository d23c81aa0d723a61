"""Nearest neighbours in 10,000 vectors: FAISS and Qdrant, beside numpy and the encoder.

    python benchmarks/vector_index.py [--vectors N] [--searches N] [--url QDRANT]

The peer is one matrix product in numpy over the same vectors, on as many threads as BLAS takes.
Qdrant's embedded mode is Python and numpy behind the server's interface: it is for tests, and says
nothing of a server. With --url a real server is measured, round trip included.
"""

import argparse
import asyncio
import json
import statistics
import tempfile
import time
import uuid
import warnings
from collections.abc import Awaitable, Callable
from pathlib import Path

import numpy as np
from qdrant_client import AsyncQdrantClient

from embeddings.encoder.encoder import EncoderSettings, load_encoder
from embeddings.encoder.model_files import DEFAULT_MODEL
from embeddings.index.local import open_local_index
from embeddings.index.qdrant import QdrantIndex, connect
from embeddings.index.vector_index import VectorIndex
from embeddings.settings import QdrantSettings

DIMENSIONS, K = 384, 5
PARTITION = b"partition"
NOW, LATER = 1_700_000_000.0, 2_000_000_000.0
QUESTION = "How do I reset the password of my account?"


def unit_vectors(count: int) -> np.ndarray:
    rows = np.random.default_rng(1).standard_normal((count, DIMENSIONS)).astype(np.float32)
    directions: np.ndarray = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    return directions


async def timed(run: Callable[[int], Awaitable[object]], count: int) -> list[float]:
    """Return the milliseconds of each call, after a few that do not count."""
    for number in range(3):
        await run(number)
    took = []
    for number in range(count):
        began = time.perf_counter()
        await run(number)
        took.append((time.perf_counter() - began) * 1000)
    return took


async def measured(
    index: VectorIndex, rows: np.ndarray, count: int
) -> tuple[list[float], list[float]]:
    """Search a filled index, then add as many; return milliseconds of adds and of searches."""

    async def add(number: int) -> None:
        await index.add(PARTITION, b"new-%d" % number, rows[number], LATER, NOW)

    async def search(number: int) -> None:
        found = await index.search(PARTITION, rows[number], K, NOW)
        assert found[0].key == b"%d" % number

    searches = await timed(search, count)
    return await timed(add, count), searches


def qdrant(client: AsyncQdrantClient, name: str) -> QdrantIndex:
    return QdrantIndex(
        client, encoder_digest="be" * 32, dimensions=DIMENSIONS, max_vectors=1 << 20, prefix=name
    )


async def run(options: argparse.Namespace) -> dict[str, dict[str, float]]:
    rows = unit_vectors(options.vectors)
    figures: dict[str, list[float]] = {}

    async def product(number: int) -> None:
        scores = rows @ rows[number]
        assert int(np.argpartition(scores, -K)[-K:].max()) >= 0

    figures["numpy product"] = await timed(product, options.searches)
    with tempfile.TemporaryDirectory() as directory:
        local = await open_local_index(
            Path(directory),
            encoder_digest="be" * 32,
            dimensions=DIMENSIONS,
            max_vectors=1 << 20,
            clock=time.time,
        )
        for start in range(0, len(rows), 500):
            numbers = range(start, min(start + 500, len(rows)))
            await asyncio.gather(
                *(local.add(PARTITION, b"%d" % n, rows[n], LATER, NOW) for n in numbers)
            )
        adds, searches = await measured(local, rows, options.searches)
        figures["FAISS and SQLite, add"], figures["FAISS, search"] = adds, searches
        await local.close()
    name = "server" if options.url else "embedded"
    client = connect(QdrantSettings(options.url)) if options.url else AsyncQdrantClient(":memory:")
    index = qdrant(client, uuid.uuid4().hex)
    await index.prepare()
    for start in range(0, len(rows), 500):
        numbers = range(start, min(start + 500, len(rows)))
        points = [index.point(PARTITION, b"%d" % n, rows[n], LATER, NOW) for n in numbers]
        await client.upsert(index.collection, points, wait=True)
    # The embedded mode filters in Python: a tenth of a second and more a search.
    count = options.searches if options.url else min(options.searches, 10)
    adds, searches = await measured(index, rows, count)
    figures[f"Qdrant {name}, add"], figures[f"Qdrant {name}, search"] = adds, searches
    if options.url:
        await client.delete_collection(index.collection)
    await index.close()
    encoder = load_encoder(EncoderSettings(DEFAULT_MODEL, "cpu", threads=1))

    async def encode(number: int) -> None:
        encoder.encode([f"{QUESTION} {number}"])

    figures["encode one question"] = await timed(encode, 50)
    return {
        name: {
            "p50_ms": round(statistics.median(took), 3),
            "p99_ms": round(sorted(took)[int(len(took) * 0.99)], 3),
        }
        for name, took in figures.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--vectors", type=int, default=10_000)
    parser.add_argument("--searches", type=int, default=100)
    parser.add_argument("--url", help="a Qdrant server, instead of the embedded mode")
    options = parser.parse_args()
    warnings.filterwarnings("ignore", "Payload indexes have no effect")
    figures = asyncio.run(run(options))
    peer = figures["numpy product"]["p50_ms"]
    print(f"{options.vectors} vectors of {DIMENSIONS} in one partition, the {K} nearest")
    print(f"{'':28}{'p50 ms':>9}{'p99 ms':>9}{'x numpy':>9}")
    for name, figure in figures.items():
        ratio = figure["p50_ms"] / peer
        print(f"{name:28}{figure['p50_ms']:>9.2f}{figure['p99_ms']:>9.2f}{ratio:>9.1f}")
    print(json.dumps({"benchmark": "vector_index", "vectors": options.vectors, **figures}))


if __name__ == "__main__":
    main()
