"""The client's half: what an engine reports reaches its reader, and becomes text in turns."""

import asyncio
import pickle
import threading
from itertools import count
from types import SimpleNamespace

import pytest

from backend.engine import client
from backend.engine.client import Stream, deliver
from backend.engine.messages import EngineDescription, Report
from backend.ports import EngineError, UnavailableError
from backend.scheduler.block_pool import BlockPool
from backend.scheduler.prefix_cache import PrefixCache
from backend.scheduler.request import FinishReason, GenerationRequest, TokenDelta, TokenLogprobs
from backend.scheduler.stopping import Choice


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


class Letters:
    """Token 65 reads "A"; every third token waits for the next one."""

    def __init__(self):
        self._held = ""

    def push(self, token):
        text = self._held + chr(token)
        self._held = text if len(text) < 2 and token % 3 == 0 else ""
        return "" if self._held else text

    def finish(self):
        return self._held


def answer(length, reason=FinishReason.LENGTH, *, logprobs=True):
    tokens = tuple(97 + number * 7 % 26 for number in range(length))
    told = tuple(TokenLogprobs(token, -1.0) for token in tokens) if logprobs else ()
    return TokenDelta(0, tokens, told, reason, 5, (TokenLogprobs(1, -2.0),))


@pytest.mark.parametrize("length", [1, 31, 32, 33, 64, 65, 1000])
@pytest.mark.parametrize("reason", [None, FinishReason.LENGTH, FinishReason.STOP])
@pytest.mark.parametrize("stop", [(), ("zgnub",), ("a",)])
async def test_the_text_is_that_of_one_go(length, reason, stop):
    tokens = answer(length, reason)
    expected = Choice(0, stop, Letters()).push(tokens)
    assert await client.text_of(Choice(0, stop, Letters()), tokens) == expected


async def test_others_have_their_turn_meanwhile(monkeypatch):
    ticks = count(0.0, 0.001)
    monkeypatch.setattr(client, "monotonic", lambda: next(ticks))
    tokens = answer(3200, logprobs=False)
    task = asyncio.create_task(client.text_of(Choice(0, (), Letters()), tokens))
    others = 0
    while not task.done():
        await asyncio.sleep(0)
        others += 1
    assert others > 20
    assert len((await task).text) == 3200


def opened(*, fingerprint=b"model"):
    """A client of an engine that does nothing, and what was sent to it."""
    sent = []
    engine = client.EngineClient(sent.append)
    text = SimpleNamespace(detokenizer=lambda markup, context: Letters())
    engine.open(EngineDescription(1_000_000, 50, fingerprint), text)
    return engine, sent


def asked(length):
    return GenerationRequest("r", tuple(range(40)) * (length // 40), cache_salt="tenant")


async def first_turn(engine, request):
    return asyncio.create_task(anext(engine.generate(request)))


async def sent_first(sent):
    while not sent:  # noqa: ASYNC110 (it says nothing)
        await asyncio.sleep(0)
    return sent[0]


async def test_the_prompt_is_hashed_before_it_is_sent():
    engine, sent = opened()
    request = asked(400)
    task = await first_turn(engine, request)
    cache = PrefixCache(BlockPool(1), fingerprint=b"model")
    expected = cache.hash_blocks(request.prompt_tokens, "tenant")
    assert list((await sent_first(sent)).block_hashes) == expected
    task.cancel()


async def test_others_have_their_turn_while_a_long_prompt_is_hashed(monkeypatch):
    ticks = count(0.0, 0.003)
    monkeypatch.setattr(client, "monotonic", lambda: next(ticks))
    engine, sent = opened()
    task = await first_turn(engine, asked(100_000))
    others = 0
    while not sent:
        await asyncio.sleep(0)
        others += 1
    assert others > 20
    assert len(sent[0].block_hashes) == 1 + 100_000 // 16
    task.cancel()


async def test_hashes_for_one_engine_are_not_sent_to_the_next(monkeypatch):
    ticks = count(0.0, 0.003)
    monkeypatch.setattr(client, "monotonic", lambda: next(ticks))
    engine, sent = opened()
    task = await first_turn(engine, asked(100_000))
    await asyncio.sleep(0)
    engine.close("the engine died")
    replaced = EngineDescription(1_000_000, 50, b"another model", ("slower",))
    engine.open(replaced, engine._last.text)
    assert engine.detail == ("slower",)
    assert (await sent_first(sent)).block_hashes == ()
    task.cancel()


async def test_an_engine_that_goes_while_a_prompt_is_hashed_fails_the_request(monkeypatch):
    ticks = count(0.0, 0.003)
    monkeypatch.setattr(client, "monotonic", lambda: next(ticks))
    engine, sent = opened()
    task = await first_turn(engine, asked(100_000))
    await asyncio.sleep(0)
    engine.close("the engine died")
    with pytest.raises(UnavailableError, match="the engine died"):
        await task
    assert (sent, engine.has_requests) == ([], False)
