"""What holds of every calibration, and how often a budget is kept on traffic like it."""

import random

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from embeddings.verify.binomial import upper_bound
from embeddings.verify.calibration import calibrated, parse_calibration, written_calibration

SETS = 300
SIZE = 800

points = st.lists(st.tuples(st.integers(0, 30).map(lambda n: n / 30), st.booleans()), max_size=300)


def grown(seed, size):
    """Return a set whose wrong hits gather among the less sure ones, with ties."""
    draw = random.Random(seed)
    doubt, digits = draw.random() * 0.3, draw.choice((1, 2, 3, 9))
    scores = [round(draw.random(), digits) for _ in range(size)]
    return [(score, draw.random() < doubt * (1 - score) ** 3) for score in scores]


@given(points, st.floats(1e-4, 0.9), st.floats(1e-4, 0.9))
def test_a_larger_budget_never_keeps_fewer_hits(chosen, one, other):
    calibration = calibrated(chosen, verifier="v")
    less, more = sorted((one, other))
    strict, loose = calibration.threshold(less), calibration.threshold(more)
    assert strict is None or (loose is not None and loose <= strict)


@given(st.integers(0, 10**6), st.integers(0, 4000), st.floats(1e-3, 0.2), st.floats(1e-3, 0.2))
def test_a_larger_budget_never_keeps_fewer_hits_of_a_large_set(seed, size, one, other):
    calibration = calibrated(grown(seed, size), verifier="v")
    less, more = sorted((one, other))
    strict, loose = calibration.threshold(less), calibration.threshold(more)
    assert strict is None or (loose is not None and loose <= strict)


def scaled(chosen, size):
    """Return so many hits with the same share of wrong ones at the same rank, rounded up."""
    before = [0]
    for _, is_wrong in sorted(chosen, reverse=True):
        before.append(before[-1] + is_wrong)
    wrong, found = 0, []
    for surest in range(1, size + 1):
        rank = -(-surest * len(chosen) // size)
        is_wrong = wrong < -(-before[rank] * size // len(chosen))
        wrong += is_wrong
        found.append((1 - surest / (size + 1), is_wrong))
    return found


def moved(chosen, size):
    """Return so many hits with the same number of wrong ones, each at the same share of ranks."""
    ranks = [rank for rank, (_, wrong) in enumerate(sorted(chosen, reverse=True)) if wrong]
    places = {rank * size // len(chosen) for rank in ranks}
    return [(1 - place / size, place in places) for place in range(size)]


@given(
    st.integers(1, 800),
    st.lists(st.integers(0, 799), max_size=4),
    st.sampled_from((0.2, 0.1, 0.05, 0.02, 0.01)),
    st.sampled_from((0.9, 0.95)),
)
@example(374, [279], 0.01, 0.95)
def test_so_many_more_hits_as_are_needed_give_a_threshold(size, wrong, budget, confidence):
    chosen = [(1 - place / size, place in wrong) for place in range(size)]
    more = calibrated(chosen, verifier="v", confidence=confidence).hits_needed(budget)
    if more is not None:
        assert more > 0
        for grow in (scaled, moved):
            grown = calibrated(grow(chosen, size + more), verifier="v", confidence=confidence)
            assert grown.threshold(budget) is not None


@given(points, st.floats(1e-4, 0.9), st.floats(0.5, 0.99))
def test_what_is_kept_is_within_the_budget_by_its_bound(chosen, budget, confidence):
    step = calibrated(chosen, verifier="v", confidence=confidence).step(budget)
    if step is not None:
        kept = [wrong for score, wrong in chosen if score >= step.threshold]
        assert (len(kept), sum(kept)) == (step.hits, step.wrong)
        assert upper_bound(step.wrong, step.hits, confidence) <= budget + 1e-9


@given(points)
def test_a_file_decides_as_the_points_do(chosen):
    calibration = calibrated(chosen, verifier="v")
    again = parse_calibration(written_calibration(calibration), "file", verifier="v")
    assert again == calibration


@pytest.mark.parametrize(
    ("law", "wrong", "true_share"),
    [
        ("wrong ones among the unsure", lambda u: 0.0005 + 0.2 * u**3, lambda t: 5e-4 + t**3 / 20),
        ("ever more wrong ones", lambda u: 0.03 * u, lambda t: 0.015 * t),
        ("a score that tells nothing, a hair over budget", lambda _: 0.0201, lambda _: 0.0201),
    ],
)
def test_the_true_share_of_wrong_hits_is_over_the_budget_in_one_set_of_twenty_at_most(
    law, wrong, true_share
):
    """``wrong`` is the error at a doubt of 1 - score, ``true_share`` that of all hits up to it."""
    draw = random.Random(law)
    broken = 0
    for _ in range(SETS):
        doubts = [draw.random() for _ in range(SIZE)]
        chosen = [(1 - doubt, draw.random() < wrong(doubt)) for doubt in doubts]
        threshold = calibrated(chosen, verifier="v").threshold(0.02)
        broken += threshold is not None and true_share(1 - threshold) > 0.02
    # Five percent, and three standard deviations of the simulation.
    assert broken / SETS <= 0.05 + 3 * (0.05 * 0.95 / SETS) ** 0.5


def test_a_set_that_allows_hits_at_all_usually_finds_them():
    found = 0
    for seed in range(50):
        draw = random.Random(seed)
        doubts = [draw.random() for _ in range(SIZE * 2)]
        chosen = [(1 - doubt, draw.random() < 0.002 + 0.2 * doubt**3) for doubt in doubts]
        found += calibrated(chosen, verifier="v").threshold(0.02) is not None
    assert found >= 45
