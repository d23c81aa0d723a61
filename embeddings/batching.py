"""Natural batching: what arrives while batches run makes up the next ones.

An idle batcher starts a lone item at once, so batching adds no wait; under load the batches grow by
themselves up to `max_batch`. Each of several lanes takes its share of the items that wait. Items
that can wait go in small batches, one at a time, if no other item waits. They take a fifth of the
time of a lane at most, while other items come. The same rule serves the encoder (one forward pass
for many texts) and the vector store (one transaction for many writes).
"""

import asyncio
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from typing import Final, Generic, TypeVar

from cachetools import LRUCache

from embeddings.encoder.encoder import Encoded, Vector
from embeddings.messages import Reason

Item = TypeVar("Item")
Result = TypeVar("Result")

MAX_LATER_BATCH: Final = 4
"""Items that can wait: a batch of them holds up all that comes meanwhile."""
LATER_PAUSE: Final = 4.0
"""After such a batch, for how many times as long no other begins, if other items came meanwhile."""


class OverloadedError(Exception):
    """As many items wait as may wait; this one was not taken."""


@dataclass(frozen=True, slots=True)
class _Waiting(Generic[Item, Result]):
    item: Item
    done: "asyncio.Future[tuple[Result, float]]"
    """The result, and for how long its batch ran for each item."""
    later: bool


class Batcher(Generic[Item, Result]):
    """Runs `run(items) -> results` in `executor` for many awaiting callers.

    `run` returns one result for each item, in order. What it raises, every caller of that batch
    gets, and so it is with any other number of results and with an executor that takes no work.
    A cancelled caller's item is left out if its batch has not started. Belongs to one loop.
    `lanes` batches run side by side, each in a thread of `executor`.
    """

    def __init__(
        self,
        run: Callable[[Sequence[Item]], Sequence[Result]],
        executor: Executor,
        *,
        max_batch: int,
        max_waiting: int,
        lanes: int = 1,
    ) -> None:
        self._run = run
        self._executor = executor
        self._max_batch = max_batch
        self._max_waiting = max_waiting
        self._lanes = self._free = lanes
        self._is_scheduled = False
        """Whether `_begin` is going to run."""
        self._waiting: deque[_Waiting[Item, Result]] = deque()
        self._later: deque[_Waiting[Item, Result]] = deque()
        self._idle = asyncio.Event()
        self._idle.set()
        self._later_at = float("-inf")
        """When the next batch of what can wait may begin."""
        self._later_runs = False
        self._others_came = False
        """Whether an item came that cannot wait since such a batch began."""
        self._timer: asyncio.TimerHandle | None = None
        self.item_seconds = 0.0
        """For how long the batch that ended last ran, for each of its items."""

    async def submit(self, item: Item, *, later: bool = False) -> Result:
        """Return the result for `item`, if `later` once nothing else waits.

        Raises OverloadedError, or what `run` raised.
        """
        return (await self.submit_timed(item, later=later))[0]

    async def submit_timed(self, item: Item, *, later: bool = False) -> tuple[Result, float]:
        """Return what `submit` does, and for how many seconds its batch ran for each item."""
        waiting = self._later if later else self._waiting
        if len(waiting) >= self._max_waiting:
            left = [entry for entry in waiting if not entry.done.done()]
            waiting.clear()
            waiting.extend(left)
        if len(waiting) >= self._max_waiting:
            raise OverloadedError(f"{self._max_waiting} items already wait")
        loop = asyncio.get_running_loop()
        done: asyncio.Future[tuple[Result, float]] = loop.create_future()
        waiting.append(_Waiting(item, done, later))
        self._others_came = self._others_came or not later
        if self._timer is not None and not later:
            self._timer.cancel()
            self._timer = None
            self._begin_soon(loop)
        elif self._free and self._timer is None:
            self._begin_soon(loop)
        return await done

    @property
    def wait_seconds(self) -> float:
        """How long another item would wait, by the batch that ended last."""
        return len(self._waiting) * self.item_seconds / self._lanes

    async def drain(self) -> None:
        """Return once nothing waits or runs."""
        await self._idle.wait()

    def _begin_soon(self, loop: asyncio.AbstractEventLoop) -> None:
        """Look at what waits in the loop's next turn: what arrived together makes up one batch."""
        self._idle.clear()
        if not self._is_scheduled:
            self._is_scheduled = True
            loop.call_soon(self._begin, loop)

    def _begin(self, loop: asyncio.AbstractEventLoop) -> None:
        self._is_scheduled = False
        while self._free and (batch := self._next(loop)):
            try:
                self._executor.submit(self._run_in_thread, loop, batch)
            except Exception as error:  # noqa: BLE001 - handed to the callers, who judge it
                _hand_out(batch, error, 0.0)
            else:
                self._free -= 1
                if batch[0].later:
                    self._later_runs, self._others_came = True, False
        if self._free == self._lanes and self._timer is None:
            self._idle.set()

    def _next(self, loop: asyncio.AbstractEventLoop) -> list[_Waiting[Item, Result]]:
        share = -(-len(self._waiting) // self._lanes)
        return _taken(self._waiting, min(self._max_batch, share)) or self._next_later(loop)

    def _run_in_thread(
        self, loop: asyncio.AbstractEventLoop, batch: list[_Waiting[Item, Result]]
    ) -> None:
        results: Sequence[Result] | Exception
        began = loop.time()
        try:
            results = self._run([entry.item for entry in batch])
            if len(results) != len(batch):
                results = ValueError(f"{len(results)} results for {len(batch)} items")
        except Exception as error:  # noqa: BLE001 - handed to the callers, who judge it
            results = error
        with suppress(RuntimeError):  # nobody waits any more: the loop is closed
            seconds = (loop.time() - began) / len(batch)
            loop.call_soon_threadsafe(self._settle, loop, batch, results, seconds)

    def _settle(
        self,
        loop: asyncio.AbstractEventLoop,
        batch: list[_Waiting[Item, Result]],
        results: Sequence[Result] | Exception,
        item_seconds: float,
    ) -> None:
        self._free += 1
        self.item_seconds = item_seconds
        if batch[0].later:
            self._later_runs = False
            if self._others_came:
                self._later_at = loop.time() + LATER_PAUSE * item_seconds * len(batch)
        _hand_out(batch, results, item_seconds)
        self._begin(loop)

    def _next_later(self, loop: asyncio.AbstractEventLoop) -> list[_Waiting[Item, Result]]:
        if self._later_runs:
            return []
        if self._later and loop.time() < self._later_at:
            if self._timer is None:
                self._timer = loop.call_at(self._later_at, self._begin_later, loop)
            return []
        return _taken(self._later, min(MAX_LATER_BATCH, self._max_batch))

    def _begin_later(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = None
        self._begin(loop)


def _taken(waiting: deque[_Waiting[Item, Result]], most: int) -> list[_Waiting[Item, Result]]:
    """Take some entries that somebody still waits for."""
    batch: list[_Waiting[Item, Result]] = []
    while waiting and len(batch) < most:
        entry = waiting.popleft()
        if not entry.done.done():
            batch.append(entry)
    return batch


def _hand_out(
    batch: Sequence[_Waiting[Item, Result]],
    results: Sequence[Result] | Exception,
    item_seconds: float,
) -> None:
    for place, entry in enumerate(batch):
        if entry.done.done():
            continue
        if isinstance(results, Exception):
            entry.done.set_exception(results)
        else:
            entry.done.set_result((results[place], item_seconds))


@dataclass(slots=True)
class _Shared:
    """A text under way, and how many callers wait for it."""

    task: "asyncio.Task[tuple[Encoded, float]]"
    callers: int = 0


class BatchedEncoder:
    """Encodes texts in natural batches and remembers the latest vectors.

    A text that is under way for its owner is not encoded a second time. But a search does not wait
    for a text that can wait.

    The memory is there for `add` right after `search` of the same text: the second costs no forward
    pass. It is keyed by a digest, so no text outlives its request, and by an owner: how long a text
    takes must not tell one owner what another has asked.
    """

    def __init__(
        self,
        encode: Callable[[Sequence[str]], Sequence[Encoded]],
        executor: Executor,
        *,
        max_batch: int,
        max_waiting: int,
        remembered: int,
        lanes: int = 1,
    ) -> None:
        self._batcher: Batcher[str, Encoded] = Batcher(
            encode, executor, max_batch=max_batch, max_waiting=max_waiting, lanes=lanes
        )
        self._recent: LRUCache[tuple[Hashable, bytes], Vector] = LRUCache(remembered)
        self._under_way: dict[tuple[Hashable, bytes, bool], _Shared] = {}

    async def encode(self, text: str, owner: Hashable, *, later: bool = False) -> Encoded:
        """Return the text's vector, or the reason for having none.

        `later`: it can wait until the encoder has nothing else to do. Raises OverloadedError.
        """
        return (await self.encode_timed(text, owner, later=later))[0]

    async def encode_timed(
        self, text: str, owner: Hashable, *, later: bool = False
    ) -> tuple[Encoded, float]:
        """Return what `encode` does, and for how many seconds the text waited for others."""
        digest, clock = sha256(text.encode()).digest(), asyncio.get_running_loop().time
        recent = self._recent.get((owner, digest))
        if recent is not None:
            return recent, 0.0
        began = clock()
        can_wait = later and (owner, digest, False) not in self._under_way
        encoded, seconds = await self._shared((owner, digest, can_wait), text)
        if not isinstance(encoded, Reason) and self._recent.maxsize:
            self._recent[owner, digest] = encoded
        return encoded, max(0.0, clock() - began - seconds)

    async def _shared(self, key: tuple[Hashable, bytes, bool], text: str) -> tuple[Encoded, float]:
        """Encode a text once for all that wait for it; stop if they all have gone."""
        shared = self._under_way.get(key)
        if shared is None:
            task = asyncio.create_task(self._batcher.submit_timed(text, later=key[-1]))
            shared = self._under_way[key] = _Shared(task)
        shared.callers += 1
        try:
            return await asyncio.shield(shared.task)
        finally:
            shared.callers -= 1
            if not shared.callers:
                shared.task.cancel()
                del self._under_way[key]
