"""Waits are bounded, and a busy loop of ours is not held against the other side."""

import asyncio
import time

import pytest

from gateway.cache.stores.guarded import TICK, LoopTimeout


async def test_a_result_is_returned():
    async def answer():
        return 7

    assert await LoopTimeout().wait(answer(), 1) == 7


async def test_what_is_raised_is_raised():
    async def fail():
        raise KeyError

    with pytest.raises(KeyError):
        await LoopTimeout().wait(fail(), 1)


async def test_a_wait_ends_at_its_bound_and_is_cancelled():
    ended = asyncio.Event()

    async def hang():
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    with pytest.raises(TimeoutError):
        await LoopTimeout().wait(hang(), 2 * TICK)
    assert ended.is_set()


async def test_each_wait_has_a_bound_of_its_own():
    timeout = LoopTimeout()
    never = asyncio.Event()
    long = asyncio.create_task(timeout.wait(never.wait(), 3600))
    with pytest.raises(TimeoutError):
        await timeout.wait(never.wait(), TICK)
    assert not long.done()
    never.set()
    assert await long


async def test_the_timer_runs_only_while_somebody_waits():
    timeout = LoopTimeout()
    with pytest.raises(TimeoutError):
        await timeout.wait(asyncio.Event().wait(), TICK)
    async with asyncio.timeout(60):
        await asyncio.sleep(2 * TICK)  # a tick is what is waited for
    assert timeout._timer is None
    with pytest.raises(TimeoutError):
        await timeout.wait(asyncio.Event().wait(), TICK)


async def test_an_answer_that_lay_there_while_the_loop_was_busy_is_taken():
    """The loop is kept busy for ten times the bound while the answer is on its way."""
    reader, writer = await asyncio.open_connection(sock=_answering())

    async def burst():
        time.sleep(10 * 4 * TICK)  # noqa: ASYNC251 - a loop kept busy is what is tested

    busy = [asyncio.create_task(burst()) for _ in range(2)]
    assert await LoopTimeout().wait(reader.readexactly(6), 4 * TICK) == b"answer"
    await asyncio.gather(*busy)
    writer.close()
    await writer.wait_closed()


async def test_a_cancelled_wait_is_cancelled_and_forgotten():
    timeout = LoopTimeout()
    waiting = asyncio.create_task(timeout.wait(asyncio.Event().wait(), 3600))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert timeout._left == {}


def _answering():
    import socket
    import threading

    ours, theirs = socket.socketpair()

    def answer():
        theirs.sendall(b"answer")
        theirs.close()

    threading.Thread(target=answer).start()
    return ours
