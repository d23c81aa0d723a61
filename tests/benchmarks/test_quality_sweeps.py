"""Curves, their picture, and whether a budget is kept."""

from xml.etree import ElementTree as ET

import pytest
from quality.kept_budget import promises, would_be_hits
from quality.outcomes import Outcome, Share, Try
from quality.picture import Panel, by_meaning, curve, drawn, point
from quality.trial import Request

from gateway.semantic.ports import Verification


def tried(*scores, answer="its", group="", reason="miss"):
    """Make an outcome of candidates; a score below zero is a wrong candidate's."""
    tries = tuple(
        Try(f"stored {n}", "its" if score >= 0 else "other", 0.9, Verification(abs(score)))
        for n, score in enumerate(scores)
    )
    return Outcome(Request("asked", answer, group), None, reason, tries)


def test_a_curve_grows_by_hits_and_ends_with_all_that_can_be_served():
    points = curve([tried(0.9), tried(-0.8), tried(0.7), tried()])
    assert [each.hits.part for each in points] == sorted(each.hits.part for each in points)
    assert points[0].right == Share(1, 1)
    assert points[-1].right == Share(2, 3)
    assert points[-1].hits == Share(3, 4)


def test_nothing_to_serve_is_no_curve():
    assert curve([tried()]) == []


def test_a_curve_leaves_out_identical_questions_and_what_is_out_of_scope():
    same = Outcome(
        Request("asked", "its"), None, "miss", (Try("asked", "its", 1.0, Verification(1)),)
    )
    kept = tried(0.5)
    assert by_meaning([same, tried(0.9, group="oos"), tried(reason="exact"), kept]) == [kept]


def test_the_picture_is_well_formed_and_names_its_panels():
    outcomes = [tried(0.9), tried(-0.8), tried(0.7)]
    panel = Panel("Title & more", "what", curve(outcomes), [], {"0.85": point(outcomes, 0.85)}, {})
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
