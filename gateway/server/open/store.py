"""The store of the settings, and its wrappers.

    memory tier -> circuit breaker and bounded waits -> encryption -> disk or Redis

Law: a tier in memory must learn of every change of the store behind it. In front of the disk, the
workers tell their changes through memory that they share. In front of Redis, each process receives
invalidations.
"""

import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from gateway.cache.ports import ForgetKeys, MemoryTier, ScopeKeys, Store
from gateway.cache.stores.guarded import GuardedStore
from gateway.cache.stores.memory import MemoryStore
from gateway.cache.stores.sqlite.makers import SqliteMakers
from gateway.cache.stores.sqlite.scope_keys import SqliteScopeKeys
from gateway.cache.stores.sqlite.shared_changes import SharedChanges
from gateway.cache.stores.sqlite.store import SqliteStore
from gateway.cache.stores.sqlite.sums import SqliteKeyCounts, SqliteUsage
from gateway.cache.stores.tiered import Invalidations, TieredStore
from gateway.server.open.secrets import master_keys, secret_setting
from gateway.settings import Settings

if TYPE_CHECKING:  # a command that opens a store alone loads none of these
    from gateway.server.keys.usage_sync import KeyCounts
    from gateway.telemetry.usage import UsageStore
    from gateway.upstream.pool.affinity import MakerStore
    from gateway.upstream.sharing.coalescer import Claims

log = logging.getLogger(__name__)

DISK_READ_SECONDS = 0.5
DISK_WRITE_SECONDS = 2.0
"""A busy disk may take long now and then, which is no reason to stop its use."""

USAGE_SECONDS = 5.0
"""No request waits for the sums of usage."""

REDIS_SECONDS = 0.04
"""No call waits more than 50 ms, a busy turn of our event loop included."""

SCOPE_KEYS = "scope-keys.sqlite3"
KEY_COUNTS = "key-counts.sqlite3"
USAGE = "usage.sqlite3"
MAKERS = "makers.sqlite3"


@dataclass(frozen=True, slots=True)
class OpenedStore:
    """The store and its wrappers. ``forget_keys`` is None if the store is not encrypted.

    The figures of ``usage`` of a store in memory are on the disk too: they are not lost at the end.
    """

    kind: str
    store: Store
    usage: "UsageStore"
    forget_keys: ForgetKeys | None = None
    guard: GuardedStore | None = None
    connect: Callable[[], Awaitable[None]] | None = None
    claims: "Claims | None" = None
    key_counts: "KeyCounts | None" = None
    """Where the use of gateway keys is counted with others; None: in this process alone."""
    makers: "MakerStore | None" = None
    """Where the makers of values are noted for other processes; None: in this one alone."""

    @property
    def memory(self) -> MemoryTier | None:
        return self.store if isinstance(self.store, MemoryStore | TieredStore) else None

    def status(self) -> dict[str, str | float | None]:
        found = None if self.guard is None else self.guard.problem
        if found is None:
            return {"kind": self.kind, "problem": None}
        problem, since, why = found
        return {"kind": self.kind, "problem": problem, "since": since, "why": why}

    async def check(self) -> None:
        if self.guard is not None:
            await self.guard.check()

    async def leave(self) -> None:
        """Answer no more from what another worker does not see."""
        if self.kind == "memory":
            await self.store.close()

    @asynccontextmanager
    async def lifespan(self) -> AsyncIterator[None]:
        """Connect before the first request; a failure shows at the first use."""
        try:
            if self.connect is not None:
                await self.connect()
            yield
        finally:
            if self.makers is not None:
                await self.makers.close()
            await self.store.close()


def open_store(
    settings: Settings, environment: Mapping[str, str], changes: Path | None = None
) -> OpenedStore:
    """Open the store that the settings name; a fault of the store shows at its first use.

    ``changes`` is the file through which workers tell one another of their changes. Without it,
    this process is the only one.

    Raises SecretSettingError, and OSError if the workers' shared memory cannot be opened.
    """
    if settings.store == "memory":
        memory = MemoryStore(max_bytes=settings.memory_bytes)
        return OpenedStore("memory", memory, SqliteUsage(settings.data_dir / USAGE))
    if settings.store == "disk":
        file = SqliteStore(
            settings.data_dir / "entries.sqlite3",
            max_bytes=settings.store_bytes,
            shared=SharedChanges(changes),
        )
        keys = SqliteScopeKeys(settings.data_dir / SCOPE_KEYS, clock=time.time)
        cold, forget_keys = _encrypt(file, keys, settings, environment)
        disk = GuardedStore(cold, read_seconds=DISK_READ_SECONDS, write_seconds=DISK_WRITE_SECONDS)

        def lacks(key: bytes) -> bool:
            # While the disk is not used, each miss has to show its fault.
            return disk.is_used and file.lacks(key)

        store = _add_memory_tier(settings, disk, file.touch, file, lacks)
        counts = SqliteKeyCounts(settings.data_dir / KEY_COUNTS)
        return OpenedStore(
            "disk",
            store,
            SqliteUsage(settings.data_dir / USAGE),
            forget_keys,
            disk,
            key_counts=counts,
            makers=SqliteMakers(settings.data_dir / MAKERS, seconds=DISK_READ_SECONDS),
        )
    return _open_redis(settings, environment)


def _open_redis(settings: Settings, environment: Mapping[str, str]) -> OpenedStore:
    # Costs half a second to import.
    from gateway.cache.stores.redis.link import RedisLink  # noqa: PLC0415
    from gateway.cache.stores.redis.makers import RedisMakers  # noqa: PLC0415
    from gateway.cache.stores.redis.store import RedisScopeKeys, RedisStore  # noqa: PLC0415
    from gateway.cache.stores.redis.sums import RedisKeyCounts, RedisUsage  # noqa: PLC0415

    password = secret_setting(environment, "STORE_PASSWORD")
    redis = RedisStore(settings.store, max_bytes=settings.store_bytes, password=password)
    if secret_setting(environment, "SECRET") is None:
        log.info(
            "REFRAIN_SECRET is not given: entries in Redis are found only by gateways that share "
            "this data directory's secret"
        )
    keys = RedisScopeKeys(redis.link, clock=time.time)
    cold, forget_keys = _encrypt(redis, keys, settings, environment)
    guarded = GuardedStore(cold, read_seconds=REDIS_SECONDS, write_seconds=REDIS_SECONDS)
    store = _add_memory_tier(settings, guarded, redis.touch, redis.invalidations)
    redis.claims.usable = lambda: guarded.is_used
    redis.told = guarded.note_upkeep
    return OpenedStore(
        "redis",
        store,
        RedisUsage(RedisLink(settings.store, seconds=USAGE_SECONDS, password=password)),
        forget_keys,
        guarded,
        connect=redis.begin,
        claims=redis.claims,
        key_counts=RedisKeyCounts(redis.link),
        makers=RedisMakers(redis.link, redis.claims.usable, seconds=REDIS_SECONDS),
    )


def _add_memory_tier(
    settings: Settings,
    cold: Store,
    touch: Callable[[bytes], None],
    invalidations: Invalidations | None,
    lacks: Callable[[bytes], bool] = lambda _: False,
) -> Store:
    if settings.memory_bytes == 0:
        return cold
    hot = MemoryStore(max_bytes=settings.memory_bytes)
    return TieredStore(hot, cold, touch, invalidations, lacks)


def _encrypt(
    store: Store, keys: ScopeKeys, settings: Settings, environment: Mapping[str, str]
) -> tuple[Store, ForgetKeys | None]:
    """Encrypt the store if master keys are given. Raises SecretSettingError."""
    masters = master_keys(environment)
    path = settings.data_dir / SCOPE_KEYS
    if masters is None:
        if path.exists():
            log.warning(
                "%s is there, but REFRAIN_ENCRYPTION_KEYS is not given: entries are stored in "
                "clear, and what is encrypted is not found",
                path,
            )
        return store, None
    # Costs 70 ms to import.
    from gateway.cache.stores.encrypted import SealedStore  # noqa: PLC0415

    log.info(
        "entries are encrypted under the master key %s%s",
        masters[0].name,
        "".join(f", {key.name} is read" for key in masters[1:]),
    )
    encrypted = SealedStore(store, masters, keys, clock=time.time)
    return encrypted, encrypted.forget
