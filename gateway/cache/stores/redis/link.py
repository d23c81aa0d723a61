"""Commands and scripts to Redis: bounded waits, one kind of error, shared round trips.

Law: every wait is bounded. Every failure is a StoreError that says what to do about it and never
holds the password. A cancelled call closes its connection, so that no other call reads its answer.

Calls that wait at the same time share one round trip (``Batches``). Law: a caller owns no
connection. A cancelled call takes nothing from the others; every call ends with its result or a
StoreError.

The cluster client is our own: when a node of the cluster is lost, redis-py's closes connections
that other calls are using. Law: the failure of one call changes nothing for other calls, except
what is known of the nodes.
"""

import asyncio
import re
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

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
    SlotNotCoveredError,
    TryAgainError,
)
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError
from redis.maint_notifications import MaintNotificationsConfig

from gateway.cache.ports import StoreError, StoreFullError, StoreRefusedError, StoreUnavailableError
from gateway.cache.stores.redis.scripts import Script, Shard

CONNECTIONS = 64
"""Most connections to one server; calls that share round trips need fewer."""

RENEW_SECONDS = 1.0
"""Between two renewals of all connections."""

_REMEDIES = {
    "OOM": "Redis is full: raise its maxmemory, or let it evict (maxmemory-policy allkeys-lru)",
    "READONLY": "this Redis is a read-only replica: name the primary in the store's URL",
    "MISCONF": "Redis refuses writes because it cannot save to disk: see its log",
    "NOPERM": "the Redis user may not do this: docs/operations/deploy.md lists the permissions",
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
    "MAXCLIENTS": "Redis has no connection left: raise its maxclients",
    "NODB": "this Redis has no database of this number: see the end of the store's URL",
    "NOREPLICAS": "Redis has too few replicas to accept writes (min-replicas-to-write)",
}
FULL = f"{_REMEDIES['OOM']} (OOM)"
SILENCE = (
    "Redis did not answer in time",
    "the Redis cluster cannot be reached",
    "Redis cannot be reached",
)
"""What errors say if there is no answer, so that nothing else is known."""
_UNAVAILABLE = (
    *("WRONGPASS", "DENIED", "LOADING", "MASTERDOWN", "CLUSTERDOWN", "NOCLUSTER", "MOVED"),
    *("BUSY", "UNKILLABLE", "MAXCLIENTS", "NODB"),
)
_KINDS = {"OOM": StoreFullError, "TRYAGAIN": StoreError}
_ANEW = (
    *("READONLY", "MASTERDOWN", "NOREPLICAS", "MISCONF", "LOADING", "CLUSTERDOWN"),
    *("WRONGPASS", "DENIED"),
)
"""After a failover the name may be another server's: each connection is opened anew."""
_PHRASES = {
    "max number of clients": "MAXCLIENTS",
    "DB index is out of range": "NODB",
    # Redis 6 has no code for a command that a script may not run.
    "user executing the script": "NOPERM",
    "cluster support disabled": "NOCLUSTER",
}
_CODE = re.compile(r"\b(" + "|".join(_REMEDIES) + r")\b")
_CODES: dict[type[Exception], str] = {
    # redis-py removes the codes that it knows from the text.
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

Command = tuple[Any, ...]
Address = tuple[str, int]

NextMessage = Callable[[float], Awaitable[tuple[bytes, bytes] | None]]
"""Returns the next message, channel and data, or None after this many seconds without one."""


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

    def __init__(self, url: str, *, seconds: float, password: str | None = None) -> None:
        """Connect at the first call. Raises ValueError if the URL is not a Redis URL.

        ``seconds`` bounds every wait. ``password`` is for a URL without one.
        """
        scheme, _, cluster = url.partition("+cluster://")
        options = client_options(f"{scheme}://{cluster}" if cluster else url, seconds)
        if password is not None:
            options.setdefault("password", password)
        self._servers = _ClusterServers(options) if cluster else _OneServer(options)
        self._seconds = seconds
        self._renew_at = 0.0
        self.cluster = bool(cluster)
        """Whether it is a Redis Cluster."""

    async def command(self, slot: int, *arguments: Any) -> Any:
        """Return the answer to a command with keys in this slot. Raises StoreError."""
        return await self._bound(self._servers.command(slot, *arguments))

    async def run(self, script: Script, shard: Shard, *arguments: Any) -> Any:
        """Return the script's answer. Raises StoreError."""
        return await self._bound(self._run(Call(script, arguments), shard))

    async def run_all(self, shard: Shard, calls: Sequence[Call]) -> list[Any]:
        """Return each script's answer, or a StoreError in its place. Raises StoreError."""
        if len(calls) == 1:
            return [await self._bound(self._run(calls[0], shard))]
        answers: list[Any] = await self._bound(
            self._servers.commands(shard.slot, [call.command(shard) for call in calls])
        )
        for place, answer in enumerate(answers):
            if isinstance(answer, NoScriptError | MovedError | AskError):
                try:
                    answers[place] = await self._bound(self._run(calls[place], shard))
                except StoreError as error:
                    answers[place] = error
            elif isinstance(answer, Exception):
                await self._renew_after(answer)
                answers[place] = store_error(answer)
        return answers

    @asynccontextmanager
    async def subscribe(self, *channels: bytes) -> AsyncIterator[NextMessage]:
        """Subscribe on a separate connection. Raises StoreError, in the context too."""
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
            await self._bound(pubsub.subscribe(*channels))
            yield next_message
        except (RedisError, OSError) as error:
            _raise_if_cancelled()
            raise store_error(error) from None
        finally:
            await pubsub.aclose()
            await listener.aclose()

    async def close(self) -> None:
        await self._servers.close()

    async def _run(self, call: Call, shard: Shard) -> Any:
        try:
            return await self._servers.command(shard.slot, *call.command(shard))
        except NoScriptError:
            # The server was restarted or took over, or somebody ran SCRIPT FLUSH.
            return await self._servers.command(shard.slot, *call.command(shard, whole=True))

    async def _bound(self, call: Awaitable[Any]) -> Any:
        try:
            async with asyncio.timeout(self._seconds):
                answer = await call
        except Exception as error:  # noqa: BLE001 - redis-py raises AttributeError and the like
            _raise_if_cancelled()
            await self._renew_after(error)
            raise store_error(error) from None
        _raise_if_cancelled()
        return answer

    async def _renew_after(self, error: Exception) -> None:
        """Close the connections if another server may have taken over behind the same name."""
        now = time.monotonic()
        if _code(error) not in _ANEW or now < self._renew_at:
            return
        self._renew_at = now + RENEW_SECONDS
        with suppress(RedisError, OSError):
            await self._servers.renew()


def _raise_if_cancelled() -> None:
    """Repeat a cancellation that redis-py has swallowed."""
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError


def store_error(error: Exception) -> StoreError:
    """Return the cause of a failure; never the server's whole text, which may quote a command."""
    code = _code(error)
    if code is not None:
        text = f"{_REMEDIES[code]} ({code})"
        if code in _UNAVAILABLE:
            return StoreUnavailableError(text)
        return _KINDS.get(code, StoreRefusedError)(text)
    if isinstance(error, RedisTimeoutError | TimeoutError):
        return StoreUnavailableError(SILENCE[0])
    if isinstance(error, ResponseError):
        first = str(error).split(" ", 1)[0][:32]
        return StoreRefusedError(f"Redis refused the command ({first})")
    if isinstance(error, RedisClusterException):
        return StoreUnavailableError(SILENCE[1])
    return StoreUnavailableError(SILENCE[2])


def _code(error: Exception) -> str | None:
    for kind, code in _CODES.items():
        if isinstance(error, kind):
            return code
    text = str(error)
    for phrase, code in _PHRASES.items():
        if phrase in text:
            return code
    found = _CODE.search(text)
    return found[0] if found else None


# The servers. All methods raise what redis-py raises.


def client_options(url: str, seconds: float) -> dict[str, Any]:
    """Return the options of a client. Raises ValueError for a wrong URL."""
    return {
        **parse_url(url),
        "protocol": 3,
        "max_connections": CONNECTIONS,
        "timeout": seconds,
        "socket_timeout": seconds,
        "socket_connect_timeout": seconds,
        "client_name": "refrain",
        # Without this, redis-py reads its own version from the disk for every connection.
        "driver_info": None,
        # The next use of a connection shows that Redis has closed it, hence one retry.
        "retry": Retry(NoBackoff(), 1, supported_errors=(RedisConnectionError,)),
        "maint_notifications_config": MaintNotificationsConfig(enabled=False),
    }


def client(options: dict[str, Any]) -> Any:
    """Return redis-py's client of one server, which connects at its first use.

    The type is Any because redis-py's annotations are too few to check our calls.
    """
    return Redis.from_pool(BlockingConnectionPool(**options))


class _OneServer:
    """One Redis server, which has all slots."""

    def __init__(self, options: dict[str, Any]) -> None:
        self._options = options
        self._client = client(options)

    async def command(self, slot: int, *arguments: Any) -> Any:  # noqa: ARG002 - a cluster needs it
        return await self._client.execute_command(*arguments)

    async def commands(self, slot: int, commands: Sequence[Command]) -> list[Any]:  # noqa: ARG002
        return await _pipelined(self._client, commands)

    def listener(self) -> Any:
        return client(self._options)

    async def renew(self) -> None:
        await _renew(self._client)

    async def close(self) -> None:
        await self._client.aclose()


class _ClusterServers:
    """The nodes of a Redis Cluster, each with its last reported slots."""

    def __init__(self, options: dict[str, Any]) -> None:
        """``options`` are the client's options; all nodes take the same ones."""
        self._options = options
        seed = (options.get("host", "localhost"), options.get("port", 6379))
        # The order in which nodes are asked for the slots. A node goes to the end when it is
        # asked, so that one frozen node does not block the others for ever.
        self._known: list[Address] = [seed]
        self._clients: dict[Address, Any] = {}
        # Empty if a node moved or may have been replaced: the next call asks for the slots.
        self._ranges: list[tuple[int, int, Address]] = []
        self._listeners = 0
        self._learning = asyncio.Lock()

    async def command(self, slot: int, *arguments: Any) -> Any:
        try:
            node = self._client(await self._address(slot))
            try:
                return await node.execute_command(*arguments)
            except MovedError as moved:
                self._ranges = []
                node = self._client((moved.host or self._known[0][0], moved.port))
                return await node.execute_command(*arguments)
            except AskError as other:
                node = self._client((other.host, other.port))
                return (await _pipelined(node, [("ASKING",), arguments], raise_on_error=True))[-1]
        except (RedisConnectionError, RedisTimeoutError, ClusterDownError, asyncio.CancelledError):
            self._ranges = []
            raise

    async def commands(self, slot: int, commands: Sequence[Command]) -> list[Any]:
        """Send commands in one round trip; return the answer or the exception of each.

        The caller repeats the commands of moved slots.
        """
        try:
            return await _pipelined(self._client(await self._address(slot)), commands)
        except (RedisConnectionError, RedisTimeoutError, asyncio.CancelledError):
            self._ranges = []
            raise

    def listener(self) -> Any:
        """Return a new client of the next node: each node repeats all published messages."""
        self._listeners += 1
        host, port = self._known[self._listeners % len(self._known)]
        return client({**self._options, "host": host, "port": port})

    async def renew(self) -> None:
        """Ask anew which node has what, on new connections."""
        self._ranges = []
        for node in self._clients.values():
            await _renew(node)

    async def close(self) -> None:
        for node in self._clients.values():
            await node.aclose()

    async def _address(self, slot: int) -> Address:
        if not self._ranges:
            await self._learn()
        for first, last, address in self._ranges:
            if first <= slot <= last:
                return address
        self._ranges = []
        raise SlotNotCoveredError("no node has the slot")

    async def _learn(self) -> None:
        async with self._learning:
            if self._ranges:
                return
            fault: Exception | None = None
            for address in tuple(self._known):
                self._known.remove(address)
                self._known.append(address)
                try:
                    slots = await self._client(address).execute_command("CLUSTER", "SLOTS")
                except (RedisError, OSError) as error:
                    fault = fault or error
                else:
                    self._take(slots, address)
                    return
            raise fault or SlotNotCoveredError("no node is known")

    def _take(self, slots: list[Any], node: Address) -> None:
        self._ranges = []
        for first, last, primary, *_ in slots:
            host, port = primary[0], primary[1]
            address = ((host or b"").decode() or node[0], int(port))
            self._ranges.append((first, last, address))
        here = dict.fromkeys(address for _, _, address in self._ranges)
        self._known = [*here, *(address for address in self._known if address not in here)][:64]

    def _client(self, address: Address) -> Any:
        node = self._clients.get(address)
        if node is None:
            host, port = address
            node = client({**self._options, "host": host, "port": port})
            self._clients[address] = node
        return node


async def _renew(client: Any) -> None:
    """Close idle connections now, and the others at the end of their calls."""
    pool = client.connection_pool
    await pool.update_active_connections_for_reconnect()
    await pool.disconnect(inuse_connections=False)


async def _pipelined(
    client: Any, commands: Sequence[Command], *, raise_on_error: bool = False
) -> list[Any]:
    async with client.pipeline(transaction=False) as pipeline:
        for command in commands:
            pipeline.execute_command(*command)
        answers: list[Any] = await pipeline.execute(raise_on_error=raise_on_error)
        return answers


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
