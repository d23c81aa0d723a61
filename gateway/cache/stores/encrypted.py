"""Encryption of entries: a store whose entries are sealed before they reach it.

Law: the store behind sees the cache key, the size and the end of an entry. All else, metadata
included, is sealed under the data key of the entry's scope. A sealed entry opens only under the
cache key it was sealed for, and unchanged to the last bit; one that does not open is not found. A
data key leaves memory only wrapped under a master key; without it, its scope is unreadable for
ever. Plain entries from a time without encryption are not found either, and are deleted when read.

AES-256-GCM throughout. Each entry has its own key, derived from its scope's data key and 16 random
bytes. Each has a random 96-bit nonce, so that no pair of key and nonce repeats. The form: version,
master key's id, scope's tag (together the head), salt, nonce, ciphertext.

This is a wrapper of any store, not each store's codec, since a data key may have to be fetched. A
data key is fetched again after ``KNOWN_SECONDS``; for so long may another process still read a
scope that was forgotten here.
"""

import asyncio
import base64
import binascii
import logging
import re
import secrets
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import blake2b
from weakref import WeakValueDictionary

from cachetools import LRUCache
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from gateway.cache.ports import SEALED, Entry, Page, ScopeKeys, Store, StoreError, StoreStats
from gateway.cache.stores.entry_codec import DamagedEntryError, decode_entry, encode_entry

KEY_BYTES = 32
TAG_BYTES = 16

_VERSION = b"\x01"
_ID_BYTES = 8
_SALT_BYTES = 16
_NONCE_BYTES = 12
_HEAD_BYTES = len(_VERSION) + _ID_BYTES + TAG_BYTES
_BODY_AT = _HEAD_BYTES + _SALT_BYTES + _NONCE_BYTES
_GCM_TAG_BYTES = 16
_NAME = re.compile(r"[A-Za-z0-9._-]{1,32}")
_URL_SAFE = str.maketrans("-_", "+/")


class MasterKeyError(Exception):
    """The master keys cannot be read; the message never holds any part of a key."""


class SealError(DamagedEntryError):
    """The bytes do not open: changed, moved to another key, or sealed with another data key."""


@dataclass(frozen=True, slots=True)
class MasterKey:
    """Wraps data keys. The operator chose ``name``; ``id`` is a digest of the key."""

    name: str
    id: bytes
    secret: bytes = field(repr=False)

    def wrap(self, tag: bytes, data_key: bytes) -> bytes:
        """Return the wrapped data key of the scope with this tag; any place may keep it."""
        nonce = secrets.token_bytes(_NONCE_BYTES)
        return nonce + AESGCM(self.secret).encrypt(nonce, data_key, b"refrain scope key" + tag)

    def unwrap(self, tag: bytes, wrapped: bytes) -> bytes:
        """Return the data key. Raises SealError."""
        nonce, sealed = wrapped[:_NONCE_BYTES], wrapped[_NONCE_BYTES:]
        try:
            return AESGCM(self.secret).decrypt(nonce, sealed, b"refrain scope key" + tag)
        except (InvalidTag, ValueError):
            raise SealError("a scope's data key does not open under its master key") from None


def parse_master_keys(text: str) -> tuple[MasterKey, ...]:
    """Read ``NAME:BASE64`` items between commas or white space; the first key wraps, each unwraps.

    Raises MasterKeyError.
    """
    keys: list[MasterKey] = []
    for number, item in enumerate(re.split(r"[,\s]+", text.strip(", \t\r\n")), start=1):
        name, _, encoded = item.partition(":")
        if not encoded or not _NAME.fullmatch(name):
            # The item is not quoted: it may be a key without its name.
            raise MasterKeyError(f"item {number}: expected NAME:BASE64, such as 2026a:…")
        try:
            secret = base64.b64decode(encoded.translate(_URL_SAFE), validate=True)
        except binascii.Error:
            secret = b""
        if len(secret) != KEY_BYTES:
            raise MasterKeyError(
                f"item {number} ({name}): expected {KEY_BYTES} bytes in base64, as "
                "`openssl rand -base64 32` prints them"
            )
        identity = blake2b(secret, digest_size=_ID_BYTES, person=b"refrain master").digest()
        if any(name == key.name or identity == key.id for key in keys):
            raise MasterKeyError(f"item {number} ({name}): the name or the key is there already")
        keys.append(MasterKey(name, identity, secret))
    return tuple(keys)


def scope_tag(scope: bytes) -> bytes:
    """Return the public name of a scope's data keys; it does not tell the scope's id."""
    return blake2b(scope, digest_size=TAG_BYTES, person=b"refrain scope").digest()


@dataclass(frozen=True, slots=True)
class SealedHead:
    """The clear part of a sealed entry: which keys open it."""

    master: bytes
    tag: bytes


def read_head(sealed: bytes) -> SealedHead:
    """Return the head. Raises SealError."""
    if len(sealed) < _BODY_AT + _GCM_TAG_BYTES or sealed[:1] != _VERSION:
        raise SealError("the bytes are not a sealed entry of this version")
    at = len(_VERSION) + _ID_BYTES
    return SealedHead(sealed[len(_VERSION) : at], sealed[at:_HEAD_BYTES])


def seal(head: SealedHead, data_key: bytes, cache_key: bytes, encoded: bytes) -> bytes:
    """Return the bytes of an entry, sealed for ``cache_key``."""
    start = _VERSION + head.master + head.tag
    random = secrets.token_bytes(_SALT_BYTES + _NONCE_BYTES)
    cipher = AESGCM(_entry_key(data_key, random[:_SALT_BYTES]))
    sealed = cipher.encrypt(random[_SALT_BYTES:], encoded, start + cache_key)
    return b"".join((start, random, sealed))


def unseal(data_key: bytes, cache_key: bytes, sealed: bytes) -> bytes:
    """Return the entry's bytes. Raises SealError."""
    salt = sealed[_HEAD_BYTES : _HEAD_BYTES + _SALT_BYTES]
    nonce = sealed[_HEAD_BYTES + _SALT_BYTES : _BODY_AT]
    cipher = AESGCM(_entry_key(data_key, salt))
    try:
        return cipher.decrypt(nonce, sealed[_BODY_AT:], sealed[:_HEAD_BYTES] + cache_key)
    except (InvalidTag, ValueError):
        raise SealError("a sealed entry does not open") from None


def _entry_key(data_key: bytes, salt: bytes) -> bytes:
    return blake2b(salt, digest_size=KEY_BYTES, key=data_key, person=b"refrain entry").digest()


KNOWN_SECONDS = 5.0
KEPT_BEYOND = 86_400.0
"""A data key outlives its entries by this much, so that not each put has to write it."""

MOST_KEYS = 4096
INLINE_BYTES = 128 << 10
"""A larger entry is sealed outside the loop: 1 MB takes 0.8 ms."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _DataKey:
    data_key: bytes
    fetched_at: float
    until: float


class SealedStore:
    """The port ``Store``. Closes the store and the scope keys; used from one event loop."""

    def __init__(
        self,
        store: Store,
        masters: Sequence[MasterKey],
        keys: ScopeKeys,
        *,
        clock: Callable[[], float],
    ) -> None:
        self._store = store
        self._master = masters[0]
        self._masters = {master.id: master for master in masters}
        self._keys = keys
        self._clock = clock
        self._known: LRUCache[SealedHead, _DataKey] = LRUCache(MOST_KEYS)
        self._locks: WeakValueDictionary[SealedHead, asyncio.Lock] = WeakValueDictionary()
        self._forgotten = 0
        self._warned: set[str] = set()

    async def get(self, key: bytes, *, touch: bool = True) -> Entry | None:
        envelope = await self._store.get(key, touch=touch)
        return None if envelope is None else await self._open(envelope)

    async def put(self, entry: Entry) -> None:
        head = SealedHead(self._master.id, scope_tag(entry.scope))
        encoded = encode_entry(entry)
        data_key = await self._key_to_seal(head, entry.kept_until)
        if len(encoded) <= INLINE_BYTES:
            sealed = seal(head, data_key, entry.key, encoded)
        else:
            sealed = await asyncio.to_thread(seal, head, data_key, entry.key, encoded)
        await self._store.put(_envelope(entry, sealed))

    async def delete(self, key: bytes) -> None:
        await self._store.delete(key)

    async def walk(self, after: bytes | None, limit: int) -> Page:
        page = await self._store.walk(after, limit)
        opened = [await self._open(envelope, or_sealed=True) for envelope in page.entries]
        return Page([entry for entry in opened if entry is not None], page.after)

    async def forget(self, scope: bytes) -> None:
        """Destroy the scope's data keys, so that none of its entries opens again."""
        tag = scope_tag(scope)
        await self._keys.forget(tag)
        self._forgotten += 1
        for head in [head for head in self._known if head.tag == tag]:
            del self._known[head]

    def stats(self) -> StoreStats:
        return self._store.stats()

    async def close(self) -> None:
        self._known.clear()
        try:
            await self._store.close()
        finally:
            await self._keys.close()

    async def _open(self, envelope: Entry, *, or_sealed: bool = False) -> Entry | None:
        """Return the entry, or None if it does not open; such an envelope is deleted.

        Without its master key, an envelope is not found, or returned as it is with ``or_sealed``.
        """
        try:
            if envelope.endpoint != SEALED:
                self._warn_once(
                    "plain",
                    "entries from a time without encryption are there: they are not used, and "
                    "deleted when met (docs/operations/security.md says how to remove all)",
                )
            else:
                head = read_head(envelope.result)
                if head.master not in self._masters:
                    # Not deleted: the key may be given again.
                    self._warn_once(
                        "master",
                        f"entries are sealed under the master key {head.master.hex()}, which is "
                        "not given: they are not found until it stands in "
                        "REFRAIN_ENCRYPTION_KEYS again",
                    )
                    return envelope if or_sealed else None
                if (entry := await self._unseal(head, envelope)) is not None:
                    return entry
        except DamagedEntryError as error:
            _log.warning("store: an entry is forgotten: %s", error)
        # If it was replaced a moment ago, the loss is one miss.
        with suppress(StoreError):
            await self._store.delete(envelope.key)
        return None

    async def _unseal(self, head: SealedHead, envelope: Entry) -> Entry | None:
        """Return the entry, None where its scope was forgotten. Raises DamagedEntryError."""
        data_key = await self._key_to_open(head)
        if data_key is None:
            return None
        try:
            return await _decode(data_key, envelope)
        except SealError:
            # Perhaps the scope was forgotten elsewhere and this entry has the scope's next key.
            self._known.pop(head, None)
            newer = await self._key_to_open(head)
            if newer is None or newer == data_key:
                raise
            return await _decode(newer, envelope)

    async def _key_to_open(self, head: SealedHead) -> bytes | None:
        async with self._lock(head):
            known = await self._fetch(head)
            return None if known is None else known.data_key

    async def _key_to_seal(self, head: SealedHead, until: float) -> bytes:
        async with self._lock(head):
            with suppress(SealError):
                known = await self._fetch(head)
                if known is not None and known.until >= until:
                    return known.data_key
            beyond = until + KEPT_BEYOND
            proposed = self._master.wrap(head.tag, secrets.token_bytes(KEY_BYTES))
            wrapped = await self._keys.ensure(head.tag, head.master, proposed, beyond)
            try:
                data_key = self._master.unwrap(head.tag, wrapped)
            except SealError as error:
                _log.warning("store: %s: the scope begins anew", error)
                await self._keys.forget(head.tag)
                raise StoreError(str(error)) from None
            self._known[head] = _DataKey(data_key, self._clock(), beyond)
            return data_key

    async def _fetch(self, head: SealedHead) -> _DataKey | None:
        """Return a data key, fetched again after a while. Raises SealError."""
        known = self._known.get(head)
        if known is not None and 0 <= self._clock() - known.fetched_at < KNOWN_SECONDS:
            return known
        forgotten = self._forgotten
        wrapped = await self._keys.find(head.tag, head.master)
        if wrapped is None:
            self._known.pop(head, None)
            return None
        data_key = self._masters[head.master].unwrap(head.tag, wrapped)
        until = known.until if known is not None and known.data_key == data_key else 0.0
        known = _DataKey(data_key, self._clock(), until)
        if forgotten == self._forgotten:
            self._known[head] = known
        return known

    def _lock(self, head: SealedHead) -> asyncio.Lock:
        return self._locks.setdefault(head, asyncio.Lock())

    def _warn_once(self, about: str, warning: str) -> None:
        if about not in self._warned:
            self._warned.add(about)
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


async def _decode(data_key: bytes, envelope: Entry) -> Entry:
    """Return the entry in the envelope. Raises DamagedEntryError."""

    def decode() -> Entry:
        return decode_entry(unseal(data_key, envelope.key, envelope.result), envelope.key)

    if len(envelope.result) <= INLINE_BYTES:
        return decode()
    return await asyncio.to_thread(decode)
