"""Curves, their table and picture, and whether a budget is kept."""

import json
import random
from xml.etree import ElementTree as ET

import pytest
from quality.curves import (
    COSINE,
    Curve,
    as_json,
    by_meaning,
    curves,
    lines,
    point,
    sweep,
    thinned,
)
from quality.kept_budget import promises, would_be_hits
from quality.measuring import Measured
from quality.outcomes import Outcome, Share, Try
from quality.picture import Panel, drawn
from quality.trial import Request, Trial

from gateway.semantic.ports import Verification


def tried(*scores, answer="its", group="", reason="miss"):
    """Make an outcome of candidates; a score below zero is a wrong candidate's."""
    tries = tuple(
        Try(f"stored {n}", "its" if score >= 0 else "other", 0.9, Verification(abs(score)))
        for n, score in enumerate(scores)
    )
    return Outcome(Request("asked", answer, group), None, reason, tries)


def test_a_curve_grows_by_hits_and_ends_with_all_that_can_be_served():
    points = sweep([tried(0.9), tried(-0.8), tried(0.7), tried()])
    assert [each.hits.part for each in points] == sorted(each.hits.part for each in points)
    assert points[0].right == Share(1, 1)
    assert points[-1].right == Share(2, 3)
    assert points[-1].hits == Share(3, 4)


def test_nothing_to_serve_is_no_curve():
    assert sweep([tried()]) == []


def test_a_curve_leaves_out_identical_questions_and_what_is_out_of_scope():
    same = Outcome(
        Request("asked", "its"), None, "miss", (Try("asked", "its", 1.0, Verification(1)),)
    )
    kept = tried(0.5)
    assert by_meaning([same, tried(0.9, group="oos"), tried(reason="exact"), kept]) == [kept]


@pytest.mark.parametrize("seed", range(5))
def test_a_sweep_says_of_every_threshold_what_the_outcomes_say_at_it(seed):
    draw = random.Random(seed)
    outcomes = [
        tried(*(draw.choice((-1, 1)) * draw.randint(1, 12) / 12 for _ in range(draw.randint(0, 5))))
        for _ in range(60)
    ]
    outcomes.append(Outcome(Request("asked", "its"), "its", "exact"))
    points = sweep(outcomes)
    assert points == [point(outcomes, each.threshold) for each in points]
    scores = {each.verification.score for outcome in outcomes for each in outcome.tries}
    changing = [point(outcomes, score) for score in sorted(scores, reverse=True)]
    assert {(each.hits, each.right) for each in changing} == {
        (each.hits, each.right) for each in points
    }


def test_a_nearer_candidate_takes_over_once_the_threshold_lets_it():
    points = sweep([tried(-0.5, 0.9, 0.7)])
    assert [(each.threshold, each.right.part, each.hits.part) for each in points] == [
        (0.9, 1, 1),
        (0.5, 0, 1),
    ]


def test_a_thinned_curve_has_both_ends_and_few_points_between():
    points = sweep([tried(n / 1000) for n in range(1, 500)])
    few = thinned(points, 10)
    assert (few[0], few[-1], len(few)) == (points[0], points[-1], 10)
    assert thinned(points[:3], 10) == points[:3]


ONE_WRONG_IN_FIVE = [tried(0.9), tried(0.8), tried(-0.7), tried(0.6), tried(0.5), tried()]


def test_a_system_is_read_at_a_hit_rate_and_at_a_share_of_wrong_hits():
    curve = Curve(sweep(ONE_WRONG_IN_FIVE), 6, 6)
    assert curve.at_hit_rate(0.5).wrong == Share(1, 3)
    assert curve.at_hit_rate(0.34).threshold == 0.7
    assert curve.at_hit_rate(0.9) is None
    assert curve.within(0.05).threshold == 0.8
    assert curve.within(0.2).threshold == 0.5
    assert curve.recall(curve.within(0.2)) == Share(4, 6)


def test_a_system_that_is_wrong_too_often_at_every_threshold_serves_nothing():
    nothing = Curve(sweep([tried(-0.9), tried(0.5)]), 2, 1).within(0.1)
    assert (nothing.hits, nothing.right) == (Share(0, 2), Share(0, 0))


def test_a_table_has_a_line_for_each_system_and_recall_beside_the_hit_rate():
    systems = {COSINE: Curve([], 6, 3), "whole": Curve(sweep(ONE_WRONG_IN_FIVE), 6, 5)}
    head, *_, cosine, whole = lines("some", systems)
    assert head == "some: 6 requests by meaning, 3 have a right answer"
    assert cosine.split() == ["plain", "cosine", *["0.0%,", "0.0%"] * 4]
    at_rates = ["0.0%", "0.0%", "0.0%", "33.3%", "33.3%", "25.0%", "20.0%"]
    assert whole.split() == ["whole", *at_rates, *["33.3%,", "40.0%"] * 4]


def test_curves_are_written_as_json():
    (written,) = json.loads(
        json.dumps(as_json({"whole": Curve(sweep(ONE_WRONG_IN_FIVE), 6, 5)}))
    ).values()
    assert written["wrong_at_hit_rate"]["0.5"] == pytest.approx(1 / 3, abs=1e-6)
    assert written["at_wrong_share"]["0.01"] == {
        "hit_rate": pytest.approx(1 / 3, abs=1e-6),
        "recall": 0.4,
        "threshold": 0.8,
    }


def test_all_systems_are_compared_over_what_the_gateways_exact_cache_has_not():
    stored = Request("asked", "its")
    elsewhere, again = Request("asked", None, history=(("user", "Hi."),)), Request("asked", "its")
    trial = Trial("some", (stored,), (elsewhere, again))
    same = (Try("asked", "its", 1.0, Verification(1.0)),)
    nearest = [Outcome(each, None, "miss", same) for each in trial.asked]
    judged = [Outcome(elsewhere, None, "miss"), Outcome(again, "its", "exact")]
    made = curves(Measured(trial, nearest, {"whole": judged}, {}))
    assert {(each.requests, each.answerable) for each in made.values()} == {(1, 0)}
    assert [each.wrong for each in made[COSINE].points] == [Share(1, 1)]
    assert made["whole"].points == []


def test_the_picture_is_well_formed_and_names_its_panels():
    outcomes = [tried(0.9), tried(-0.8), tried(0.7)]
    panel = Panel("Title & more", "what", sweep(outcomes), [], {"0.85": point(outcomes, 0.85)}, {})
    root = ET.fromstring(drawn([panel] * 3))
    texts = [element.text for element in root.iter("{http://www.w3.org/2000/svg}text")]
    assert texts.count("Title & more") == 3
    assert "0.85" in texts


def test_a_picture_of_no_curves_at_all_is_one():
    ET.fromstring(drawn([Panel("Title", "what", [], [], {}, {})]))


def test_the_best_candidate_is_the_would_be_hit_and_refused_ones_are_none():
    refused = Outcome(
        Request("asked", "its"), None, "miss", (Try("s", "its", 1.0, Verification(0.0, "number")),)
    )
    assert would_be_hits([tried(0.3, -0.8), tried(0.6), refused, tried()]) == [
        (0.8, True),
        (0.6, False),
    ]


def test_a_budget_that_can_be_kept_is_kept_and_one_that_cannot_yields_nothing():
    # One wrong in a thousand above one half, one in two below.
    good = [(0.5 + n / 8000, n % 1000 == 7) for n in range(4000)]
    bad = [(n / 8000, n % 2 == 0) for n in range(4000)]
    loose, impossible = promises(good + bad, 8000, (0.05, 0.0001), draws=40)
    assert loose.none == 0
    assert loose.broken.value <= 0.05 + 0.1
    assert loose.wrong == pytest.approx(0.04, abs=0.015)
    assert 0.5 < loose.hit_rate < 0.6
    assert impossible.none == 40
    assert impossible.wrong is None
