"""Exact bounds on a share: known values, and the law that defines them."""

import math

import pytest

from embeddings.verify.binomial import at_most, lower_bound, upper_bound


@pytest.mark.parametrize("of", [1, 59, 299, 3000])
def test_of_none_found_the_bound_is_known(of):
    assert upper_bound(0, of, 0.95) == pytest.approx(1 - 0.05 ** (1 / of))
    assert lower_bound(of, of, 0.95) == pytest.approx(0.05 ** (1 / of))


def test_nothing_looked_at_tells_nothing():
    assert (lower_bound(0, 0, 0.95), upper_bound(0, 0, 0.95)) == (0.0, 1.0)
    assert (lower_bound(0, 9, 0.95), upper_bound(9, 9, 0.95)) == (0.0, 1.0)
    assert upper_bound(7, 7, 0.95) == 1


@pytest.mark.parametrize("found", [1, 3, 40, 99])
def test_at_the_bounds_so_many_are_just_as_unlikely_as_said(found):
    assert at_most(found, 100, upper_bound(found, 100, 0.95)) == pytest.approx(0.05)
    assert 1 - at_most(found - 1, 100, lower_bound(found, 100, 0.95)) == pytest.approx(0.05)


def test_the_tail_is_the_sum_of_its_terms():
    exact = sum(math.comb(20, k) * 0.3**k * 0.7 ** (20 - k) for k in range(8))
    assert at_most(7, 20, 0.3) == pytest.approx(exact)
    assert (at_most(20, 20, 0.3), at_most(3, 20, 0.0), at_most(3, 20, 1.0)) == (1.0, 1.0, 0.0)


@pytest.mark.parametrize(
    ("wrong", "hits", "bound"),
    [  # quantiles of the beta distribution, 0.95 of (wrong + 1, hits - wrong)
        (0, 1, 0.95),
        (0, 10, 0.2588655509),
        (0, 299, 0.0099691468),
        (0, 298, 0.0100024324),
        (1, 473, 0.0099897075),
        (3, 7, 0.7746784160),
        (6, 7, 0.9926991680),
        (10, 1000, 0.0169031751),
        (100, 3000, 0.0392404319),
        (500, 100_000, 0.0053827308),
    ],
)
def test_the_bound_is_that_of_clopper_and_pearson(wrong, hits, bound):
    assert upper_bound(wrong, hits, 0.95) == pytest.approx(bound, abs=1e-9)


def test_the_bound_rises_with_wrong_hits_and_with_confidence():
    bounds = [upper_bound(wrong, 400, 0.95) for wrong in range(40)]
    assert bounds == sorted(bounds)
    assert upper_bound(3, 400, 0.99) > upper_bound(3, 400, 0.95) > upper_bound(3, 400, 0.5)


def test_millions_do_not_underflow():
    assert 0.0099 < lower_bound(10_100, 1_000_000, 0.95) < upper_bound(10_100, 10**6, 0.95) < 0.0103


def test_what_is_out_of_the_question_underflows_to_nothing():
    assert at_most(10_000, 10**6, 0.5) == 0.0
    assert at_most(990_000, 10**6, 0.5) == 1.0
