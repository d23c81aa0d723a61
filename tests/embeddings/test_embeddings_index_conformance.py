"""Every vector index passes the shipped check, and the check tells a broken one."""

import os
import uuid

import pytest
from qdrant_client import AsyncQdrantClient

from embeddings.index.breaker import GuardedIndex
from embeddings.index.conformance import DIMENSIONS, IndexConformanceError, check_index
from embeddings.index.local import LocalIndex, open_local_index
from embeddings.index.partition import FLAT_VECTORS
from embeddings.index.qdrant import QdrantIndex, connect
from embeddings.settings import QdrantSettings

pytestmark = pytest.mark.filterwarnings("ignore:Payload indexes have no effect")

NOW = 1_700_000_000.0


# Both sides of the switch: each check has some dozens of vectors.
# Codes learned from fewer than eight vectors hide the farthest, and a build may begin at once.
FLAT = [FLAT_VECTORS, 16, 8]


def local(tmp_path, kind=LocalIndex, flat_vectors=FLAT_VECTORS):
    async def make(place, max_vectors):
        made = await open_local_index(
            tmp_path / place,
            encoder_digest="ab" * 32,
            dimensions=DIMENSIONS,
            max_vectors=max_vectors,
            clock=lambda: NOW,
            flat_vectors=flat_vectors,
        )
        made.__class__ = kind
        return made

    return make


@pytest.mark.parametrize("flat_vectors", FLAT)
async def test_local(tmp_path, flat_vectors):
    await check_index(local(tmp_path, flat_vectors=flat_vectors))


async def test_qdrant_embedded(tmp_path):
    """Here a place is a directory."""

    async def make(place, max_vectors):
        index = QdrantIndex(
            AsyncQdrantClient(path=str(tmp_path / place)),
            encoder_digest="ab" * 32,
            dimensions=DIMENSIONS,
            max_vectors=max_vectors,
        )
        await index.prepare()
        return index

    await check_index(make)


@pytest.fixture(params=["stand-in", "QDRANT_URL"])
def qdrant_url(request):
    if request.param == "QDRANT_URL":
        if not (url := os.environ.get("QDRANT_URL")):
            pytest.skip("QDRANT_URL names no Qdrant server")
        return url
    return request.getfixturevalue("qdrant_server").url


async def test_qdrant_over_the_network(qdrant_url):
    """Here a place is a collection, and the guard stands before it as in the product."""
    settings = QdrantSettings(qdrant_url, os.environ.get("REFRAIN_QDRANT_API_KEY"))
    run = uuid.uuid4().hex
    made = set()

    async def make(place, max_vectors):
        index = QdrantIndex(
            connect(settings),
            encoder_digest="ab" * 32,
            dimensions=DIMENSIONS,
            max_vectors=max_vectors,
            prefix=f"test-{run}-{place}",
        )
        made.add(index.collection)
        guarded = GuardedIndex(index, dimensions=DIMENSIONS, seconds=30)
        await guarded.start()
        return guarded

    try:
        await check_index(make)
    finally:
        client = connect(settings)
        for collection in made:
            await client.delete_collection(collection)
        await client.close()


class Leaky(LocalIndex):
    """Has one partition."""

    async def search(self, partition, vector, k, now):
        return await super().search(b"", vector, k, now)

    async def add(self, partition, key, vector, expires_at, now):
        await super().add(b"", key, vector, expires_at, now)


class Immortal(LocalIndex):
    async def search(self, partition, vector, k, now):
        return await super().search(partition, vector, k, 0.0)


class Unordered(LocalIndex):
    async def search(self, partition, vector, k, now):
        return sorted(await super().search(partition, vector, k, now), key=lambda m: m.key)


class Lazy(LocalIndex):
    """Says that it is done before it is."""

    def __init__(self):
        raise AssertionError

    async def remove(self, keys):
        return None


class Unbounded(LocalIndex):
    async def sweep(self, now):
        self._index._max_vectors = 1 << 30


class Forgetful(LocalIndex):
    async def close(self):
        await self.remove([b"%d" % number for number in range(50)])
        await super().close()


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (Leaky, "leaks"),
        (Immortal, "expired"),
        (Unordered, "not in their order"),
        (Lazy, "removed key was found"),
        (Unbounded, "11 there"),
        (Forgetful, "a restart changed"),
    ],
)
async def test_the_check_tells_a_broken_index(tmp_path, broken, message):
    with pytest.raises(IndexConformanceError, match=message):
        await check_index(local(tmp_path, broken))
