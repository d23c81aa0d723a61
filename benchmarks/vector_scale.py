"""Nearest neighbours in a large partition: graphs (HNSW) beside flat search, in the same run.

    python benchmarks/vector_scale.py [--vectors N] [--texts N] [--data DIR]

Vectors of real sentences (the texts of CLINC150 and BANKING77, read in place) are recombined in
pairs, with noise, to the number asked for; `--vectors 1000000 --texts 28000` is the full run. Asked
are sentences held out of that, and stored vectors with noise. Recall@1: the index found the very
vector that is the nearest by a flat search of the 32-bit vectors.

All goes through the index that the service uses: the store is filled, the index opened without
graphs (a first start), searched while it builds them and afterwards, closed, and opened again.
"""

import argparse
import asyncio
import json
import logging
import os
import statistics
import tempfile
import time
from collections.abc import Awaitable, Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import faiss
import numpy as np

from embeddings.encoder.encoder import EncoderSettings, load_encoder
from embeddings.encoder.model_files import DEFAULT_MODEL
from embeddings.index.allocation import give_large_blocks_back
from embeddings.index.local import LocalIndex, open_local_index
from embeddings.index.store import FILE_NAME, Put, VectorStore

DATA = Path(__file__).resolve().parents[2] / "shared" / "data"
FILES = ("clinc150.jsonl", "banking77.jsonl")
DIMENSIONS, K = 384, 4
PARTITION, DIGEST = b"p" * 32, "be" * 32
NOW, LATER = 1_700_000_000.0, 2_000_000_000.0
NOISE, ASKED_NOISE = 0.3, 0.3
CHUNK, HELD_OUT, SEARCHES = 20_000, 300, 300


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


def fill(directory: Path, sentences: np.ndarray, count: int) -> None:
    store = VectorStore(directory, encoder_digest=DIGEST, dimensions=DIMENSIONS, now=NOW)
    number = 0
    for chunk in recombined(sentences, count):
        store.apply([Put(key(number + n), PARTITION, LATER, row) for n, row in enumerate(chunk)])
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


async def searched(index: LocalIndex, queries: np.ndarray) -> tuple[list[bytes], list[float]]:
    """Return the nearest key and the seconds of each search, after a few that do not count."""
    nearest, took = [], []
    for number in range(-5, len(queries)):
        began = time.perf_counter()
        found = await index.search(PARTITION, queries[number], K, NOW)
        if number >= 0:
            took.append(time.perf_counter() - began)
            nearest.append(found[0].key)
    return nearest, took


def flat(
    sentences: np.ndarray, count: int, queries: dict[str, np.ndarray]
) -> tuple[dict[str, list[bytes]], list[float]]:
    """Return the truth, and the seconds of flat searches on one thread."""
    faiss.omp_set_num_threads(1)
    index = faiss.IndexFlatIP(DIMENSIONS)
    for chunk in recombined(sentences, count):
        index.add(chunk)
    truth, took = {}, []
    for name, rows in queries.items():
        truth[name] = [key(int(row)) for row in index.search(rows, 1)[1][:, 0]]
    for row in queries["noised"][:50]:
        began = time.perf_counter()
        index.search(row.reshape(1, -1), K)
        took.append(time.perf_counter() - began)
    return truth, took


async def built(index: LocalIndex, queries: np.ndarray) -> list[float]:
    """Search until all is built in; return the seconds of each search."""
    took = []
    while index.building:
        for row in queries[:20]:
            began = time.perf_counter()
            await index.search(PARTITION, row, K, NOW)
            took.append(time.perf_counter() - began)
        await asyncio.sleep(0.2)
    return took


async def run(directory: Path, vectors: np.ndarray, count: int) -> dict[str, Any]:
    held_out, sentences = vectors[:HELD_OUT], vectors[HELD_OUT:]
    queries = asked(held_out, sentences, count)
    fill(directory, sentences, count)
    figures: dict[str, Any] = {}
    before, began, cpu = resident(), time.perf_counter(), time.process_time()
    index = await opening(directory, count)
    figures["first_start_s"] = time.perf_counter() - began
    meanwhile = await built(index, queries["noised"])
    figures["build_s"] = time.perf_counter() - began - figures["first_start_s"]
    figures["cpu_s"] = time.process_time() - cpu
    figures["bytes_a_vector"] = (resident() - before) / count
    if meanwhile:
        figures["while_building"] = milliseconds(meanwhile)
    await index.close()
    del index
    began = time.perf_counter()
    index = await opening(directory, count)
    figures["restart_s"] = time.perf_counter() - began
    figures["unbuilt_after_restart"] = index.building
    found, took = {}, []
    for name, rows in queries.items():
        found[name], times = await searched(index, rows)
        took += times
    figures["graphs"] = milliseconds(took)
    await index.close()
    del index
    truth, flat_took = flat(sentences, count, queries)
    figures["flat"] = milliseconds(flat_took)
    for name, keys in found.items():
        right = sum(a == b for a, b in zip(keys, truth[name], strict=True))
        figures[f"recall {name}"] = right / len(keys)
    files = (directory / FILE_NAME, *(directory / "vectors.graphs").glob("*"))
    figures["disk_bytes_a_vector"] = sum(path.stat().st_size for path in files) / count
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--vectors", type=int, default=20_000)
    parser.add_argument("--texts", type=int, default=2_000)
    parser.add_argument("--data", type=Path, default=DATA)
    options = parser.parse_args()
    give_large_blocks_back()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", datefmt="%H:%M:%S")
    vectors = sentence_vectors(options.data, options.texts)
    if vectors is None:
        return
    with tempfile.TemporaryDirectory() as directory:
        figures = asyncio.run(run(Path(directory), vectors, options.vectors))
    figures = {
        name: round(value, 3) if isinstance(value, float) else value
        for name, value in figures.items()
    }
    print(f"{options.vectors} vectors in one partition, load average {os.getloadavg()[0]:.1f}")
    for name, value in figures.items():
        print(f"{name:28}{value}")
    print(json.dumps({"benchmark": "vector_scale", "vectors": options.vectors, **figures}))


if __name__ == "__main__":
    main()
