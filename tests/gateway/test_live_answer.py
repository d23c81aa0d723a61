"""Waiting on an answer: each waits by itself, and leaves nothing behind."""

import asyncio

import pytest

from gateway.live_answer import Bell


async def waiting(bell: Bell) -> "asyncio.Task[None]":
    task = asyncio.create_task(bell.rung())
    await asyncio.sleep(0)
    return task


async def test_one_ring_wakes_all_who_wait():
    bell = Bell()
    tasks = [await waiting(bell) for _ in range(3)]
    bell.ring()
    await asyncio.gather(*tasks)
    later = await waiting(bell)
    assert not later.done()
    bell.ring()
    await later


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
