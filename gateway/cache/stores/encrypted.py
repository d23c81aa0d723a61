"""A store whose entries are encrypted before they reach it.

Law: what lies in the store tells the cache key, the size and when it ends; all else, metadata
included, is sealed under the data key of the entry's scope. What does not open is not found. Plain
entries from a time without encryption are not found either, and are deleted when met.

Wraps any store, rather than being each store's codec: a data key may have to be fetched from
elsewhere, and that is a wait. Data keys are known for ``KNOWN_SECONDS`` before they are asked for
again; so long may another process still read a scope that was forgotten here.
"""

import asyncio
import logging
import secrets
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from weakref import WeakValueDictionary

from cachetools import LRUCache

from gateway.cache.entry import Entry
from gateway.cache.ports import Page, ScopeKeys, Store, StoreError, StoreStats
from gateway.cache.stores.entry_codec import DamagedEntryError, decode_stored, encode_entry
from gateway.cache.stores.sealing import (
    KEY_BYTES,
    MasterKey,
    MasterKeys,
    SealedHead,
    SealError,
    read_head,
    scope_tag,
    seal,
    unseal,
)

SEALED = "sealed"
"""The endpoint of the entries that the store sees."""

KNOWN_SECONDS = 5.0
KEPT_BEYOND = 86_400.0
"""A data key outlives its entries by this much, so that it need not be written at each put."""

MOST_KEYS = 4096
INLINE_BYTES = 128 << 10
"""Sealing more than this leaves the loop: 1 MB takes 0.8 ms."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Known:
    data_key: bytes
    asked_at: float
    until: float


class SealedStore:
    """See the port ``Store``. Owns the store and the scope keys; used from one event loop."""

    def __init__(
        self,
        store: Store,
        masters: MasterKeys,
        keys: ScopeKeys,
        *,
        clock: Callable[[], float],
    ) -> None:
        self._store = store
        self._masters = masters
        self._keys = keys
        self._clock = clock
        self._known: LRUCache[tuple[bytes, bytes], _Known] = LRUCache(MOST_KEYS)
        self._asking: WeakValueDictionary[tuple[bytes, bytes], asyncio.Lock] = WeakValueDictionary()
        self._forgotten = 0
        self._told: set[str] = set()

    async def get(self, key: bytes, *, touch: bool = True) -> Entry | None:
        # What was changed or moved is forgotten and not found.
        sealed = await self._store.get(key, touch=touch)
        return None if sealed is None else await self._opened(sealed)

    async def put(self, entry: Entry) -> None:
        head = SealedHead(self._masters.first.id, scope_tag(entry.scope))
        try:
            encoded = encode_entry(entry)
        except ValueError as error:
            raise StoreError(str(error)) from None
        data_key = await self._key_to_seal(head, entry.kept_until)
        if len(encoded) <= INLINE_BYTES:
            sealed = seal(head, data_key, entry.key, encoded)
        else:
            sealed = await asyncio.to_thread(seal, head, data_key, entry.key, encoded)
        await self._store.put(_envelope(entry, sealed))

    async def delete(self, key: bytes) -> None:
        await self._store.delete(key)

    async def walk(self, after: bytes | None, limit: int) -> Page:
        # What does not open is passed over.
        page = await self._store.walk(after, limit)
        opened = [await self._opened(sealed) for sealed in page.entries]
        return Page([entry for entry in opened if entry is not None], page.after)

    async def forget(self, scope: bytes) -> None:
        """Destroy the scope's data keys: none of its entries opens again. Raises StoreError."""
        tag = scope_tag(scope)
        await self._keys.forget(tag)
        self._forgotten += 1
        for name in [name for name in self._known if name[1] == tag]:
            del self._known[name]

    def stats(self) -> StoreStats:
        return self._store.stats()

    async def close(self) -> None:
        """Close the store and the scope keys."""
        self._known.clear()
        try:
            await self._store.close()
        finally:
            await self._keys.close()

    async def _opened(self, envelope: Entry) -> Entry | None:
        if envelope.endpoint != SEALED:
            self._tell_once(
                "plain",
                "entries from a time without encryption are there: they are not used, and deleted "
                "when met (docs/security.md says how to be rid of all at once)",
            )
            await self._discard(envelope.key)
            return None
        try:
            head = read_head(envelope.result)
            master = self._masters.find(head.master)
            if master is None:
                # Not deleted: the key may be given again.
                self._tell_once(
                    "master",
                    f"entries are sealed under the master key {head.master.hex()}, which is not "
                    "given: they are not found until it stands in REFRAIN_ENCRYPTION_KEYS again",
                )
                return None
            return await self._unsealed(head, master, envelope)
        except DamagedEntryError as error:
            _log.warning("store: an entry is forgotten: %s", error)
            await self._discard(envelope.key)
            return None

    async def _unsealed(self, head: SealedHead, master: MasterKey, envelope: Entry) -> Entry | None:
        """Return the entry, None where its scope was forgotten. Raises DamagedEntryError."""
        data_key = await self._key_to_open(head, master)
        if data_key is None:
            await self._discard(envelope.key)
            return None
        try:
            return await self._decoded(data_key, envelope)
        except SealError:
            # The scope may have been forgotten elsewhere, and this be sealed with its next key.
            self._known.pop((head.master, head.tag), None)
            newer = await self._key_to_open(head, master)
            if newer is None or newer == data_key:
                raise
            return await self._decoded(newer, envelope)

    async def _decoded(self, data_key: bytes, envelope: Entry) -> Entry:
        if len(envelope.result) <= INLINE_BYTES:
            return _decode(data_key, envelope)
        return await asyncio.to_thread(_decode, data_key, envelope)

    async def _key_to_open(self, head: SealedHead, master: MasterKey) -> bytes | None:
        name = (head.master, head.tag)
        async with self._lock(name):
            known = await self._ask(name, master)
            return None if known is None else known.data_key

    async def _key_to_seal(self, head: SealedHead, until: float) -> bytes:
        name, master = (head.master, head.tag), self._masters.first
        async with self._lock(name):
            with suppress(SealError):
                known = await self._ask(name, master)
                if known is not None and known.until >= until:
                    return known.data_key
            beyond = until + KEPT_BEYOND
            proposed = master.wrap(head.tag, secrets.token_bytes(KEY_BYTES))
            wrapped = await self._keys.ensure(head.tag, head.master, proposed, beyond)
            try:
                data_key = master.unwrap(head.tag, wrapped)
            except SealError as error:
                _log.warning("store: %s: the scope begins anew", error)
                await self._keys.forget(head.tag)
                raise StoreError(str(error)) from None
            self._known[name] = _Known(data_key, self._clock(), beyond)
            return data_key

    async def _ask(self, name: tuple[bytes, bytes], master: MasterKey) -> _Known | None:
        """Return what is known of a data key, asking anew after a while. Raises SealError."""
        known = self._known.get(name)
        if known is not None and 0 <= self._clock() - known.asked_at < KNOWN_SECONDS:
            return known
        forgotten = self._forgotten
        wrapped = await self._keys.find(name[1], name[0])
        if wrapped is None:
            self._known.pop(name, None)
            return None
        data_key = master.unwrap(name[1], wrapped)
        until = known.until if known is not None and known.data_key == data_key else 0.0
        known = _Known(data_key, self._clock(), until)
        if forgotten == self._forgotten:
            self._known[name] = known
        return known

    def _lock(self, name: tuple[bytes, bytes]) -> asyncio.Lock:
        return self._asking.setdefault(name, asyncio.Lock())

    async def _discard(self, key: bytes) -> None:
        # It may have been replaced a moment ago; to lose that is a miss and no more.
        with suppress(StoreError):
            await self._store.delete(key)

    def _tell_once(self, what: str, warning: str) -> None:
        if what not in self._told:
            self._told.add(what)
            _log.warning("store: %s", warning)


def _envelope(entry: Entry, sealed: bytes) -> Entry:
    return Entry(
        key=entry.key,
        endpoint=SEALED,
        model="",
        upstream="",
        generation=0,
        scope=b"",
        fingerprint=b"",
        rule="",
        stored_at=0.0,
        expires_at=entry.expires_at,
        grace=entry.grace,
        result=sealed,
    )


def _decode(data_key: bytes, envelope: Entry) -> Entry:
    return decode_stored(unseal(data_key, envelope.key, envelope.result), envelope.key)
