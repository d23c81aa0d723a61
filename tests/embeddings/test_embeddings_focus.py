"""What a story's question takes up, through all guards."""

import pytest

from embeddings.verify.differences import difference
from embeddings.verify.focus import check_focus
from embeddings.verify.guards import guard
from embeddings.verify.statement import state

SHARED = "Ann and Bill share $90 in the ratio 1:2."
CHAIRS = "A school buys 25 chairs at 32 dollars each and 10 tables at 95 dollars each."


@pytest.mark.parametrize(
    ("story", "one", "other"),
    [
        (SHARED, "How much does Ann get?", "How much does Bill get?"),
        (CHAIRS, "What do the chairs cost?", "What do the tables cost?"),
        (
            "There are 5 red and 7 blue balls.",
            "How likely is a red one?",
            "How likely is a blue one?",
        ),
        (
            "A box holds 24 bottles.",
            "How many bottles are in 3 boxes?",
            "How many boxes hold 3 bottles?",
        ),
        ("", "i have two cups of rice, how much water", "i have two cups of water, how much rice"),
    ],
)
def test_another_thing_of_the_story_is_another_question(story, one, other):
    first, second = f"{story} {one}".strip(), f"{story} {other}".strip()
    assert guard(first, second) == guard(second, first)
    assert guard(first, second) in {"question", "roles"}


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (f"{SHARED} How much does Ann get?", f"{SHARED} How much money will Ann get?"),
        (f"{SHARED} How much does Ann get?", f"{SHARED} What does Ann receive?"),
        (f"{CHAIRS} What do they cost in total?", f"{CHAIRS} How much is it in total?"),
        (
            "Tom has 5 apples and gets 3. How many apples has he?",
            "Tom had 5 apples and got 3. How many now?",
        ),
        ("I lost my card. How do I get a new card?", "I lost my card. How do I get a new one?"),
    ],
)
def test_the_same_thing_in_other_words_is_not_refused_for_that(one, other):
    a, b = state(one), state(other)
    assert check_focus(a, b, difference(a, b)) is None
