"""The index of one installation: FAISS in memory, vectors.sqlite3 behind it.

Laws: index and store each have a thread of their own that alone touches them; what was acknowledged
survives kill -9; a fault of the store costs persistence and nothing else; a change is whole, even
if nobody waits for it any more.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, TypeVar

from embeddings.batching import Batcher, OverloadedError
from embeddings.encoder import Vector
from embeddings.index_faiss import FaissIndex, search_on_one_core
from embeddings.messages import Match, Reason
from embeddings.vector_index import VectorIndexError
from embeddings.vector_store import (
    CorruptStoreError,
    Delete,
    Expire,
    Put,
    StoreError,
    VectorStore,
    Write,
)

MAX_WAITING: Final = 1024
# A sweep holds up searches for a few milliseconds at a time; 2,000 took 260 ms on a busy machine.
_SWEEP_LIMIT: Final = 100

_log = logging.getLogger(__name__)
T = TypeVar("T")


class LocalIndex:
    """See the port. Made by `open_local_index`."""

    name = "faiss"
    fault = None

    def __init__(
        self,
        index: FaissIndex,
        store: VectorStore,
        store_thread: ThreadPoolExecutor,
        clock: Callable[[], float],
    ) -> None:
        self._index = index
        self._store = store
        self._index_thread = ThreadPoolExecutor(1, "index", initializer=search_on_one_core)
        self._store_thread = store_thread
        self._clock = clock
        self._writes: Batcher[Sequence[Write], None] = Batcher(
            self._persist, store_thread, max_batch=256, max_waiting=MAX_WAITING
        )
        self._changes: set[asyncio.Task[None]] = set()

    @property
    def size(self) -> int:
        """See the port."""
        return len(self._index)

    async def search(self, partition: bytes, vector: Vector, k: int, now: float) -> list[Match]:
        """See the port."""
        return await _on(self._index_thread, lambda: self._index.search(partition, vector, k, now))

    async def add(
        self, partition: bytes, key: bytes, vector: Vector, expires_at: float, now: float
    ) -> None:
        """See the port. Cancelled, it is either in both index and store or in neither."""
        del now  # the order of insertion is kept
        await self._whole(self._add(Put(key, partition, expires_at, vector)))

    async def remove(self, keys: Sequence[bytes]) -> None:
        """See the port. As a whole even when cancelled."""
        await self._whole(self._remove(keys))

    async def sweep(self, now: float) -> None:
        """See the port."""
        while await _on(self._index_thread, lambda: self._index.sweep(now, _SWEEP_LIMIT)):
            pass
        await self._written([Expire(now)])

    async def close(self) -> None:
        """See the port."""
        if self._changes:
            await asyncio.wait(self._changes)
        await self._writes.drain()
        await _on(self._store_thread, self._store.close)
        for thread in (self._index_thread, self._store_thread):
            thread.shutdown(wait=False)

    async def _add(self, put: Put) -> None:
        evicted = await _on(
            self._index_thread,
            lambda: self._index.add(put.partition, put.key, put.vector, put.expires_at),
        )
        await self._written([put, *map(Delete, evicted)])

    async def _remove(self, keys: Sequence[bytes]) -> None:
        await _on(self._index_thread, lambda: [self._index.remove(key) for key in keys])
        await self._written([Delete(key) for key in keys])

    async def _written(self, writes: Sequence[Write]) -> None:
        try:
            await self._writes.submit(writes)
        except OverloadedError as error:
            raise VectorIndexError(Reason.OVERLOADED, str(error)) from error

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


async def open_local_index(
    data_dir: Path,
    *,
    encoder_digest: str,
    dimensions: int,
    max_vectors: int,
    clock: Callable[[], float],
) -> LocalIndex:
    """Read the vectors back that this encoder made. Raises StoreError."""
    thread = ThreadPoolExecutor(1, "store")

    def restore() -> tuple[FaissIndex, VectorStore]:
        store = VectorStore(
            data_dir, encoder_digest=encoder_digest, dimensions=dimensions, now=clock()
        )
        return _restored(store, dimensions, max_vectors, clock()), store

    try:
        index, store = await _on(thread, restore)
    except BaseException:
        thread.shutdown(wait=False)
        raise
    return LocalIndex(index, store, thread, clock)


def _restored(store: VectorStore, dimensions: int, max_vectors: int, now: float) -> FaissIndex:
    index = FaissIndex(dimensions, max_vectors)
    unusable: list[Write] = []
    try:
        for put in store.load(now):
            unusable.extend(map(Delete, _indexed(index, put)))
        store.apply(unusable)
    except CorruptStoreError as error:
        store.set_aside(error, now)
        return FaissIndex(dimensions, max_vectors)
    return index


def _indexed(index: FaissIndex, put: Put) -> list[bytes]:
    """Index a stored vector; return the keys that are not to stay in the store."""
    try:
        return index.add(put.partition, put.key, put.vector, put.expires_at)
    except ValueError as error:
        _log.warning("vector store: dropped a vector: %s", error)
        return [put.key]


async def _on(thread: ThreadPoolExecutor, run: Callable[[], T]) -> T:
    return await asyncio.get_running_loop().run_in_executor(thread, run)
