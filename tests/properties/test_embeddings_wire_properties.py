"""The wire: round trips at any cut, and nothing but ProtocolError for other bytes."""

import inspect

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend.engine import wire as engine_wire
from embeddings import wire
from embeddings.messages import (
    MAX_FIELD,
    MAX_KEYS,
    MAX_MATCHES,
    MAX_PAIRS,
    MAX_TEXTS,
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
from embeddings.wire import (
    MAX_FRAME_BYTES,
    MAX_REQUEST_ID,
    FrameReader,
    ProtocolError,
    decode,
    encode,
    frame,
)

FIELDS = st.binary(max_size=MAX_FIELD)
SHORT = st.text(st.characters(codec="utf-8"), max_size=200)
TEXTS = st.text(st.characters(codec="utf-8"))
TIMES = st.floats(allow_nan=False)
COSINES = st.floats(-1, 1)
IDS = st.integers(0, MAX_REQUEST_ID)
COUNTS = st.integers(0, 2**32 - 1)
ROWS = st.lists(st.binary(max_size=64), max_size=MAX_TEXTS).map(tuple)
MESSAGES = st.one_of(
    st.builds(Search, FIELDS, TEXTS, st.integers(0, MAX_MATCHES)),
    st.builds(Add, FIELDS, FIELDS, TEXTS, TIMES),
    st.builds(Embed, st.lists(TEXTS, max_size=MAX_TEXTS).map(tuple)),
    st.builds(Vectors, ROWS),
    st.builds(Verify, st.lists(st.tuples(TEXTS, TEXTS), max_size=MAX_PAIRS).map(tuple)),
    st.builds(Scores, SHORT, st.lists(st.floats(0, 1), max_size=MAX_PAIRS).map(tuple)),
    st.builds(Remove, st.lists(FIELDS, max_size=20).map(tuple)),
    st.builds(AskStatus),
    st.builds(Cancel),
    st.builds(Done),
    st.builds(Matches, st.lists(st.builds(Match, FIELDS, COSINES), max_size=20).map(tuple)),
    st.builds(IndexStatus, st.booleans(), TEXTS, SHORT, COUNTS, COUNTS, *[SHORT] * 5),
    st.builds(Refused, st.sampled_from(Reason), TEXTS),
)


@given(IDS, MESSAGES)
def test_a_message_comes_back_from_single_bytes(request_id, message):
    frames = FrameReader(MAX_FRAME_BYTES)
    bodies = [body for byte in encode(request_id, message) for body in frames.feed(bytes([byte]))]
    assert [decode(body) for body in bodies] == [(request_id, message)]


@given(st.lists(st.tuples(IDS, MESSAGES), max_size=6), st.data())
def test_a_stream_comes_back_whatever_its_cuts(messages, data):
    stream = b"".join(encode(request_id, message) for request_id, message in messages)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    frames, found = FrameReader(MAX_FRAME_BYTES), []
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        found += map(decode, frames.feed(stream[start:end]))
    assert found == messages


@given(IDS, MESSAGES, st.binary(min_size=1, max_size=4))
def test_bytes_left_over_are_refused_but_for_white_space(request_id, message, trailing):
    body = encode(request_id, message)[4:] + trailing
    if trailing.strip(b" \t\r\n"):
        with pytest.raises(ProtocolError):
            decode(body)
    else:
        assert decode(body) == (request_id, message)


@given(IDS, MESSAGES, st.data())
def test_a_message_cut_short_is_refused(request_id, message, data):
    body = encode(request_id, message)[4:]
    with pytest.raises(ProtocolError):
        decode(body[: data.draw(st.integers(0, len(body) - 1))])


@given(st.integers(0, 255), st.integers(0, 25), st.binary(max_size=200))
def test_any_body_is_a_message_or_a_protocol_error(version, kind, fields):
    for body in (fields, bytes([version, kind]) + fields, bytes([4, kind]) + fields):
        try:
            envelope = decode(body)
        except ProtocolError:
            continue
        assert decode(encode(*envelope)[4:]) == envelope


@given(IDS, MESSAGES, st.data())
def test_a_message_with_changed_bytes_is_a_message_or_a_protocol_error(request_id, message, data):
    body = bytearray(encode(request_id, message)[4:])
    for _ in range(data.draw(st.integers(1, 3))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    try:
        envelope = decode(bytes(body))
    except ProtocolError:
        return
    assert decode(encode(*envelope)[4:]) == envelope


@given(st.binary(max_size=300))
def test_any_stream_is_messages_or_a_protocol_error(stream):
    frames = FrameReader(MAX_FRAME_BYTES)
    try:
        list(map(decode, frames.feed(stream)))
    except ProtocolError:
        return
    assert len(frames._buffer) <= MAX_FRAME_BYTES + 4  # what it may hold of an unfinished frame


SEARCH = b'\x04\x01[1,{"partition":"cA==","text":"text","k":%s}]'


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (b"", "protocol version 0"),
        (b"\x04", "unknown message kind 0"),
        (b"\x03\x04\x00\x00\x00\x01", "protocol version 3, expected 4"),
        (b"\x04\x63[1,{}]", "unknown message kind 99"),
        (b"\x04\x05", "Invalid JSON"),
        (b"\x04\x05{}", "Input should be"),
        (b"\x04\x05[1]", "required"),
        (b"\x04\x05[4294967296,{}]", "less than or equal to 4294967295"),
        (b"\x04\x05[true,{}]", "valid integer"),
        (b'\x04\x05[1,{"more":1}]', "^: Unexpected keyword argument$"),
        (SEARCH % b"257", "k: Input should be less than or equal to 256"),
        (SEARCH % b"-1", "greater than or equal to 0"),
        (SEARCH % b'"3"', "valid integer"),
        (SEARCH % b"1.0", "valid integer"),
        (b'\x04\x01[1,{"partition":"cA==","text":"text"}]', "k: Field required"),
        (b'\x04\x01[1,{"partition":"cA==","text":"\xff","k":1}]', "Invalid JSON"),
        (b'\x04\x01[1,{"partition":"cA==","text":"\\ud800","k":1}]', "Invalid JSON"),
        (b'\x04\x01[1,{"partition":"?","text":"text","k":1}]', "valid base64"),
        (
            b'\x04\x02[1,{"partition":"","key":"","text":"text","expires_at":NaN}]',
            "expires_at: Input should be greater",
        ),
        (b'\x04\x12[1,{"ready":2}]', "valid boolean"),
        (b'\x04\x13[1,{"reason":"odd","message":""}]', "reason: Input should be 'unavailable'"),
        (b'\x04\x15[1,{"verifier_digest":"","scores":[1.5]}]', "less than or equal to 1"),
        (b'\x04\x15[1,{"verifier_digest":"","scores":[NaN]}]', "finite number"),
    ],
)
def test_a_broken_body_is_refused_with_what_is_wrong(body, problem):
    with pytest.raises(ProtocolError, match=problem):
        decode(body)


@pytest.mark.parametrize(
    "body",
    [
        b'\x04\x05[1,{"secret":1}]',
        b'\x04\x01[1,{"partition":"cA==","text":"t","k":1,"secret":"secret"}]',
        b'\x04\x01[1,{"partition":"~~","text":"t","k":1}]',
        b'\x04\x11[1,{"matches":[{"key":"","similarity":0,"secret":0}]}]',
        b'\x04\x11[1,{"matches":[{"key":"secret","similarity":"secret"}]}]',
        b'\x04\x13[1,{"reason":"secret","message":""}]',
        b"\x04\x05[1,secret]",
    ],
)
def test_what_came_is_not_quoted(body):
    with pytest.raises(ProtocolError) as refused:
        decode(body)
    assert "secret" not in str(refused.value)
    assert "126" not in str(refused.value)


@pytest.mark.parametrize("item", [b"1", b'"cA=="'])
def test_a_long_list_is_given_up_at_its_first_fault(item):
    with pytest.raises(ProtocolError, match=r"^keys") as refused:
        decode(b'\x04\x03[1,{"keys":[%s]}]' % b",".join([item] * 100_000))
    assert refused.value.__context__.error_count() == 1


def test_a_frame_over_the_bound_is_refused_before_its_bytes_arrive():
    with pytest.raises(ProtocolError, match="frame of"):
        list(FrameReader(MAX_FRAME_BYTES).feed((MAX_FRAME_BYTES + 1).to_bytes(4)))


@pytest.mark.parametrize(
    "message",
    [
        Search(b"p" * (MAX_FIELD + 1), "text", 1),
        Search(b"p", "text", MAX_MATCHES + 1),
        Search(b"p", "x" * MAX_FRAME_BYTES, 1),
        Search(b"p", "secret \udfff", 1),
        Search("secret", "text", 1),
        Add(b"p", b"k", "secret", float("nan")),
        Matches((Match(b"k", float("nan")),)),
        Matches((Match(b"k", 1.5),)),
        Embed(("secret",) * (MAX_TEXTS + 1)),
        Remove((b"secret",) * (MAX_KEYS + 1)),
        Vectors((b"",) * (MAX_TEXTS + 1)),
        Verify((("secret", "other"),) * (MAX_PAIRS + 1)),
        Verify((("x" * MAX_FRAME_BYTES, "other"),)),
        Scores("ab", (0.5,) * (MAX_PAIRS + 1)),
        Scores("ab", (float("nan"),)),
        Scores("ab", (-0.1,)),
        Scores("ab", (1.1,)),
        IndexStatus(verifier_fault="x" * (MAX_FIELD + 1)),
    ],
)
def test_what_does_not_fit_is_not_sent_and_not_quoted(message):
    with pytest.raises(ProtocolError) as refused:
        encode(1, message)
    assert "secret" not in str(refused.value)
    assert refused.value.__context__ is None or refused.value.__suppress_context__


@given(st.lists(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=2)))
def test_vectors_are_packed_as_32_bit_floats(vectors):
    message = Vectors.packed(vectors)
    if len({len(vector) for vector in vectors}) > 1:
        with pytest.raises(ValueError, match="several lengths"):
            message.unpacked()
    else:
        assert message.unpacked() == vectors


@pytest.mark.parametrize("rows", [(b"\0\0\xc0\x7f",), (b"\0" * 5,), (b"", b"\0" * 4)])
def test_what_is_no_vector_is_refused(rows):
    with pytest.raises(ValueError, match=r"finite|multiple|lengths"):
        Vectors(rows).unpacked()


@pytest.mark.parametrize("name", ["frame", "FrameReader"])
def test_engine_and_embeddings_have_one_framing(name):
    # They may not import one another.
    ours, theirs = getattr(wire, name), getattr(engine_wire, name)
    assert inspect.getsource(ours) == inspect.getsource(theirs)
    assert wire.LENGTH.format == engine_wire.LENGTH.format


def test_a_frame_is_a_length_and_a_body():
    assert frame(b"body") == b"\0\0\0\x04body"
