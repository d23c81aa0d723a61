"""A threshold that follows from an error budget, and the file it is kept in."""

import json
import math
import random

import pytest

from embeddings.verify.binomial import upper_bound
from embeddings.verify.calibration import (
    Calibration,
    CalibrationError,
    Step,
    calibrated,
    least_hits,
    parse_calibration,
    written_calibration,
)


def clean(count, wrong=()):
    """Points with scores from 1 down; ``wrong`` are places counted from the surest."""
    return [(1 - place / (2 * count), place in wrong) for place in range(count)]


@pytest.mark.parametrize(
    ("budget", "hits"),
    [(0.2, 14), (0.05, 59), (0.02, 149), (0.01, 299), (0.005, 598), (0.001, 2995), (1e-4, 29956)],
)
def test_a_budget_needs_a_known_number_of_clean_hits(budget, hits):
    assert least_hits(budget) == hits
    assert upper_bound(0, hits, 0.95) <= budget < upper_bound(0, hits - 1, 0.95)


def test_298_clean_hits_are_too_few_for_one_percent_and_299_suffice():
    assert calibrated(clean(298), verifier="v").threshold(0.01) is None
    points = clean(299)
    assert calibrated(points, verifier="v").threshold(0.01) == points[-1][0]


def test_a_set_with_a_wrong_one_among_few_hits_gives_no_threshold():
    assert calibrated(clean(400, wrong={3}), verifier="v").threshold(0.01) is None


def test_a_larger_set_has_room_for_a_few_wrong_ones_among_the_surest():
    step = calibrated(clean(5000, wrong={3, 10}), verifier="v").step(0.01)
    assert (step.hits, step.wrong) == (5000, 2)


def test_the_search_ends_where_the_wrong_ones_begin():
    points = clean(3000, wrong=set(range(1500, 3000, 2)))
    step = calibrated(points, verifier="v").step(0.01)
    assert 1450 < step.hits < 1550
    assert step.threshold == points[step.hits - 1][0]
    assert upper_bound(step.wrong, step.hits, 0.95) <= 0.01


def test_hits_of_an_equal_score_are_kept_or_refused_together():
    right = [(0.75, False)] * 2000
    assert calibrated(right, verifier="v").step(0.01) == Step(0.75, 2000, 0)
    mixed = [(0.9, False)] * 400 + [(0.75, False)] * 500 + [(0.75, True)] * 500
    random.Random(3).shuffle(mixed)
    assert calibrated(mixed, verifier="v").step(0.01) == Step(0.9, 400, 0)


def test_a_verifier_that_knows_no_shades_is_calibrated_by_its_one_score():
    calibration = calibrated([(1.0, place == 7) for place in range(1759)], verifier="v")
    assert (calibration.threshold(0.01), calibration.threshold(0.003)) == (1.0, 1.0)
    assert calibration.threshold(0.002) is None


def test_the_order_of_the_points_makes_no_difference():
    points = clean(2000, wrong={900, 1200, 1800, 1900})
    mixed = random.Random(4).sample(points, len(points))
    assert calibrated(mixed, verifier="v") == calibrated(points, verifier="v")


def test_nothing_is_known_of_no_points():
    calibration = calibrated([], verifier="v")
    assert calibration.hits == 0
    assert calibration.threshold(0.2) is None


@pytest.mark.parametrize("budget", [0.0, -0.01, 1.0, 2.0, math.nan, math.inf])
def test_what_is_no_budget_lets_nothing_hit(budget):
    assert calibrated(clean(1000), verifier="v").threshold(budget) is None


@pytest.mark.parametrize("score", [math.nan, math.inf, -0.01, 1.01])
def test_what_is_no_score_is_refused(score):
    with pytest.raises(CalibrationError, match="score from 0 to 1"):
        calibrated([(0.5, False), (score, False)], verifier="v")


def test_a_threshold_is_searched_for_once_a_budget(monkeypatch):
    calibration = calibrated(clean(1000), verifier="v")
    first = calibration.threshold(0.01)
    monkeypatch.setattr(Calibration, "_last_within", None)
    assert calibration.threshold(0.01) == first
    with pytest.raises(TypeError):
        calibration.threshold(0.02)


def made():
    return calibrated(
        clean(2000, wrong={1200}), verifier="ab" * 32, confidence=0.9, provenance='of "ours"\n'
    )


def test_a_file_brings_back_what_was_written():
    assert parse_calibration(written_calibration(made()), "c.json") == made()
    empty = calibrated([], verifier="v")
    assert parse_calibration(written_calibration(empty), "c.json") == empty


def test_a_large_set_is_a_small_file():
    points = [(0.3, False), *clean(100_000)]
    assert len(written_calibration(calibrated(points, verifier="v"))) < 20_000


def test_the_file_of_another_verifier_is_refused():
    data = written_calibration(made())
    parse_calibration(data, "c.json", verifier="ab" * 32)
    with pytest.raises(
        CalibrationError, match=r"^c\.json: verifier: it is of verifier abababababababab, and"
    ):
        parse_calibration(data, "c.json", verifier="cd" * 32)


def changed(**changes):
    read = json.loads(written_calibration(made()))
    read.update(changes)
    return {name: value for name, value in read.items() if value is not ...}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "expected JSON"),
        (b"\xff", "expected JSON"),
        (b"[" * 100_000, "expected JSON"),
        (b"[]", "Input should be an object"),
        (written_calibration(made()).replace(b"{", b'{"format":1,', 1), "format: expected it once"),
        (b'{"format": NaN}', "format: Input should be"),
        (changed(format=2), "format: Input should be"),
        (changed(format=True), "format: Input should be"),
        (changed(verifier=...), "verifier: Field required"),
        (changed(verifier=""), "verifier: String should have"),
        (changed(verifier=7), "verifier: Input should be a valid string"),
        (changed(surplus=1), "surplus: Extra inputs"),
        (changed(confidence=1), "confidence: Input should be less than 1"),
        (changed(confidence=math.nan), "confidence: Input should be"),
        (changed(steps=[[math.nan, 3, 0]]), r"steps\[0\]\[0\]: Input should be"),
        (changed(confidence=True), "confidence: Input should be a valid number"),
        (changed(provenance=None), "provenance: Input should be a valid string"),
        (changed(steps={}), "steps: Input should be a valid array"),
        (changed(steps=[[0.5, 3]]), r"steps\[0\]\[2\]: Field required"),
        (changed(steps=[[0.5, 3, True]]), r"steps\[0\]\[2\]: Input should be a valid integer"),
        (changed(steps=[[0.5, 3.5, 0]]), r"steps\[0\]\[1\]: Input should be a valid integer"),
        (changed(steps=[[1.5, 3, 0]]), r"steps\[0\]\[0\]: Input should be less"),
        (changed(steps=[[0.5, 0, 0]]), r"steps\[0\]: expected a lower score and more hits"),
        (changed(steps=[[0.5, 3, 0], [0.5, 4, 0]]), r"steps\[1\]: expected a lower score"),
        (changed(steps=[[0.5, 3, 0], [0.4, 3, 0]]), r"steps\[1\]: expected a lower score"),
        (changed(steps=[[0.5, 3, 1], [0.4, 4, 0]]), r"steps\[1\]: expected 0 to 1 more wrong"),
        (changed(steps=[[0.5, 3, 1], [0.4, 4, 3]]), r"steps\[1\]: expected 0 to 1 more wrong"),
        (changed(steps=[[0.5, 3, 4]]), r"steps\[0\]: expected 0 to 3 more wrong"),
    ],
)
def test_a_file_that_is_wrong_is_refused_with_its_name_and_key(content, message):
    data = content if isinstance(content, bytes) else json.dumps(content).encode()
    with pytest.raises(CalibrationError, match=rf"^c\.json: {message}"):
        parse_calibration(data, "c.json")
