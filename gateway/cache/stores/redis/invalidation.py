"""Whether copies of a shared store's entries may still be used: what was told of changes, and when.

The store numbers its changes and announces them in order; a beat, which goes the same way, says
the latest number. Law: a copy is used only while nothing was missed before a beat that set out less
than ``PROVEN_SECONDS`` ago. So it outlives a change made elsewhere by no more than that, even where
the way of the messages is cut and nobody is told; while messages arrive, by their delay.

What other gateways change in Redis, as it happens: keeps the tier in front coherent.

One connection listens. The scripts that change entries announce it on one channel; beats go out
through every shard and come back on a channel of our own, which proves that this shard's
announcements would have come (``core.coherence``). A connection on which nothing comes is given up
and opened anew, in a cluster to another node.

Law: what is not proven is not used, and a change that was missed empties the tier.
"""

import asyncio
import logging
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gateway.cache.ports import StoreError
from gateway.cache.stores.redis.link import RedisLink
from gateway.cache.stores.redis.scripts import BEAT, CHANNEL, Shard

PROVEN_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Following:
    """All changes up to ``seq`` were told; a beat that set out at ``proved`` said the same.

    ``epoch`` is the store's word for one count of changes; another one after it lost everything.
    """

    epoch: bytes
    seq: int
    proved: float


@dataclass(frozen=True, slots=True)
class Astray:
    """Nothing is known of changes: nobody listens, or some were missed."""


Hearing = Following | Astray

ASTRAY = Astray()


def changed(hearing: Hearing, epoch: bytes, seq: int) -> Hearing:
    """Return the state after the change of that number was told."""
    if isinstance(hearing, Following) and (hearing.epoch, hearing.seq + 1) == (epoch, seq):
        return replace(hearing, seq=seq)
    return ASTRAY


def beat(hearing: Hearing, epoch: bytes, seq: int, sent: float) -> Hearing:
    """Return the state after a beat that set out at ``sent``.

    Where it is ``Following`` and was not before, or follows another count, copies made before are
    of no use; so they are where it is ``Astray``.
    """
    if isinstance(hearing, Astray):
        return Following(epoch, seq, sent)
    if (hearing.epoch, hearing.seq) == (epoch, seq):
        return replace(hearing, proved=max(hearing.proved, sent))
    return ASTRAY


def proven(hearing: Hearing, now: float) -> bool:
    """Tell whether copies may be used."""
    return isinstance(hearing, Following) and now - hearing.proved <= PROVEN_SECONDS


BEAT_SECONDS = 0.4
MAX_OWN = 10_000

_log = logging.getLogger(__name__)


class OwnChanges:
    """Changes made here: the tier in front knows of those whose end its caller has seen."""

    def __init__(self) -> None:
        self._last = 0
        self._waiting: set[int] = set()
        self._seen: set[int] = set()

    def begin(self) -> int:
        """Return the number of a change that somebody waits for."""
        self._last += 1
        self._waiting.add(self._last)
        return self._last

    def ended(self, number: int) -> None:
        """Note that the one who waited has its end."""
        if number in self._waiting:
            self._waiting.remove(number)
            if len(self._seen) >= MAX_OWN:
                # Nobody listens; at worst the tier forgets what it need not.
                self._seen.clear()
            self._seen.add(number)

    def abandoned(self, number: int) -> None:
        """Note that nobody waits any more: the change may be made at any time, or never."""
        self._waiting.discard(number)

    def heard(self, number: int) -> bool:
        """Tell whether the announced change is known to the one who waited, or waits for it."""
        known = number in self._seen or number in self._waiting
        self._seen.discard(number)
        self._waiting.discard(number)
        return known


class RedisNews:
    """See ``store_tiered.News``. Used from one event loop."""

    def __init__(
        self,
        link: RedisLink,
        shards: Sequence[Shard],
        shard_of: Callable[[bytes], Shard],
        origin: bytes,
        own: OwnChanges,
        *,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._link = link
        self._shards = shards
        self._shard_of = shard_of
        self._origin = origin
        self._own = own
        self._now = now
        self._hearing: list[Hearing] = [ASTRAY] * len(shards)
        self._told: Callable[[bytes], None] = _nobody
        self._lost: Callable[[], None] = _nobody
        self._tasks: list[asyncio.Task[None]] = []
        self._listening = asyncio.Event()
        self.proven = asyncio.Event()
        """Set while every shard was proven at the latest beat; for those who wait for it."""

    def listen(self, changed: Callable[[bytes], None], lost: Callable[[], None]) -> None:
        self._told, self._lost = changed, lost

    def current(self, key: bytes) -> bool:
        return proven(self._hearing[self._shard_of(key).number], self._now())

    def start(self) -> None:
        """Begin to listen, on the running loop, if anybody wants to know."""
        if not self._tasks and self._told is not _nobody:
            self._tasks = [asyncio.create_task(self._hear()), asyncio.create_task(self._beat())]

    async def close(self) -> None:
        """Stop listening."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def _hear(self) -> None:
        while True:
            try:
                async with self._link.subscribed(CHANNEL, self._private) as next_message:
                    self._listening.set()
                    while (message := await next_message(PROVEN_SECONDS)) is not None:
                        self._take(*message)
                _log.debug("store: no news from Redis for %g s", PROVEN_SECONDS)
            except StoreError as error:
                _log.debug("store: no news from Redis: %s", error)
            finally:
                self._listening.clear()
                self._go_astray(range(len(self._shards)))
            await asyncio.sleep(BEAT_SECONDS)

    async def _beat(self) -> None:
        while True:
            await self._listening.wait()
            await asyncio.gather(*map(self._beat_once, self._shards))
            await asyncio.sleep(BEAT_SECONDS)

    async def _beat_once(self, shard: Shard) -> None:
        sent = repr(self._now())
        head = (shard.prefix, self._private, shard.number)
        try:
            await self._link.run(BEAT, shard, *head, sent, secrets.token_hex(8))
        except StoreError as error:
            _log.debug("store: no beat through Redis: %s", error)

    @property
    def _private(self) -> bytes:
        return CHANNEL + b":" + self._origin

    def _take(self, channel: bytes, data: bytes) -> None:
        try:
            if channel == CHANNEL:
                shard, epoch, seq, origin, key = data.split(b" ", 4)
                self._changed(int(shard), epoch, int(seq), origin, key)
            else:
                shard, epoch, seq, sent = data.split(b" ")
                self._beaten(int(shard), epoch, int(seq), float(sent))
        except (ValueError, IndexError):
            # Not from one of us.
            self._go_astray(range(len(self._shards)))

    def _changed(self, shard: int, epoch: bytes, seq: int, origin: bytes, key: bytes) -> None:
        before = self._hearing[shard]
        if isinstance(before, Astray):
            return
        self._hearing[shard] = changed(before, epoch, seq)
        if isinstance(self._hearing[shard], Astray):
            self._go_astray([shard])
            return
        name, _, number = origin.partition(b":")
        if name != self._origin or not self._own.heard(int(number)):
            self._told(key)

    def _beaten(self, shard: int, epoch: bytes, seq: int, sent: float) -> None:
        before = self._hearing[shard]
        after = beat(before, epoch, seq, sent)
        if isinstance(after, Astray):
            self._go_astray([shard])
            after = beat(after, epoch, seq, sent)
        elif isinstance(before, Astray):
            # Reads that began before it may bring home what a change has replaced since.
            self._lost()
        self._hearing[shard] = after
        if all(proven(hearing, self._now()) for hearing in self._hearing):
            self.proven.set()

    def _go_astray(self, shards: Sequence[int]) -> None:
        for shard in shards:
            self._hearing[shard] = ASTRAY
        self.proven.clear()
        self._lost()


def _nobody(*_: Any) -> None:
    """Stand in for who did not ask to be told."""
