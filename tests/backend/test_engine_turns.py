"""A long answer becomes text in turns with everything else on the event loop."""

import asyncio
from itertools import count

import pytest

from backend.engine import turns
from backend.scheduler.request import FinishReason, TokenDelta, TokenLogprobs
from backend.scheduler.stopping import Choice


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
    assert await turns.text_of(Choice(0, stop, Letters()), tokens) == expected


async def test_others_have_their_turn_meanwhile(monkeypatch):
    ticks = count(0.0, 0.001)
    monkeypatch.setattr(turns, "monotonic", lambda: next(ticks))
    tokens = answer(3200, logprobs=False)
    task = asyncio.create_task(turns.text_of(Choice(0, (), Letters()), tokens))
    others = 0
    while not task.done():
        await asyncio.sleep(0)
        others += 1
    assert others > 20
    assert len((await task).text) == 3200
