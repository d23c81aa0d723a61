"""Ids and token types of a pair, as the cross-encoder was trained on them."""

import pytest

from embeddings.verify.features import SPECIAL_TOKENS, TOKEN_TYPES, pair_features

CLS, SEP = 101, 102


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
