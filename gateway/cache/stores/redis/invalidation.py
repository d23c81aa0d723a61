"""Invalidations: keep the memory tier coherent with changes by other gateways in Redis.

Each script that changes an entry numbers its change and publishes it on one channel. One connection
of ours subscribes to that channel. Beats say the latest number: each goes out through its shard and
comes back on our own channel, so it proves that the shard's announcements would have come. A
connection on which nothing comes is closed and opened again, in a cluster to another node.

Law: a copy is used only if no change was missed before a beat that was sent less than
``PROVEN_SECONDS`` ago. So a copy outlives a change made elsewhere by no more than that, even if the
network is cut; while messages arrive, by their delay. A missed change empties the tier.
"""

import asyncio
import logging
import secrets
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from gateway import background
from gateway.cache.ports import StoreError
from gateway.cache.stores.redis.link import RedisLink
from gateway.cache.stores.redis.scripts import BEAT, CHANNEL, Shard, Shards

PROVEN_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class InSync:
    """All changes up to ``seq`` were received; a beat sent at ``proved`` said the same.

    ``epoch`` names one count of changes; the store begins another one after it lost everything.
    """

    epoch: bytes
    seq: int
    proved: float


SyncState = InSync | None
"""None if changes are unknown: without a subscription, or after missed changes."""


def after_change(state: SyncState, epoch: bytes, seq: int) -> SyncState:
    """Return the state after the change of that number was received."""
    if state is not None and (state.epoch, state.seq + 1) == (epoch, seq):
        return replace(state, seq=seq)
    return None


def after_beat(state: SyncState, epoch: bytes, seq: int, sent: float) -> SyncState:
    """Return the state after a beat that was sent at ``sent``.

    Copies made before are of no use if it is None, and if it was None before.
    """
    if state is None:
        return InSync(epoch, seq, sent)
    if (state.epoch, state.seq) == (epoch, seq):
        return replace(state, proved=max(state.proved, sent))
    return None


def is_proven(state: SyncState, now: float, seconds: float = PROVEN_SECONDS) -> bool:
    """Tell whether copies may be used."""
    return state is not None and now - state.proved <= seconds


BEAT_SECONDS = 0.4

_log = logging.getLogger(__name__)


class RedisInvalidations:
    """The port ``Invalidations`` of the tier in memory. Used from one event loop."""

    def __init__(
        self, link: RedisLink, shards: Shards, proven_seconds: float = PROVEN_SECONDS
    ) -> None:
        self._link = link
        self._shards = shards
        self._proven_seconds = proven_seconds
        self.origin = secrets.token_hex(8).encode()
        """Names the changes made here: the tier in front knows them."""
        self._channel = CHANNEL + b":" + self.origin
        self._states: list[SyncState] = [None] * len(shards)
        self._on_change: Callable[[bytes], None] | None = None
        self._on_loss: Callable[[], None] = lambda: None
        self._tasks: list[asyncio.Task[None]] = []
        self._subscribed = asyncio.Event()
        self.proven = asyncio.Event()
        """Set while the latest beat has proven every shard."""

    def listen(self, changed: Callable[[bytes], None], lost: Callable[[], None]) -> None:
        self._on_change, self._on_loss = changed, lost

    def current(self, key: bytes) -> bool:
        state = self._states[self._shards.of(key).number]
        return is_proven(state, time.monotonic(), self._proven_seconds)

    def rename(self) -> None:
        """Let all changes under way count as made elsewhere: the end of one is not known here."""
        self.origin = secrets.token_hex(8).encode()

    def start(self) -> None:
        """Subscribe, on the running loop, if anybody listens."""
        if not self._tasks and self._on_change is not None:
            self._tasks = [
                background.start("invalidations of the store", self._receive),
                background.start("beats of the store", self._send_beats),
            ]

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def _receive(self) -> None:
        while True:
            try:
                async with self._link.subscribe(CHANNEL, self._channel) as next_message:
                    self._subscribed.set()
                    while (message := await next_message(self._proven_seconds)) is not None:
                        self._take(*message)
                _log.debug("store: no news from Redis for %g s", self._proven_seconds)
            except StoreError as error:
                _log.debug("store: no news from Redis: %s", error)
            finally:
                self._subscribed.clear()
                self._lose(self._shards)
            await asyncio.sleep(BEAT_SECONDS)

    async def _send_beats(self) -> None:
        while True:
            await self._subscribed.wait()
            await asyncio.gather(*map(self._send_beat, self._shards))
            await asyncio.sleep(BEAT_SECONDS)

    async def _send_beat(self, shard: Shard) -> None:
        head = (shard.prefix, self._channel, shard.number)
        try:
            await self._link.run(BEAT, shard, *head, repr(time.monotonic()), secrets.token_hex(8))
        except StoreError as error:
            _log.debug("store: no beat through Redis: %s", error)

    def _take(self, channel: bytes, data: bytes) -> None:
        try:
            if channel == CHANNEL:
                shard, epoch, seq, origin, key = data.split(b" ", 4)
                self._apply_change(self._shards[int(shard)], epoch, int(seq), origin, key)
            else:
                shard, epoch, seq, sent = data.split(b" ")
                self._apply_beat(self._shards[int(shard)], epoch, int(seq), float(sent))
        except (ValueError, IndexError):
            # Not from a gateway.
            self._lose(self._shards)

    def _apply_change(
        self, shard: Shard, epoch: bytes, seq: int, origin: bytes, key: bytes
    ) -> None:
        before = self._states[shard.number]
        if before is None:
            return
        self._states[shard.number] = after_change(before, epoch, seq)
        if self._states[shard.number] is None:
            self._lose([shard])
            return
        if origin != self.origin and self._on_change is not None:
            self._on_change(key)

    def _apply_beat(self, shard: Shard, epoch: bytes, seq: int, sent: float) -> None:
        before = self._states[shard.number]
        after = after_beat(before, epoch, seq, sent)
        if after is None:
            self._lose([shard])
            after = after_beat(after, epoch, seq, sent)
        elif before is None:
            # Reads that began before may return entries that were replaced since.
            self._on_loss()
        self._states[shard.number] = after
        now = time.monotonic()
        if all(is_proven(state, now, self._proven_seconds) for state in self._states):
            self.proven.set()

    def _lose(self, shards: Iterable[Shard]) -> None:
        for shard in shards:
            self._states[shard.number] = None
        self.proven.clear()
        self._on_loss()
