"""However a stream is cut into reads, its events are the same and no byte is lost."""

from hypothesis import example, given
from hypothesis import strategies as st

from gateway.protocol.streaming.decode import Decoder, Event, encode

ENDS = st.sampled_from([b"\n", b"\r\n", b"\r"])
LINES = st.sampled_from(
    [b"data: a", b"data:b", b"data", b": c", b"id: 1", b"", b"x", b"data: \xc3\xa9:", b"data: 1"]
)
STREAMS = st.lists(st.tuples(LINES, ENDS).map(b"".join)).map(b"".join) | st.binary(max_size=30)


def decoded(reads: list[bytes]) -> list[Event]:
    decoder = Decoder()
    events = [event for read in reads for event in decoder.feed(read)]
    last = decoder.end()
    return events if last is None else [*events, last]


@given(STREAMS, st.data())
@example(b"data: a\r\r\ndata: b\n\n", None)
def test_cuts_do_not_matter(stream, data):
    reads = []
    left = stream
    while left:
        size = data.draw(st.integers(1, len(left))) if data else 1
        reads.append(left[:size])
        left = left[size:]
    events = decoded(reads)
    assert events == decoded([stream])
    assert b"".join(event.raw for event in events) == stream


def by_the_line(stream: bytes) -> list[bytes]:
    """Read a stream as the standard says, a line at a time: the oracle."""
    lines = stream.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
    found: list[bytes] = []
    data: list[bytes] = []
    for line in lines[:-1]:
        name, _, value = line.partition(b":")
        if not line:
            found += [b"\n".join(data)]
            data = []
        elif name == b"data":
            data.append(value.removeprefix(b" "))
    return [event for event in found if event]


@given(st.lists(st.tuples(LINES, ENDS).map(b"".join)).map(b"".join))
def test_events_are_the_standards(stream):
    whole = stream + b"\n\n"
    assert [event.data for event in decoded([whole]) if event.data] == by_the_line(whole)


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r\n"))))
def test_what_was_encoded_comes_back(texts):
    payloads = [text.encode() for text in texts if text]
    events = decoded([b"".join(map(encode, payloads))])
    assert [event.data for event in events] == payloads
