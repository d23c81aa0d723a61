"""The log of an answer while it arrives is bounded, whoever reads it."""

import pytest

from gateway.upstream.coalescing.shared_response import PIECE_BYTES, AnswerLog, TooSlowError


def log_of(*pieces, max_bytes=10_000):
    log = AnswerLog(max_bytes)
    for piece in pieces:
        log.append(piece, piece)
    return log


def test_all_that_is_new_comes_in_one():
    log = log_of(b"a", b"b", b"c")
    assert log.end == 3
    assert log.since(0, without_usage=False) == b"abc"
    assert log.since(1, without_usage=False) == b"bc"
    assert log.since(2, without_usage=False) == b"c"
    assert log.since(3, without_usage=False) == b""


def test_a_single_piece_is_not_copied():
    piece = b"x" * 100
    assert log_of(b"a", piece).since(1, without_usage=True) is piece


def test_those_who_wait_together_share_one_copy():
    log = log_of(b"a" * 100, b"b" * 100)
    first = log.since(0, without_usage=False)
    assert log.since(0, without_usage=False) is first
    log.append(b"c", b"c")
    assert log.since(0, without_usage=False) == first + b"c"


def test_each_piece_has_two_forms():
    log = AnswerLog(1000)
    log.append(b"full", b"bare")
    log.append(b"usage", b"")
    assert log.since(0, without_usage=False) == b"fullusage"
    assert log.since(0, without_usage=True) == b"bare"
    assert log.since(1, without_usage=True) == b""
    assert log.size == 2 * PIECE_BYTES + 13


def test_a_log_that_outgrew_its_bound_keeps_the_newest():
    log = log_of(*[b"x" * 100] * 10, max_bytes=10 * (PIECE_BYTES + 100))
    assert not log.overflown
    log.append(b"last", b"last")
    assert log.overflown
    assert log.size <= 5 * (PIECE_BYTES + 100)
    assert log.since(log.end - 1, without_usage=False) == b"last"
    with pytest.raises(TooSlowError):
        log.since(0, without_usage=False)


def test_the_newest_piece_stays_however_large():
    log = log_of(b"x" * 1000, max_bytes=10)
    assert log.overflown
    assert log.since(0, without_usage=False) == b"x" * 1000
    log.append(b"y" * 1000, b"y" * 1000)
    assert log.since(1, without_usage=False) == b"y" * 1000
    with pytest.raises(TooSlowError):
        log.since(0, without_usage=False)


def test_memory_stays_bounded():
    log = AnswerLog(1000)
    for _ in range(10_000):
        log.append(b"piece", b"p")
        assert log.size <= 1000
