"""Claims in Redis: which gateway process makes the upstream call for a miss that several have.

Law: one process holds a claim, and the claim lapses LEASE_SECONDS after its holder last renewed it.
No call waits longer than CALL_SECONDS, and none is made while the store is not used. If Redis does
not answer a release, the release is tried again.
"""

import asyncio
import logging
import secrets
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

from gateway import background
from gateway.cache.ports import StoreError, StoreUnavailableError
from gateway.cache.stores.guarded import LoopTimeout
from gateway.cache.stores.redis.link import Batches, Call, RedisLink
from gateway.cache.stores.redis.scripts import CLAIM, Shards

LEASE_SECONDS = 6.0
CALL_SECONDS = 0.04
RELEASE_PAUSE = 0.1
"""Before a failed release is tried again."""

_log = logging.getLogger(__name__)


class RedisClaims:
    """The port ``Claims``. Used from one event loop."""

    def __init__(
        self, link: RedisLink, shards: Shards, usable: Callable[[], bool] = lambda: True
    ) -> None:
        self.usable = usable
        """Tells whether the store is used at present."""
        self._shards = shards
        # Separate batches, so that no claim waits behind an entry.
        self._calls: list[Batches[Call, Any]] = [
            Batches(partial(link.run_all, shard)) for shard in shards
        ]
        self._token = secrets.token_hex(8).encode()
        """Names the holder of our claims."""
        self._timeout = LoopTimeout()
        # Slots of granted claims and of claims in progress.
        self._slots: set[bytes] = set()
        self._closing = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._renewing: asyncio.Task[None] | None = None

    async def take(self, slot: bytes) -> bool:
        if not self.usable():
            raise StoreUnavailableError("the store is not answering")
        if slot in self._slots:
            return False
        self._slots.add(slot)
        try:
            is_granted = await self._timeout.wait(self._run("take", slot), CALL_SECONDS)
        except BaseException as error:
            # Redis may have made the claim nevertheless.
            self.release(slot)
            if isinstance(error, TimeoutError):
                raise StoreUnavailableError("Redis did not answer in time") from None
            raise
        if not is_granted:
            self._slots.discard(slot)
        elif self._renewing is None:
            self._renewing = background.start("claims of the store", self._renew)
        return bool(is_granted)

    def release(self, slot: bytes) -> None:
        self._slots.discard(slot)
        task = asyncio.create_task(self._release(slot))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Release all claims, with one more try for each."""
        self._closing.set()
        if self._renewing is not None:
            self._renewing.cancel()
            await asyncio.wait([self._renewing])
        for slot in list(self._slots):
            self.release(slot)
        if self._tasks:
            await asyncio.wait(self._tasks)
        for calls in self._calls:
            await calls.close()

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(LEASE_SECONDS / 3)
            for slot in list(self._slots):
                try:
                    await self._run("renew", slot)
                except StoreError as error:
                    _log.debug("store: a claim was not renewed: %s", error)

    async def _release(self, slot: bytes) -> None:
        until = asyncio.get_running_loop().time() + LEASE_SECONDS
        while slot not in self._slots:
            try:
                await self._run("release", slot)
            except StoreError as error:
                _log.debug("store: a claim was not released: %s", error)
            else:
                return
            if self._closing.is_set() or asyncio.get_running_loop().time() > until:
                return  # the claim lapses
            with suppress(TimeoutError):
                await asyncio.wait_for(self._closing.wait(), RELEASE_PAUSE)

    async def _run(self, what: str, slot: bytes) -> Any:
        shard = self._shards.of(slot)
        lease = int(LEASE_SECONDS * 1000)
        call = Call(CLAIM, (shard.prefix, slot, self._token, lease, what))
        return await self._calls[shard.number].call(call)
