"""Texts in, nearest keys out: encoder, vector index and store put together.

Laws: the loop only moves messages, while encoder, index and store each have a thread of their own
that alone touches them; what was acknowledged survives kill -9; a fault of the store costs
persistence and nothing else.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

from embeddings.batching import BatchedEncoder, Batcher
from embeddings.encoder import Encoder, EncoderSettings, load_encoder
from embeddings.index_faiss import VectorIndex, search_on_one_core
from embeddings.messages import IndexStatus, Match, Reason
from embeddings.vector_store import (
    CorruptStoreError,
    Delete,
    Expire,
    Put,
    StoreError,
    VectorStore,
    Write,
)

MAX_BATCH: Final = 32
MAX_WAITING: Final = 1024
REMEMBERED_VECTORS: Final = 1024
# A batch of texts that only want their vectors holds up the searches that come meanwhile. Longer
# texts gain nothing from being many, and short ones little beyond this (see the README).
MAX_BULK_BATCH: Final = 4
# A sweep holds up searches for a few milliseconds at a time.
_SWEEP_LIMIT: Final = 2000

_log = logging.getLogger(__name__)
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class TextIndexSettings:
    """`max_vectors`: the oldest leave beyond it."""

    data_dir: Path
    encoder: EncoderSettings
    max_vectors: int


class TextIndex:
    """Made by `open_text_index`; belongs to one event loop. Times come from `clock`."""

    def __init__(
        self,
        encoder: Encoder,
        index: VectorIndex,
        store: VectorStore,
        threads: "_Threads",
        clock: Callable[[], float],
    ) -> None:
        self._encoder = encoder
        self._index = index
        self._store = store
        self._threads = threads
        self._clock = clock
        self._texts = BatchedEncoder(
            encoder.encode,
            threads.encoder,
            max_batch=MAX_BATCH,
            max_waiting=MAX_WAITING,
            remembered=REMEMBERED_VECTORS,
        )
        self._bulk = BatchedEncoder(
            encoder.encode,
            threads.encoder,
            max_batch=MAX_BULK_BATCH,
            max_waiting=MAX_WAITING,
            remembered=0,
        )
        self._writes: Batcher[Sequence[Write], None] = Batcher(
            self._persist, threads.store, max_batch=256, max_waiting=MAX_WAITING
        )
        self._changes: set[asyncio.Task[None]] = set()

    async def search(self, partition: bytes, text: str, k: int) -> list[Match] | Reason:
        """Return the `k` nearest, or the reason for not searching. Raises OverloadedError."""
        vector = await self._texts.encode(text)
        if isinstance(vector, Reason):
            return vector
        now = self._clock()
        return await _on(self._threads.index, lambda: self._index.search(partition, vector, k, now))

    async def add(
        self, partition: bytes, key: bytes, text: str, expires_at: float
    ) -> Reason | None:
        """Index a text; return once it is on disk, or the reason for not indexing it.

        Cancelled, it is either in both index and store or in neither. Raises OverloadedError.
        """
        vector = await self._texts.encode(text)
        if isinstance(vector, Reason):
            return vector
        await self._whole(self._add(Put(key, partition, expires_at, vector)))
        return None

    async def embed(self, texts: Sequence[str]) -> tuple[tuple[float, ...], ...] | Reason:
        """Return the texts' vectors, or the first reason for there being none.

        They go to the encoder a few at a time, in turn with searches. Raises OverloadedError.
        """
        encoded = await asyncio.gather(*map(self._bulk.encode, texts))
        vectors: list[tuple[float, ...]] = []
        for vector in encoded:
            if isinstance(vector, Reason):
                return vector
            vectors.append(tuple(vector.tolist()))
        return tuple(vectors)

    async def remove(self, keys: Sequence[bytes]) -> None:
        """Forget keys in index and store, as a whole even when cancelled."""
        await self._whole(self._remove(keys))

    async def sweep(self) -> None:
        """Drop what has expired by now."""
        now = self._clock()
        while await _on(self._threads.index, lambda: self._index.sweep(now, _SWEEP_LIMIT)):
            pass
        await self._writes.submit([Expire(now)])

    async def status(self) -> IndexStatus:
        """Return what is loaded; always ready."""
        return IndexStatus(
            ready=True,
            encoder=self._encoder.name,
            digest=self._encoder.digest,
            dimensions=self._encoder.dimensions,
            vectors=await _on(self._threads.index, self._index.__len__),
        )

    async def close(self) -> None:
        """Finish the changes under way and close the store."""
        if self._changes:
            await asyncio.wait(self._changes)
        await self._writes.drain()
        await _on(self._threads.store, self._store.close)

    async def _add(self, put: Put) -> None:
        evicted = await _on(
            self._threads.index,
            lambda: self._index.add(put.partition, put.key, put.vector, put.expires_at),
        )
        await self._writes.submit([put, *map(Delete, evicted)])

    async def _remove(self, keys: Sequence[bytes]) -> None:
        await _on(self._threads.index, lambda: [self._index.remove(key) for key in keys])
        await self._writes.submit([Delete(key) for key in keys])

    async def _whole(self, change: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(change)
        self._changes.add(task)
        task.add_done_callback(self._changes.discard)
        await asyncio.shield(task)

    def _persist(self, batches: Sequence[Sequence[Write]]) -> list[None]:
        try:
            self._store.apply([write for batch in batches for write in batch])
        except CorruptStoreError as error:
            self._store.set_aside(error, self._clock())
        except StoreError as error:
            _log.warning("changes to vectors were not persisted: %s", error)
        return [None] * len(batches)


class _Threads:
    """One thread for each owner of mutable state."""

    def __init__(self) -> None:
        self.encoder = ThreadPoolExecutor(1, "encoder")
        self.index = ThreadPoolExecutor(1, "index", initializer=search_on_one_core)
        self.store = ThreadPoolExecutor(1, "store")


async def open_text_index(settings: TextIndexSettings, clock: Callable[[], float]) -> TextIndex:
    """Load and warm the encoder and read the vectors back. Raises ModelError, StoreError."""
    threads = _Threads()
    encoder = await _on(threads.encoder, lambda: load_encoder(settings.encoder))
    index, store = await _on(threads.store, lambda: _restore(settings, encoder, clock()))
    _log.info("embeddings ready: %s, %d vectors", encoder.name, len(index))
    return TextIndex(encoder, index, store, threads, clock)


def _restore(
    settings: TextIndexSettings, encoder: Encoder, now: float
) -> tuple[VectorIndex, VectorStore]:
    store = VectorStore(
        settings.data_dir, encoder_digest=encoder.digest, dimensions=encoder.dimensions, now=now
    )
    index = VectorIndex(encoder.dimensions, settings.max_vectors)
    unusable: list[Write] = []
    try:
        for put in store.load(now):
            unusable.extend(map(Delete, _indexed(index, put)))
        store.apply(unusable)
    except CorruptStoreError as error:
        store.set_aside(error, now)
        index = VectorIndex(encoder.dimensions, settings.max_vectors)
    return index, store


def _indexed(index: VectorIndex, put: Put) -> list[bytes]:
    """Index a stored vector; return the keys that are not to stay in the store."""
    try:
        return index.add(put.partition, put.key, put.vector, put.expires_at)
    except ValueError as error:
        _log.warning("vector store: dropped a vector: %s", error)
        return [put.key]


async def _on(thread: ThreadPoolExecutor, run: Callable[[], T]) -> T:
    return await asyncio.get_running_loop().run_in_executor(thread, run)
