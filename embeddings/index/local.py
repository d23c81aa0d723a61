"""The index of one installation: vectors in memory, vectors.sqlite3 behind them.

Laws: changes, building and store have a thread each, searches several; what was acknowledged
survives kill -9; a fault of the store costs persistence and nothing else; a change is whole, even
if nobody waits for it any more; a partition that is slow to search or to build holds up no other.

The store says what there is. What was built of it is built anew after a restart: a million vectors
take a minute of one core, meanwhile a search compares them all.
"""

import asyncio
import logging
import math
import os
import shutil
import time
from collections.abc import Callable, Coroutine, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import count, islice
from pathlib import Path
from typing import Any, Final, TypeVar
from weakref import WeakValueDictionary

import faiss
import numpy as np

from embeddings.batching import Batcher, OverloadedError
from embeddings.encoder.encoder import Vector
from embeddings.index.flat import Place
from embeddings.index.partition import FLAT_VECTORS, MemoryIndex
from embeddings.index.store import (
    CorruptStoreError,
    Delete,
    Expire,
    Put,
    StoreError,
    VectorStore,
    Write,
)
from embeddings.index.vector_index import VectorIndexError, are_vectors
from embeddings.messages import Match, Reason

MAX_WAITING: Final = 1024
# A sweep holds up searches for a few milliseconds at a time; 2,000 took 260 ms on a busy machine.
_SWEEP_LIMIT: Final = 100
_MOST_SEARCH_THREADS: Final = 4
_BUILD_S: Final = 0.02
_PAUSE_S: Final = 60.0
"""After a build that failed, until the next is tried."""
_RESTORED: Final = 1024
_PROGRESS: Final = 100 * _RESTORED

_log = logging.getLogger(__name__)
T = TypeVar("T")


def search_on_one_core() -> None:
    """Keep FAISS from splitting the work of the calling thread.

    One query is too little work to share: on busy cores, waiting for the slower half took 16 ms
    instead of 2.1 ms in 20,000 vectors.
    """
    faiss.omp_set_num_threads(1)


class LocalIndex:
    """See the port. Made by `open_local_index`."""

    name = "faiss"
    fault = None

    def __init__(
        self,
        index: MemoryIndex,
        store: VectorStore,
        store_thread: ThreadPoolExecutor,
        clock: Callable[[], float],
    ) -> None:
        self._index = index
        self._store = store
        self._index_thread = ThreadPoolExecutor(1, "index", initializer=search_on_one_core)
        # At least two, so that one partition never has them all.
        cores = len(os.sched_getaffinity(0))
        self._search_threads = ThreadPoolExecutor(
            max(2, min(_MOST_SEARCH_THREADS, cores)), "search", initializer=search_on_one_core
        )
        self._turns: WeakValueDictionary[bytes, asyncio.Lock] = WeakValueDictionary()
        self._build_thread = ThreadPoolExecutor(1, "build", initializer=search_on_one_core)
        self._building: asyncio.Task[None] | None = None
        self._build_after = -math.inf
        self._store_thread = store_thread
        self._clock = clock
        self._writes: Batcher[Sequence[Write], None] = Batcher(
            self._persist, store_thread, max_batch=256, max_waiting=MAX_WAITING
        )
        self._changes: set[asyncio.Task[None]] = set()

    @property
    def size(self) -> int:
        return len(self._index)

    @property
    def building(self) -> bool:
        """Whether vectors of large partitions are still being built in."""
        return self._building is not None

    async def search(self, partition: bytes, vector: Vector, k: int, now: float) -> list[Match]:
        async with self._turn(partition):
            return await _on(
                self._search_threads, lambda: self._index.search(partition, vector, k, now)
            )

    async def add(
        self, partition: bytes, key: bytes, vector: Vector, expires_at: float, now: float
    ) -> None:
        # Cancelled, it is either in both index and store or in neither.
        del now  # the order of insertion is kept
        turn = self._turn(partition)
        await turn.acquire()  # here, not in the task: a search that comes later finds it
        await self._whole(self._add(Put(key, partition, expires_at, vector), turn))

    async def remove(self, keys: Sequence[bytes]) -> None:
        # As a whole even when cancelled.
        await self._whole(self._remove(keys))

    async def sweep(self, now: float) -> None:
        while await _on(self._index_thread, lambda: self._index.sweep(now, _SWEEP_LIMIT)):
            pass
        self.build_if_needed()
        await self._written([Expire(now)])

    async def close(self) -> None:
        if self._changes:
            await asyncio.wait(self._changes)
        await self._writes.drain()
        self._build_after = math.inf
        if self._building is not None:
            # The thread ends its step alone, which takes seconds and changes nothing any more.
            self._building.cancel()
        await _on(self._store_thread, self._store.close)
        for thread in (
            *(self._index_thread, self._search_threads),
            *(self._build_thread, self._store_thread),
        ):
            thread.shutdown(wait=False)

    def _turn(self, partition: bytes) -> asyncio.Lock:
        """Return the lock that searches and additions of one partition take in order of arrival."""
        return self._turns.setdefault(partition, asyncio.Lock())

    async def _add(self, put: Put, turn: asyncio.Lock) -> None:
        try:
            evicted = await _on(
                self._index_thread,
                lambda: self._index.add(put.partition, put.key, put.vector, put.expires_at),
            )
        finally:
            turn.release()
        self.build_if_needed()
        await self._written([put, *map(Delete, evicted)])

    async def _remove(self, keys: Sequence[bytes]) -> None:
        await _on(self._index_thread, lambda: [self._index.remove(key) for key in keys])
        self.build_if_needed()
        await self._written([Delete(key) for key in keys])

    def build_if_needed(self) -> None:
        """Build in the background what is unbuilt."""
        if self._building is None and self._index.unbuilt and time.monotonic() > self._build_after:
            self._building = asyncio.create_task(self._build())

    async def _build(self) -> None:
        try:
            while self._index.unbuilt:
                rest = await _on(self._build_thread, self._build_a_little)
                await asyncio.sleep(rest)
        except Exception:  # noqa: BLE001 - searches go on with what is built
            _log.exception("building the index failed: searches of large partitions take longer")
            self._build_after = max(self._build_after, time.monotonic() + _PAUSE_S)
        finally:
            self._building = None

    def _build_a_little(self) -> float:
        """Return how long to rest: building takes half of a core at most."""
        began = time.thread_time()
        while self._index.build() and time.thread_time() - began < _BUILD_S:
            pass
        return time.thread_time() - began

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
    flat_vectors: int = FLAT_VECTORS,
) -> LocalIndex:
    """Read the vectors back that this encoder made. Raises StoreError.

    `flat_vectors`: a partition of no more is searched exactly; small for tests.
    """
    thread = ThreadPoolExecutor(1, "store", initializer=search_on_one_core)

    def empty() -> MemoryIndex:
        return MemoryIndex(dimensions, max_vectors, flat_vectors)

    def opened() -> tuple[MemoryIndex, VectorStore]:
        now = clock()
        store = VectorStore(data_dir, encoder_digest=encoder_digest, dimensions=dimensions, now=now)
        # Of versions that kept what they built.
        shutil.rmtree(data_dir / "vectors.graphs", ignore_errors=True)
        index = empty()
        try:
            store.apply([Delete(key) for key in _restored(index, store.load(now))])
        except CorruptStoreError as error:
            store.set_aside(error, now)
            index = empty()
        return index, store

    try:
        index, store = await _on(thread, opened)
    except BaseException:
        thread.shutdown(wait=False)
        raise
    local = LocalIndex(index, store, thread, clock)
    local.build_if_needed()
    return local


def _restored(index: MemoryIndex, puts: Iterable[Put]) -> list[bytes]:
    """Index what was stored, oldest first; return the keys that are not to stay in the store."""
    unusable: list[bytes] = []
    rest = iter(puts)
    for number in count(1):
        if not (batch := list(islice(rest, _RESTORED))):
            break
        vectors = np.array([put.vector for put in batch])
        usable = are_vectors(vectors)
        unusable += [put.key for put, is_one in zip(batch, usable, strict=True) if not is_one]
        places = [
            Place(put.key, put.partition, put.expires_at)
            for put, is_one in zip(batch, usable, strict=True)
            if is_one
        ]
        unusable += index.add_all(places, vectors[usable])
        if number * _RESTORED % _PROGRESS == 0:
            _log.info("vector store: %d vectors read", number * _RESTORED)
    if unusable:
        _log.warning("vector store: dropped %d vectors", len(unusable))
    return unusable


async def _on(thread: ThreadPoolExecutor, run: Callable[[], T]) -> T:
    return await asyncio.get_running_loop().run_in_executor(thread, run)
