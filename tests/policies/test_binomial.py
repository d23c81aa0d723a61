"""Exact bounds on a share: known values, and the law that defines them."""

import math

import pytest

from embeddings.verify import calibration
from policies.binomial import at_most, lower_bound, upper_bound


@pytest.mark.parametrize("of", [1, 59, 299, 3000])
def test_of_none_found_the_bound_is_known(of):
    assert upper_bound(0, of, 0.95) == pytest.approx(1 - 0.05 ** (1 / of))
    assert lower_bound(of, of, 0.95) == pytest.approx(0.05 ** (1 / of))


def test_nothing_looked_at_tells_nothing():
    assert (lower_bound(0, 0, 0.95), upper_bound(0, 0, 0.95)) == (0.0, 1.0)
    assert (lower_bound(0, 9, 0.95), upper_bound(9, 9, 0.95)) == (0.0, 1.0)


@pytest.mark.parametrize("found", [1, 3, 40, 99])
def test_at_the_bounds_so_many_are_just_as_unlikely_as_said(found):
    assert at_most(found, 100, upper_bound(found, 100, 0.95)) == pytest.approx(0.05)
    assert 1 - at_most(found - 1, 100, lower_bound(found, 100, 0.95)) == pytest.approx(0.05)


def test_the_tail_is_the_sum_of_its_terms():
    exact = sum(math.comb(20, k) * 0.3**k * 0.7 ** (20 - k) for k in range(8))
    assert at_most(7, 20, 0.3) == pytest.approx(exact)
    assert (at_most(20, 20, 0.3), at_most(3, 20, 0.0), at_most(3, 20, 1.0)) == (1.0, 1.0, 0.0)


@pytest.mark.parametrize(("found", "of"), [(0, 299), (3, 400), (399, 400), (7, 10**6)])
def test_a_calibration_keeps_to_the_same_bound(found, of):
    """It computes its own: neither of the two pure packages may import the other."""
    for confidence in (0.5, 0.95, 0.999):
        ours = upper_bound(found, of, confidence)
        assert calibration.upper_bound(found, of, confidence) == pytest.approx(ours, rel=1e-6)


def test_millions_do_not_underflow():
    assert 0.0099 < lower_bound(10_100, 1_000_000, 0.95) < upper_bound(10_100, 10**6, 0.95) < 0.0103
