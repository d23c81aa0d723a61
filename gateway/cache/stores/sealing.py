"""Encryption of entries: master keys, the scopes' data keys, sealed bytes.

Law: a sealed entry opens only under the cache key it was sealed for, with the data key of its scope
and unchanged to the last bit. A data key leaves memory only wrapped under a master key; without it
nothing of that scope can be read again.

AES-256-GCM throughout. Each entry has a key of its own, derived from its scope's data key and 16
random bytes, beside a random 96-bit nonce: however many are sealed, no pair of key and nonce is
used twice. The form: version, master key's id, scope's tag (together the head), salt, nonce,
ciphertext.
"""

import base64
import binascii
import re
import secrets
from collections.abc import Iterator
from dataclasses import dataclass, field
from hashlib import blake2b

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from gateway.cache.stores.entry_codec import DamagedEntryError

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


class MasterKeyError(Exception):
    """The master keys cannot be read; the message never holds any part of a key."""


class SealError(DamagedEntryError):
    """The bytes do not open: changed, moved under another key, or sealed with another data key."""


@dataclass(frozen=True, slots=True)
class MasterKey:
    """Wraps data keys. ``name`` is the operator's word for it, ``id`` a digest of the key."""

    name: str
    id: bytes
    secret: bytes = field(repr=False)

    def wrap(self, tag: bytes, data_key: bytes) -> bytes:
        """Return the data key of the scope with this tag, to be kept anywhere."""
        nonce = secrets.token_bytes(_NONCE_BYTES)
        return nonce + AESGCM(self.secret).encrypt(nonce, data_key, b"refrain scope key" + tag)

    def unwrap(self, tag: bytes, wrapped: bytes) -> bytes:
        """Return the data key. Raises SealError."""
        nonce, sealed = wrapped[:_NONCE_BYTES], wrapped[_NONCE_BYTES:]
        try:
            return AESGCM(self.secret).decrypt(nonce, sealed, b"refrain scope key" + tag)
        except (InvalidTag, ValueError):
            raise SealError("a scope's data key does not open under its master key") from None


@dataclass(frozen=True, slots=True)
class MasterKeys:
    """All master keys in force: ``first`` wraps, every one of them unwraps."""

    first: MasterKey
    rest: tuple[MasterKey, ...] = ()

    def __iter__(self) -> Iterator[MasterKey]:
        """Yield them, the one that wraps first."""
        yield self.first
        yield from self.rest

    def find(self, identity: bytes) -> MasterKey | None:
        """Return the key with this id."""
        return next((key for key in self if key.id == identity), None)


def parse_master_keys(text: str) -> MasterKeys:
    """Read ``NAME:BASE64`` items between commas or white space. Raises MasterKeyError."""
    keys: list[MasterKey] = []
    for number, item in enumerate(re.split(r"[,\s]+", text.strip(", \t\r\n")), start=1):
        name, _, encoded = item.partition(":")
        if not encoded or not _NAME.fullmatch(name):
            # Not quoted: what stands here may be a key without its name.
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
    return MasterKeys(keys[0], tuple(keys[1:]))


_URL_SAFE = str.maketrans("-_", "+/")


def scope_tag(scope: bytes) -> bytes:
    """Return what names a scope's data keys; the scope's id does not follow from it."""
    return blake2b(scope, digest_size=TAG_BYTES, person=b"refrain scope").digest()


@dataclass(frozen=True, slots=True)
class SealedHead:
    """What a sealed entry says in clear: whose keys open it."""

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
