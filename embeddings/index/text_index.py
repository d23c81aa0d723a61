"""Texts in, nearest keys out: encoder and vector index put together.

Laws: the loop only moves messages, while threads of their own run the encoder; nothing that the
vector index does or fails to do holds up the encoder.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Final

from embeddings.batching import BatchedEncoder
from embeddings.encoder.encoder import Encoder, EncoderSettings, load_encoder
from embeddings.index.vector_index import VectorIndex
from embeddings.messages import IndexStatus, Matches, Reason
from embeddings.settings import QdrantSettings

MAX_BATCH: Final = 32
MAX_WAITING: Final = 1024
REMEMBERED_VECTORS: Final = 4096
# A batch of texts that only want their vectors holds up the searches that come meanwhile. Longer
# texts gain nothing from being many, and short ones little beyond this (see the README).
MAX_BULK_BATCH: Final = 4

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TextIndexSettings:
    """`max_vectors`: the oldest leave beyond it. Without `qdrant` the vectors are in `data_dir`."""

    data_dir: Path
    encoder: EncoderSettings
    max_vectors: int
    qdrant: QdrantSettings | None = None


class TextIndex:
    """Made by `open_text_index`; belongs to one event loop. Times come from `clock`.

    What it does raises OverloadedError and VectorIndexError.
    """

    def __init__(
        self,
        encoder: Encoder,
        encoder_threads: ThreadPoolExecutor,
        index: VectorIndex,
        clock: Callable[[], float],
    ) -> None:
        self._encoder = encoder
        self._index = index
        self._clock = clock
        self._texts = BatchedEncoder(
            encoder.encode,
            encoder_threads,
            max_batch=MAX_BATCH,
            max_waiting=MAX_WAITING,
            remembered=REMEMBERED_VECTORS,
            lanes=encoder.lanes,
        )
        self._bulk = BatchedEncoder(
            encoder.encode,
            encoder_threads,
            max_batch=MAX_BULK_BATCH,
            max_waiting=MAX_WAITING,
            remembered=0,
            lanes=encoder.lanes,
        )

    async def search(self, partition: bytes, text: str, k: int) -> Matches | Reason:
        """Return the `k` nearest, or the reason for not searching."""
        vector, waited = await self._texts.encode_timed(text, partition)
        if isinstance(vector, Reason):
            return vector
        found = await self._index.search(partition, vector, k, self._clock())
        return Matches(tuple(found), waited)

    async def add(
        self, partition: bytes, key: bytes, text: str, expires_at: float
    ) -> Reason | None:
        """Index a text; return once any search finds it, or the reason for not indexing it.

        If its vector is not remembered from a search, it waits until no search does.
        """
        vector = await self._texts.encode(text, partition, later=True)
        if isinstance(vector, Reason):
            return vector
        await self._index.add(partition, key, vector, expires_at, self._clock())
        return None

    async def embed(self, texts: Sequence[str]) -> tuple[tuple[float, ...], ...] | Reason:
        """Return the texts' vectors, or the first reason for there being none.

        They go to the encoder a few at a time, in turn with searches.
        """
        mine = object()  # nothing is shared with another call
        encoded = await asyncio.gather(*(self._bulk.encode(text, mine) for text in texts))
        vectors: list[tuple[float, ...]] = []
        for vector in encoded:
            if isinstance(vector, Reason):
                return vector
            vectors.append(tuple(vector.tolist()))
        return tuple(vectors)

    async def remove(self, keys: Sequence[bytes]) -> None:
        """Forget keys."""
        await self._index.remove(keys)

    async def sweep(self) -> None:
        """Drop what has expired by now."""
        await self._index.sweep(self._clock())

    def status(self) -> IndexStatus:
        """Return what is loaded; always ready."""
        return IndexStatus(
            ready=True,
            encoder=self._encoder.name,
            digest=self._encoder.digest,
            dimensions=self._encoder.dimensions,
            vectors=self._index.size,
            index=self._index.name,
            fault=self._index.fault or "",
        )

    async def close(self) -> None:
        """Finish the changes under way."""
        await self._index.close()


async def open_text_index(settings: TextIndexSettings, clock: Callable[[], float]) -> TextIndex:
    """Load and warm the encoder and open the index. Raises ModelError, StoreError."""
    # Not the loop's own executor: the end of the loop would wait for a load under way.
    loading = ThreadPoolExecutor(1, "encoder-load")
    encoder = await asyncio.get_running_loop().run_in_executor(
        loading, load_encoder, settings.encoder
    )
    index = await open_index(
        settings.data_dir,
        settings.qdrant,
        encoder_digest=encoder.digest,
        dimensions=encoder.dimensions,
        max_vectors=settings.max_vectors,
        clock=clock,
    )
    return TextIndex(encoder, ThreadPoolExecutor(encoder.lanes, "encoder"), index, clock)


async def open_index(
    data_dir: Path,
    qdrant: QdrantSettings | None,
    *,
    encoder_digest: str,
    dimensions: int,
    max_vectors: int,
    clock: Callable[[], float],
) -> VectorIndex:
    """Open the index that is configured: Qdrant, or FAISS in this process. A new one goes here."""
    if qdrant is not None:
        # A second of import, and only for those who use it: off the loop.
        module = await asyncio.to_thread(import_module, "embeddings.index.qdrant")
        index: VectorIndex = await module.open_qdrant(
            qdrant, encoder_digest=encoder_digest, dimensions=dimensions, max_vectors=max_vectors
        )
        return index
    from embeddings.index.local import open_local_index  # noqa: PLC0415 - likewise

    return await open_local_index(
        data_dir,
        encoder_digest=encoder_digest,
        dimensions=dimensions,
        max_vectors=max_vectors,
        clock=clock,
    )
