"""Messages between gateway processes that share Redis: pub/sub, one channel for each process.

Law: a message comes once or never, and those that one task sends one after the other come in that
order. Who listens is told when some may have been lost. A connection on which nothing comes, not
even what we ask for ourselves, is given up and opened anew.
"""

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import Any

from gateway.adapters.store_redis_batches import Batches
from gateway.adapters.store_redis_link import Call, RedisLink
from gateway.adapters.store_redis_scripts import FORMAT, PUBLISH, Shard
from gateway.ports import StoreError

QUIET_SECONDS = 5.0
AGAIN_SECONDS = 0.4
CHANNEL = b"refrain:%d:streams:" % FORMAT

_log = logging.getLogger(__name__)


class RedisPost:
    """See the port ``Post``. Used from one event loop."""

    def __init__(self, link: RedisLink, shard: Shard, address: bytes) -> None:
        self.address = address
        self._link = link
        self._calls: Batches[Call, Any] = Batches(partial(link.run_all, shard), _size)
        self._take: Callable[[bytes], None] | None = None
        self._lost: Callable[[], None] | None = None
        self._task: asyncio.Task[None] | None = None
        self.listening = asyncio.Event()
        """Set while messages come; for those who wait for it."""

    def listen(self, take: Callable[[bytes], None], lost: Callable[[], None]) -> None:
        """See the port."""
        self._take, self._lost = take, lost

    async def send(self, to: bytes, data: bytes) -> None:
        """See the port."""
        await self._calls.call(Call(PUBLISH, (CHANNEL + to, data)))

    def start(self) -> None:
        """Begin to listen, on the running loop, if anybody wants to."""
        if self._task is None and self._take is not None:
            self._task = asyncio.create_task(self._hear())

    async def close(self) -> None:
        """Stop listening and sending."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        await self._calls.close()

    async def _hear(self) -> None:
        while True:
            try:
                async with self._link.subscribed(CHANNEL + self.address) as next_message:
                    self.listening.set()
                    asked = False
                    while True:
                        message = await next_message(QUIET_SECONDS)
                        if message is not None:
                            asked = False
                            self._hand_over(message[1])
                        elif asked:
                            break
                        else:
                            asked = True
                            await self.send(self.address, b"")
            except StoreError as error:
                _log.debug("store: no messages through Redis: %s", error)
            finally:
                self.listening.clear()
                if self._lost is not None:
                    self._lost()
            await asyncio.sleep(AGAIN_SECONDS)

    def _hand_over(self, data: bytes) -> None:
        if data and self._take is not None:
            self._take(data)


def _size(call: Call) -> int:
    return len(call.arguments[1])
