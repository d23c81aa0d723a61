"""The entry codec, over all entries: nothing is lost, and no damage goes unnoticed."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.cache.ports import Entry
from gateway.cache.stores.entry_codec import (
    DamagedEntryError,
    decode_entry,
    encode_entry,
    encoded_size,
)

# Lone surrogates included: JSON can carry them.
texts = st.text(st.characters(exclude_categories=()), max_size=40)
times = st.floats(allow_nan=False)
entries = st.builds(
    Entry,
    key=st.binary(max_size=40),
    endpoint=texts,
    model=texts,
    upstream=texts,
    generation=st.integers(-(2**63), 2**63 - 1),
    scope=st.binary(max_size=32),
    fingerprint=st.binary(max_size=32),
    rule=texts,
    stored_at=times,
    expires_at=times,
    result=st.binary(max_size=200),
    question=st.none() | texts,
    tags=st.lists(st.text("abc-_1", min_size=1, max_size=8), max_size=3).map(tuple),
    tokens=st.integers(0, 2**32 - 1),
    grace=times,
    digests=st.lists(st.tuples(texts, st.binary(min_size=8, max_size=8)), max_size=4).map(tuple),
    key_version=st.integers(0, 2**16 - 1),
)


@given(entries)
def test_an_entry_comes_back_as_it_was(entry):
    data = encode_entry(entry)
    assert decode_entry(data) == entry
    assert encoded_size(entry) == len(data)


@settings(max_examples=25)
@given(entries, st.integers(1, 255))
def test_no_changed_byte_goes_unnoticed(entry, mask):
    data = encode_entry(entry)
    for at in range(len(data)):
        damaged = bytearray(data)
        damaged[at] ^= mask
        with pytest.raises(DamagedEntryError):
            decode_entry(bytes(damaged))


@given(entries, st.data())
def test_no_cut_or_longer_tail_goes_unnoticed(entry, data):
    whole = encode_entry(entry)
    cut = data.draw(st.integers(0, len(whole) - 1))
    for damaged in (whole[:cut], whole + whole[-1:], whole[cut:] + whole[:cut] + b"x"):
        with pytest.raises(DamagedEntryError):
            decode_entry(damaged)


@given(st.binary(max_size=300))
def test_foreign_bytes_are_not_an_entry(data):
    with pytest.raises(DamagedEntryError):
        decode_entry(data)
