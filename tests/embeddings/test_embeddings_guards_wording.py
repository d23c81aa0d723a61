"""The guards and wording: what may be written in two ways, and what only looks like it."""

import pytest

from embeddings.verify.guards import REASONS, guard


def both_ways(asked, stored):
    one, other = guard(asked, stored), guard(stored, asked)
    assert one == other
    assert one is None or one in REASONS
    return one


@pytest.mark.parametrize(
    ("asked", "stored"),
    [
        ("How does a refrigerator work?", "How does a fridge work?"),
        ("Plan a barbecue for ten", "Plan a BBQ for 10"),
        ("Is the tyre flat?", "Is the tire flat?"),
        ("Which language do people speak here?", "Which language do ppl speak here?"),
        ("How do I thaw a chicken?", "How do I defrost a chicken?"),
        ("When did the band split up?", "When did the band break up?"),
        ("What is the flavour of saffron?", "What is the flavor of saffron?"),
        ("How do I organise a wedding?", "How do I organize a wedding?"),
        ("What is colour-blindness?", "What is color-blindness?"),
        ("Where is the shopping centre?", "Where is the shopping center?"),
        ("How do I analyse blood?", "How do I analyze blood?"),
        ("Is grey paint cheaper?", "Is gray paint cheaper?"),
        ("How much is 2 miles in kilometers?", "How much is 2 miles in km?"),
        ("How do I fill in the form?", "How do I fill out the form?"),
        ("Where can I buy an aubergine?", "Where can I buy an eggplant?"),
        ("Who hosted the Olympics in 1936?", "Who hosted the Olympic Games in 1936?"),
    ],
)
def test_spellings_and_short_forms_of_one_word_are_no_difference(asked, stored):
    assert both_ways(asked, stored) is None


@pytest.mark.parametrize(
    ("asked", "stored"),
    [
        ("How does a fridge work?", "How does a freezer work?"),
        ("Is the tyre flat?", "Is the tyre new?"),
        ("How do I thaw a chicken?", "How do I freeze a chicken?"),
        ("When did the band split up?", "When did the band get together?"),
        ("Is the flavour good?", "Is the colour good?"),
        ("How do I promise a refund?", "How do I prize a refund?"),
        ("How do I advise a client?", "How do I advertise a client?"),
        ("How much is 2 miles in km?", "How much is 2 miles in cm?"),
        ("How much vitamin D do I need?", "How much vitamin C do I need?"),
        ("Is grey paint cheaper?", "Is green paint cheaper?"),
        ("Which tyre centre is open?", "Which tire theater is open?"),
    ],
)
def test_words_that_look_like_other_spellings_stay_apart(asked, stored):
    assert both_ways(asked, stored) is not None
