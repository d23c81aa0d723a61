"""Summaries that keep every word of importance, and lie all the same."""

import pytest

from gateway.prompts.compress import fidelity
from gateway.prompts.compress.fidelity import can_be_told, says_the_same
from gateway.semantic.compare.text_forms import named

TURNS = (
    "Last week Anna Meier lent 300 euros to Bob Costa. Bob will not pay before May.",
    "So Anna pays 40 for the hall and Bob pays 70 for the food. The parcel A-17b weighs 5 kg.",
    "The office in Berlin does not open on Monday.",
)
TRUE = (
    "Anna Meier lent 300 euros to Bob Costa; Bob will not pay before May. "
    "Anna pays 40 for the hall, Bob pays 70 for the food. The parcel A-17b weighs 5 kg. "
    "The office in Berlin does not open on Monday."
)


def test_a_true_summary_is_taken():
    assert says_the_same(TURNS, TRUE)


@pytest.mark.parametrize(
    ("said", "put"),
    [
        ("Anna Meier lent 300 euros to Bob Costa", "Bob Costa lent 300 euros to Anna Meier"),
        ("Anna pays 40 for the hall, Bob pays 70", "Anna pays 70 for the hall, Bob pays 40"),
        ("will not pay", "will pay"),
        ("does not open on", "opens on"),
        ("euros", "dollars"),
        ("5 kg", "5 mg"),
        ("5 kg", "5 pounds"),
        ("300 euros", "three hundred euros"),
        ("A-17b", "A-17c"),
        ("pays 40", "does not pay 40"),
        ("Bob Costa;", "Bob Costa, as Carla said;"),
        ("for the food", "for 12 meals"),
        ("on Monday", "on Tuesday"),
    ],
)
def test_a_summary_that_changes_what_was_said_is_not(said, put):
    assert said in TRUE
    assert not says_the_same(TURNS, TRUE.replace(said, put))


@pytest.mark.parametrize(
    "text",
    [
        "anna meier owes bob costa a lot of money",
        "Run `retry(3)` in the shell.",
        "```\nx = 1\n```",
        "Anna schuldet dem Bob noch ein paar Euro und will nicht zahlen.",
        "安娜欠鲍勃三百欧元。",
    ],
)
def test_of_some_turns_it_cannot_be_told(text):
    assert not can_be_told([TURNS[0], text])


def test_of_plain_turns_it_can_be_told():
    assert can_be_told([*TURNS, "ok", "yes please"])


def test_names_are_looked_for_once_in_each_turn(monkeypatch):
    asked = []
    monkeypatch.setattr(fidelity, "named", lambda text: asked.append(text) or named(text))
    turns = [f"{TURNS[0]} {TURNS[2]}"] * 50
    assert says_the_same(turns, f"{TURNS[0]} {TURNS[2]}")
    assert len(asked) == len(turns)
