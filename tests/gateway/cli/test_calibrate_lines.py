"""A line of a calibration log: what may be in it, and what is told."""

import pytest

from embeddings.verify.resemblance import Features
from gateway.cli.offline.calibrate import Judgement, LabelledPair, WouldBeHit, parse_line
from gateway.server.admin.recorded_request import InvalidFieldError

CHECK = {
    "time": 1.0,
    "rule": "default",
    "kind": "shadow",
    "similarity": 0.93,
    "score": 0.75,
    "outcome": "equal",
    "verifier": "ab",
}
PAIR = {"asked": "a", "stored": "b", "same": True}


@pytest.mark.parametrize(
    ("line", "meant"),
    [
        (CHECK, WouldBeHit(0.75, wrong=False, verifier="ab")),
        (CHECK | {"outcome": "different"}, WouldBeHit(0.75, wrong=True, verifier="ab")),
        (CHECK | {"outcome": "unsure"}, WouldBeHit(0.75, wrong=True, verifier="ab", unsure=True)),
        (
            CHECK | {"kind": "near-miss", "score": 1},
            WouldBeHit(1.0, wrong=False, verifier="ab", selected=True),
        ),
        (
            CHECK | {"kind": "near-miss", "shadow": True},
            WouldBeHit(0.75, wrong=False, verifier="ab"),
        ),
        (
            CHECK | {"kind": "served", "characters": 9, "overlap": 0.5},
            WouldBeHit(*(0.75, False, "ab"), selected=True, features=Features(0.93, 0.75, 9, 0.5)),
        ),
        (
            CHECK | {"characters": None, "overlap": None},
            WouldBeHit(0.75, wrong=False, verifier="ab"),
        ),
        (PAIR, LabelledPair("a", "b", same=True)),
        (PAIR | {"same": False, "note": "by Kim"}, LabelledPair("a", "b", same=False)),
        ({"kind": "reset", "rule": "default"}, None),
        (CHECK | {"kind": "served", "alias": True}, None),
        (
            {"kind": "judged", "entry": "a", "key": "b", "of": 1.0, "same": True, "time": 2.0},
            Judgement(("a", "b", 1.0), same=True),
        ),
        (CHECK | {"alias": False}, WouldBeHit(0.75, wrong=False, verifier="ab")),
    ],
)
def test_what_a_line_means(line, meant):
    assert parse_line(line) == meant


@pytest.mark.parametrize(
    ("line", "told"),
    [
        (None, "expected a comparison"),
        ([], "expected a comparison"),
        ({}, "expected a comparison"),
        ({"kind": 7, "outcome": "equal"}, "expected a comparison"),
        (CHECK | {"outcome": "perhaps"}, "expected a comparison"),
        (CHECK | {"score": None}, "score: expected a number"),
        (CHECK | {"score": True}, "score: expected a number"),
        (CHECK | {"score": float("nan")}, "score: expected a number from 0 to 1"),
        (CHECK | {"score": 1.5}, "score: expected a number from 0 to 1"),
        (CHECK | {"verifier": ""}, "verifier: exp"),
        (CHECK | {"characters": "9", "overlap": 0.5}, "characters: expected a number"),
        (CHECK | {"characters": 9, "overlap": float("nan")}, "overlap: expected a number"),
        (CHECK | {"characters": 9}, "overlap: expected a number"),
        (CHECK | {"similarity": None, "characters": 9, "overlap": 0}, "similarity: expected"),
        (
            {name: value for name, value in CHECK.items() if name != "verifier"},
            "verifier: expected",
        ),
        ({"asked": "a", "stored": "b"}, "expected asked and stored as text, and same: true"),
        (PAIR | {"same": "yes"}, "expected asked and stored as text, and same: true"),
        (PAIR | {"asked": 7}, "expected asked and stored as text, and same: true"),
    ],
)
def test_what_is_no_such_line_is_told(line, told):
    with pytest.raises(InvalidFieldError, match=told):
        parse_line(line)
