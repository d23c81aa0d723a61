"""The wire protocol: round trips at any cut, and nothing but ProtocolError for other bytes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from embeddings.messages import (
    Add,
    AskStatus,
    Cancel,
    Done,
    Embed,
    IndexStatus,
    Match,
    Matches,
    Reason,
    Refused,
    Remove,
    Scores,
    Search,
    Vectors,
    Verify,
)
from embeddings.protocol import (
    MAX_FIELD_BYTES,
    MAX_FRAME_BYTES,
    MAX_MATCHES,
    MAX_PAIRS,
    MAX_TEXTS,
    FrameDecoder,
    ProtocolError,
    decode,
    encode,
)

FIELDS = st.binary(max_size=MAX_FIELD_BYTES)
SHORT = st.text(st.characters(codec="utf-8"), max_size=200)
TEXTS = st.text(st.characters(codec="utf-8"))
TIMES = st.floats(allow_nan=False)
IDS = st.integers(0, 2**32 - 1)
U32 = st.integers(0, 2**32 - 1)
VECTORS = st.integers(0, 8).flatmap(
    lambda dimensions: st.lists(
        st.tuples(*[st.floats(width=32, allow_nan=False, allow_infinity=False)] * dimensions),
        max_size=MAX_TEXTS,
    )
)
MESSAGES = st.one_of(
    st.builds(Search, FIELDS, TEXTS, st.integers(0, MAX_MATCHES)),
    st.builds(Add, FIELDS, FIELDS, TEXTS, TIMES),
    st.builds(Embed, st.lists(TEXTS, max_size=MAX_TEXTS).map(tuple)),
    st.builds(Vectors, VECTORS.map(tuple)),
    st.builds(Verify, st.lists(st.tuples(TEXTS, TEXTS), max_size=MAX_PAIRS).map(tuple)),
    st.builds(Scores, SHORT, st.lists(st.floats(0, 1), max_size=MAX_PAIRS).map(tuple)),
    st.builds(Remove, st.lists(FIELDS, max_size=20).map(tuple)),
    st.builds(AskStatus),
    st.builds(Cancel),
    st.builds(Done),
    st.builds(Matches, st.lists(st.builds(Match, FIELDS, TIMES), max_size=20).map(tuple)),
    st.builds(IndexStatus, st.booleans(), TEXTS, SHORT, U32, U32, *[SHORT] * 5),
    st.builds(Refused, st.sampled_from(Reason), TEXTS),
)


@given(IDS, MESSAGES)
def test_a_message_comes_back_from_single_bytes(request_id, message):
    decoder = FrameDecoder()
    found = [e for byte in encode(request_id, message) for e in decoder.feed(bytes([byte]))]
    assert [(e.request_id, e.message) for e in found] == [(request_id, message)]


@given(st.lists(st.tuples(IDS, MESSAGES), max_size=6), st.data())
def test_a_stream_comes_back_whatever_its_cuts(messages, data):
    stream = b"".join(encode(request_id, message) for request_id, message in messages)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    decoder = FrameDecoder()
    found = []
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        found += [(e.request_id, e.message) for e in decoder.feed(stream[start:end])]
    assert found == messages


@given(IDS, MESSAGES, st.binary(min_size=1, max_size=4))
def test_bytes_left_over_are_refused_or_belong_to_the_text(request_id, message, trailing):
    body = encode(request_id, message)[4:] + trailing
    if isinstance(message, Search | Add | Refused | IndexStatus):
        return
    with pytest.raises(ProtocolError, match="after the end"):
        decode(body)


@given(IDS, MESSAGES, st.data())
def test_a_message_cut_short_is_refused_or_has_a_shorter_text(request_id, message, data):
    body = encode(request_id, message)[4:]
    cut = body[: data.draw(st.integers(0, len(body) - 1))]
    try:
        found = decode(cut)
    except ProtocolError:
        return
    assert type(found.message) is type(message)
    assert isinstance(message, Search | Add | Refused | IndexStatus)


@given(st.binary(max_size=200))
def test_any_body_is_a_message_or_a_protocol_error(body):
    try:
        envelope = decode(body)
    except ProtocolError:
        return
    assert encode(envelope.request_id, envelope.message)[4:] == body


@given(st.binary(max_size=300))
def test_any_stream_is_messages_or_a_protocol_error(stream):
    decoder = FrameDecoder()
    try:
        list(decoder.feed(stream))
    except ProtocolError:
        return
    assert len(decoder._buffer) <= MAX_FRAME_BYTES + 4  # what it may hold of an unfinished frame


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (b"", "too early"),
        (b"\x01\x04\x00\x00\x00\x01", "protocol version 1"),
        (b"\x03\x63\x00\x00\x00\x01", "unknown message kind 99"),
        (b"\x03\x12\x00\x00\x00\x01\x02" + b"\x00" * 10, "flag of value 2"),
        (b"\x03\x13\x00\x00\x00\x01\x00\x03odd", "unknown reason"),
        (b"\x03\x01\x00\x00\x00\x01\x00\x00\x00\x01\xff", "not UTF-8"),
        (b"\x03\x01\x00\x00\x00\x01\xff\xff", "field of 65535 bytes"),
        (b"\x03\x11\x00\x00\x00\x01\xff\xff", "count of 65535"),
        (b"\x03\x06\x00\x00\x00\x01\x00\x11", "count of 17, 0 to 16"),
        (b"\x03\x06\x00\x00\x00\x01\x00\x01\xff\xff\xff\xff", "too early"),
        (b"\x03\x06\x00\x00\x00\x01\x00\x01\x00\x00\x00\x01\xff", "not UTF-8"),
        (b"\x03\x14\x00\x00\x00\x01\x00\x01\xff\xff\xff\xff", "too early"),
        (
            b"\x03\x14\x00\x00\x00\x01\x00\x01\x00\x00\x00\x01\x7f\x80\x00\x00",
            "not a finite vector",
        ),
        (b"\x03\x07\x00\x00\x00\x01\x00\x11", "count of 17, 0 to 16"),
        (b"\x03\x07\x00\x00\x00\x01\x00\x01\x00\x00\x00\x00", "too early"),
        (
            b"\x03\x15\x00\x00\x00\x01\x00\x00\x00\x01\x3f\xf8" + b"\x00" * 6,
            "not a score from 0 to 1",
        ),
        (b"\x03\x03\x00\x00\x00\x01\xff\xff\xff\xff", "too early"),
    ],
)
def test_a_broken_body_is_refused_with_what_is_wrong(body, problem):
    with pytest.raises(ProtocolError, match=problem):
        decode(body)


def test_a_frame_over_the_bound_is_refused_before_its_bytes_arrive():
    with pytest.raises(ProtocolError, match="frame of"):
        list(FrameDecoder().feed((MAX_FRAME_BYTES + 1).to_bytes(4)))


@pytest.mark.parametrize(
    "message",
    [
        Search(b"p" * (MAX_FIELD_BYTES + 1), "text", 1),
        Search(b"p", "text", MAX_MATCHES + 1),
        Search(b"p", "x" * MAX_FRAME_BYTES, 1),
        Add(b"p", b"k", "text", float("nan")),
        Matches((Match(b"k", float("nan")),)),
        Embed(("text",) * (MAX_TEXTS + 1)),
        Vectors(((1.0, 0.0), (1.0,))),
        Vectors(((float("nan"),),)),
        Vectors(((1e300,),)),
        Verify((("one", "other"),) * (MAX_PAIRS + 1)),
        Verify((("x" * MAX_FRAME_BYTES, "other"),)),
        Scores("ab", (0.5,) * (MAX_PAIRS + 1)),
        Scores("ab", (float("nan"),)),
        Scores("ab", (-0.1,)),
        Scores("ab", (1.1,)),
    ],
)
def test_what_does_not_fit_is_not_sent(message):
    with pytest.raises(ProtocolError):
        encode(1, message)
