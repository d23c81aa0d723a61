"""Edits of questions: harmless ones keep what is asked, the others change it; English forms."""

import re
from random import Random

import pytest

from tools.verifier.templates import inflection, transforms

QUESTIONS = (
    "How do I get from Paris to Berlin before 5 pm?",
    "Is it safe to give my dog 2 aspirin without asking a vet?",
    "What is the cheapest hotel in Canada for 3 nights?",
    "Why do bears sleep in winter?",
    "Set an alarm for 7:30 am",
    "Should children under 12 always wear a helmet?",
)


def _numbers(text):
    for word, digits in {"two": "2", "three": "3", "five": "5", "twelve": "12"}.items():
        text = re.sub(rf"\b{word}\b", digits, text.lower())
    return re.findall(r"\d+", text)


@pytest.mark.parametrize("question", QUESTIONS)
def test_a_harmless_edit_keeps_every_number_and_what_is_excluded(question):
    for seed in range(300):
        edited = transforms.reworded(question, Random(seed))
        assert _numbers(edited) == _numbers(question), edited
        if "without" in question:
            assert "w/o" in edited or "without" in edited.lower()


@pytest.mark.parametrize("question", QUESTIONS)
def test_a_harmless_edit_nearly_always_changes_the_writing(question):
    edited = [transforms.reworded(question, Random(seed)) for seed in range(100)]
    assert sum(text != question for text in edited) >= 95
    assert len(set(edited)) >= 30


@pytest.mark.parametrize("question", QUESTIONS)
def test_a_changing_edit_never_returns_the_question(question):
    for seed in range(300):
        changed = transforms.altered(question, Random(seed))
        assert changed is not None
        assert changed.text.casefold() != question.casefold()


@pytest.mark.parametrize(
    ("kind", "question", "expected"),
    [
        ("roles", "How do I get from Paris to Berlin?", "How do I get from Berlin to Paris?"),
        ("numbers swapped", "Buy 3 pears and 5 figs", "Buy 5 pears and 3 figs"),
        ("negation", "Why can't birds swim?", "Why can birds swim?"),
        ("negation", "Can I swim here?", "Can I not swim here?"),
        ("question word", "Why was I fined?", "When was I fined?"),
        ("quantifier", "Eat before or after?", "Eat during or after?"),
        ("modifier dropped", "Is this a cheap Finnish sauna?", "Is this a Finnish sauna?"),
        ("qualifier dropped", "How do I bake bread without an oven?", "How do I bake bread?"),
    ],
)
def test_an_edit_of_its_kind_is_among_those_made(kind, question, expected):
    made = {transforms.altered(question, Random(seed)) for seed in range(400)}
    assert transforms.Alteration(expected, kind) in made


def test_a_text_that_offers_nothing_to_change_is_left():
    assert transforms.altered("hmm", Random(0)) is None


@pytest.mark.parametrize(
    ("written", "right"),
    [
        ("a apple", "an apple"),
        ("an university", "a university"),
        ("a hour and a honest man", "an hour and an honest man"),
        ("a 8 year old, a 18 mm nut, a 80 cm plank, a 10 cm one", None),
        ("A MRI of an US citizen", "An MRI of a US citizen"),
        ("vitamin A is here", "vitamin A is here"),
    ],
)
def test_articles_follow_the_sound(written, right):
    right = right or "an 8 year old, an 18 mm nut, an 80 cm plank, a 10 cm one"
    assert inflection.with_right_articles(written) == right


@pytest.mark.parametrize(
    ("form", "word", "made"),
    [
        ("plural", "prison guard", "prison guards"),
        ("plural", "policewoman", "policewomen"),
        ("plural", "loaf", "loaves"),
        ("plural", "box", "boxes"),
        ("plural", "cherry", "cherries"),
        ("past", "hug", "hugged"),
        ("past", "visit", "visited"),
        ("past", "carry", "carried"),
        ("past", "turn down", "turned down"),
        ("ing", "lie", "lying"),
        ("ing", "chase", "chasing"),
        ("ing", "rob", "robbing"),
        ("third_person", "watch", "watches"),
        ("third_person", "go", "goes"),
        ("comparative", "big", "bigger"),
        ("comparative", "wealthy", "wealthier"),
        ("comparative", "expensive", "more expensive"),
        ("superlative", "safe", "safest"),
        ("number_words", 42, "forty-two"),
        ("number_words", 1100, "one thousand one hundred"),
        ("ordinal", 22, "22nd"),
        ("ordinal", 12, "12th"),
    ],
)
def test_forms_are_made_by_the_rules_of_english(form, word, made):
    assert getattr(inflection, form)(word) == made
