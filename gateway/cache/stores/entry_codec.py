"""Entry <-> bytes: the only form in which entries leave the process.

Law: damaged bytes never decode. The form ends with a digest of all bytes before it, so a flipped
bit, a cut tail or foreign bytes are no entry. Bytes of another FORMAT count as damaged, which is a
miss. Words that many entries have in common are interned: endpoint, upstream, rule, field names.

Layout, little endian: header (format, key version, generation, times, lengths), the fields in the
order of the header's lengths, digest.
"""

import math
import struct
from collections.abc import Iterator
from hashlib import blake2b
from sys import intern

from gateway.cache.ports import Entry, StoreError

FORMAT = 2
"""Version of the layout below; raise it whenever the layout changes."""

_HEADER = struct.Struct("<BHqdddI?10I")
_DIGEST_BYTES = 8
_FIELD_DIGEST_BYTES = 8
_MOST_TOKENS = 2**32 - 1


class DamagedEntryError(Exception):
    """The bytes are not an entry of this format, or have changed since they were stored."""


def _bytes(text: str) -> bytes:
    # A JSON string may hold a lone surrogate, which strict UTF-8 cannot encode.
    return text.encode("utf-8", "surrogatepass")


def _text(data: bytes) -> str:
    return data.decode("utf-8", "surrogatepass")


def _field_digests(digests: tuple[tuple[str, bytes], ...]) -> bytes:
    parts: list[bytes] = []
    for name, digest in digests:
        if len(digest) != _FIELD_DIGEST_BYTES:
            raise StoreError(f"a field digest of {len(digest)} bytes")
        written = _bytes(name)
        parts += (len(written).to_bytes(2, "little"), written, digest)
    return b"".join(parts)


def _read_field_digests(data: bytes) -> Iterator[tuple[str, bytes]]:
    at = 0
    while at < len(data):
        start = at + 2
        end = start + int.from_bytes(data[at:start], "little")
        at = end + _FIELD_DIGEST_BYTES
        yield intern(_text(data[start:end])), data[end:at]


def _fields(entry: Entry) -> tuple[bytes, ...]:
    return (
        entry.key,
        _bytes(entry.endpoint),
        _bytes(entry.model),
        _bytes(entry.upstream),
        entry.scope,
        entry.fingerprint,
        _bytes(entry.rule),
        _bytes(entry.question or ""),
        # A tag is not empty and holds no line feed.
        _bytes("\n".join(entry.tags)),
        _field_digests(entry.digests),
    )


def encoded_size(entry: Entry) -> int:
    """Return ``len(encode_entry(entry))``. Raises StoreError as that does."""
    return _HEADER.size + sum(map(len, _fields(entry))) + len(entry.result) + _DIGEST_BYTES


def encode_entry(entry: Entry) -> bytes:
    """Return the entry's bytes.

    Raises StoreError if a time is not a number, if a number or length does not fit its field
    (generation: 64 bits signed, key version: 16 bits, each field under 4 GiB), or if a field digest
    does not have 8 bytes. More tokens than fit are stored as the most that fit.
    """
    if any(map(math.isnan, (entry.stored_at, entry.expires_at, entry.grace))):
        raise StoreError("an entry's times must be numbers, not NaN")
    fields = _fields(entry)
    try:
        header = _HEADER.pack(
            FORMAT,
            entry.key_version,
            entry.generation,
            entry.stored_at,
            entry.expires_at,
            entry.grace,
            min(entry.tokens, _MOST_TOKENS),
            entry.question is not None,
            *map(len, fields),
        )
    except struct.error as error:
        raise StoreError(f"an entry's number does not fit its field: {error}") from None
    body = b"".join((header, *fields, entry.result))
    return body + _digest(body)


def decode_entry(data: bytes, expected_key: bytes | None = None) -> Entry:
    """Return the entry of these bytes. Raises DamagedEntryError, also for another key's entry."""
    end = len(data) - _DIGEST_BYTES
    if end < _HEADER.size:
        raise DamagedEntryError(f"{len(data)} bytes are too few for an entry")
    if _digest(memoryview(data)[:end]) != data[end:]:
        raise DamagedEntryError("the digest does not match the bytes")
    if data[0] != FORMAT:
        raise DamagedEntryError(f"format {data[0]}, expected {FORMAT}")
    (_, key_version, generation, stored_at, expires_at, grace, tokens, has_question, *lengths) = (
        _HEADER.unpack_from(data)
    )
    fields: list[bytes] = []
    at = _HEADER.size
    for length in lengths:
        fields.append(data[at : at + length])
        at += length
    if at > end:
        raise DamagedEntryError("the lengths exceed the bytes")
    key, endpoint, model, upstream, scope, fingerprint, rule, question, tags, digests = fields
    if expected_key not in (None, key):
        raise DamagedEntryError("another key's entry lies under this key")
    try:
        return Entry(
            key=key,
            endpoint=intern(_text(endpoint)),
            model=_text(model),
            upstream=intern(_text(upstream)),
            generation=generation,
            scope=scope,
            fingerprint=fingerprint,
            rule=intern(_text(rule)),
            stored_at=stored_at,
            expires_at=expires_at,
            result=data[at:end],
            question=_text(question) if has_question else None,
            tags=tuple(_text(tags).split("\n")) if tags else (),
            tokens=tokens,
            grace=grace,
            digests=tuple(_read_field_digests(digests)),
            key_version=key_version,
        )
    except UnicodeDecodeError as error:
        raise DamagedEntryError(f"a text field is not UTF-8: {error.reason}") from None


def _digest(body: bytes | memoryview) -> bytes:
    return blake2b(body, digest_size=_DIGEST_BYTES).digest()
