"""Four questions of a help desk in eleven wordings each: none gets another's answer.

With the encoder, the verifier and the budget that are the defaults. So are the examples in the
README and at the top of docs/concepts/semantic.md.
"""

import re
from itertools import permutations
from pathlib import Path

import pytest
from semantic_cache import VERIFIERS, MeaningCache

ROOT = Path(__file__).parents[2]


def read(name):
    return (ROOT / name).read_text(encoding="utf-8")


FOUR = [
    [line.removeprefix("= ") for line in block.splitlines()]
    for block in read("benchmarks/quality/data/readme_questions.txt").strip().split("\n\n")
]
README = re.findall(r'^    "(.*)",$', read("README.md"), re.MULTILINE)
PAGE = read("docs/concepts/semantic.md")
OPENING = re.findall(r'"(.*?)"', PAGE.partition("\n## ")[0].replace("\n", " "))
LEAST_HIT = {"small": 0.25, "large": 0.65}
"""The share of rewordings that get their answer, where only the four first wordings are stored.

It is 11 and 28 of 40. One and two scores are so near the threshold that another processor's
rounding may lose them.
"""


@pytest.fixture(scope="module", params=VERIFIERS)
def cache(encoder, request):
    texts = [text for wordings in FOUR for text in wordings]
    # It takes no question that is looked up exactly only.
    made = MeaningCache(encoder, [*texts, *README, *OPENING], request.param)
    made.least_hit = LEAST_HIT[request.param]
    return made


def test_there_are_four_questions_in_eleven_wordings():
    assert [len(set(wordings)) for wordings in FOUR] == [11] * 4


@pytest.mark.parametrize("order", list(permutations(range(4))), ids=str)
def test_in_no_order_a_question_gets_the_answer_of_another(cache, order):
    cache.stored.clear()
    for wording in range(11):
        for question in order:
            text, answer = FOUR[question][wording], FOUR[question][0]
            assert cache.ask(text, answer) == answer, (text, cache.stored)


def test_no_wording_of_a_question_fits_a_wording_of_another(cache):
    wrong = [
        (asked, stored)
        for wordings, others in permutations(FOUR, 2)
        for asked in wordings
        for stored in others
        if cache.fits(asked, stored)
    ]
    assert wrong == []


def test_many_rewordings_of_a_stored_question_are_hits(cache):
    hits = [cache.fits(text, stored) for stored, *rewordings in FOUR for text in rewordings]
    assert sum(hits) >= cache.least_hit * len(hits)


def test_the_readmes_example_is_true(cache):
    first, again, reworded, other = README
    assert first == again
    assert cache.fits(reworded, first)
    assert not cache.fits(other, first)


def test_the_example_that_opens_the_page_on_semantic_hits_is_true(cache):
    reworded, stored, other, *more = OPENING
    assert more == []
    assert cache.fits(reworded, stored)
    assert not cache.fits(other, stored)
    assert not cache.fits(stored, other)
