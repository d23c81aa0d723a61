"""Waiting for one's turn: until the leader is done, until its time, or until one leaves."""

import asyncio

import pytest

from gateway.upstream.pool.pool import PrefillTurns
from gateway.upstream.routing.routing import Sent, Wait

LEADER = Sent("a", ())


def at_zero() -> float:
    return 0.0


async def waiting(turns: PrefillTurns, asked: list[float]) -> "asyncio.Task[None]":
    """Begin to wait behind the leader, for as long as it is the one that was asked about first."""
    behind = asyncio.Event()

    def prefill_wait(now: float) -> Wait | None:
        asked.append(now)
        behind.set()
        return Wait(LEADER, 3600.0) if len(asked) == 1 else None

    task = asyncio.create_task(turns.wait(prefill_wait, at_zero))
    await behind.wait()
    return task


async def test_who_is_not_waited_for_wakes_nobody():
    turns = PrefillTurns()
    task = await waiting(turns, [])
    turns.wake(Sent("a", ()))
    assert not task.done()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    turns.wake(LEADER)


async def test_a_wait_ends_at_its_time_though_nobody_says_a_word():
    asked = []

    def prefill_wait(now: float) -> Wait | None:
        asked.append(now)
        return Wait(LEADER, 0.01) if now < 0.01 else None

    async with asyncio.timeout(60):
        await PrefillTurns().wait(prefill_wait, at_zero)
    assert asked == [0.0, 0.01]
