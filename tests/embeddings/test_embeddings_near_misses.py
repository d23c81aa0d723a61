"""Near misses that a word's form, a number's place or an ending tells apart; and what stays."""

import pytest

from embeddings.verify.guards import guard
from embeddings.verify.stems import stem


@pytest.mark.parametrize(
    "forms",
    [
        "cause causes caused causing",
        "raise raises raised raising",
        "pause paused pausing",
        "noise noises",
        "lease leased leasing",
        "sue sues sued suing",
        "owe owes owed owing",
        "close closed closing",
        "increase increased increasing",
    ],
)
def test_the_forms_of_a_word_have_one_key(forms):
    assert len({stem(form) for form in forms.split()}) == 1


@pytest.mark.parametrize(
    ("one", "other", "reason"),
    [
        ("Is acne caused by stress?", "Does acne cause stress?", "roles"),
        ("What is the log base 2 of 8?", "What is the log base 8 of 2?", "number"),
        ("What is 10 to the power of 2?", "What is 2 to the power of 10?", "number"),
        ("How do I move files to Dropbox from Box?", "How do I move files from Dropbox to Box?",
         "roles"),
        ("How much do lawyers charge?", "How much are lawyers paid?", "question"),
        ("How much does a nanny cost?", "How much does a nanny earn?", "question"),
        ("How much do landlords pay?", "How much are landlords paid?", "question"),
        ("What does a lessor sign?", "What does a lessee sign?", "replaced"),
        ("Is chlorate harmful?", "Is chlorite harmful?", "replaced"),
        ("Is sulphite harmful?", "Is sulphate harmful?", "replaced"),
        ("How is dysphagia treated?", "How is dysphasia treated?", "replaced"),
        ("Where is the peroneal nerve?", "Where is the perineal nerve?", "replaced"),
    ],
)  # fmt: skip
def test_a_near_miss_is_refused(one, other, reason):
    assert guard(one, other) == guard(other, one) == reason


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Is acne caused by stress?", "Does stress cause acne?"),
        ("What is the log base 2 of 8?", "what's the log base 2 of 8"),
        ("How long is 60 minutes and 2 hours?", "How long is 1 hour and 2 hours?"),
        ("What is the distance from Rome to Paris?", "What is the distance from Paris to Rome?"),
        ("How do I find accomodation?", "How do I find accommodation?"),
        ("How much does Walmart pay cashiers?", "How much are cashiers paid at Walmart?"),
        ("What is a lessor?", "What are lessors?"),
        ("How do I book a resturant?", "How do I book a restaurant?"),
    ],
)
def test_a_rewording_stays_open(one, other):
    assert guard(one, other) is guard(other, one) is None
