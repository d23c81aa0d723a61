import asyncio
import pickle
import threading

import pytest

from backend.engine.delivery import Stream, deliver
from backend.engine.messages import Report
from backend.ports import EngineError
from backend.scheduler.request import FinishReason, TokenDelta, TokenLogprobs


async def send(*items):
    """Deliver from another thread, as a loop in a thread does."""
    deserted = []
    thread = threading.Thread(target=lambda: deserted.extend(deliver(items)))
    thread.start()
    await asyncio.to_thread(thread.join)
    return deserted


async def test_a_reader_who_keeps_up_sees_every_delta():
    stream = Stream(asyncio.get_running_loop())
    for token in range(3):
        await send((stream, TokenDelta(0, (token,))))
        assert await stream.receive() == [TokenDelta(0, (token,))]


async def test_what_is_delivered_on_the_reader_s_own_loop_is_there_at_once():
    stream = Stream(asyncio.get_running_loop())
    deliver([(stream, TokenDelta(0, (7,)))])
    receiving = stream.receive()
    with pytest.raises(StopIteration) as done:
        receiving.send(None)
    assert done.value.value == [TokenDelta(0, (7,))]


async def test_a_reader_who_falls_behind_gets_one_delta_for_each_choice():
    stream = Stream(asyncio.get_running_loop())
    for token in range(3):
        await send((stream, TokenDelta(0, (token,))), (stream, TokenDelta(1, (token + 10,))))
    await send((stream, TokenDelta(1, (13,), finish_reason=FinishReason.STOP)))
    assert await stream.receive() == [
        TokenDelta(0, (0, 1, 2)),
        TokenDelta(1, (10, 11, 12, 13), finish_reason=FinishReason.STOP),
    ]


async def test_a_reader_who_falls_behind_loses_no_log_probabilities():
    stream = Stream(asyncio.get_running_loop())
    told = [TokenLogprobs(token, -1.0, ((token, -1.0), (9, -2.0))) for token in range(4)]
    await send((stream, TokenDelta(0, (1,), (told[1],), None, 3, (told[0],))))
    await send((stream, TokenDelta(0, (2, 3), (told[2], told[3]), FinishReason.LENGTH, 3)))
    whole = TokenDelta(0, (1, 2, 3), tuple(told[1:]), FinishReason.LENGTH, 3, (told[0],))
    assert await stream.receive() == [whole]


def test_nothing_of_a_delta_is_lost_between_processes():
    logprobs = (TokenLogprobs(5, -0.5, ((5, -0.5), (6, -1.5))),)
    deltas = [
        (7, TokenDelta(1, (5,), logprobs, FinishReason.STOP, 16, logprobs * 3)),
        (8, TokenDelta(0, (5, 6))),
    ]
    assert pickle.loads(pickle.dumps(Report(deltas))).items == deltas


async def test_a_failure_comes_after_what_came_before_it():
    stream = Stream(asyncio.get_running_loop())
    await send((stream, TokenDelta(0, (1, 2))), (stream, EngineError("broken")))
    assert await stream.receive() == [TokenDelta(0, (1, 2))]
    for _ in range(2):
        with pytest.raises(EngineError, match="broken"):
            await stream.receive()


async def test_readers_whose_loop_is_closed_are_named():
    gone = asyncio.new_event_loop()
    here, there = Stream(asyncio.get_running_loop()), Stream(gone)
    gone.close()
    deserted = await send((there, TokenDelta(0, (1,))), (here, TokenDelta(0, (2,))))
    assert deserted == [there]
    assert await here.receive() == [TokenDelta(0, (2,))]
