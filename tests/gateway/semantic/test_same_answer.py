"""Two answers to one question: equal, different, or not to be told, and by what."""

import pytest

from gateway.cache.quality.same_answer import (
    DIFFERENT_COSINE,
    EQUAL_COSINE,
    MAX_PIECES,
    PIECE_CHARACTERS,
    PIECE_WORDS,
    Judgement,
    NeedsVectors,
    Outcome,
    compare,
)
from scripted_upstream import completion

EQUAL, DIFFERENT, UNSURE = Outcome.EQUAL, Outcome.DIFFERENT, Outcome.UNSURE


def said(stored: str, fresh: str, near: float = 0.95) -> Judgement:
    """Compare two chat answers, whose vectors have this cosine if they are asked for."""
    step = compare(completion(stored), completion(fresh))
    if isinstance(step, Judgement):
        return step
    one, other = (1.0, 0.0), (near, (1 - near * near) ** 0.5)
    vectors = [one] * step.stored + [other] * (len(step.texts) - step.stored)
    return step.next(vectors)


@pytest.mark.parametrize(
    ("stored", "fresh"),
    [
        ("Paris.", "Paris"),
        ("**Paris** is it.", "paris is it"),
        ("It\u2019s \u201cso\u201d", 'it\'s "so"'),
        ("- one\n- two", "one\ntwo"),
        ("1. Open it.\n2. Close it.", "Open it. Close it."),
        ("# Title\n\nText", "Title text"),
        ("\ufb01ne", "fine"),
        ("Fine." + "\n" * 19_000, "Fine."),
        (" \n" * 9_000 + "Fine.", "Fine."),
        ("> It is **so**:\n* `x_y`", "it is so: x_y"),
        ("| It | is |\n|---|---|\n| so | . |", "It is so"),
    ],
    ids=range(11),
)
def test_what_differs_in_form_only_is_equal(stored, fresh):
    assert said(stored, fresh) == (EQUAL, "text")


@pytest.mark.parametrize(
    ("stored", "fresh", "why"),
    [
        ("Yes, you can.", "No, you can.", "yes-no"),
        ("No.", "Yep!", "yes-no"),
        ("It takes 3 days.", "It takes 5 days.", "numbers"),
        ("Three of them.", "4 of them.", "numbers"),
        ("It is 2*3.", "It is 23.", "numbers"),
        ("We open on Monday.", "We open on Tuesday.", "numbers"),
        ("It was in 1999.", "It was in 2001.", "numbers"),
        ("Version 1.2.3 has it.", "Version 1.2.4 has it.", "numbers"),
        ("You can return it.", "You can't return it.", "negation"),
        ("It is never sold here.", "It is sold here.", "negation"),
        ("The author is Anna Karlsson.", "The author is **Berta Holm**.", "names"),
        ("It is 10⁶.", "It is 106.", "numbers"),
        ("It is 10⁶.", "It is 10⁷.", "numbers"),
        ("It is 2⁵.", "It is 25.", "numbers"),
        ("It is 2⁵.", "It is 5².", "numbers"),
        ("It is 2^10.", "It is 2^1.", "numbers"),
        ("It is 5①.", "It is 51.", "numbers"),
        ("5. May 2020", "6. May 2020", "numbers"),
        ("3. Oktober", "4. Oktober", "numbers"),
        ("2. Paris", "1. Paris", "numbers"),
        ("Version 1.2.10 has it.", "Version 1.2.1 has it.", "numbers"),
        ("Fine.", "", "empty"),
    ],
)
def test_a_contradiction_is_different_however_near(stored, fresh, why):
    assert said(stored, fresh, near=1.0) == (DIFFERENT, why)
    assert said(fresh, stored, near=1.0) == (DIFFERENT, why)


@pytest.mark.parametrize(
    ("stored", "fresh", "why"),
    [
        ("It takes 3 days.", "It takes a few days.", "numbers"),
        ("It costs 5 euros, in 3 parts.", "It costs 5 euros.", "numbers"),
        ("Use `a` for it.", "Use `b` for it.", "code"),
        ("So:\n```sh\nls -l\n```", "So:\n```sh\nls -a\n```", "code"),
        ("It is `A`.", "It is `a`.", "code"),
        (
            "So:\n```py\nif x:\n    a()\n    b()\n```",
            "So:\n```py\nif x:\n    a()\nb()\n```",
            "code",
        ),
        ("Set a_b for it.", "Set ab for it.", "marks"),
        ("It is x~y.", "It is xy.", "marks"),
        ("Written in C#.", "Written in C.", "marks"),
        ("About ~5 days.", "About 5 days.", "marks"),
        ("It must be > 5.", "It must be < 5.", "marks"),
        ("+ 5", "- 5", "marks"),
        ("The temperature is\n- 5 degrees", "The temperature is\n5 degrees", "marks"),
        ("It is -5 degrees.", "It is 5 degrees.", "marks"),
        ("~~Paris~~ London", "Paris London", "marks"),
        ("2. Paris", "Paris", "numbers"),
        ("The author is Anna Karlsson.", "The author is not known to us.", "negation"),
        ("The author is Anna Karlsson.", "The author is a woman.", "names"),
        ("Das ist ein Hund.", "Das ist ein Tier.", "names"),
        ("Nobody knows it yet.", "That is a wholly open question.", "negation"),
    ],
)
def test_what_only_one_of_them_says_is_not_told(stored, fresh, why):
    assert said(stored, fresh, near=1.0) == (UNSURE, why)


@pytest.mark.parametrize(
    ("stored", "fresh"),
    [
        ("It costs 1,000.50 euros.", "The price: 1000.5 euros."),
        ("Two days.", "2 days, more or less."),
        ("A new one is sent.", "We send you another."),
        ("Yes, of course.", "Yes, you can do that."),
        ("It is 10⁶ or so.", "It is about 10^6."),
        ("It is 3-5 days.", "That takes 3-5 days."),
    ],
)
def test_one_number_written_in_two_ways_is_one(stored, fresh):
    assert said(stored, fresh) == (EQUAL, "meaning")


def test_wording_is_left_to_the_vectors():
    pair = ("Open the settings and choose reset.", "Choose reset in your settings.")
    assert said(*pair, near=EQUAL_COSINE + 0.001) == (EQUAL, "meaning")
    assert said(*pair, near=EQUAL_COSINE - 0.001) == (UNSURE, "meaning")
    assert said(*pair, near=DIFFERENT_COSINE + 0.001) == (UNSURE, "meaning")
    assert said(*pair, near=DIFFERENT_COSINE - 0.001) == (DIFFERENT, "meaning")


def test_long_answers_may_differ_in_a_number_among_many():
    first = "so it is and so it was " * 10
    assert said(f"{first} 3 4", f"{first} 3 5") == (UNSURE, "numbers")


def test_long_answers_may_name_others():
    first = "so it is and so it was " * 10
    assert said(f"{first} by Anna", f"{first} by Berta") == (EQUAL, "meaning")


def test_without_vectors_nothing_is_told():
    step = compare(completion("one thing"), completion("another thing"))
    assert isinstance(step, NeedsVectors)
    assert step.next(None) == (UNSURE, "no-vectors")


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf"), 2.0])
def test_vectors_that_are_no_numbers_tell_nothing(bad):
    step = compare(completion("one thing"), completion("another thing"))
    assert step.next([(bad, 0.0), (1.0, 0.0)]) == (UNSURE, "no-vectors")


def test_long_answers_are_read_in_pieces_and_the_end_is_not_taken_on_trust():
    long = " ".join(["word"] * PIECE_WORDS * (MAX_PIECES + 1))
    step = compare(completion(long), completion(f"{long} more"))
    assert isinstance(step, NeedsVectors)
    assert step.stored == MAX_PIECES
    assert all(len(text.split()) <= PIECE_WORDS for text in step.texts)
    assert said(long, f"{long} more", near=1.0) == (UNSURE, "length")


def test_a_word_without_end_is_cut():
    step = compare(completion("x" * 10**4), completion("y" * 10**4))
    assert all(len(text) <= PIECE_CHARACTERS for text in step.texts)


def test_huge_answers_are_the_same_to_the_letter_or_not_told():
    huge = completion("x" * 10**6)
    assert compare(huge, completion("x" * 10**6)) == (EQUAL, "text")
    assert compare(huge, completion("x")) == (UNSURE, "length")


def test_a_part_that_only_one_answer_has_counts():
    """The nearest piece of the other text for each, both ways."""
    stored = " ".join(f"a{n}" for n in range(PIECE_WORDS))
    fresh = f"{stored} " + " ".join(f"b{n}" for n in range(PIECE_WORDS))
    step = compare(completion(stored), completion(fresh))
    assert (step.stored, len(step.texts)) == (1, 3)
    assert step.next([(1.0, 0.0), (1.0, 0.0), (0.0, 1.0)]) == (DIFFERENT, "meaning")


def call(arguments, name="pay"):
    tool = {"id": "c1", "type": "function", "function": {"name": name, "arguments": arguments}}
    message = {"role": "assistant", "content": None, "tool_calls": [tool]}
    choice = {"index": 0, "message": message, "finish_reason": "tool_calls"}
    return completion("", choices=[choice])


def test_tool_calls_must_be_the_same_in_any_order_of_their_arguments():
    one = call('{"to": "a", "sum": 3}')
    assert compare(one, call('{"sum":3,"to":"a"}')) == (EQUAL, "text")
    assert compare(one, call('{"sum":4,"to":"a"}')) == (DIFFERENT, "tool-calls")
    assert compare(one, call('{"to": "a", "sum": 3}', name="ask")) == (DIFFERENT, "tool-calls")
    assert compare(one, completion("a")) == (DIFFERENT, "tool-calls")


def test_an_answer_that_was_cut_is_not_the_same_as_one_that_was_not():
    cut = completion("Fine.", finish_reason="length")
    assert compare(completion("Fine."), cut) == (DIFFERENT, "finish-reason")


def response(text, status="completed"):
    part = {"type": "output_text", "text": text, "annotations": []}
    output = [{"type": "reasoning"}, {"type": "message", "content": [part]}]
    return {"object": "response", "status": status, "output": output}


def test_responses_are_read_as_well():
    assert compare(response("Fine."), response("fine")) == (EQUAL, "text")
    assert compare(response("Yes."), response("No.")) == (DIFFERENT, "yes-no")


@pytest.mark.parametrize(
    "odd",
    [
        *(None, [], {}, {"choices": []}, {"choices": [3]}, {"choices": [{}]}, {"output": []}),
        {"output": [{"type": "image"}], "status": "completed"},
    ],
)
def test_what_cannot_be_read_is_not_told(odd):
    assert compare(odd, completion("a")) == (UNSURE, "unknown-shape")
    assert compare(completion("a"), odd) == (UNSURE, "unknown-shape")
