"""What is done to entries in Redis in the background: uses written down, the count put right.

Law: nobody waits for it, and what it notes is bounded. Where the index of a shard is broken (Redis
evicts what it likes, also ours) it is made anew from the entries that are there, by one gateway.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from gateway.cache.ports import StoreError
from gateway.cache.stores.redis.link import RedisLink
from gateway.cache.stores.redis.scripts import ADOPT, CHANNEL, REPAIR, REPAIRED, TEND, Script, Shard

MAX_USES = 16_384
USES_AT_ONCE = 1024

_log = logging.getLogger(__name__)


class Run(Protocol):
    """Runs a script that tells totals, and notes them; returns what else it tells."""

    async def __call__(self, script: Script, shard: Shard, *arguments: Any) -> list[Any]:
        """Run it. Raises StoreError."""
        ...


class Upkeep:
    """Used from one event loop."""

    def __init__(
        self,
        link: RedisLink,
        shards: Sequence[Shard],
        shard_of: Callable[[bytes], Shard],
        run: Run,
        *,
        room: int,
        seconds: float,
    ) -> None:
        """``room`` is the bytes that a shard's entries may take."""
        self._link = link
        self._shards = shards
        self._shard_of = shard_of
        self._run = run
        self._room = room
        self._seconds = seconds
        # Oldest use first.
        self._uses: dict[bytes, None] = {}
        self._places = [0] * len(shards)
        self._epochs: list[bytes | None] = [None] * len(shards)
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin, on the running loop."""
        if self._task is None:
            self._task = asyncio.create_task(self._keep_up())

    async def close(self) -> None:
        """End it."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    def touch(self, key: bytes) -> None:
        """Note a use. With MAX_USES of them unwritten, uses of other keys are not noted."""
        uses = self._uses
        if uses.pop(key, self) is None or len(uses) < MAX_USES:
            uses[key] = None

    async def tend(self) -> None:
        """Do it now. Raises StoreError."""
        uses, self._uses = self._uses, {}
        of_shard: list[list[bytes]] = [[] for _ in self._shards]
        for key in uses:
            of_shard[self._shard_of(key).number].append(key)
        for shard, keys in zip(self._shards, of_shard, strict=True):
            for start in range(0, max(len(keys), 1), USES_AT_ONCE):
                await self._tend(shard, keys[start : start + USES_AT_ONCE])

    async def _tend(self, shard: Shard, keys: Sequence[bytes]) -> None:
        number = shard.number
        place, whole, epoch = await self._run(TEND, shard, self._room, self._places[number], *keys)
        self._places[number] = place
        # Where the word for this count is gone, all that counts may be gone with it.
        known, self._epochs[number] = self._epochs[number], epoch
        if not whole or known not in (None, b"", epoch):
            await self._repair(shard)

    async def _repair(self, shard: Shard) -> None:
        head = (shard.prefix, CHANNEL, shard.number)
        if not await self._link.run(REPAIR, shard, *head):
            return
        _log.info("store: Redis has lost the index of entries; it is made anew")
        cursor = 0
        while True:
            cursor, keys = await self._link.scan(shard, cursor)
            await self._link.run(ADOPT, shard, *head, *keys)
            if cursor == 0:
                break
        await self._run(REPAIRED, shard)

    async def _keep_up(self) -> None:
        told = False
        while True:
            await asyncio.sleep(self._seconds)
            try:
                await self.tend()
                told = False
            except StoreError as error:
                if not told:
                    _log.info("store: upkeep in Redis waits: %s", error)
                told = True
