"""The way to Redis: sends commands and scripts, and tells what went wrong.

Law: every wait is bounded, and every failure is a StoreError that says what to do about it, never
the password. A connection on which a call was given up is closed, so that nobody reads another's
answer from it; the next call opens a new one.

Calls that wait at the same time share one round trip.

Law: whoever calls owns no connection. Giving up a call takes nothing from the others and leaves no
unread answer behind; every call ends, with its result or a StoreError.
"""

import asyncio
import re
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.connection import parse_url
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
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
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError
from redis.maint_notifications import MaintNotificationsConfig

from gateway.cache.ports import StoreError, StoreUnavailableError
from gateway.cache.stores.redis.scripts import Script, Shard

CONNECTIONS = 64
"""To one server at most; more than calls that share round trips ever need at a time."""


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
    # Redis 6 has no word for what a script may not do.
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
    """Redis has no memory left for what it was to take."""


_KINDS: dict[str, type[StoreError]] = {
    "OOM": RedisFullError,
    **dict.fromkeys(_UNAVAILABLE, StoreUnavailableError),
}


Command = tuple[Any, ...]
Listen = Callable[[float], Awaitable[tuple[bytes, bytes] | None]]
"""Returns the next message, channel and data, or None when none comes in so many seconds."""


class Servers(Protocol):
    """Where commands go, by the slot of their keys."""

    async def ask(self, slot: int, *arguments: Any) -> Any:
        """Send a command, return its answer. Raises what redis-py raises."""
        ...

    async def ask_all(self, slot: int, commands: Sequence[Command]) -> list[Any]:
        """Send commands in one round trip, return each one's answer or exception."""
        ...

    def listener(self) -> Any:
        """Return a client of its own to listen with; in a cluster another node's each time."""
        ...

    async def close(self) -> None:
        """Close the connections."""
        ...


class OneServer:
    """See ``Servers``: one has all slots."""

    def __init__(self, options: dict[str, Any]) -> None:
        self._options = options
        self._client = client(options)

    async def ask(self, slot: int, *arguments: Any) -> Any:  # noqa: ARG002 - the port's
        return await self._client.execute_command(*arguments)

    async def ask_all(self, slot: int, commands: Sequence[Command]) -> list[Any]:  # noqa: ARG002
        return await in_one(self._client, commands)

    def listener(self) -> Any:
        return client(self._options)

    async def close(self) -> None:
        await self._client.aclose()


@dataclass(frozen=True, slots=True)
class Call:
    """A script to run; ``named`` are the cache keys it is about."""

    script: Script
    arguments: tuple[Any, ...]
    named: Sequence[bytes] = ()

    def command(self, shard: Shard, *, whole: bool = False) -> Command:
        """Return the command; ``whole`` has the script's text for a server that lacks it."""
        keys = (*shard.index, *(shard.name(key) for key in self.named))
        script = ("EVAL", self.script.source) if whole else ("EVALSHA", self.script.digest)
        return (*script, len(keys), *keys, *self.arguments)


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
        """Return some of the shard's cache keys, and where to go on (0 at the end).

        Raises StoreError.
        """
        arguments = (cursor, "MATCH", shard.prefix + b"*", "COUNT", 512)
        after, names = await self._bounded(self._servers.ask(shard.slot, "SCAN", *arguments))
        return int(after), [name.removeprefix(shard.prefix) for name in names]

    async def run(
        self, script: Script, shard: Shard, *arguments: Any, named: Sequence[bytes] = ()
    ) -> Any:
        """Return the script's answer; ``named`` are the entries it is about. Raises StoreError."""
        return await self._bounded(self._run(Call(script, arguments, named), shard))

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
                answers[place] = told(answer)
        return answers

    @asynccontextmanager
    async def subscribed(self, *channels: bytes) -> AsyncIterator[Listen]:
        """Listen on a connection of its own. Raises StoreError, while listening too."""
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
            raise told(error) from None
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
            # A server that was restarted or took over, or SCRIPT FLUSH.
            return await self._servers.ask(shard.slot, *call.command(shard, whole=True))

    async def _bounded(self, asking: Awaitable[Any]) -> Any:
        try:
            async with asyncio.timeout(self._seconds):
                answer = await asking
        except Exception as error:  # noqa: BLE001 - redis-py raises AttributeError and the like
            _raise_if_cancelled()
            raise told(error) from None
        _raise_if_cancelled()
        return answer


def _raise_if_cancelled() -> None:
    """Say it again where redis-py has swallowed a cancellation."""
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError


async def in_one(client: Any, commands: Sequence[Command]) -> list[Any]:
    """Send commands to one server in one round trip, return each one's answer or exception."""
    async with client.pipeline(transaction=False) as pipeline:
        for command in commands:
            pipeline.execute_command(*command)
        answers: list[Any] = await pipeline.execute(raise_on_error=False)
        return answers


def client(options: dict[str, Any]) -> Any:
    """Return redis-py's client of one server, which connects when it is used.

    Not named by its type, since redis-py's annotations are too few to check our calls by.
    """
    return Redis.from_pool(BlockingConnectionPool(**options))


def client_options(url: str, seconds: float) -> dict[str, Any]:
    """Return what a client needs. Raises ValueError for a wrong URL."""
    return {
        **parse_url(url),
        "protocol": 3,
        "max_connections": CONNECTIONS,
        "timeout": seconds,
        "socket_timeout": seconds,
        "socket_connect_timeout": seconds,
        "client_name": "refrain",
        # Else redis-py reads its own version from the disk for every connection.
        "driver_info": None,
        # A connection that Redis had closed is noticed at its next use, hence once more.
        "retry": Retry(NoBackoff(), 1, supported_errors=(RedisConnectionError,)),
        "maint_notifications_config": MaintNotificationsConfig(enabled=False),
    }


def told(error: Exception) -> StoreError:
    """Return what to say of a failure; never the server's whole text, which may quote a command."""
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
    """Return Redis's word for the failure; redis-py takes it out of the text where it knows it."""
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
"""Round trips under way at a time: a large answer in one must not hold up the others."""

MOST_AT_ONCE = 64
MOST_BYTES = 4 << 20
MAX_WAITING = 10_000

Asked = TypeVar("Asked")
Told = TypeVar("Told")


class Batches(Generic[Asked, Told]):
    """Gathers what is asked during one turn of the loop, or while all lanes are busy."""

    def __init__(
        self,
        send: Callable[[Sequence[Asked]], Awaitable[Sequence[Told | StoreError]]],
        size: Callable[[Asked], int] = lambda _: 0,
    ) -> None:
        """``send`` returns what is told of each, in order, or raises StoreError for all.

        ``size`` is that of what is sent; a batch has some MOST_BYTES.
        """
        self._send = send
        self._size = size
        self._waiting: deque[tuple[Asked, asyncio.Future[Told]]] = deque()
        self._lanes: set[asyncio.Task[None]] = set()
        # Lanes that will look for more: one that has found nothing is not counted, while its task
        # may still have to end.
        self._running = 0

    async def call(self, asked: Asked) -> Told:
        """Return what is told. Raises StoreError."""
        if len(self._waiting) >= MAX_WAITING:
            raise StoreError(f"{MAX_WAITING} calls are waiting already")
        future: asyncio.Future[Told] = asyncio.get_running_loop().create_future()
        self._waiting.append((asked, future))
        # Of those who ask in one turn of the loop only the first starts a lane.
        first = self._running == 0 or len(self._waiting) % MOST_AT_ONCE == 1
        if first and self._running < LANES:
            self._running += 1
            lane = asyncio.create_task(self._run())
            self._lanes.add(lane)
            lane.add_done_callback(self._lanes.discard)
        return await future

    async def close(self) -> None:
        """End what is under way; who waits gets a StoreError."""
        for lane in self._lanes:
            lane.cancel()
        if self._lanes:
            await asyncio.wait(self._lanes)
        while batch := self._take():
            _end(batch, StoreError("the store is closed"))

    def _take(self) -> list[tuple[Asked, asyncio.Future[Told]]]:
        batch: list[tuple[Asked, asyncio.Future[Told]]] = []
        size = 0
        while self._waiting and len(batch) < MOST_AT_ONCE and size < MOST_BYTES:
            asked, future = self._waiting.popleft()
            if not future.done():
                batch.append((asked, future))
                size += self._size(asked)
        return batch

    async def _run(self) -> None:
        try:
            await self._serve()
        finally:
            self._running -= 1

    async def _serve(self) -> None:
        while batch := self._take():
            try:
                told = await self._send([asked for asked, _ in batch])
                for (_, future), each in zip(batch, told, strict=True):
                    if future.done():
                        continue
                    if isinstance(each, StoreError):
                        future.set_exception(each)
                    else:
                        future.set_result(each)
            except StoreError as error:
                _end(batch, error)
            finally:
                _end(batch, StoreError("the call was broken off"))


def _end(batch: Sequence[tuple[Asked, asyncio.Future[Told]]], error: StoreError) -> None:
    for _, future in batch:
        if not future.done():
            # One each: an exception raised in several tasks would gather all their tracebacks.
            future.set_exception(type(error)(*error.args))
