"""The README's four questions in every order and in other words: none gets another's answer.

With the encoder, the verifier and the budget that are the defaults.
"""

from itertools import permutations, product

import pytest
from semantic_cache import MeaningCache

RESET = (
    "How do I reset my password?",
    "how to reset my password",
    "What is the way to reset my password?",
    "What are the steps to reset my password?",
    "how would I go about resetting my password",
    "I want to reset my password, how do I do that?",
    "Where can I reset my password?",
    "How do I get my password reset?",
    "I lost my password. How can I reset it?",
    "reset my password",
)
RESET_AGAIN = (
    "How can I reset my password?",
    "Please tell me how to reset my password.",
    "What's the process for resetting my password?",
    "Can you help me reset my password?",
    "What should I do to reset my password?",
    "Is there a way to reset my password?",
    "My password needs to be reset, how?",
    "How do I do a password reset?",
    "How does one reset a password?",
    "How do I recover a forgotten password?",
)
CHANGE = (
    "How do I change my password?",
    "how to change my password",
    "What is the way to change my password?",
    "What are the steps to change my password?",
    "how would I go about changing my password",
    "I want to change my password, how do I do that?",
    "Where can I change my password?",
    "How do I get my password changed?",
    "How do I update my password?",
    "change my password",
)
ACCOUNT = (
    "How can I change the password of my account?",
    "How do I change my account password?",
    "How do I update my account password?",
)
ACCOUNT_RESET = tuple(text.replace("change", "reset") for text in ACCOUNT[:2])
FOUR = (RESET, RESET, RESET_AGAIN, CHANGE)


@pytest.fixture(scope="module")
def cache(encoder):
    return MeaningCache(
        encoder, (text for wordings in (*FOUR, ACCOUNT, ACCOUNT_RESET) for text in wordings)
    )


@pytest.mark.parametrize("order", list(permutations(range(4))), ids=str)
def test_in_no_order_a_question_gets_the_answer_of_another(cache, order):
    cache.stored.clear()
    for wording in range(10):
        for question in order:
            answer = "change" if question == 3 else "reset"
            text = FOUR[question][wording]
            assert cache.ask(text, answer) == answer, (text, cache.stored)


def test_no_wording_of_the_one_fits_a_wording_of_the_other(cache):
    pairs = list(product((*RESET, *RESET_AGAIN, *ACCOUNT_RESET), (*CHANGE, *ACCOUNT)))
    assert [pair for pair in pairs if cache.fits(*pair) or cache.fits(*pair[::-1])] == []


def test_other_words_for_the_same_are_hits(cache):
    assert cache.fits("How can I reset my password?", "How do I reset my password?")
    assert cache.fits("I want to reset my password, how do I do that?", RESET[0])
    assert cache.fits("I want to change my password, how do I do that?", CHANGE[0])
