"""What the cross-encoder reads of a pair, and how its score is weighed with the cosine."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from embeddings.verify.recipe import MIDDLE, SPECIAL_TOKENS, TOKEN_TYPES, pair_features, weighed

CLS, SEP = 101, 102

scores = st.floats(0, 1)
cosines = st.floats(-1.01, 1.01)


def test_types_tell_the_text_and_whether_the_other_has_the_token():
    ids, types = pair_features([5, 6, 7], [6, 8], CLS, SEP)
    assert ids == [CLS, 5, 6, 7, SEP, 6, 8, SEP]
    assert types == [0, 2, 0, 2, 0, 1, 3, 1]


def test_the_order_of_the_texts_makes_no_difference():
    assert pair_features([9, 1], [3], CLS, SEP) == pair_features([3], [9, 1], CLS, SEP)
    assert pair_features((3, 3), (3,), CLS, SEP) == pair_features([3], [3, 3], CLS, SEP)


@pytest.mark.parametrize(("a", "b"), [([], []), ([4], []), ([4], [4]), ([4, 5], [5, 4])])
def test_every_token_has_a_type_in_range(a, b):
    ids, types = pair_features(a, b, CLS, SEP)
    assert len(ids) == len(types) == len(a) + len(b) + SPECIAL_TOKENS
    assert set(types) <= set(range(TOKEN_TYPES))


def test_equal_texts_have_no_unmatched_token():
    _, types = pair_features([4, 5, 4], [4, 5, 4], CLS, SEP)
    assert types == [0] * 5 + [1] * 4


@given(scores, cosines)
def test_a_weighed_score_is_a_score(score, cosine):
    assert 0 <= weighed(score, cosine) <= 1


@given(scores, scores, cosines, cosines)
def test_neither_a_better_score_nor_a_nearer_question_makes_it_worse(score, other, cosine, near):
    low, high = sorted((score, other))
    far, close = sorted((cosine, near))
    # One rounding of either logarithm.
    assert weighed(low, far) <= weighed(high, close) * (1 + 1e-9)


@given(scores)
def test_in_the_middle_a_score_stays_what_it_is(score):
    assert weighed(score, MIDDLE) == pytest.approx(score)


@given(scores, cosines)
def test_without_weight_the_cosine_says_nothing(score, cosine):
    assert weighed(score, cosine, 0.0) == pytest.approx(score)


def test_what_is_no_number_makes_none():
    assert math.isnan(weighed(0.9, math.nan))
    assert math.isnan(weighed(math.nan, 0.9))
