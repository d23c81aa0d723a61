"""Entry <-> bytes: the one form in which entries leave the process.

Law: what was damaged on the way is found out. The form ends in a digest of all that stands before
it, so a flipped bit, a cut tail or bytes of something else never decode to an entry that was not
stored. A reader that knows another FORMAT takes the bytes for damaged, which is a miss.

Layout, little endian: header (format, key version, generation, times, lengths), the fields in the
order of the header's lengths, digest.
"""

import math
import struct
from collections.abc import Iterator
from hashlib import blake2b

from gateway.cache.entry import Entry

FORMAT = 2
"""Version of the layout below; raised whenever it changes."""

_HEADER = struct.Struct("<BHqdddI?10I")
_DIGEST_BYTES = 8
_FIELD_DIGEST_BYTES = 8
_MOST_TOKENS = 2**32 - 1


class DamagedEntryError(Exception):
    """The bytes are not an entry of this format, or no longer the ones that were stored."""


def _text(value: str) -> bytes:
    # A JSON string may hold a lone surrogate, which strict UTF-8 has no bytes for.
    return value.encode("utf-8", "surrogatepass")


def _text_bytes(value: str) -> int:
    return len(value) if value.isascii() else len(_text(value))


def _tags(tags: tuple[str, ...]) -> bytes:
    """Return the tags' bytes; a tag is not empty and holds no line feed."""
    return _text("\n".join(tags))


def _field_digests(digests: tuple[tuple[str, bytes], ...]) -> bytes:
    parts: list[bytes] = []
    for name, digest in digests:
        if len(digest) != _FIELD_DIGEST_BYTES:
            raise ValueError(f"a field digest of {len(digest)} bytes")
        written = _text(name)
        parts += (len(written).to_bytes(2, "little"), written, digest)
    return b"".join(parts)


def _read_field_digests(data: bytes) -> Iterator[tuple[str, bytes]]:
    at = 0
    while at < len(data):
        start = at + 2
        end = start + int.from_bytes(data[at:start], "little")
        at = end + _FIELD_DIGEST_BYTES
        yield data[start:end].decode("utf-8", "surrogatepass"), data[end:at]


def encoded_size(entry: Entry) -> int:
    """Return ``len(encode_entry(entry))`` without encoding: the bytes an entry is charged for."""
    return (
        _HEADER.size
        + len(entry.key)
        + _text_bytes(entry.endpoint)
        + _text_bytes(entry.model)
        + _text_bytes(entry.upstream)
        + len(entry.scope)
        + len(entry.fingerprint)
        + _text_bytes(entry.rule)
        + (0 if entry.question is None else _text_bytes(entry.question))
        + (len(_tags(entry.tags)) if entry.tags else 0)
        + sum(2 + _text_bytes(name) + len(digest) for name, digest in entry.digests)
        + len(entry.result)
        + _DIGEST_BYTES
    )


def encode_entry(entry: Entry) -> bytes:
    """Return the entry's bytes.

    Raises ValueError when a time is not a number or a number or length does not fit its field
    (generation: 64 bits signed, key version: 16 bits, each field under 4 GiB), or a field digest
    is not of 8 bytes. More tokens than fit are stored as the most that do.
    """
    if any(map(math.isnan, (entry.stored_at, entry.expires_at, entry.grace))):
        raise ValueError("an entry's times must be numbers, not NaN")
    fields = (
        entry.key,
        _text(entry.endpoint),
        _text(entry.model),
        _text(entry.upstream),
        entry.scope,
        entry.fingerprint,
        _text(entry.rule),
        b"" if entry.question is None else _text(entry.question),
        _tags(entry.tags),
        _field_digests(entry.digests),
    )
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
        raise ValueError(f"an entry's number does not fit its field: {error}") from None
    body = b"".join((header, *fields, entry.result))
    return body + _digest(body)


def decode_stored(data: bytes, key: bytes) -> Entry:
    """Return the key's entry. Raises DamagedEntryError, for another key's entry as well."""
    entry = decode_entry(data)
    if entry.key != key:
        raise DamagedEntryError("another key's entry lies under this key")
    return entry


def decode_entry(data: bytes) -> Entry:
    """Return the entry whose bytes these are. Raises DamagedEntryError."""
    end = len(data) - _DIGEST_BYTES
    if end < _HEADER.size:
        raise DamagedEntryError(f"{len(data)} bytes are too few for an entry")
    if _digest(memoryview(data)[:end]) != data[end:]:
        raise DamagedEntryError("the digest does not match the bytes")
    if data[0] != FORMAT:
        raise DamagedEntryError(f"format {data[0]}, expected {FORMAT}")
    (
        _,
        key_version,
        generation,
        stored_at,
        expires_at,
        grace,
        tokens,
        has_question,
        *lengths,
    ) = _HEADER.unpack_from(data)
    fields: list[bytes] = []
    at = _HEADER.size
    for length in lengths:
        fields.append(data[at : at + length])
        at += length
    if at > end:
        raise DamagedEntryError("the lengths exceed the bytes")
    key, endpoint, model, upstream, scope, fingerprint, rule, question, tags, digests = fields
    try:
        return Entry(
            key=key,
            endpoint=endpoint.decode("utf-8", "surrogatepass"),
            model=model.decode("utf-8", "surrogatepass"),
            upstream=upstream.decode("utf-8", "surrogatepass"),
            generation=generation,
            scope=scope,
            fingerprint=fingerprint,
            rule=rule.decode("utf-8", "surrogatepass"),
            stored_at=stored_at,
            expires_at=expires_at,
            result=data[at:end],
            question=question.decode("utf-8", "surrogatepass") if has_question else None,
            tags=tuple(tags.decode("utf-8", "surrogatepass").split("\n")) if tags else (),
            tokens=tokens,
            grace=grace,
            digests=tuple(_read_field_digests(digests)),
            key_version=key_version,
        )
    except UnicodeDecodeError as error:
        raise DamagedEntryError(f"a text field is not UTF-8: {error.reason}") from None


def _digest(body: bytes | memoryview) -> bytes:
    return blake2b(body, digest_size=_DIGEST_BYTES).digest()
