"""The connections to Redis: one server, or the nodes of a Redis Cluster.

The cluster client is our own: when a node of the cluster is lost, redis-py's closes connections
that other calls are using. Law: the failure of one call changes nothing for other calls, except
what is known of the nodes.
"""

import asyncio
from collections.abc import Sequence
from typing import Any

from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.connection import parse_url
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import AskError, ClusterDownError, MovedError, RedisError, SlotNotCoveredError
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError
from redis.maint_notifications import MaintNotificationsConfig

CONNECTIONS = 64
"""At most so many to one server; calls that share round trips need fewer."""

Command = tuple[Any, ...]
Address = tuple[str, int]


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


class OneServer:
    """One Redis server, which has all slots."""

    def __init__(self, options: dict[str, Any]) -> None:
        self._options = options
        self._client = client(options)

    async def ask(self, slot: int, *arguments: Any) -> Any:  # noqa: ARG002 - a cluster needs it
        """Send a command whose keys are in this slot. Raises what redis-py raises."""
        return await self._client.execute_command(*arguments)

    async def ask_all(self, slot: int, commands: Sequence[Command]) -> list[Any]:  # noqa: ARG002
        """Send commands in one round trip; return the answer or the exception of each."""
        return await _pipelined(self._client, commands)

    def listener(self) -> Any:
        """Return a new client for a subscription; in a cluster, of another node each time."""
        return client(self._options)

    async def close(self) -> None:
        """Close the connections."""
        await self._client.aclose()


class ClusterServers:
    """The nodes of a Redis Cluster, with the methods of OneServer: asks the node of the slot."""

    def __init__(self, options: dict[str, Any]) -> None:
        """``options`` are those of a client of any node; all nodes take the same ones."""
        self._options = options
        seed = (options.get("host", "localhost"), options.get("port", 6379))
        # The order in which nodes are asked for the slots. A node goes to the end when it is
        # asked, so that one frozen node does not block the others for ever.
        self._known: list[Address] = [seed]
        self._clients: dict[Address, Any] = {}
        self._ranges: list[tuple[int, int, Address]] = []
        self._moved: dict[int, Address] = {}
        self._listeners = 0
        self._learning = asyncio.Lock()

    async def ask(self, slot: int, *arguments: Any) -> Any:
        try:
            node = self._client(await self._address(slot))
            try:
                return await node.execute_command(*arguments)
            except MovedError as moved:
                self._moved[slot] = (moved.host or self._known[0][0], moved.port)
                return await self._client(self._moved[slot]).execute_command(*arguments)
            except AskError as other:
                node = self._client((other.host, other.port))
                return (await _pipelined(node, [("ASKING",), arguments], raise_on_error=True))[-1]
        except (RedisConnectionError, RedisTimeoutError, ClusterDownError, asyncio.CancelledError):
            # The node may have been replaced: the next call asks for the slots again.
            self._ranges, self._moved = [], {}
            raise

    async def ask_all(self, slot: int, commands: Sequence[Command]) -> list[Any]:
        """Send commands in one round trip; the caller repeats those whose slot has moved."""
        try:
            return await _pipelined(self._client(await self._address(slot)), commands)
        except (RedisConnectionError, RedisTimeoutError, asyncio.CancelledError):
            self._ranges, self._moved = [], {}
            raise

    def listener(self) -> Any:
        """Return a client of the next node: each node repeats what is published on any node."""
        self._listeners += 1
        host, port = self._known[self._listeners % len(self._known)]
        return client({**self._options, "host": host, "port": port})

    async def close(self) -> None:
        for node in self._clients.values():
            await node.aclose()

    async def _address(self, slot: int) -> Address:
        if not self._ranges:
            await self._learn()
        moved = self._moved.get(slot)
        if moved is not None:
            return moved
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
                    continue
                self._take(slots, address)
                return
            raise fault or SlotNotCoveredError("no node is known")

    def _take(self, slots: list[Any], asked: Address) -> None:
        self._moved = {}
        self._ranges = []
        for first, last, primary, *_ in slots:
            host, port = primary[0], primary[1]
            address = ((host or b"").decode() or asked[0], int(port))
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


Servers = OneServer | ClusterServers


async def _pipelined(
    client: Any, commands: Sequence[Command], *, raise_on_error: bool = False
) -> list[Any]:
    async with client.pipeline(transaction=False) as pipeline:
        for command in commands:
            pipeline.execute_command(*command)
        answers: list[Any] = await pipeline.execute(raise_on_error=raise_on_error)
        return answers
