"""Messages of a stream come back as they were sent; anything else is refused."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.errors import UpstreamError
from gateway.core.stream_messages import (
    Account,
    Ending,
    Kind,
    Message,
    Opening,
    Piece,
    decode,
    decode_ending,
    decode_opening,
    decode_piece,
    pack,
    unpack,
)
from gateway.core.types import Reason

FOLLOWING = b"12345678"
READERS = (decode, decode_piece, decode_opening, decode_ending, unpack)


@given(st.sampled_from(Kind), st.integers(0, 2**32 - 1), st.binary())
def test_a_message_comes_back(kind, number, body):
    message = Message(kind, FOLLOWING, number, body)
    assert decode(message.encode()) == message


@given(st.lists(st.binary()))
def test_parts_come_back(parts):
    assert unpack(pack(*parts)) == parts


@given(st.binary(), st.binary())
def test_a_piece_comes_back_and_is_held_once_where_both_forms_are_the_same(full, bare):
    piece = decode_piece(Piece(full, bare).encode())
    assert piece == Piece(full, bare)
    assert full != bare or piece.bare is piece.full


def test_an_opening_comes_back():
    fields = (
        ("Content-Type", "text/event-stream"),
        ("X-Of", "caf\udce9"),
    )  # as aiohttp reads Latin-1
    opening = Opening(fields, True, Piece(b"a", b""))
    assert decode_opening(opening.encode()) == opening


def test_an_ending_comes_back():
    account = Account(7, 3, None, stored=True, declined=Reason.TOO_LARGE)
    ending = Ending(account, Reason.TOO_LARGE, None, b"error", b"result")
    assert decode_ending(ending.encode()) == ending
    assert decode_ending(Ending(Account()).encode()) == Ending(Account())


def test_an_ending_tells_the_fault():
    fault = UpstreamError(504, "late", Reason.UPSTREAM_BROKE)
    told = decode_ending(Ending(Account(), fault=fault).encode()).fault
    assert told is not None
    assert (told.status, told.message, told.reason) == (504, "late", Reason.UPSTREAM_BROKE)


@given(st.binary() | st.lists(st.binary()).map(lambda parts: pack(*parts)))
@pytest.mark.parametrize("read", READERS)
def test_other_bytes_are_refused_and_nothing_worse(read, data):
    with suppress(ValueError):
        read(data)


@pytest.mark.parametrize("told", [b"[]", b"{}", b"[{}, null, null]", b'[{"stored": 1}, 1, [1]]'])
def test_an_ending_of_another_shape_is_refused(told):
    with pytest.raises(ValueError):  # noqa: PT011 - any word will do
        decode_ending(pack(told, b"", b""))


@pytest.mark.parametrize("head", [b"null", b"[1]", b"[true, 1]", b'[true, [["a"]]]'])
def test_an_opening_of_another_shape_is_refused(head):
    with pytest.raises(ValueError):  # noqa: PT011 - any word will do
        decode_opening(pack(head, Piece(b"", b"").encode()))


def test_a_message_of_another_format_is_refused():
    data = Message(Kind.STAY, FOLLOWING).encode()
    with pytest.raises(ValueError, match="format"):
        decode(b"\x02" + data[1:])
    with pytest.raises(ValueError, match="stream"):
        decode(data[:5])
