"""Commands and scripts to Redis: bounded waits, one kind of error, shared round trips.

Law: every wait is bounded. Every failure is a StoreError that says what to do about it and never
holds the password. A cancelled call closes its connection, so that no other call reads its answer.

Calls that wait at the same time share one round trip (``Batches``). Law: a caller owns no
connection. A cancelled call takes nothing from the others; every call ends with its result or a
StoreError.
"""

import asyncio
import re
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from redis.exceptions import (
    AskError,
    AuthenticationError,
    BusyLoadingError,
    ClusterDownError,
    MasterDownError,
    MovedError,
    NoPermissionError,
    NoScriptError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisClusterException,
    RedisError,
    ResponseError,
    TryAgainError,
)
from redis.exceptions import TimeoutError as RedisTimeoutError

from gateway.cache.ports import StoreError, StoreUnavailableError
from gateway.cache.stores.redis.scripts import Script, Shard
from gateway.cache.stores.redis.servers import Command, Servers

_REMEDIES = {
    "OOM": "Redis is full: raise its maxmemory, or let it evict (maxmemory-policy allkeys-lru)",
    "READONLY": "this Redis is a read-only replica: name the primary in the store's URL",
    "MISCONF": "Redis refuses writes because it cannot save to disk: see its log",
    "NOPERM": "the Redis user may not do this: docs/deploy.md lists the permissions it needs",
    "WRONGPASS": "Redis wants a password, or refused the one in the store's URL",
    "DENIED": "Redis is in protected mode: set a password or bind it to an address",
    "LOADING": "Redis is loading its data",
    "MASTERDOWN": "this Redis is a replica without its primary",
    "CLUSTERDOWN": "the Redis cluster is down: not all of its slots are served",
    "NOCLUSTER": "this Redis is no cluster: its URL begins with redis:// or rediss://",
    "MOVED": "this Redis is one of a cluster: its URL begins with redis+cluster://",
    "TRYAGAIN": "the Redis cluster is moving these keys",
    "BUSY": "Redis is busy with somebody's script",
    "UNKILLABLE": "Redis is busy with somebody's script",
    "NOREPLICAS": "Redis has too few replicas to accept writes (min-replicas-to-write)",
}
_UNAVAILABLE = ("WRONGPASS", "DENIED", "LOADING", "MASTERDOWN", "CLUSTERDOWN", "BUSY")
_PHRASES = {
    # Redis 6 has no code for a command that a script may not run.
    "user executing the script": "NOPERM",
    "cluster support disabled": "NOCLUSTER",
}
_CODE = re.compile(r"\b(" + "|".join(_REMEDIES) + r")\b")
_CODES: dict[type[Exception], str] = {
    OutOfMemoryError: "OOM",
    ReadOnlyError: "READONLY",
    NoPermissionError: "NOPERM",
    BusyLoadingError: "LOADING",
    MasterDownError: "MASTERDOWN",
    MovedError: "MOVED",
    ClusterDownError: "CLUSTERDOWN",
    TryAgainError: "TRYAGAIN",
    AuthenticationError: "WRONGPASS",
}


class RedisFullError(StoreError):
    """Redis has no memory left for the entry."""


_KINDS: dict[str, type[StoreError]] = {
    "OOM": RedisFullError,
    **dict.fromkeys(_UNAVAILABLE, StoreUnavailableError),
}

NextMessage = Callable[[float], Awaitable[tuple[bytes, bytes] | None]]
"""Returns the next message, channel and data, or None when none comes in so many seconds."""


@dataclass(frozen=True, slots=True)
class Call:
    """A script to run; ``keys`` are the cache keys of the entries that it changes."""

    script: Script
    arguments: tuple[Any, ...]
    keys: Sequence[bytes] = ()

    def command(self, shard: Shard, *, whole: bool = False) -> Command:
        """Return the command; ``whole`` sends the script's text to a server that lacks it."""
        names = (*shard.index, *(shard.name(key) for key in self.keys))
        script = ("EVAL", self.script.source) if whole else ("EVALSHA", self.script.digest)
        return (*script, len(names), *names, *self.arguments)


class RedisLink:
    """Sends commands and scripts. Made anywhere, used from one event loop."""

    def __init__(self, servers: Servers, *, seconds: float) -> None:
        self._servers = servers
        self._seconds = seconds

    async def values(self, shard: Shard, names: Sequence[bytes]) -> list[bytes | None]:
        """Return a value or None for each name. Raises StoreError."""
        found: list[bytes | None] = await self._bounded(
            self._servers.ask(shard.slot, "MGET", *names)
        )
        return found

    async def scan(self, shard: Shard, cursor: int) -> tuple[int, list[bytes]]:
        """Return some of the shard's cache keys and the next cursor, 0 at the end.

        Raises StoreError.
        """
        arguments = (cursor, "MATCH", shard.prefix + b"*", "COUNT", 512)
        after, names = await self._bounded(self._servers.ask(shard.slot, "SCAN", *arguments))
        return int(after), [name.removeprefix(shard.prefix) for name in names]

    async def run(self, script: Script, shard: Shard, *arguments: Any) -> Any:
        """Return the script's answer. Raises StoreError."""
        return await self._bounded(self._run(Call(script, arguments), shard))

    async def run_all(self, shard: Shard, calls: Sequence[Call]) -> list[Any]:
        """Return each script's answer, or a StoreError in its place. Raises StoreError."""
        if len(calls) == 1:
            return [await self._bounded(self._run(calls[0], shard))]
        answers: list[Any] = await self._bounded(
            self._servers.ask_all(shard.slot, [call.command(shard) for call in calls])
        )
        for place, answer in enumerate(answers):
            if isinstance(answer, NoScriptError | MovedError | AskError):
                try:
                    answers[place] = await self._bounded(self._run(calls[place], shard))
                except StoreError as error:
                    answers[place] = error
            elif isinstance(answer, Exception):
                answers[place] = store_error(answer)
        return answers

    @asynccontextmanager
    async def subscribed(self, *channels: bytes) -> AsyncIterator[NextMessage]:
        """Subscribe on a connection of its own. Raises StoreError, in the context too."""
        listener = self._servers.listener()
        pubsub = listener.pubsub(ignore_subscribe_messages=True)

        async def next_message(seconds: float) -> tuple[bytes, bytes] | None:
            until = time.monotonic() + seconds
            while (left := until - time.monotonic()) > 0:
                message = await pubsub.get_message(timeout=left)
                if message is not None:
                    return message["channel"], message["data"]
            return None

        try:
            await self._bounded(pubsub.subscribe(*channels))
            yield next_message
        except (RedisError, OSError) as error:
            _raise_if_cancelled()
            raise store_error(error) from None
        finally:
            await pubsub.aclose()
            await listener.aclose()

    async def close(self) -> None:
        """Close the connections."""
        await self._servers.close()

    async def _run(self, call: Call, shard: Shard) -> Any:
        try:
            return await self._servers.ask(shard.slot, *call.command(shard))
        except NoScriptError:
            # The server was restarted or took over, or somebody ran SCRIPT FLUSH.
            return await self._servers.ask(shard.slot, *call.command(shard, whole=True))

    async def _bounded(self, call: Awaitable[Any]) -> Any:
        try:
            async with asyncio.timeout(self._seconds):
                answer = await call
        except Exception as error:  # noqa: BLE001 - redis-py raises AttributeError and the like
            _raise_if_cancelled()
            raise store_error(error) from None
        _raise_if_cancelled()
        return answer


def _raise_if_cancelled() -> None:
    """Repeat a cancellation that redis-py has swallowed."""
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError


def store_error(error: Exception) -> StoreError:
    """Return what a failure means; never the server's whole text, which may quote a command."""
    code = _code(error)
    if code is not None:
        return _KINDS.get(code, StoreError)(_REMEDIES[code])
    if isinstance(error, RedisTimeoutError | TimeoutError):
        return StoreUnavailableError("Redis did not answer in time")
    if isinstance(error, ResponseError):
        return StoreError(f"Redis refused the command ({str(error).split(' ', 1)[0][:32]})")
    if isinstance(error, RedisClusterException):
        return StoreUnavailableError("the Redis cluster cannot be reached")
    return StoreUnavailableError("Redis cannot be reached")


def _code(error: Exception) -> str | None:
    """Return Redis's code of the failure; redis-py removes the codes it knows from the text."""
    for kind, code in _CODES.items():
        if isinstance(error, kind):
            return code
    text = str(error)
    for phrase, code in _PHRASES.items():
        if phrase in text:
            return code
    found = _CODE.search(text)
    return found[0] if found else None


LANES = 4
"""Round trips at a time: a large answer on one must not hold up the others."""

MOST_AT_ONCE = 64
MOST_BYTES = 4 << 20
MAX_WAITING = 10_000

Request = TypeVar("Request")
Answer = TypeVar("Answer")


class Batches(Generic[Request, Answer]):
    """Gathers the requests of one turn of the loop, or of the time while all lanes are busy."""

    def __init__(
        self,
        send: Callable[[Sequence[Request]], Awaitable[Sequence[Answer | StoreError]]],
        size: Callable[[Request], int] = lambda _: 0,
    ) -> None:
        """``send`` returns the answers in order, or raises StoreError for all.

        ``size`` returns the bytes of a request; a batch has about MOST_BYTES.
        """
        self._send = send
        self._size = size
        self._waiting: deque[tuple[Request, asyncio.Future[Answer]]] = deque()
        self._lanes: set[asyncio.Task[None]] = set()
        # Lanes that will look for more requests: fewer than there are tasks, since a lane that
        # found none has still to end.
        self._running = 0

    async def call(self, request: Request) -> Answer:
        """Return the answer. Raises StoreError."""
        if len(self._waiting) >= MAX_WAITING:
            raise StoreError(f"{MAX_WAITING} calls are waiting already")
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._waiting.append((request, future))
        # In one turn of the loop only the first request of a batch starts a lane.
        first = self._running == 0 or len(self._waiting) % MOST_AT_ONCE == 1
        if first and self._running < LANES:
            self._running += 1
            lane = asyncio.create_task(self._run())
            self._lanes.add(lane)
            lane.add_done_callback(self._lanes.discard)
        return await future

    async def close(self) -> None:
        """End the lanes; callers that wait get a StoreError."""
        for lane in self._lanes:
            lane.cancel()
        if self._lanes:
            await asyncio.wait(self._lanes)
        while batch := self._take():
            _end(batch, StoreError("the store is closed"))

    def _take(self) -> list[tuple[Request, asyncio.Future[Answer]]]:
        batch: list[tuple[Request, asyncio.Future[Answer]]] = []
        size = 0
        while self._waiting and len(batch) < MOST_AT_ONCE and size < MOST_BYTES:
            request, future = self._waiting.popleft()
            if not future.done():
                batch.append((request, future))
                size += self._size(request)
        return batch

    async def _run(self) -> None:
        try:
            while batch := self._take():
                await self._serve(batch)
        finally:
            self._running -= 1

    async def _serve(self, batch: list[tuple[Request, asyncio.Future[Answer]]]) -> None:
        try:
            answers = await self._send([request for request, _ in batch])
            for (_, future), answer in zip(batch, answers, strict=True):
                if future.done():
                    continue
                if isinstance(answer, StoreError):
                    future.set_exception(answer)
                else:
                    future.set_result(answer)
        except StoreError as error:
            _end(batch, error)
        finally:
            _end(batch, StoreError("the call was broken off"))


def _end(batch: Sequence[tuple[Any, asyncio.Future[Any]]], error: StoreError) -> None:
    for _, future in batch:
        if not future.done():
            # One each: an exception raised in several tasks would gather all their tracebacks.
            future.set_exception(type(error)(*error.args))
