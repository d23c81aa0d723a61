"""A Redis Cluster: which node has a slot, and asking the other one when it has moved.

Our own, because redis-py's closes connections that other calls are using, whenever one call meets a
moved slot or a lost connection. Law: a fault of one call changes nothing for the others but what is
known of the nodes.
"""

import asyncio
from collections.abc import Sequence
from typing import Any

from redis.exceptions import AskError, ClusterDownError, MovedError, RedisError, SlotNotCoveredError
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from gateway.cache.stores.redis.link import Command, client, in_one

Address = tuple[str, int]


class ClusterServers:
    """See ``Servers``: asks the node that has the slot."""

    def __init__(self, options: dict[str, Any]) -> None:
        """``options`` are those of a client of any node; all nodes take the same ones."""
        self._options = options
        seed = (options.get("host", "localhost"), options.get("port", 6379))
        # Who is asked for the slots, in this order: whoever was asked last and has not answered
        # is at the end, so that one frozen node does not stop us for ever.
        self._known: list[Address] = [seed]
        self._clients: dict[Address, Any] = {}
        self._ranges: list[tuple[int, int, Address]] = []
        self._moved: dict[int, Address] = {}
        self._listened = 0
        self._learning = asyncio.Lock()

    async def ask(self, slot: int, *arguments: Any) -> Any:
        try:
            node = self._client(await self._address(slot))
            try:
                return await node.execute_command(*arguments)
            except MovedError as moved:
                self._moved[slot] = (moved.host or self._known[0][0], moved.port)
                return await self._client(self._moved[slot]).execute_command(*arguments)
            except AskError as there:
                return await self._ask_there((there.host, there.port), arguments)
        except (RedisConnectionError, RedisTimeoutError, ClusterDownError, asyncio.CancelledError):
            # A node may have been replaced: before the next call the slots are asked for again.
            self._ranges, self._moved = [], {}
            raise

    async def ask_all(self, slot: int, commands: Sequence[Command]) -> list[Any]:
        # What has moved is for the caller to ask again.
        try:
            return await in_one(self._client(await self._address(slot)), commands)
        except (RedisConnectionError, RedisTimeoutError, asyncio.CancelledError):
            self._ranges, self._moved = [], {}
            raise

    def listener(self) -> Any:
        # Every node hears what is announced on any.
        self._listened += 1
        host, port = self._known[self._listened % len(self._known)]
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

    async def _ask_there(self, address: Address, arguments: tuple[Any, ...]) -> Any:
        async with self._client(address).pipeline(transaction=False) as pipeline:
            pipeline.execute_command("ASKING")
            pipeline.execute_command(*arguments)
            return (await pipeline.execute())[-1]

    def _client(self, address: Address) -> Any:
        node = self._clients.get(address)
        if node is None:
            host, port = address
            node = client({**self._options, "host": host, "port": port})
            self._clients[address] = node
        return node
