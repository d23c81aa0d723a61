"""The answer while it arrives: its log is bounded, and each reader waits by itself."""

import asyncio

import pytest

from gateway.upstream.coalescing.shared_response import AnswerLog, Bell


async def waiting(bell: Bell) -> "asyncio.Task[None]":
    task = asyncio.create_task(bell.rung())
    await asyncio.sleep(0)
    return task


async def test_who_leaves_disturbs_nobody_and_leaves_nothing_behind():
    bell = Bell()
    stays = await waiting(bell)
    for _ in range(100):
        task = await waiting(bell)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert len(bell._waiting) == 1  # or clients that come and go would fill memory
    bell.ring()
    await stays


async def test_who_is_cancelled_in_the_moment_of_the_ring_is_cancelled():
    bell = Bell()
    first, second = await waiting(bell), await waiting(bell)
    first.cancel()
    bell.ring()
    await second
    with pytest.raises(asyncio.CancelledError):
        await first


def log_of(*pieces, max_bytes=10_000):
    log = AnswerLog(max_bytes)
    for piece in pieces:
        log.append(piece, piece)
    return log


def test_a_single_piece_is_not_copied():
    piece = b"x" * 100
    assert log_of(b"a", piece).since(1, bare=True) is piece


def test_those_who_wait_together_share_one_copy():
    log = log_of(b"a" * 100, b"b" * 100)
    first = log.since(0, bare=False)
    assert log.since(0, bare=False) is first
    log.append(b"c", b"c")
    assert log.since(0, bare=False) == first + b"c"


def test_memory_stays_bounded():
    log = AnswerLog(1000)
    for _ in range(10_000):
        log.append(b"piece", b"p")
        assert log.size <= 1000
