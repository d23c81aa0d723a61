"""The log of an answer while it arrives is bounded, whoever reads it."""

import asyncio
from pathlib import Path

from coalescer_rig import Rig

from gateway.protocol.endpoints.registry import SPECS
from gateway.protocol.errors import UpstreamError
from gateway.protocol.http.cache_status import Reason
from gateway.upstream.request import Served
from gateway.upstream.sharing.answer_log import PIECE_BYTES, READ_BYTES, AnswerLog, LogMemory
from gateway.upstream.sharing.shared_response import CallResult, Head, SharedResponse


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


async def test_an_event_is_never_cut_though_it_has_outgrown_the_log(tmp_path: Path):
    rig = Rig(tmp_path)
    exchange = rig.exchange(stream=True)
    shared = SharedResponse(rig.coalescer.table, None, exchange, 1000)
    stream = SPECS[exchange.request.endpoint].streaming.follow(assemble=False, max_bytes=1000)
    shared.began(Head(200, (), events=True), exchange, Served("upstream"), stream)
    event = b"data: " + b"x" * (3 * READ_BYTES) + b"\n\n"
    shared.followers[exchange] = 0
    if (waits := shared.add((event, event))) is not None:
        await waits
    assert shared.read(exchange, without_usage=False) == event


async def test_a_slow_reader_of_a_long_body_keeps_its_beginning(tmp_path: Path):
    rig = Rig(tmp_path)
    exchange, slow = rig.exchange(), rig.exchange()
    shared = SharedResponse(rig.coalescer.table, None, exchange, 1000)
    shared.followers |= {exchange: 0, slow: 0}
    shared.began(Head(200, ()), exchange, Served("upstream"))
    for piece in (b"a" * 1200, b"b" * 400):
        if (waits := shared.add((piece, piece))) is not None:
            reading = asyncio.ensure_future(waits)
            await asyncio.sleep(0)
            shared.read(exchange, without_usage=False)
            await reading
    assert shared.read(slow, without_usage=False) == b"a" * 1200 + b"b" * 400


def test_of_a_failed_call_each_follower_knows_the_form_that_was_sent(tmp_path: Path):
    rig = Rig(tmp_path)
    usual, plain = rig.exchange(), rig.exchange()
    shared = SharedResponse(rig.coalescer.table, None, usual, 1000)
    shared.end(CallResult(plain, fault=UpstreamError(502, "broken", Reason.UPSTREAM_BROKE)))
    assert shared.leader is plain
    assert shared.share(usual, leads=True).pays
