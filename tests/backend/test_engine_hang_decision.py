"""Whether silence is a hang: by turns, and only of who owes an answer."""

import pytest

from backend.engine import supervisor
from backend.engine.supervisor import EngineProcess

WAIT, ASK, HUNG = "wait", "ask", "hung"


@pytest.fixture
def verdicts(monkeypatch):
    """What is done after each of so many turns; the strings have an x where it was so."""

    async def watch(turns, *, heard="", waiting="", among=5):
        link = EngineProcess(lambda _: None, lambda _: None)
        said, at = [], -1

        async def tick(*_):
            nonlocal at
            at += 1
            said.append(WAIT)
            link._heard = heard[at : at + 1] == "x"
            return at == turns

        def ask():
            said[-1] = ASK

        monkeypatch.setattr(supervisor, "TICKS", among)
        monkeypatch.setattr(supervisor, "_tick", tick)
        alive = await link.watch(
            link.closed,
            1.0,
            waiting=lambda: waiting[at : at + 1] == "x",
            ask=ask,
        )
        return said[:turns] if alive else [*said[:-1], HUNG]

    return watch


async def test_an_engine_without_work_may_be_silent_for_ever(verdicts):
    assert set(await verdicts(1000)) == {WAIT}


async def test_an_engine_that_speaks_is_not_even_asked(verdicts):
    assert set(await verdicts(1000, heard="x" * 1000, waiting="x" * 1000)) == {WAIT}


async def test_silence_with_work_is_asked_about_once_and_then_has_all_its_turns(verdicts):
    assert await verdicts(6, waiting="x" * 6) == [ASK, WAIT, WAIT, WAIT, WAIT, HUNG]


async def test_an_answer_in_the_last_turn_is_one(verdicts):
    said = await verdicts(7, heard="     x", waiting="x" * 7)
    assert said == [ASK, WAIT, WAIT, WAIT, WAIT, WAIT, ASK]


async def test_an_answer_is_owed_when_nobody_waits_for_the_work_any_more(verdicts):
    assert await verdicts(6, waiting="x") == [ASK, WAIT, WAIT, WAIT, WAIT, HUNG]


async def test_an_idle_engine_that_answered_owes_nothing(verdicts):
    assert await verdicts(20, heard=" x", waiting="x") == [ASK] + [WAIT] * 19


async def test_silence_before_there_was_work_does_not_count(verdicts):
    said = await verdicts(106, waiting=" " * 100 + "x" * 6)
    assert said[100:] == [ASK, WAIT, WAIT, WAIT, WAIT, HUNG]
