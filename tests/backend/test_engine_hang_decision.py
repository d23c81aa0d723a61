"""Whether silence is a hang: by turns, and only of who owes an answer."""

from backend.engine.supervisor import Verdict, Watchdog

WAIT, ASK, HUNG = Verdict.WAIT, Verdict.ASK, Verdict.HUNG


def verdicts(turns, *, heard="", waiting="", among=5):
    """Let turns go by; the strings have an x for each turn in which it was so."""
    watchdog = Watchdog(among)
    return [
        watchdog.tick(heard=heard[at : at + 1] == "x", waiting=waiting[at : at + 1] == "x")
        for at in range(turns)
    ]


def test_an_engine_without_work_may_be_silent_for_ever():
    assert set(verdicts(1000)) == {WAIT}


def test_an_engine_that_speaks_is_not_even_asked():
    assert set(verdicts(1000, heard="x" * 1000, waiting="x" * 1000)) == {WAIT}


def test_silence_with_work_is_asked_about_once_and_then_has_all_its_turns():
    assert verdicts(6, waiting="x" * 6) == [ASK, WAIT, WAIT, WAIT, WAIT, HUNG]


def test_an_answer_in_the_last_turn_is_one():
    assert verdicts(7, heard="     x", waiting="x" * 7) == [ASK, WAIT, WAIT, WAIT, WAIT, WAIT, ASK]


def test_an_answer_is_owed_when_nobody_waits_for_the_work_any_more():
    assert verdicts(6, waiting="x") == [ASK, WAIT, WAIT, WAIT, WAIT, HUNG]


def test_an_idle_engine_that_answered_owes_nothing():
    assert verdicts(20, heard=" x", waiting="x") == [ASK] + [WAIT] * 19


def test_silence_before_there_was_work_does_not_count():
    assert verdicts(106, waiting=" " * 100 + "x" * 6)[100:] == [ASK, WAIT, WAIT, WAIT, WAIT, HUNG]
