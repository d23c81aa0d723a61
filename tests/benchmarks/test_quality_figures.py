"""Intervals, rows and table of the quality benchmark."""

import json
from dataclasses import replace
from fractions import Fraction
from math import comb

import pytest
from quality.outcomes import Outcome, Share, Try, right_among_hits, wrong_among_hits
from quality.rows import ROWS, counted
from quality.table import ablation, as_json, cell, errors, markdown, table
from quality.trial import Request, Trial, pairs

from gateway.semantic.ports import Verification


@pytest.mark.parametrize(("part", "whole"), [(0, 10), (10, 10), (5, 10), (1, 100), (59, 100)])
def test_the_interval_is_clopper_and_pearsons(part, whole):
    low, high = Share(part, whole).interval
    # So many or more at the lower end, so many or fewer at the upper one: a fortieth each.
    assert low == 0 if part == 0 else likelihood(whole, low, part, whole) == pytest.approx(0.025)
    assert high == 1 if part == whole else likelihood(whole, high, 0, part) == pytest.approx(0.025)


def likelihood(whole, share, least, most):
    """Return the exact probability of between `least` and `most` of `whole`."""
    p = Fraction(share)
    counts = range(least, most + 1)
    return float(sum(comb(whole, n) * p**n * (1 - p) ** (whole - n) for n in counts))


def test_of_nothing_nothing_is_known():
    assert Share.of([]).value is None
    assert Share.of([]).interval == (0.0, 1.0)
    assert cell(Share(0, 0)) == "no hits"


def test_a_cell_holds_the_share_and_both_ends():
    assert cell(Share(5, 10)) == "50.0% (18.7-81.3)"


def outcome(served, *, answer="its", group="", reason="semantic"):
    return Outcome(Request("a", answer, group), served, reason if served else "miss")


def test_a_hit_is_right_only_with_the_answer_that_belongs_to_it():
    outcomes = [outcome("its"), outcome("another"), outcome("its", answer=None), outcome(None)]
    assert wrong_among_hits(outcomes) == Share(2, 3)
    assert right_among_hits(outcomes) == Share(1, 3)


def tried(*verifications, answer="its"):
    tries = [
        Try(f"stored {number}", str(number), 0.9, verification)
        for number, verification in enumerate(verifications)
    ]
    return Outcome(Request("a", answer), None, "miss", tuple(tries))


def test_at_a_threshold_the_nearest_candidate_that_reaches_it_is_served():
    outcome = tried(Verification(0.9, "number"), Verification(0.4), Verification(0.8))
    assert outcome.at(0.5).served == "2"
    assert outcome.at(0.4).served == "1"
    assert outcome.at(0.9).served is None


def test_an_exact_hit_stays_one_at_any_threshold():
    assert outcome("its", reason="exact").at(2.0).hit


def test_pairs_share_nothing_with_one_another():
    trial = pairs("some", [("a", "b", True, "x"), ("a", "c", False, "y")])
    assert len({request.realm for request in trial.stored}) == 2
    assert [request.answer for request in trial.asked] == ["its", None]


def test_a_sample_is_the_same_each_time_and_keeps_the_realms_asked():
    trial = pairs("some", [(f"a{n}", f"b{n}", True, "") for n in range(100)])
    sample = trial.sampled(10)
    assert sample == trial.sampled(10)
    assert len(sample.asked) == len(sample.stored) == 10
    assert {each.realm for each in sample.asked} == {each.realm for each in sample.stored}


def test_a_sample_of_one_shared_cache_keeps_all_that_is_stored():
    stored = tuple(Request(f"s{n}", "x") for n in range(50))
    asked = tuple(Request(f"a{n}", "x") for n in range(50))
    assert len(Trial("some", stored, asked).sampled(5).stored) == 50


def test_rows_of_trials_that_were_not_run_are_left_out():
    assert counted({}) == {}
    rows = counted({"banking77": {"whole": [outcome("its")]}})
    assert {row.trial for row in rows} == {"banking77"}


def test_the_table_says_what_was_missed():
    results = {"checklist": {"whole": [outcome("its", answer=None), outcome(None)]}}
    text = "\n".join(table(counted(results), "whole"))
    assert "MISSED" in text
    assert "100.0%" in text


def test_no_hits_at_all_are_no_wrong_ones_but_no_hit_rate_either():
    shares = {row.name: row.met(Share(0, 0)) for row in ROWS}
    assert shares["GSM-Plus, wrong among hits"] is True
    assert shares["GSM-Plus, rephrased problems hit"] is False


def test_figures_are_written_as_json():
    results = {"banking77": {"whole": [outcome("its"), outcome("another")]}}
    written = json.loads(json.dumps(as_json(counted(results))))
    part, whole, share, low, high = written["BANKING77, wrong intent among hits"]["whole"]
    assert (part, whole, share) == (1, 2, 0.5)
    assert low < share < high


def test_only_the_identical_question_leaves_the_reworded_ones():
    (row,) = (row for row in ROWS if row.name.strip() == "of those in other words")
    same = outcome("its", reason="exact")
    assert row.count([same, outcome("its"), replace(same, request=Request("a", None))]) == Share(
        1, 1
    )


def test_the_table_of_a_document_has_a_cell_for_each_system_and_the_goal():
    results = {"banking77": {"cosine": [outcome("its")], "whole": [outcome(None)]}}
    head, _, *rows = markdown(counted(results))
    assert head == "| | cosine | whole | goal |"
    assert {row.count("|") for row in rows} == {5}


def test_an_ablation_leaves_out_each_guard_and_leaves_the_first_reason_of_a_pair_alone():
    judged = [
        tried(Verification(0.9, "number"), Verification(0.95), answer="0"),
        tried(Verification(0.2, "number"), answer="0"),
        tried(Verification(0.8, "name"), answer="0"),
    ]
    lines = ablation({"some": judged}, 0.5)
    told = {line.split("  ")[0]: line.split("  ", 1)[1].split() for line in lines[1:]}
    assert told == {
        "all guards and the score": ["0,", "1"],
        "without number (2 refused)": ["1,", "0"],
        "without name (1 refused)": ["1,", "1"],
        "without any guard": ["2,", "0"],
        "without the score": ["0,", "1"],
    }


def test_a_wrong_hit_is_told_with_the_candidate_that_was_served():
    served = tried(Verification(0.9, "number"), Verification(0.8), Verification(0.99)).at(0.5)
    told = "\n".join(errors([served, tried(Verification(0.1), answer="0")], 5))
    assert "1 wrong hits" in told
    assert "score 0.8000; stored: stored 1" in told
    assert "1 misses for which a right answer was verified" in told
