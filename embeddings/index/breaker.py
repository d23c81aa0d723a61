"""A vector index on the network, made bounded: what hangs costs one short wait, then none.

Laws: no call waits longer than `seconds` for the index, and once one did, or found it gone, no
other waits at all until a probe in the background was answered; a fault that it answers with at
once opens nothing. A write that takes longer goes on without its caller, in bounded number and
time. What could not be stored is not stored later: it is dropped and counted.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, Final, Protocol

import numpy as np

from embeddings.encoder.encoder import Vector
from embeddings.index.vector_index import IndexLostError, VectorIndex, VectorIndexError
from embeddings.messages import Match, Reason

# Recovery is noticed after at most the longest pause and one probe: 3 s.
FIRST_PAUSE_S: Final = 0.1
LONGEST_PAUSE_S: Final = 1.0
PREPARE_S: Final = 2.0
WRITE_S: Final = 2.0
SWEEP_S: Final = 20.0
MAX_WRITES: Final = 256
# No partition of ours is empty: they are digests.
_PROBE_PARTITION: Final = b""

_log = logging.getLogger(__name__)


_Fault = VectorIndexError | ValueError


class RemoteIndex(VectorIndex, Protocol):
    """A vector index that has to be prepared, and may have to be again."""

    async def prepare(self) -> None:
        """Make sure that the index is there and usable. Raises VectorIndexError."""
        ...


class GuardedIndex:
    """See the port. Owns the index it guards; call `start` before use."""

    def __init__(
        self,
        index: RemoteIndex,
        *,
        dimensions: int,
        seconds: float,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._index = index
        self._probe_vector = np.full(dimensions, dimensions**-0.5, dtype=np.float32)
        self._seconds = seconds
        self._sleep = sleep
        self._probing: asyncio.Task[None] | None = None
        self._writing: set[asyncio.Task[_Fault | None]] = set()
        self._storing = True
        self._closed = False
        self.dropped = 0

    @property
    def name(self) -> str:
        return self._index.name

    @property
    def fault(self) -> str | None:
        if self._probing is not None:
            return "not answering"
        return None if self._storing else "not storing"

    @property
    def size(self) -> int:
        return self._index.size

    async def start(self) -> None:
        """Prepare the index; where it does not answer, go on trying in the background."""
        fault = await self._probe()
        if fault is not None:
            self._open(fault)

    async def search(self, partition: bytes, vector: Vector, k: int, now: float) -> list[Match]:
        self._refuse_while_open()
        try:
            async with asyncio.timeout(self._seconds):
                return await self._index.search(partition, vector, k, now)
        except TimeoutError:
            fault = VectorIndexError(Reason.INDEX_TIMEOUT, f"no answer within {self._seconds} s")
            self._open(fault)
            raise fault from None
        except IndexLostError as fault:
            self._open(fault)
            raise

    async def add(
        self, partition: bytes, key: bytes, vector: Vector, expires_at: float, now: float
    ) -> None:
        # INDEX_TIMEOUT: it may yet be stored.
        try:
            self._refuse_while_open()
            write = self._begin(self._index.add, partition, key, vector, expires_at, now)
        except VectorIndexError:
            self.dropped += 1
            raise
        write.add_done_callback(self._note)
        await self._ended(write)

    async def remove(self, keys: Sequence[bytes]) -> None:
        # INDEX_TIMEOUT: they may yet leave.
        self._refuse_while_open()
        await self._ended(self._begin(self._index.remove, keys))

    async def sweep(self, now: float) -> None:
        self._refuse_while_open()
        try:
            async with asyncio.timeout(SWEEP_S):
                await self._index.sweep(now)
        except TimeoutError:
            raise VectorIndexError(Reason.INDEX_TIMEOUT, f"no end within {SWEEP_S} s") from None

    async def close(self) -> None:
        """End what runs, give writes under way their time, and close the index."""
        self._closed = True
        if self._probing is not None:
            self._probing.cancel()
            await asyncio.wait([self._probing])
        if self._writing:
            await asyncio.wait(self._writing)
        await self._index.close()

    def _refuse_while_open(self) -> None:
        if self._probing is not None:
            raise VectorIndexError(
                Reason.INDEX_UNAVAILABLE, f"{self.name} is not answering; it is probed meanwhile"
            )

    def _begin(
        self, write: Callable[..., Coroutine[Any, Any, None]], *arguments: object
    ) -> asyncio.Task[_Fault | None]:
        if len(self._writing) >= MAX_WRITES:
            raise VectorIndexError(Reason.OVERLOADED, f"{MAX_WRITES} writes to {self.name} wait")
        task = asyncio.create_task(self._written(write(*arguments)))
        self._writing.add(task)
        task.add_done_callback(self._writing.discard)
        return task

    async def _ended(self, write: asyncio.Task[_Fault | None]) -> None:
        await asyncio.wait([write], timeout=self._seconds)
        if not write.done():
            raise VectorIndexError(Reason.INDEX_TIMEOUT, f"not done within {self._seconds} s")
        if (fault := write.result()) is not None:
            raise fault

    def _note(self, add: asyncio.Task[_Fault | None]) -> None:
        """Count a vector that was not stored, and tell when that begins and ends."""
        fault = add.result()
        if isinstance(fault, VectorIndexError):
            self.dropped += 1
            if self._storing and self._probing is None:
                self._storing = False
                _log.warning("%s: vectors are not stored: %s", self.name, fault)
        elif fault is None and not self._storing:
            self._storing = True
            _log.info("%s: stores vectors again; %d were dropped so far", self.name, self.dropped)

    async def _written(self, write: Coroutine[Any, Any, None]) -> _Fault | None:
        """Return what went wrong: nobody may be there any more to catch it."""
        try:
            async with asyncio.timeout(WRITE_S):
                await write
        except TimeoutError:
            fault = IndexLostError(Reason.INDEX_TIMEOUT, f"not done within {WRITE_S} s")
            self._open(fault)
            return fault
        except IndexLostError as fault:
            self._open(fault)
            return fault
        except (VectorIndexError, ValueError) as fault:
            return fault
        return None

    def _open(self, fault: VectorIndexError) -> None:
        if self._probing is None and not self._closed:
            _log.warning("%s: not used until it answers again: %s", self.name, fault)
            self._probing = asyncio.create_task(self._probe_until_back())

    async def _probe_until_back(self) -> None:
        pause, told = FIRST_PAUSE_S, ""
        while True:
            await self._sleep(pause)
            fault = await self._probe()
            if fault is None:
                break
            if str(fault) != told:
                told = str(fault)
                _log.warning("%s: still not used: %s", self.name, told)
            pause = min(2 * pause, LONGEST_PAUSE_S)
        self._probing = None
        _log.info("%s: answers again; %d vectors were dropped so far", self.name, self.dropped)

    async def _probe(self) -> VectorIndexError | None:
        """Prepare the index, then ask it what a request would, within a request's time."""
        try:
            async with asyncio.timeout(PREPARE_S):
                await self._index.prepare()
            async with asyncio.timeout(self._seconds):
                await self._index.search(_PROBE_PARTITION, self._probe_vector, 1, 0.0)
        except VectorIndexError as fault:
            return fault
        except TimeoutError:
            return VectorIndexError(Reason.INDEX_TIMEOUT, "no answer in time")
        except Exception as error:  # noqa: BLE001 - whatever it is, the probing goes on
            return VectorIndexError(Reason.INDEX_ERROR, type(error).__name__)
        return None
