import pickle
import socket

import pytest

from backend.engine.messages import Abort, Report, Stop, Submit
from backend.engine.wire import FrameReader, PeerGoneError, SocketEndpoint, decode, encode
from backend.ports import EngineError, QueueFullError, QueueTimeoutError, RequestRejectedError
from backend.scheduler.request import FinishReason, GenerationRequest, TokenDelta, TokenLogprobs
from backend.scheduler.stats import EngineStats

STATS = EngineStats(1, 2, 3, 4, 5, 6, 7)
DELTA = TokenDelta(
    1, (2, 3), (TokenLogprobs(2, -0.5, ((2, -0.5),)),) * 2, FinishReason.STOP, cached_tokens=16
)


@pytest.fixture
def pair():
    ours, theirs = socket.socketpair()
    endpoint = SocketEndpoint(ours)
    yield endpoint, theirs
    endpoint.close()
    theirs.close()


def read(sock, count):
    """Read until there are so many reports."""
    frames, reports = FrameReader(), []
    while len(reports) < count:
        reports += map(decode, frames.feed(sock.recv(1 << 16)))
    return reports


@pytest.mark.parametrize("size", [1, 3, 1000])
def test_messages_are_whole_however_they_are_cut(size):
    messages = [[Stop()], [Abort(1, None, FinishReason.ABORT, 0.5), Stop()], "x" * 500]
    data = b"".join(map(encode, messages))
    frames = FrameReader()
    pieces = [data[at : at + size] for at in range(0, len(data), size)]
    assert [message for piece in pieces for message in map(decode, frames.feed(piece))] == messages


def test_a_report_comes_as_it_was_sent():
    full = QueueFullError("too many", 2.5)
    report = Report([(7, DELTA), (8, full), (9, TokenDelta(0, (1,)))], STATS)
    again = pickle.loads(pickle.dumps(report))
    assert again.items[0] == (7, DELTA)
    assert again.items[2] == (9, TokenDelta(0, (1,)))
    assert again.stats == STATS
    number, error = again.items[1]
    assert (number, type(error), str(error), error.retry_after) == (
        8,
        QueueFullError,
        "too many",
        2.5,
    )


@pytest.mark.parametrize("error", [EngineError("a"), RequestRejectedError("b")])
def test_failures_keep_their_type_and_words(error):
    ((_, again),) = pickle.loads(pickle.dumps(Report([(1, error)]))).items
    assert (type(again), str(again)) == (type(error), str(error))
    late = pickle.loads(pickle.dumps(QueueTimeoutError("late", 1.0)))
    assert (str(late), late.retry_after) == ("late", 1.0)


def test_messages_of_several_turns_are_taken_in_together(pair):
    endpoint, peer = pair
    assert endpoint.receive(wait=False) == []
    submit = Submit(1, GenerationRequest("r", (1,)), 0.0)
    peer.sendall(encode([submit]) + encode([Stop()])[:5])
    assert endpoint.receive(wait=True) == [submit]
    peer.sendall(encode([Stop()])[5:])
    assert endpoint.receive(wait=True) == [Stop()]


def test_a_wake_ends_a_wait_without_a_message(pair):
    endpoint, _ = pair
    for _ in range(3):
        endpoint.wake()
    assert endpoint.receive(wait=True) == []


def test_a_reader_that_falls_behind_holds_up_nobody_and_misses_nothing(pair):
    endpoint, peer = pair
    count = 5_000
    for number in range(count):
        endpoint.send(Report([(number, TokenDelta(0, tuple(range(50))))]))
    endpoint.send(Report([], STATS))
    peer.settimeout(10)
    frames, items, stats, num_reports = FrameReader(), [], None, 0
    while stats is None:
        endpoint.receive(wait=False)  # the loop goes on, and sends what fits
        for report in map(decode, frames.feed(peer.recv(1 << 16))):
            items += report.items
            stats = report.stats
            num_reports += 1
    assert [number for number, _ in items] == list(range(count))
    assert num_reports < count


@pytest.mark.parametrize("use", ["receive", "send"])
def test_that_nobody_is_there_any_more_is_raised(pair, use):
    endpoint, peer = pair
    peer.close()
    with pytest.raises(PeerGoneError):
        endpoint.receive(wait=True) if use == "receive" else endpoint.send(Report([], STATS))


def test_something_else_instead_of_the_first_message_is_refused(pair):
    endpoint, peer = pair
    peer.sendall(encode([Stop()]))
    with pytest.raises(TypeError, match="expected Submit, got Stop"):
        endpoint.await_message(Submit)
