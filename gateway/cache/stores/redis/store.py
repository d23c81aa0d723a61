"""Entries and scope keys in Redis, or a Redis Cluster, that several gateways share.

Law: the store returns the whole entry that was put under that very key, or nothing; a damaged or
foreign value is deleted. A get is one round trip. ``max_bytes`` bounds the entries of all gateways
together; the least recently used ones are evicted. Uses are noted in memory and written in the
background; no request waits for that.

Redis forgets each entry once it can no longer be used (after a minute at least). When Redis evicts
an entry by itself, the next use of its key or the upkeep corrects the totals. If Redis evicts the
index of a shard, one gateway rebuilds it from the entries.
"""

import asyncio
import logging
import math
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from functools import partial
from hashlib import sha1
from typing import Any

from gateway import background
from gateway.cache.ports import (
    Entry,
    EntryTooLargeError,
    Page,
    PositionError,
    StoreError,
    StoreFullError,
    StoreStats,
)
from gateway.cache.stores.entry_codec import DamagedEntryError, decode_entry, encode_entry
from gateway.cache.stores.memory import ENTRY_SHARE
from gateway.cache.stores.redis.claims import RedisClaims
from gateway.cache.stores.redis.invalidation import PROVEN_SECONDS, RedisInvalidations
from gateway.cache.stores.redis.link import FULL, Batches, Call, RedisLink
from gateway.cache.stores.redis.scripts import (
    ADOPT,
    DELETE,
    ENSURE_KEY,
    PUT,
    REPAIR,
    UPKEEP,
    WALK,
    Script,
    Shard,
    make_shards,
    scope_shard,
)

MAX_USES = 16_384
USES_AT_ONCE = 1024
MAX_ENTRY_BYTES = 64 << 20
CLUSTER_SHARDS = 16
KEPT_AT_LEAST = 60.0
KEPT_AT_MOST = 10 * 365 * 86_400.0
WALK_BYTES = 1 << 20
"""A page of a walk ends with the entry that reaches it: Redis does nothing else meanwhile."""
MAX_ROOM = 64 << 20
"""Most bytes evicted at once from a full Redis: Redis does nothing else meanwhile."""
INLINE_BYTES = 128 << 10
"""A larger value is decoded outside the loop."""

_log = logging.getLogger(__name__)


class RedisStore:
    """The port ``Store``. Made on any thread, used from one event loop."""

    def __init__(
        self,
        url: str,
        *,
        max_bytes: int,
        password: str | None = None,
        clock: Callable[[], float] = time.time,
        seconds: float = 1.0,
        upkeep_seconds: float = 1.0,
        proven_seconds: float = PROVEN_SECONDS,
        shards: int | None = None,
    ) -> None:
        """Connect at the first call. Raises ValueError if the URL is not a Redis URL.

        ``password`` is for a URL without one. ``seconds`` bounds every wait, ``proven_seconds``
        the age of a beat that lets copies in memory be used. All gateways must use the same
        number of ``shards``.
        """
        self.told: Callable[[StoreError | None], None] = lambda _: None
        """Learns of each upkeep's fault, or that there was none: requests may be rare. Also learns
        that an answer was stored in the place of nearly all others."""
        self.link = RedisLink(url, seconds=seconds, password=password)
        """The connections, which this store closes."""
        self._shards = make_shards(shards or (CLUSTER_SHARDS if self.link.cluster else 1))
        self._room = max_bytes // len(self._shards)
        self._max_entry_bytes = min(max_bytes // ENTRY_SHARE, self._room, MAX_ENTRY_BYTES)
        self._clock = clock
        self._lookups: list[Batches[bytes, bytes | None]] = [
            Batches(partial(self._values, shard)) for shard in self._shards
        ]
        self._changes: list[Batches[Call, Any]] = [
            Batches(partial(self.link.run_all, shard), _size) for shard in self._shards
        ]
        self._totals = [(0, 0) for _ in self._shards]
        self._evictions = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False
        # The oldest use comes first.
        self._uses: dict[bytes, None] = {}
        self._places = [0] * len(self._shards)
        self._epochs: list[bytes | None] = [None] * len(self._shards)
        self._upkeep_seconds = upkeep_seconds
        self._upkeep: asyncio.Task[None] | None = None
        self.claims = RedisClaims(self.link, self._shards)
        self.invalidations = RedisInvalidations(self.link, self._shards, proven_seconds)

    async def begin(self) -> None:
        """Connect, if Redis is there."""
        with suppress(StoreError):
            await self.get(b"")

    async def get(self, key: bytes, *, touch: bool = True) -> Entry | None:
        self._check_open()
        shard = self._shards.of(key)
        value = await self._lookups[shard.number].call(shard.name(key))
        if value is None:
            return None
        try:
            if len(value) <= INLINE_BYTES:
                entry = decode_entry(value, key)
            else:
                entry = await asyncio.to_thread(decode_entry, value, key)
        except DamagedEntryError as error:
            _log.warning("store: a damaged entry in Redis is deleted: %s", error)
            digest = sha1(value, usedforsecurity=False).hexdigest()
            self._spawn(self._change(DELETE, shard, b"-", key, digest))
            return None
        if touch:
            self.touch(key)
        return entry

    async def put(self, entry: Entry) -> None:
        """Store or replace. Raises EntryTooLargeError over an entry's share of the store.

        A cancelled caller does not end it. After that, and after a StoreError for a late answer,
        the entry may or may not have been stored.
        """
        self._check_open()
        value = encode_entry(entry)
        if len(value) > self._max_entry_bytes:
            raise EntryTooLargeError(
                f"an entry of {len(value)} bytes, at most {self._max_entry_bytes} are stored"
            )
        shard = self._shards.of(entry.key)
        milliseconds = _milliseconds(entry.kept_until - self._clock(), KEPT_AT_LEAST)
        await self._finish(PUT, shard, entry.key, value, milliseconds, self._room, MAX_ROOM)

    async def delete(self, key: bytes) -> None:
        self._check_open()
        await self._finish(DELETE, self._shards.of(key), key)

    async def walk(self, after: bytes | None, limit: int) -> Page:
        """Return a page. ``after`` is shard, score and key of the last entry of the page before."""
        self._check_open()
        number, score, last = _position(after)
        if number >= len(self._shards):
            raise PositionError("expected one of the shards")
        shard = self._shards[number]
        arguments = (shard.prefix, score, last, limit, WALK_BYTES)
        page, values, unfinished = await self.link.run(WALK, shard, *arguments)
        entries = []
        for key, value in zip(page[::2], values, strict=True):
            with suppress(DamagedEntryError):
                if value is not None:
                    entries.append(decode_entry(value, key))
        if unfinished:
            last, score = page[-2:]
            return Page(entries, b"%d %s %s" % (number, score, last))
        more = number + 1 < len(self._shards)
        return Page(entries, b"%d  " % (number + 1) if more else None)

    def touch(self, key: bytes) -> None:
        """Note a use. With MAX_USES of them unwritten, uses of other keys are not noted."""
        uses = self._uses
        if uses.pop(key, self) is None or len(uses) < MAX_USES:
            uses[key] = None

    def stats(self) -> StoreStats:
        """Return the figures of the latest change here, or of the latest upkeep.

        Entries and bytes count for all gateways together; evictions are ours.
        """
        entries, size = (sum(column) for column in zip(*self._totals, strict=True))
        return StoreStats(entries, size, self._evictions)

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        if self._upkeep is not None:
            self._upkeep.cancel()
            await asyncio.wait([self._upkeep])
        await self.invalidations.close()
        await self.claims.close()
        if self._tasks:
            await asyncio.wait(self._tasks)
        for lookups in self._lookups:
            await lookups.close()
        for changes in self._changes:
            await changes.close()
        await self.link.close()

    def _check_open(self) -> None:
        if self._closed:
            raise StoreError("the store is closed")
        if self._upkeep is None:
            self._upkeep = background.start("upkeep of the store", self._keep_up)
        self.invalidations.start()

    async def _values(self, shard: Shard, names: Sequence[bytes]) -> list[bytes | None]:
        values: list[bytes | None] = await self.link.command(shard.slot, "MGET", *names)
        return values

    # Changes: each is announced under the name of its origin.

    async def _change(
        self, script: Script, shard: Shard, origin: bytes, key: bytes, *arguments: Any
    ) -> None:
        call = Call(script, (*shard.head, origin, key, *arguments), (key,))
        if self._note(shard, await self._changes[shard.number].call(call)) == [1]:
            self.told(StoreFullError(FULL))

    def _note(self, shard: Shard, answer: list[Any]) -> list[Any]:
        """Note the totals that each script returns first; return the rest of its answer."""
        entries, size, evicted, *rest = answer
        self._totals[shard.number] = (entries, size)
        self._evictions += evicted
        return rest

    async def _finish(self, script: Script, shard: Shard, key: bytes, *arguments: Any) -> None:
        """Make a change by ourselves, which a cancelled caller does not end."""
        change = self._change(script, shard, self.invalidations.origin, key, *arguments)
        try:
            await asyncio.shield(self._spawn(change))
        except BaseException:
            # The change may happen later, or never.
            self.invalidations.rename()
            raise

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._end)
        return task

    def _end(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            # The caller gets the exception; without a caller, asyncio must not log it.
            task.exception()

    # Upkeep: uses are written down, and the totals corrected.

    async def run_upkeep(self) -> None:
        uses, self._uses = self._uses, {}
        of_shard: list[list[bytes]] = [[] for _ in self._shards]
        for key in uses:
            of_shard[self._shards.of(key).number].append(key)
        for shard, keys in zip(self._shards, of_shard, strict=True):
            for start in range(0, max(len(keys), 1), USES_AT_ONCE):
                await self._upkeep_shard(shard, keys[start : start + USES_AT_ONCE])

    async def _upkeep_shard(self, shard: Shard, keys: Sequence[bytes]) -> None:
        place = self._places[shard.number]
        answer = await self.link.run(UPKEEP, shard, *shard.head, self._room, place, *keys)
        self._places[shard.number], whole, epoch = self._note(shard, answer)
        # With the epoch, Redis may have lost all else that belongs to the index.
        known, self._epochs[shard.number] = self._epochs[shard.number], epoch
        if not whole or known not in (None, b"", epoch):
            await self._repair(shard)

    async def _repair(self, shard: Shard) -> None:
        if not await self.link.run(REPAIR, shard, *shard.head):
            return
        _log.warning(
            "store: Redis has no index of entries any more (was it restarted empty?); "
            "what it has lost is a miss, and is stored again",
            extra={"fields": {"event": "store"}},
        )
        cursor = 0
        while True:
            found = (cursor, "MATCH", shard.prefix + b"*", "COUNT", 512)
            cursor, names = await self.link.command(shard.slot, "SCAN", *found)
            keys = [name.removeprefix(shard.prefix) for name in names]
            last = int(cursor) == 0
            arguments = (*shard.head, "last" if last else "", *keys)
            self._note(shard, await self.link.run(ADOPT, shard, *arguments))
            if last:
                return

    async def _keep_up(self) -> None:
        while True:
            await asyncio.sleep(self._upkeep_seconds)
            try:
                await self.run_upkeep()
            except StoreError as error:
                _log.debug("store: upkeep in Redis waits: %s", error)
                self.told(error)
            else:
                self.told(None)


def _milliseconds(seconds: float, least: float) -> int | bytes:
    """Return how long Redis keeps a value; b'' is without end."""
    return b"" if seconds == math.inf else int(min(max(seconds, least), KEPT_AT_MOST) * 1000)


def _size(call: Call) -> int:
    return sum(len(argument) for argument in call.arguments if isinstance(argument, bytes))


def _position(after: bytes | None) -> tuple[int, bytes, bytes]:
    if after is None:
        return 0, b"", b""
    match after.split(b" ", 2):
        case [number, score, last] if number.isdigit():
            return int(number), score, last
    raise PositionError("expected shard, score and key")


class RedisScopeKeys:
    """The port ``ScopeKeys``: wrapped data keys in Redis, beside the entries they encrypt.

    Law: callers at the same moment get the same key, and a forgotten key is gone for all. Redis
    keeps a scope's keys as long as an entry may need them. If Redis evicts them, the scope loses
    its entries and nothing else.
    """

    def __init__(self, link: RedisLink, *, clock: Callable[[], float]) -> None:
        # The store closes the link.
        self._link = link
        self._clock = clock

    async def find(self, tag: bytes, master: bytes) -> bytes | None:
        shard = scope_shard(tag)
        found: bytes | None = await self._link.command(shard.slot, "HGET", *shard.index, master)
        return found

    async def ensure(self, tag: bytes, master: bytes, proposed: bytes, until: float) -> bytes:
        milliseconds = _milliseconds(until - self._clock(), 1.0)
        arguments = (master, proposed, milliseconds)
        there: bytes = await self._link.run(ENSURE_KEY, scope_shard(tag), *arguments)
        return there

    async def forget(self, tag: bytes) -> None:
        shard = scope_shard(tag)
        await self._link.command(shard.slot, "DEL", *shard.index)

    async def close(self) -> None: ...
