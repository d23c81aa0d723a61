"""Sealed bytes open for what they were sealed with, and for nothing else."""

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.cache.stores.encrypted import (
    SealedHead,
    SealError,
    parse_master_keys,
    read_head,
    scope_tag,
    seal,
    unseal,
)

HEAD = SealedHead(b"m" * 8, b"t" * 16)
keys = st.binary(min_size=32, max_size=32)
data = st.binary(max_size=300)


@given(keys, st.binary(max_size=40), data)
def test_what_was_sealed_opens_unchanged(data_key, cache_key, encoded):
    sealed = seal(HEAD, data_key, cache_key, encoded)
    assert read_head(sealed) == HEAD
    assert unseal(data_key, cache_key, sealed) == encoded


@given(keys, keys, st.binary(max_size=40), st.binary(max_size=40), data)
def test_another_data_key_or_cache_key_opens_nothing(data_key, other, cache_key, moved_to, encoded):
    sealed = seal(HEAD, data_key, cache_key, encoded)
    if other != data_key:
        with pytest.raises(SealError):
            unseal(other, cache_key, sealed)
    if moved_to != cache_key:
        with pytest.raises(SealError):
            unseal(data_key, moved_to, sealed)


@given(keys, data, st.data())
def test_no_bit_may_change_and_no_byte_be_missing_or_added(data_key, encoded, draw):
    sealed = seal(HEAD, data_key, b"key", encoded)
    at = draw.draw(st.integers(0, len(sealed) * 8 - 1))
    flipped = bytearray(sealed)
    flipped[at // 8] ^= 1 << at % 8
    for changed in (bytes(flipped), sealed[: at // 8], sealed + b"\x00"):
        with pytest.raises(SealError):
            unseal(data_key, b"key", changed)


@given(st.lists(keys, min_size=1, max_size=4, unique=True), data)
def test_a_wrapped_key_opens_for_its_master_and_scope_only(secrets, scope):
    text = ",".join(f"k{n}:{base64.b64encode(s).decode()}" for n, s in enumerate(secrets))
    masters = parse_master_keys(text)
    tag = scope_tag(scope)
    wrapped = masters[0].wrap(tag, b"d" * 32)
    assert masters[0].unwrap(tag, wrapped) == b"d" * 32
    for other in masters[1:]:
        with pytest.raises(SealError):
            other.unwrap(tag, wrapped)
    with pytest.raises(SealError):
        masters[0].unwrap(scope_tag(scope + b"'"), wrapped)
