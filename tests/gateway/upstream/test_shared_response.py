"""The log of an answer while it arrives is bounded, whoever reads it."""

from pathlib import Path

from coalescer_rig import Rig

from gateway.upstream.sharing.answer_log import PIECE_BYTES, AnswerLog, LogMemory
from gateway.upstream.sharing.shared_response import SharedResponse


def log_of(*pieces, max_bytes=10_000):
    log = AnswerLog(max_bytes, LogMemory(2**20))
    for piece in pieces:
        log.append(piece, piece)
    return log


def test_a_single_piece_is_not_copied():
    piece = b"x" * 100
    assert log_of(b"a", piece).since(1, without_usage=True)[0] is piece


def test_those_who_wait_together_share_one_copy():
    log = log_of(b"a" * 100, b"b" * 100)
    first, _ = log.since(0, without_usage=False)
    assert log.since(0, without_usage=False)[0] is first
    log.append(b"c", b"c")
    assert log.since(0, without_usage=False) == (first + b"c", 3)


def test_memory_stays_bounded():
    log = AnswerLog(1000, LogMemory(2**20))
    for _ in range(10_000):
        log.append(b"piece", b"p")
        assert log.size <= 1000


async def test_an_empty_piece_is_not_logged_and_leaves_a_full_log_to_those_who_join(tmp_path: Path):
    rig = Rig(tmp_path)
    table, max_bytes = rig.coalescer.table, 1000
    shared = SharedResponse(table, "slot", rig.exchange(), max_bytes)
    piece = b"x" * (max_bytes - PIECE_BYTES)
    assert shared.add((piece, piece)) is None
    assert shared.add((b"", b"")) is None
    assert (shared.log.end, shared.log.size) == (1, max_bytes)
    assert not shared.outgrown
    assert table.follow("slot", most=1, since=0.0) is shared
