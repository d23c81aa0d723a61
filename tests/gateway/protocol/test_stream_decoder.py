import time

import pytest

from gateway.protocol.streaming.decode import DONE, Decoder, Event, EventTooLargeError

BOM = b"\xef\xbb\xbf"

# What a stream holds, and the data of its events.
STREAMS = [
    (b"data: a\n\n", [b"a"]),
    (b"data: a\n\ndata: b\n\n", [b"a", b"b"]),
    (b"data:a\n\n", [b"a"]),
    (b"data:  a\n\n", [b" a"]),
    (b"data: a \n\n", [b"a "]),
    (b"data: a\r\n\r\ndata: b\r\n\r\n", [b"a", b"b"]),
    (b"data: a\r\r\ndata: b\n\n", [b"a", b"b"]),
    (b"data: a\n\rdata: b\n\n", [b"a", b"b"]),
    (b"data: a\r\n\rdata: b\n\n", [b"a", b"b"]),
    (b"data: a\r\n\ndata: b\n\n", [b"a", b"b"]),
    (b"data: a\n\r\ndata: b\n\n", [b"a", b"b"]),
    (b"data: a\r\rdata: b\n\n", [b"a", b"b"]),
    (b"data: a\ndata: b\n\n", [b"a\nb"]),
    (b"data: a\r\ndata: b\rdata: c\n\n", [b"a\nb\nc"]),
    (b"data: a\ndata\ndata: b\n\n", [b"a\n\nb"]),
    (b": ping\n\ndata: a\n\n", [None, b"a"]),
    (b": ping\ndata: a\n\n", [b"a"]),
    (b"event: x\nid: 7\nretry: 5\ndata: a\n\n", [b"a"]),
    (b"event: ping\n\n", [None]),
    (b"event: x\ndata: a\n\n", [b"a"]),
    (b"event: x\ndata: a\ndata: b\n\n", [b"a\nb"]),
    (b"event: x\ndata: \n\n", [None]),
    (b"event: x\rdata: y\ndata: a\n\n", [b"y\na"]),
    (b"data\n\n", [None]),
    (b"data:\n\n", [None]),
    (b"data: \n\n", [None]),
    (b"datum: a\n\n", [None]),
    (b" data: a\n\n", [None]),
    (b"\ndata: a\n\n", [b"a"]),
    (b"data: a\n\n\ndata: b\n\n", [b"a", b"b"]),
    (BOM + b"data: a\n\n", [b"a"]),
    (b'data: {"a":"\xc3\xa9\xe2\x80\xa8"}\n\n', ['{"a":"é\u2028"}'.encode()]),
    (b"data: [DONE]\n\n", [DONE]),
    (b"data: a: b:c\n\n", [b"a: b:c"]),
]


def data_of(events):
    return [event.data for event in events]


@pytest.mark.parametrize(("stream", "expected"), STREAMS)
def test_whole(stream, expected):
    decoder = Decoder()
    events = decoder.feed(stream)
    assert data_of(events) == expected
    assert b"".join(event.raw for event in events) == stream
    assert decoder.end() is None


@pytest.mark.parametrize(("stream", "expected"), STREAMS)
def test_with_trailing_data(stream, expected):
    decoder = Decoder()
    events = decoder.feed(stream + b"data: tra")
    assert data_of(events) == expected
    assert data_of(decoder.feed(b"iling\n\n")) == [b"trailing"]


@pytest.mark.parametrize(("stream", "expected"), STREAMS)
def test_an_event_comes_as_soon_as_it_ended(stream, expected):
    decoder = Decoder()
    assert data_of(decoder.feed(stream[:-1])) in (expected[:-1], expected)
    assert len(decoder.feed(stream[-1:])) <= 1


def test_a_trailing_cr_waits_for_its_lf():
    decoder = Decoder()
    assert decoder.feed(b"data: a\r\n\r") == []
    assert decoder.feed(b"\n") == [Event(b"a", b"data: a\r\n\r\n")]
    assert decoder.feed(b"data: b\r\r") == []
    assert decoder.feed(b"data: c\n\n") == [
        Event(b"b", b"data: b\r\r"),
        Event(b"c", b"data: c\n\n"),
    ]


@pytest.mark.parametrize(
    ("rest", "data"),
    [
        (b"data: [DONE]", DONE),
        (b"data: [DONE]\n", DONE),
        (b"data: [DONE]\r\n", DONE),
        (b"data: [DONE]\r\r", DONE),
        (b"data: a\ndata: b", b"a\nb"),
        (b": bye", None),
        (b"da", None),
    ],
)
def test_an_unended_event_is_not_lost(rest, data):
    decoder = Decoder()
    assert data_of(decoder.feed(b"data: a\n\n" + rest)) == [b"a"]
    assert decoder.end() == Event(data, rest)
    assert decoder.end() is None


def test_nothing_is_no_event():
    decoder = Decoder()
    assert decoder.feed(b"") == []
    assert decoder.end() is None


def test_a_large_event_in_small_reads_takes_linear_time():
    decoder = Decoder(max_event_bytes=2**23)
    began = time.thread_time()
    for _ in range(2**17):
        assert decoder.feed(b"x" * 32) == []
    [event] = decoder.feed(b"\n\n")
    assert len(event.raw) == 2**22 + 2
    # Copying the buffer at each read would move 256 GB.
    assert time.thread_time() - began < 5.0


@pytest.mark.parametrize("size", [1, 7, 100])
def test_an_endless_event_is_refused(size):
    decoder = Decoder(max_event_bytes=100)
    for _ in range(100 // size):
        assert decoder.feed(b"x" * size) == []
    with pytest.raises(EventTooLargeError):
        decoder.feed(b"x" * size)


def test_the_limit_is_for_one_event_not_for_the_stream():
    decoder = Decoder(max_event_bytes=100)
    for _ in range(100):
        assert len(decoder.feed(b"data: 0123456789\n\n" * 7)) == 7
