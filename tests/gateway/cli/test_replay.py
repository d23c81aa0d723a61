"""Recorded decisions through the simulated cache."""

from dataclasses import replace

import pytest
from example_requests import DECISION

from gateway.cli.offline.policy import read_record, replay_records
from gateway.server.admin.recorded_request import InvalidFieldError
from gateway.telemetry.decision_log import decision_record
from policies.decision import PiiAction, Scope
from policies.recorded import RecordedPolicy

BOTH = replace(DECISION, max_wrong_hits=0.01)  # a lifetime of 600 s


def record(time, form="a", **changes):
    values = {
        "time": time,
        "endpoint": "/v1/chat/completions",
        "model": "m",
        "rule": "default",
        "decision": decision_record(BOTH),
        "form": form,
        "scopes": {"tenant": "t", "user": None, "public": "p"},
        "key": f"key-{form}",
        "outcome": "miss",
        "tokens": 10,
    }
    return read_record({**values, **changes})


def replayed(records, calibrations=(), **edited):
    return replay_records(records, RecordedPolicy((), replace(BOTH, **edited)), calibrations)


def hits(report):
    return report.before.hits, report.after.hits


def test_the_same_policy_changes_nothing():
    report = replayed([record(0), record(10), record(20, "b"), record(700), record(800)])
    assert hits(report) == (2, 2)
    assert (report.gained, report.lost, report.unknown) == (0, 0, 0)
    assert report.after.tokens == 20
    assert (report.entries_before, report.entries_after) == (2, 2)


@pytest.mark.parametrize(
    ("edited", "expected"),
    [({"lifetime": 1000.0}, (1, 2)), ({"lifetime": 5.0}, (1, 0)), ({"exact": False}, (1, 0))],
)
def test_a_lifetime_or_a_switch_gains_and_loses_hits(edited, expected):
    report = replayed([record(0), record(10), record(700)], **edited)
    assert hits(report) == expected
    assert report.gained - report.lost == expected[1] - expected[0]


def test_a_scope_that_more_share_gains_hits_and_one_without_a_user_is_not_looked_up():
    other = {"tenant": "u", "user": "kim", "public": "p"}
    records = [record(0), record(1, scopes=other), record(2, scopes=other)]
    assert hits(replayed(records)) == (1, 1)
    assert hits(replayed(records, scope=Scope.PUBLIC)) == (1, 2)
    report = replayed(records, scope=Scope.USER)
    assert (report.after.hits, report.after.bypasses) == (1, 1)


def test_what_was_declined_is_stored_only_where_the_edited_rule_admits_it():
    cut = [record(0, declined="truncated"), record(1)]
    assert hits(replayed(cut)) == (0, 0)
    assert hits(replayed(cut, finish_reasons=frozenset({"stop", "length"}))) == (0, 1)
    personal = [record(0, declined="pii"), record(1)]
    assert hits(replayed(personal, pii=PiiAction.ALLOW)) == (0, 1)
    assert hits(replayed([record(0, declined="unclean"), record(1)], pii=PiiAction.ALLOW)) == (0, 0)


def test_what_bypassed_for_the_policy_may_be_looked_up_under_another():
    off = {**decision_record(BOTH), "exact": False, "semantic": False}
    for reason, found in (("policy", 1), ("no-store", 0), ("store-true", 0)):
        records = [record(n, outcome="bypass", reason=reason, decision=off) for n in (0, 1)]
        assert hits(replayed(records)) == (0, found)
    personal = [record(n, outcome="bypass", reason="pii") for n in (0, 1)]
    assert hits(replayed(personal)) == (0, 0)
    assert hits(replayed(personal, pii=PiiAction.ALLOW)) == (0, 1)


def test_hotter_requests_than_the_edited_rule_allows_are_not_looked_up():
    records = [record(n, temperature=1.0) for n in (0, 1)]
    assert hits(replayed(records, max_temperature=0.5)) == (1, 0)
    assert hits(replayed(records, max_temperature=1)) == (1, 1)


def test_a_recorded_semantic_hit_stays_while_its_source_is_near_and_fresh():
    near = {"outcome": "hit", "reason": "semantic", "source": "key-a", "similarity": 0.95}
    records = [record(0), record(10, "b", **near)]
    assert hits(replayed(records)) == (1, 1)
    assert hits(replayed(records, min_similarity=0.96)) == (1, 0)
    assert hits(replayed(records, semantic=False)) == (1, 0)
    assert hits(replayed(records, lifetime=5.0)) == (1, 0)


NEAR = {"outcome": "hit", "reason": "semantic", "source": "key-a", "similarity": 0.95}
SURE = {**NEAR, "score": 0.95, "threshold": 0.9}
OURS = {0.01: 0.9, 0.005: 0.94, 0.002: 0.96, 0.001: None}.get
ANOTHERS = {0.01: 0.7, 0.005: 0.999}.get


@pytest.mark.parametrize(
    ("budget", "calibrations", "stays", "unjudged"),
    [
        (0.01, (), True, 0),
        (0.05, (), True, 0),
        (0.005, (ANOTHERS, OURS), True, 0),
        (0.002, (ANOTHERS, OURS), False, 0),
        (0.001, (ANOTHERS, OURS), False, 0),
        (0.005, (ANOTHERS,), True, 1),
        (0.005, (), True, 1),
    ],
)
def test_a_stricter_budget_loses_the_hits_that_were_not_as_sure(
    budget, calibrations, stays, unjudged
):
    records = [record(0), record(10, "b", **SURE)]
    report = replayed(records, calibrations, max_wrong_hits=budget)
    assert hits(report) == (1, int(stays))
    assert report.unjudged == unjudged


@pytest.mark.parametrize(
    "line",
    [
        None,
        [],
        {},
        {"time": 1},
        {
            "time": 1,
            "endpoint": "e",
            "model": "m",
            "rule": "r",
            "form": "f",
            "scopes": {},
            "key": "k",
            "outcome": "miss",
            "decision": {"exact": True},
        },
    ],
)
def test_what_is_not_a_record_is_told(line):
    with pytest.raises(InvalidFieldError):
        read_record(line)


def test_a_rule_in_shadow_has_no_semantic_hits():
    records = [
        record(0),
        record(1, "b", outcome="hit", reason="semantic", source="key-a", similarity=0.95),
    ]
    assert hits(replayed(records))[1] == 1
    assert hits(replayed(records, shadow=True))[1] == 0
