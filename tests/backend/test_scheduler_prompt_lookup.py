"""Prompt lookup: which tokens are predicted, and how often that was right."""

import random

import pytest

from backend.scheduler.drafts import MOST_DRAFTS
from backend.scheduler.prompt_lookup import PromptLookup, expected


def predicted(tokens, count=8):
    lookup = PromptLookup()
    return lookup.drafts(tokens, count) if lookup.follow(tokens) else ()


def test_what_followed_the_same_tokens_is_predicted():
    assert predicted([*range(1, 13), 1, 2, 3]) == (4, 5, 6, 7, 8, 9, 10, 11)


def test_of_equal_n_grams_the_last_decides():
    assert predicted([1, 2, 3, 50, 9, 1, 2, 3, 60, 9, 1, 2, 3])[0] == 60


def test_a_repetition_goes_on():
    assert predicted([5, 6, 7, 1, 2, 1, 2, 1, 2]) == (1, 2) * 4
    assert predicted([5, 6, 7, 4, 4, 4, 4], MOST_DRAFTS) == (4,) * MOST_DRAFTS


@pytest.mark.parametrize("tokens", [[], [1], [1, 1, 1], list(range(50)), [1, 2, 3, 4, 2, 3]])
def test_nothing_is_predicted_of_what_is_new(tokens):
    assert predicted(tokens) == ()


@pytest.mark.parametrize("alphabet", [2, 5])
def test_a_growing_text_is_followed_until_it_differs_from_what_was_predicted(alphabet):
    rng = random.Random(alphabet)
    tokens = [rng.randrange(alphabet) for _ in range(40)]
    lookup, num_followed, expected = PromptLookup(), 0, None
    for _ in range(200):
        found = lookup.follow(tokens)
        if expected is not None:
            assert found
            assert lookup.drafts(tokens, 1) == (expected,)
            num_followed += 1
        drafts = lookup.drafts(tokens, 2) if found else ()
        tokens.append(rng.randrange(alphabet))
        expected = drafts[1] if drafts and tokens[-1] == drafts[0] else None
    assert num_followed > 10


def test_accepted_drafts_and_the_token_behind_them_are_followed_at_once():
    lookup, tokens = PromptLookup(), [*range(20), 0, 1, 2]
    assert lookup.follow(tokens)
    tokens += [3, 4, 5, 6]
    assert lookup.follow(tokens)
    assert lookup.drafts(tokens, 3) == (7, 8, 9)
    rate = lookup.rate
    tokens += [7, 99]
    assert not lookup.follow(tokens)
    assert lookup.rate < rate
    tokens += [10, 11, 12]
    assert lookup.follow(tokens)
    assert lookup.drafts(tokens, 2) == (13, 14)


def test_a_very_long_text_takes_bounded_memory():
    rng = random.Random(1)
    tokens = [rng.randrange(100_000) for _ in range(200_000)]
    lookup = PromptLookup()
    known = tokens + tokens[-500:-480]
    assert lookup.follow(known)
    assert lookup.drafts(known, 8) == tuple(tokens[-480:-472])
    assert len(lookup._table) * lookup._table.itemsize <= 512 * 1024


def test_wrong_predictions_lower_the_rate_and_right_ones_raise_it():
    lookup, tokens = PromptLookup(), [1, 2] * 10
    assert lookup.follow(tokens)
    first = lookup.rate
    for new in range(50, 54):
        tokens.append(new)
        assert not lookup.follow(tokens)
        tokens += [1, 2, 1]
        assert lookup.follow(tokens)
    low = lookup.rate
    assert low < 0.5 < first
    for _ in range(20):
        tokens.append(3 - tokens[-1])
        assert lookup.follow(tokens)
    assert lookup.rate > 0.95
    assert expected(lookup.rate, 8) > 6.5
    lookup.rate = 1
    assert expected(lookup.rate, 8) == 8
    lookup.rate = 0.5
    assert expected(lookup.rate, 2) == 0.75
