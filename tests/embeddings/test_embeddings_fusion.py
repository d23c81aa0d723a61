import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from embeddings.verify.fusion import MIDDLE, weighed

scores = st.floats(0, 1)
cosines = st.floats(-1.01, 1.01)


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
