"""What the cross-encoder reads of a pair, and how its score is weighed with the cosine."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from embeddings.verify.recipe import (
    MIDDLE,
    SPECIAL_TOKENS,
    TOKEN_TYPES,
    overlap,
    pair_features,
    weighed,
)

CLS, SEP = 101, 102

scores = st.floats(0, 1)
cosines = st.floats(-1.01, 1.01)
shares = st.floats(0, 1)


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


@given(scores, cosines, shares)
def test_a_weighed_score_is_a_score(score, cosine, shared):
    assert 0 <= weighed(score, cosine, shared, 8.0, 24.0) <= 1


@given(scores, scores, cosines, cosines, shares)
def test_neither_a_better_score_nor_a_nearer_question_makes_it_worse(
    score, other, cosine, near, shared
):
    low, high = sorted((score, other))
    far, close = sorted((cosine, near))
    # One rounding of either logarithm.
    worse, better = (weighed(*pair, shared, 8.0, 24.0) for pair in ((low, far), (high, close)))
    assert worse <= better * (1 + 1e-9)


@given(scores, shares)
def test_in_the_middle_a_score_stays_what_it_is(score, shared):
    assert weighed(score, MIDDLE, shared, 8.0, 24.0) == pytest.approx(score)


@given(scores, cosines, shares)
def test_without_weight_the_cosine_says_nothing(score, cosine, shared):
    assert weighed(score, cosine, shared, 0.0, 0.0) == pytest.approx(score)


@given(st.floats(0.01, 0.99), st.floats(0.86, 1.0))
def test_the_cosine_says_more_of_texts_in_other_words(score, cosine):
    same, other = (weighed(score, cosine, shared, 0.0, 24.0) for shared in (1.0, 0.0))
    assert same == pytest.approx(score)
    assert other > same


@pytest.mark.parametrize(
    ("a", "b", "shared"),
    [("Open it!", "open IT", 1.0), ("a b", "b c", 1 / 3), ("", "", 0.0), ("?", "a", 0.0)],
)
def test_the_overlap_is_that_of_words(a, b, shared):
    assert overlap(a, b) == overlap(b, a) == pytest.approx(shared)
