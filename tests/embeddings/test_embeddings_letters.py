"""Letters that stand alone: which are labels, and that no label is passed over."""

import re
from itertools import combinations, product
from string import ascii_lowercase

import pytest
from semantic_cache import MeaningCache

from embeddings.verify.guards import guard

FRAMES = (
    "where is gate {}?",
    "what does the {} flag mean in grep?",
    "how do I renew a class {} license?",
    "is influenza {} dangerous?",
    "how do I clean the {} drive?",
    "what does pressing {} do in vim?",
    "how do i read plan {}?",
    "what is in appendix {}?",
    "when does kiosk {} open?",
    "which bus goes to terminal {}?",
    "can i swap seat {}?",
    "what does {} mean in music?",
)


WORDINGS = (
    (
        "where is gate {}?",
        "how do i get to gate {}",
        "gate {} location",
        "can you tell me where gate {} is?",
        "directions to gate {}",
    ),
    (
        "what does plan {} cost?",
        "how much is plan {}?",
        "plan {} cost",
        "how much do i pay for plan {}",
    ),
    ("visa {} application", "how do I apply for a visa {}?", "how can I get a class {} visa?"),
    ("hepatitis {} symptoms", "what symptoms does hepatitis {} have", "signs of hepatitis {}"),
    ("how do i play {} major on guitar?", "{} major chord guitar", "how to play {} major"),
    ("where is serie {} played", "serie {} standings", "standings in serie {}"),
    ("Team {} score", "what is team {}'s score?", "what's the score of team {}?"),
)


def refused(one, other):
    """Tell whether the guards refuse a pair, both ways."""
    return guard(one, other) is not None and guard(other, one) is not None


@pytest.mark.parametrize("frame", FRAMES)
@pytest.mark.parametrize("case", [str.lower, str.upper])
def test_no_letter_passes_for_another(frame, case):
    asked = [frame.format(case(letter)) for letter in ascii_lowercase]
    assert [pair for pair in combinations(asked, 2) if not refused(*pair)] == []


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("What does the s flag mean in grep?", "What does the flag mean in grep?"),
        ("Where is gate a?", "Where is the gate?"),
        ("who teaches class a math?", "who teaches class math?"),
        ("when does kiosk a open?", "when does kiosk open?"),
        ("what is in section i of the lease", "what is in the section of the lease"),
        ("what is a type i error", "what is a type a error"),
        ("which class i licence do i need", "which class a licence do i need"),
        ("what does form i 9 say", "what does form d 9 say"),
        ("WHERE IS GATE A?", "WHERE IS GATE D?"),
        ("WHERE IS GATE A?", "WHERE IS THE GATE?"),
        ("how many a's are in banana", "how many d's are in banana"),
        ("Can t cells recover?", "Can cells recover?"),
        ("how do i add a & b", "how do i add d & b"),
        ("where is gate s?", "can you tell me where gate n is?"),
        ("what does plan i cost?", "how much does plan u cost?"),
        ("what is team a's score?", "what's the score of team s?"),
        ("serie a standings", "serie i standings"),
        ("serie a standings", "serie standings"),
        ("team a score", "team score"),
        ("visa a application", "visa application"),
        ("how do I play a minor on guitar", "how do I play i minor on guitar"),
        ("x plus a", "x plus i"),
        ("does a come before z?", "does z come before z?"),
    ],
)
def test_a_label_is_a_particular(one, other):
    assert refused(one, other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("where is gate d?", "Where is Gate D?"),
        ("WHERE IS GATE A?", "where is gate a?"),
        ("how do I take vitamin d", "How should I take vitamin D?"),
        ("How do I plan a trip to Rome?", "How do I plan the trip to Rome?"),
        ("how do i form a company", "what is the way to form a company"),
        ("how do I make a will", "how can I make the will"),
        ("what 's the time in Rome", "what is the time in Rome"),
        ("what s the time in Rome", "what is the time in Rome"),
        ("i 'm locked out, how do i get in", "I'm locked out, how do I get in"),
        ("is it a $5 charge", "is it the $5 charge"),
        ("What is the plan I have?", "what is the plan that I have"),
        ("Can I PayPal my friend?", "can i paypal my friend"),
        ("how do i wash a t-shirt", "how do i wash the t-shirt"),
        ("where do I find the item I ordered", "where is the item that I ordered"),
        ("can you set a timer", "set the timer"),
        ("Write a poem about rain", "Please write the poem about rain"),
        ("What causes a rainbow?", "What causes rainbows?"),
        ("the booking I made, how do I cancel it", "how do I cancel the booking I've made"),
        ("Is Ann Lee a Greek teacher?", "Is Ann Lee a teacher and Greek?"),
        ("My e-book won't open", "My ebook won't open"),
    ],
)
def test_an_article_a_pronoun_and_a_contraction_are_none(one, other):
    assert guard(one, other) is guard(other, one) is None


@pytest.mark.parametrize("wordings", WORDINGS, ids=lambda x: x[0])
def test_no_letter_passes_for_another_or_for_none_in_other_words(wordings, encoder):
    asked = [
        (letter, wording.format(letter)) for wording, letter in product(wordings, "abdimnrstuwx")
    ]
    # The same without any letter.
    asked += [("", re.sub(r" ?\{\}('s)?", "", wording).strip()) for wording in wordings]
    pairs = [
        pair
        for (one, x), (other, y) in combinations(asked, 2)
        if one != other
        for pair in ((x, y), (y, x))
        if guard(*pair) is None
    ]
    cache = MeaningCache(encoder, (text for pair in pairs for text in pair))
    assert [pair for pair in pairs if cache.fits(*pair)] == []
