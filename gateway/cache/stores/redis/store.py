"""What is done to entries in Redis in the background: uses written down, the count put right.

Law: nobody waits for it, and what it notes is bounded. Where the index of a shard is broken (Redis
evicts what it likes, also ours) it is made anew from the entries that are there, by one gateway.

Entries in Redis, or a Redis Cluster, shared by every gateway that is given the same one.

Law: what the store returns is the entry that was put under that very key, whole, or nothing; what
is damaged or foreign is deleted. A get is one round trip. Gateways count together: entries take at
most ``max_bytes`` of all of them, and what must go to make room is what was used longest ago.
Uses are noted in memory and written down in the background.

Redis keeps each entry until it can be of no use any more (and a minute at least), so what nobody
deletes leaves by itself. What Redis evicts on its own account is taken out of the count when its
key is met again, or by the upkeep.
"""

import asyncio
import logging
import math
import secrets
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from functools import partial
from hashlib import sha1
from typing import Any
from zlib import crc32

from gateway.cache.entry import Entry
from gateway.cache.ports import EntryTooLargeError, Page, PositionError, StoreError, StoreStats
from gateway.cache.stores.entry_codec import DamagedEntryError, decode_stored, encode_entry
from gateway.cache.stores.memory import ENTRY_SHARE
from gateway.cache.stores.redis.claims import RedisClaims
from gateway.cache.stores.redis.cluster import ClusterServers
from gateway.cache.stores.redis.invalidation import OwnChanges, RedisNews
from gateway.cache.stores.redis.link import (
    Batches,
    Call,
    OneServer,
    RedisFullError,
    RedisLink,
    client_options,
)
from gateway.cache.stores.redis.scripts import (
    ADOPT,
    CHANNEL,
    DELETE,
    DISCARD,
    KEPT_AT_MOST,
    MAKE_ROOM,
    PUT,
    REPAIR,
    REPAIRED,
    TEND,
    WALK,
    Script,
    Shard,
    make_shards,
)

MAX_USES = 16_384
USES_AT_ONCE = 1024

_log = logging.getLogger(__name__)


Run = Callable[..., Awaitable[list[Any]]]
"""Runs a script with its shard and arguments, and notes the totals that it tells; returns what
else it tells. Raises StoreError."""


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


MAX_ENTRY_BYTES = 64 << 20
CLUSTER_SHARDS = 16
KEPT_AT_LEAST = 60.0
WALK_BYTES = 1 << 20
"""A page of a walk ends with the entry that reaches it: meanwhile Redis does nothing else."""
ROOM_ROUNDS = 8
MAX_ROOM = 64 << 20
"""Evicted at once to make room for an entry: meanwhile Redis does nothing else."""
INLINE_BYTES = 128 << 10
"""A larger value is checked and decoded off the loop."""


class RedisStore:
    """See the port ``Store``. Made on any thread, used from one event loop."""

    def __init__(
        self,
        url: str,
        *,
        max_bytes: int,
        password: str | None = None,
        clock: Callable[[], float] = time.time,
        seconds: float = 1.0,
        upkeep_seconds: float = 1.0,
        shards: int | None = None,
    ) -> None:
        """Connect at the first call. Raises ValueError for a URL that is none of Redis.

        ``password`` is for a URL without one. ``seconds`` bounds every wait. All gateways must
        agree on the number of ``shards``.
        """
        scheme, _, rest = url.partition("+cluster://")
        options = client_options(f"{scheme}://{rest}" if rest else url, seconds)
        if password is not None:
            options.setdefault("password", password)
        servers = ClusterServers(options) if rest else OneServer(options)
        self._link = RedisLink(servers, seconds=seconds)
        self._shards = make_shards(shards or (CLUSTER_SHARDS if rest else 1))
        self._room = max_bytes // len(self._shards)
        self._max_entry_bytes = min(max_bytes // ENTRY_SHARE, self._room, MAX_ENTRY_BYTES)
        self._clock = clock
        self._lookups: list[Batches[bytes, bytes | None]] = [
            Batches(partial(self._link.values, shard)) for shard in self._shards
        ]
        self._changes: list[Batches[Call, Any]] = [
            Batches(partial(self._link.run_all, shard), _size) for shard in self._shards
        ]
        self._totals = [(0, 0) for _ in self._shards]
        self._evictions = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False
        # Names this store in what is announced of its changes.
        self._origin = secrets.token_hex(8).encode()
        self._own = OwnChanges()
        self._upkeep = Upkeep(
            self._link,
            self._shards,
            self._shard,
            self._run,
            room=self._room,
            seconds=upkeep_seconds,
        )
        self.touch = self._upkeep.touch
        """Notes a use; it is written down soon, in the background."""
        self.claims = RedisClaims(self._link, self._shards, self._shard)
        self.news = RedisNews(self._link, self._shards, self._shard, self._origin, self._own)

    async def begin(self) -> None:
        """Connect, if Redis is there."""
        with suppress(StoreError):
            await self.get(b"")

    async def get(self, key: bytes, *, touch: bool = True) -> Entry | None:
        # A damaged entry is forgotten and not found.
        self._check_open()
        shard = self._shard(key)
        value = await self._lookups[shard.number].call(shard.name(key))
        if value is None:
            return None
        try:
            if len(value) <= INLINE_BYTES:
                entry = decode_stored(value, key)
            else:
                entry = await asyncio.to_thread(decode_stored, value, key)
        except DamagedEntryError as error:
            _log.warning("store: a damaged entry in Redis is deleted: %s", error)
            digest = sha1(value, usedforsecurity=False).hexdigest()
            self._spawn(self._change(DISCARD, shard, 0, key, digest))
            return None
        if touch:
            self.touch(key)
        return entry

    async def put(self, entry: Entry) -> None:
        # Raises EntryTooLargeError over an entry's share of the store.
        # Goes on when the caller is cancelled: after that, as after a StoreError for a late answer,
        # the entry may or may not have been stored.
        self._check_open()
        try:
            value = encode_entry(entry)
        except ValueError as error:
            raise StoreError(str(error)) from None
        if len(value) > self._max_entry_bytes:
            raise EntryTooLargeError(
                f"an entry of {len(value)} bytes, at most {self._max_entry_bytes} are stored"
            )
        number = self._own.begin()
        await self._finish(number, self._put(entry, value, number))

    async def delete(self, key: bytes) -> None:
        # Goes on when the caller is cancelled.
        self._check_open()
        number = self._own.begin()
        await self._finish(number, self._change(DELETE, self._shard(key), number, key))

    async def walk(self, after: bytes | None, limit: int) -> Page:
        # ``after`` is shard, score and key of the last entry of the page before.
        self._check_open()
        number, score, last = _position(after)
        if number >= len(self._shards):
            raise PositionError("expected one of the shards")
        shard = self._shards[number]
        asked = (shard.prefix, score, last, limit, WALK_BYTES)
        page, values, unfinished = await self._link.run(WALK, shard, *asked)
        entries = []
        for key, value in zip(page[::2], values, strict=True):
            try:
                if value is not None:
                    entries.append(decode_stored(value, key))
            except DamagedEntryError:
                continue
        if unfinished:
            last, score = page[-2:]
            return Page(entries, b"%d %s %s" % (number, score, last))
        more = number + 1 < len(self._shards)
        return Page(entries, b"%d  " % (number + 1) if more else None)

    def stats(self) -> StoreStats:
        """Return figures of the latest change here, or of the latest upkeep.

        Entries and bytes are those of all gateways together; evictions are ours.
        """
        entries, size = (sum(column) for column in zip(*self._totals, strict=True))
        return StoreStats(entries, size, self._evictions)

    @property
    def link(self) -> RedisLink:
        """The way to this Redis, for what belongs to its entries; closed with the store."""
        return self._link

    async def close(self) -> None:
        """Finish what is under way and close the connections."""
        if self._closed:
            return
        self._closed = True
        await self._upkeep.close()
        await self.news.close()
        await self.claims.close()
        if self._tasks:
            await asyncio.wait(self._tasks)
        for lookups in self._lookups:
            await lookups.close()
        for changes in self._changes:
            await changes.close()
        await self._link.close()

    async def tend(self) -> None:
        """Write down uses and bring the figures up to date. Raises StoreError."""
        await self._upkeep.tend()

    def _shard(self, key: bytes) -> Shard:
        shards = self._shards
        return shards[crc32(key) % len(shards)] if len(shards) > 1 else shards[0]

    async def _put(self, entry: Entry, value: bytes, number: int) -> None:
        shard = self._shard(entry.key)
        arguments = (entry.key, value, self._milliseconds(entry.kept_until), self._room)
        try:
            await self._change(PUT, shard, number, *arguments)
        except RedisFullError as error:
            # Full of what may not be ours; a cache gives way, as much as it wants to take.
            await self._put_with_room(shard, number, len(value), arguments, error)

    async def _put_with_room(
        self,
        shard: Shard,
        number: int,
        size: int,
        arguments: tuple[Any, ...],
        error: RedisFullError,
    ) -> None:
        """Evict until Redis takes the entry: at most ROOM_ROUNDS times, each time more.

        What Redis counts as used does not fall by what was deleted: buffers of clients, latency
        histograms and values that are freed in the background count too.
        """
        head = (shard.prefix, CHANNEL, shard.number)
        room = 2 * size
        for _ in range(ROOM_ROUNDS):
            told = await self._changes[shard.number].call(Call(MAKE_ROOM, (*head, room)))
            self._note(shard, told)
            if not told[2]:
                break
            try:
                await self._change(PUT, shard, number, *arguments)
            except RedisFullError as again:
                error, room = again, min(4 * room, MAX_ROOM)
            else:
                return
        raise error

    def _milliseconds(self, until: float) -> int | bytes:
        """Return how long Redis keeps the entry; b'' is without end."""
        if until == math.inf:
            return b""
        seconds = until - self._clock()
        return int(min(max(seconds, KEPT_AT_LEAST), KEPT_AT_MOST) * 1000)

    async def _change(
        self, script: Script, shard: Shard, number: int, key: bytes, *arguments: Any
    ) -> None:
        origin = b"%s:%d" % (self._origin, number)
        head = (shard.prefix, CHANNEL, shard.number, origin, key)
        call = Call(script, (*head, *arguments), (key,))
        self._note(shard, await self._changes[shard.number].call(call))

    async def _run(self, script: Script, shard: Shard, *arguments: Any) -> list[Any]:
        head = (shard.prefix, CHANNEL, shard.number)
        return self._note(shard, await self._link.run(script, shard, *head, *arguments))

    def _note(self, shard: Shard, told: list[Any]) -> list[Any]:
        entries, size, evicted, *rest = told
        self._totals[shard.number] = (entries, size)
        self._evictions += evicted
        return rest

    async def _finish(self, number: int, work: Coroutine[Any, Any, None]) -> None:
        try:
            await asyncio.shield(self._spawn(work))
        except BaseException:
            self._own.abandoned(number)
            raise
        self._own.ended(number)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            # Told to whoever waits; where nobody does any more, asyncio is not to complain.
            task.exception()

    def _check_open(self) -> None:
        if self._closed:
            raise StoreError("the store is closed")
        self._upkeep.start()
        self.news.start()


def _size(call: Call) -> int:
    return sum(len(argument) for argument in call.arguments if isinstance(argument, bytes))


def _position(after: bytes | None) -> tuple[int, bytes, bytes]:
    if after is None:
        return 0, b"", b""
    match after.split(b" ", 2):
        case [number, score, last] if number.isdigit():
            return int(number), score, last
    raise PositionError("expected shard, score and key")
