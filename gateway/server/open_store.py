"""Which store holds the entries, and what stands around it: part of the composition root.

    memory tier -> breaker and bounded waits -> encryption -> disk or Redis

Law: a tier in memory stands only where it hears of every change: before the disk in the one
process that changes it, before Redis in any process.
"""

import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from gateway.cache.ports import Claims, ForgetKeys, ScopeKeys, Store
from gateway.cache.stores.guarded import GuardedStore
from gateway.cache.stores.memory import MemoryStore
from gateway.cache.stores.sqlite.scope_keys import SqliteScopeKeys
from gateway.cache.stores.sqlite.store import SqliteStore
from gateway.cache.stores.tiered import News, TieredStore
from gateway.server.secrets import master_keys, secret_setting
from gateway.settings import Settings

log = logging.getLogger(__name__)

DISK_READ_SECONDS = 0.5
DISK_WRITE_SECONDS = 2.0
"""A busy disk takes its time now and then, and that is no reason to stop using it."""

REDIS_SECONDS = 0.04
"""No call waits more than 50 ms, a busy turn of our own loop included."""
SCOPE_KEYS = "scope-keys.sqlite3"


@dataclass(frozen=True, slots=True)
class Entries:
    """The store, who forgets scopes in it if it is encrypted, and what to tell of it."""

    store: Store
    forget_keys: ForgetKeys | None
    status: Callable[[], dict[str, Any]]
    begin: Callable[[], Awaitable[None]] | None = None
    claims: Claims | None = None

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        """Connect, so that the first request need not; whether it could shows when it is used."""
        try:
            if self.begin is not None:
                await self.begin()
            yield
        finally:
            await self.store.close()


def open_store(settings: Settings, environment: Mapping[str, str]) -> Entries:
    """Open the store that the settings name; what is wrong with it shows when it is used.

    Raises SecretSettingError.
    """
    if settings.store == "memory":
        return Entries(MemoryStore(max_bytes=settings.memory_bytes), None, _unguarded("memory"))
    if settings.store == "disk":
        file = SqliteStore(settings.data_dir / "entries.sqlite3", max_bytes=settings.store_bytes)
        keys = SqliteScopeKeys(settings.data_dir / SCOPE_KEYS, clock=time.time)
        cold, forget_keys = _sealed(file, keys, settings, environment)
        disk = GuardedStore(cold, read_seconds=DISK_READ_SECONDS, write_seconds=DISK_WRITE_SECONDS)
        hot = settings.workers == 1
        store = _tiered(settings, disk, file.touch) if hot else disk
        return Entries(store, forget_keys, _guarded("disk", disk))
    return _open_redis(settings, environment)


def _open_redis(settings: Settings, environment: Mapping[str, str]) -> Entries:
    # Costs half a second to import.
    from gateway.cache.stores.redis.scope_keys import RedisScopeKeys  # noqa: PLC0415
    from gateway.cache.stores.redis.store import RedisStore  # noqa: PLC0415

    redis = RedisStore(
        settings.store,
        max_bytes=settings.store_bytes,
        password=secret_setting(environment, "STORE_PASSWORD"),
    )
    if secret_setting(environment, "SECRET") is None:
        log.info(
            "REFRAIN_SECRET is not given: entries in Redis are found only by gateways that share "
            "this data directory's secret"
        )
    keys = RedisScopeKeys(redis.link, clock=time.time)
    cold, forget_keys = _sealed(redis, keys, settings, environment)
    guarded = GuardedStore(cold, read_seconds=REDIS_SECONDS, write_seconds=REDIS_SECONDS)
    store = _tiered(settings, guarded, redis.touch, redis.news)
    redis.claims.usable = lambda: guarded.fault is None
    return Entries(store, forget_keys, _guarded("redis", guarded), redis.begin, redis.claims)


def _tiered(
    settings: Settings, cold: Store, touch: Callable[[bytes], None], news: News | None = None
) -> Store:
    if settings.memory_bytes == 0:
        return cold
    return TieredStore(MemoryStore(max_bytes=settings.memory_bytes), cold, touch, news)


def _guarded(kind: str, guarded: GuardedStore) -> Callable[[], dict[str, Any]]:
    return lambda: {"kind": kind, "problem": guarded.fault}


def _unguarded(kind: str) -> Callable[[], dict[str, Any]]:
    return lambda: {"kind": kind, "problem": None}


def _sealed(
    store: Store,
    keys: ScopeKeys,
    settings: Settings,
    environment: Mapping[str, str],
) -> tuple[Store, ForgetKeys | None]:
    """Put encryption around what lasts, where master keys are given. Raises SecretSettingError."""
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
        masters.first.name,
        "".join(f", {key.name} is read" for key in masters.rest),
    )
    sealed = SealedStore(store, masters, keys, clock=time.time)
    return sealed, sealed.forget
