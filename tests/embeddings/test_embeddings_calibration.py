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
from embeddings.verify.resemblance import Features


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


def test_the_curve_goes_from_the_surest_down_in_even_steps():
    calibration = calibrated(clean(800, wrong={799}), verifier="v")
    curve = calibration.curve(8)
    assert len(curve) == 8
    for number, step in enumerate(curve, 1):
        assert 100 * number <= step.hits <= 103 * number
    assert curve[-1] == Step(calibration.steps[-1].threshold, 800, 1)
    assert [step.hits for step in calibrated(clean(3), verifier="v").curve(8)] == [1, 2, 3]
    assert calibrated([], verifier="v").curve(8) == []


@pytest.mark.parametrize(("hits", "needed"), [(0, 299), (100, 199), (298, 1)])
def test_how_many_more_clean_hits_a_budget_needs(hits, needed):
    calibration = calibrated(clean(hits), verifier="v")
    assert calibration.hits_needed(0.01) == needed
    more = calibrated(clean(hits + needed), verifier="v")
    assert more.threshold(0.01) is not None


def test_hits_that_go_on_as_so_far_keep_the_budget_at_the_number_needed():
    # Each hit so far stands for as many of the larger set, right or wrong.
    needed = calibrated(clean(500, wrong={300}), verifier="v").hits_needed(0.005)
    grown = 500 + needed
    first_wrong = 300 * grown // 500
    assert first_wrong >= least_hits(0.005)
    assert calibrated(clean(grown, wrong={first_wrong}), verifier="v").threshold(0.005) is not None
    fewer = clean(grown - 100, wrong={300 * (grown - 100) // 500})
    assert calibrated(fewer, verifier="v").threshold(0.005) is None


def test_the_number_needed_reaches_the_step_at_which_the_search_begins():
    # At 401 hits the wrong one is at 301, and the first step over 299 is at 303.
    assert calibrated(clean(401, wrong={300}), verifier="v").threshold(0.01) is None
    grown = 374 + calibrated(clean(374, wrong={279}), verifier="v").hits_needed(0.01)
    assert 401 < grown < 415
    first_wrong = 279 * grown // 374
    assert calibrated(clean(grown, wrong={first_wrong}), verifier="v").threshold(0.01) is not None


def test_a_tiny_budget_needs_a_large_number_at_once():
    needed = calibrated(clean(500, wrong={499}), verifier="v").hits_needed(1e-6)
    assert 2_995_731 < needed < 3_200_000


def test_where_the_surest_are_wrong_no_number_would_do():
    calibration = calibrated(clean(500, wrong=set(range(0, 100, 5))), verifier="v")
    assert calibration.hits_needed(0.01) is None


def features(count, **fixed):
    names = {"cosine": 0.9, "score": 0.5, "characters": 30, "overlap": 0.25} | fixed
    return [Features(**names)._replace(score=place / count) for place in range(count)]


def test_the_features_of_the_hits_are_written_and_read():
    calibration = calibrated(clean(300), verifier="v", features=features(300))
    data = written_calibration(calibration)
    assert parse_calibration(data, "c") == calibration
    assert data.count(b"\n[") == 1 + len(calibration.steps)
    assert calibration.features["score"].hits == (30,) * 10


def test_few_features_are_left_out_of_the_file():
    calibration = calibrated(clean(300), verifier="v", features=features(199))
    assert calibration.features is None
    assert b"features" not in written_calibration(calibration)


@pytest.mark.parametrize(
    ("bins", "told"),
    [
        ({"deciles": [2.0, 1.0], "hits": [1, 1, 1]}, "features.*cosine.*expected rising deciles"),
        ({"deciles": [1.0, 2.0], "hits": [1, 1]}, "expected 3 numbers of hits"),
        ({"deciles": [1.0], "hits": [-1, 1]}, "greater than or equal to 0"),
        ({"deciles": [], "hits": [1]}, "at least 1 item"),
        ({"deciles": [1.0], "hits": [1, 1], "x": 1}, "Extra inputs"),
    ],
)
def test_damaged_features_are_told(bins, told):
    calibration = calibrated(clean(300), verifier="v", features=features(300))
    file = json.loads(written_calibration(calibration))
    file["features"]["cosine"] = bins
    with pytest.raises(CalibrationError, match=told):
        parse_calibration(json.dumps(file).encode(), "c")


def test_an_unknown_feature_is_told():
    file = json.loads(written_calibration(calibrated(clean(300), verifier="v")))
    file["features"] = {"colour": {"deciles": [1.0], "hits": [1, 1]}}
    with pytest.raises(CalibrationError, match=r"features.*colour"):
        parse_calibration(json.dumps(file).encode(), "c")
