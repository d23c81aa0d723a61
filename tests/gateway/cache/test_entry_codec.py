"""What the entry codec refuses, and the cases a digest alone does not decide."""

import math
from dataclasses import replace
from hashlib import blake2b

import pytest

from gateway.cache.ports import Entry, StoreError
from gateway.cache.stores.entry_codec import DamagedEntryError, decode_entry, encode_entry

ENTRY = Entry(
    key=b"k",
    endpoint="/v1/chat/completions",
    model="m",
    upstream="u",
    generation=1,
    scope=b"s",
    fingerprint=b"f",
    rule="default",
    stored_at=1.0,
    expires_at=2.0,
    result=b"{}",
    question="q",
)


def resealed(body: bytes) -> bytes:
    return body + blake2b(body, digest_size=8).digest()


def test_another_format_is_damaged_even_when_its_digest_holds():
    body = encode_entry(ENTRY)[:-8]
    with pytest.raises(DamagedEntryError, match="format 1, expected 2"):
        decode_entry(resealed(b"\x01" + body[1:]))


def test_lengths_beyond_the_bytes_are_damaged_even_when_the_digest_holds():
    body = encode_entry(replace(ENTRY, result=b""))[:-8]
    with pytest.raises(DamagedEntryError, match="lengths"):
        decode_entry(resealed(body[:-1]))


def test_text_that_is_not_utf8_is_damaged_even_when_the_digest_holds():
    body = encode_entry(replace(ENTRY, question="zz", result=b""))[:-8]
    with pytest.raises(DamagedEntryError, match="UTF-8"):
        decode_entry(resealed(body[:-2] + b"\xff\xff"))


@pytest.mark.parametrize(
    "entry",
    [
        replace(ENTRY, stored_at=math.nan),
        replace(ENTRY, expires_at=math.nan),
        replace(ENTRY, generation=2**63),
        replace(ENTRY, key_version=2**16),
    ],
)
def test_what_does_not_fit_is_refused(entry):
    with pytest.raises(StoreError, match="an entry's"):
        encode_entry(entry)
