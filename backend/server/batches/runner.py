"""Computes batches: lines go to the endpoints' own handlers, a bounded number at a time.

Law: a line is done once its result is in the file. What ends before that is computed again.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import nullcontext
from http import HTTPStatus
from types import SimpleNamespace
from typing import Any, cast

from aiohttp import web
from aiohttp.http import HttpVersion11, RawRequestMessage
from aiohttp.streams import EMPTY_PAYLOAD
from multidict import CIMultiDict, CIMultiDictProxy
from yarl import URL

from backend import request_id
from backend.server.batches.batch import (
    STATUSES,
    Batch,
    Line,
    StateError,
    answered_line,
    batch_error,
    faulty_line,
    read_lines,
)
from backend.server.batches.store import RefusedError, Results, Store
from backend.server.pipeline import PRIORITY, QUEUE_TIMEOUT

MOST_TRIES = 3
"""Of a line that the engine fails. Waits for an engine that has no room, or starts, are none."""
QUEUE_SECONDS = 20.0
"""A line that waits for longer leaves the queue, before its age would put it ahead of others."""
MOST_WAITS = 8
"""So often a line that found no room waits twice as long: its choices may need many turns."""
LONGEST_PAUSE = 30.0
_SWEEP, _SWEEP_SECONDS = "the removal of expired files", 60.0
_NO_ROOM = frozenset({HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE})
_EXPIRED = "batch_expired", "The completion window ended before this request was computed."

log = logging.getLogger(__name__)

Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]
"""Has a request answered by its endpoint; what it raises is a defect."""


class _LineRequest(web.Request):
    """A request without a connection, as much of it as the endpoints read."""

    ATTRS = web.Request.ATTRS | {"_line_app", "_raw"}

    def __init__(self, app: web.Application, path: str, headers: Any, raw: bytes) -> None:
        fields = CIMultiDictProxy(CIMultiDict(headers))
        message = RawRequestMessage(
            "POST", path, HttpVersion11, fields, (), False, None, False, False, URL(path)
        )
        nobody: Any = SimpleNamespace(ssl_context=None, peername=None, sockname=None)
        task, loop = cast("asyncio.Task[None]", asyncio.current_task()), asyncio.get_running_loop()
        super().__init__(message, EMPTY_PAYLOAD, nobody, nobody, task, loop)
        self._line_app, self._raw = app, raw

    @property
    def app(self) -> web.Application:
        return self._line_app

    async def read(self) -> bytes:
        return self._raw


class Batches:
    """Owns the tasks that compute batches, from ``open`` to ``stop``."""

    def __init__(
        self,
        store: Store,
        *,
        concurrency: int,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """At most ``concurrency`` lines are computed at a time, of all batches together."""
        self.store = store
        self.problems: dict[str, str] = {}
        """What failed and begins again, for people."""
        self.num_lines: Counter[str] = Counter()
        """Lines that got a result, by outcome."""
        self._concurrency, self._slots = concurrency, asyncio.Semaphore(concurrency)
        self._suspects = asyncio.Lock()
        self._sleep = sleep
        self._tasks: set[asyncio.Task[None]] = set()
        self._stops: dict[str, asyncio.Event] = {}
        self._app: web.Application | None = None
        self._answer: Answer | None = None

    async def open(self, app: web.Application, answer: Answer) -> None:
        """Take the directory, and go on with what has not ended. Raises OSError."""
        self._app, self._answer = app, answer
        await self.store.run(self.store.open)
        self._start(_SWEEP, self._sweep)
        for batch in list(self.store.batches.values()):
            if batch.is_open:
                self._begin(batch.id)

    async def stop(self) -> None:
        """Compute no more; lines without a result are computed after the next start."""
        self._answer = None
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def create(self, batch: Batch) -> None:
        """Save a new batch, and compute it. Raises RefusedError."""
        await self.store.run(self.store.add, batch)
        self._begin(batch.id)

    def _begin(self, batch_id: str) -> None:
        if self._answer is None:
            return  # after the next start
        self._stops[batch_id] = asyncio.Event()
        self._start(batch_id, lambda: self._run(batch_id))

    async def cancel(self, batch_id: str) -> Batch:
        """Compute no more of a batch. Raises StateError where it has ended."""
        batch = self.store.batches[batch_id]
        if batch.status != "cancelling":
            batch = await self.store.run(self.store.move, batch_id, "cancelling")
        if (stop := self._stops.get(batch_id)) is not None:
            stop.set()
        return batch

    def num_batches(self) -> Mapping[str, int]:
        """Return how many batches there are in each state."""
        found = Counter(batch.status for batch in list(self.store.batches.values()))
        return {status: found[status] for status in STATUSES}

    def _start(self, name: str, work: Callable[[], Awaitable[None]]) -> None:
        task = asyncio.create_task(self._supervise(name, work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _supervise(self, name: str, work: Callable[[], Awaitable[None]]) -> None:
        pause = 1.0
        while True:
            try:
                await work()
            except Exception as error:
                log.exception("%s failed, and begins again", name)
                self.problems[name] = f"{name} failed, and begins again: {type(error).__name__}"
                await self._sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE)
            else:
                self.problems.pop(name, None)
                return

    async def _sweep(self) -> None:
        while True:
            await self.store.run(self.store.sweep)
            self.problems.pop(_SWEEP, None)
            await self._sleep(_SWEEP_SECONDS)

    async def _run(self, batch_id: str) -> None:
        run, store = self.store.run, self.store
        while (batch := store.batches[batch_id]).is_open:
            try:
                match batch.status:
                    case "validating":
                        total, problem = await run(store.count, batch)
                        changes = {"errors": (problem,)} if problem else {"total": total}
                        status = "failed" if problem else "in_progress"
                        await run(lambda: store.move(batch_id, status, **changes))  # noqa: B023
                    case "in_progress":
                        await self._compute(batch)
                    case "finalizing":
                        await run(store.finish, batch_id, "completed")
                    case _:
                        await run(store.finish, batch_id, "cancelled")
            except StateError:
                continue  # it was cancelled meanwhile
        del self._stops[batch_id]
        log.info("%s is %s", batch_id, batch.status)

    async def _compute(self, batch: Batch) -> None:
        """Compute the lines without a result, and move the batch on."""
        run, store = self.store.run, self.store
        results = await run(Results, store, batch)
        try:
            file = await run(store.reader, batch.input_file_id)
            try:
                lines = read_lines(file, batch.endpoint)
                is_whole = await self._compute_lines(batch, lines, results)
            finally:
                store.later(file.close)
            if is_whole:
                await run(results.sync)  # what is missing after this is never computed
                if len(results.done) < batch.total:
                    raise RuntimeError(f"{batch.id}: lines are left, and nobody computes them")
                await run(store.move, batch.id, "finalizing")
            elif not self._stops[batch.id].is_set():
                await run(self._expire, batch, results)
                await run(store.finish, batch.id, "expired")
        except* RefusedError as errors:
            error = errors.exceptions[0]
            told = batch_error("batch_storage_full", str(error.args[1]))
            await run(lambda: store.finish(batch.id, "failed", errors=(told,)))
        finally:
            store.later(results.close)

    async def _compute_lines(self, batch: Batch, lines: Iterator[Line], results: Results) -> bool:
        """Return whether all lines have a result, rather than no time left, or a cancellation."""

        async def compute_all() -> None:
            async with asyncio.TaskGroup() as workers:
                for _ in range(min(self._concurrency, batch.total)):
                    workers.create_task(self._work(batch, lines, results))

        computing = asyncio.create_task(compute_all())
        stopping = asyncio.create_task(self._stops[batch.id].wait())
        seconds = max(0.0, batch.expires_at - self.store.clock())
        both = (computing, stopping)
        try:
            await asyncio.wait(both, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in both:
                task.cancel()
            await asyncio.gather(*both, return_exceptions=True)
        if computing.cancelled():
            return False
        computing.result()
        return True

    async def _work(self, batch: Batch, lines: Iterator[Line], results: Results) -> None:
        while True:
            async with self._slots:
                line = await self.store.run(_next_undone, lines, results)
                if line is None:
                    return
                failed, told = await self._result(batch, line)
                await self.store.run(lambda: results.append(line.number, told, failed=failed))  # noqa: B023
                self.num_lines["failed" if failed else "completed"] += 1

    async def _result(self, batch: Batch, line: Line) -> tuple[bool, bytes]:
        """Return whether a line failed, and its result."""
        if line.fault is not None:
            return True, faulty_line(batch, line, *line.fault)
        failures = waits = 0
        while True:
            # A request that makes the engine crash takes others with it: once one of them has
            # failed, no two of them are computed together.
            async with self._suspects if failures else nullcontext():
                reply = await self._ask(batch, line, QUEUE_SECONDS * 2**waits)
            waits = min(waits + 1, MOST_WAITS)
            if reply.status not in _NO_ROOM:
                failures += 1
                if reply.status < HTTPStatus.INTERNAL_SERVER_ERROR or failures == MOST_TRIES:
                    break
            pause = float(reply.headers.get("Retry-After", 2**failures))
            await self._sleep(min(pause, LONGEST_PAUSE))
        told = answered_line(batch, line, reply.status, request_id.current(), _body(reply))
        return reply.status != HTTPStatus.OK, told

    async def _ask(self, batch: Batch, line: Line, seconds: float) -> web.StreamResponse:
        if self._app is None or self._answer is None:
            raise RuntimeError("it is not open")
        headers = {PRIORITY: "low", QUEUE_TIMEOUT: f"{seconds}"}
        if batch.owner:
            # Their KV is shared with no other tenant.
            headers["Authorization"] = batch.owner
        request_id.begin({})
        return await self._answer(_LineRequest(self._app, batch.endpoint, headers, line.body))

    def _expire(self, batch: Batch, results: Results) -> None:
        """Give the lines that are left the error of their batch."""
        with self.store.reader(batch.input_file_id) as file:
            lines = read_lines(file, batch.endpoint)
            while (line := _next_undone(lines, results)) is not None:
                told = faulty_line(batch, line, *(line.fault or _EXPIRED))
                results.append(line.number, told, failed=True)
                self.num_lines["failed"] += 1


def _next_undone(lines: Iterator[Line], results: Results) -> Line | None:
    return next((line for line in lines if line.number not in results.done), None)


def _body(reply: web.StreamResponse) -> bytes:
    if not isinstance(reply, web.Response) or not isinstance(reply.body, bytes):
        raise TypeError("an endpoint's plain reply has all its bytes")
    return reply.body
