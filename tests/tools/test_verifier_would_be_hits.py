"""Written logs through the real encoder, guards and verifier."""

import pytest

from embeddings.encoder.model_files import VERIFIER_DIRECTORY
from embeddings.verify.recipe import weighed
from embeddings.verify.resemblance import features_of
from embeddings.verify.verifier import load_verifier
from tools.verifier.material.groups import Group, read_groups
from tools.verifier.material.people import Pair
from tools.verifier.ranking import main, right_at
from tools.verifier.would_be_hits import Candidate, candidates, hits, intents

GROUPS = [
    Group(
        ("How do I reset my password?", "How can I reset my password?"),
        ("How do I reset my router?", "Why is the sky blue?"),
    ),
    Group(("How do I descale a kettle?", "how do i descale my kettle"), ("Who invented it?",)),
]


@pytest.fixture(scope="module")
def verifier():
    return load_verifier(VERIFIER_DIRECTORY, threads=1, alone=True)


def test_each_question_asked_has_the_candidates_that_a_gateway_would_verify(verifier):
    plain, kettle, router, sky, who = candidates(GROUPS, verifier)
    assert [each.wrong for each in plain] == [False]
    assert [each.wrong for each in kettle] == [False]
    assert router == sky == who == []
    assert plain[0].cosine > 0.95


def test_a_near_miss_that_is_a_question_of_another_group_is_asked_once_and_no_wrong_hit(verifier):
    boil = "how long do I boil an egg"
    groups = [
        Group(("How do I peel an egg?", "how can I peel an egg"), (boil,)),
        Group(("How long do I boil an egg?", boil), ()),
    ]
    peel, other = candidates(groups, verifier)
    assert [each.wrong for each in peel] == [False]
    assert [each.wrong for each in other] == [False]


def test_the_surest_candidate_is_the_would_be_hit():
    sure = Candidate("a b", "a c", 0.8, 0.8, wrong=True)
    near = Candidate("a b", "a b c", 0.7, 0.95, wrong=False)
    (hit,) = hits([[sure, near], []], 0.0)
    assert hit[:2] == (pytest.approx(0.8), True)
    (hit,) = hits([[sure, near], []], 8.0)
    assert hit[:2] == (weighed(0.7, 0.95, 2 / 3, 8.0), False)
    assert hit.features == features_of("a b", "a b c", 0.95, hit.score)


def test_pairs_of_intents_are_candidates_where_they_are_near_and_no_guard_refuses(verifier):
    reset = "How do I reset my password?"
    pairs = [
        Pair(reset, "How can I reset my password?", True, "shop"),
        Pair(reset, "How do I change my password?", False, "shop"),
        Pair(reset, "Why is the sky blue?", False, "shop"),
    ]
    same, other, far = intents(pairs, verifier)
    assert [each.wrong for each in same] == [False]
    assert [each.wrong for each in other] == [True]
    assert far == []


def test_right_hits_are_counted_while_few_are_wrong():
    def candidate(score, wrong):
        return [Candidate("a", "b", score, 0.85, wrong)]

    log = [candidate(1 - place / 1000, place == 50) for place in range(200)]
    assert right_at(log, 0.0, 0.0, 0.0) == 50
    assert right_at(log, 0.005, 0.0, 0.0) == 199
    assert right_at([], 0.01, 0.0, 0.0) == 0


def test_the_ranking_has_a_row_for_each_pair_of_weights(tmp_path, capsys):
    lines = [
        f"How do I reset my password on site {n}?\n= How can I reset my password on site {n}?\n"
        f"! How do I reset my router at site {n}?\n"
        for n in range(20)
    ]
    (tmp_path / "a.txt").write_text("\n".join(lines))
    assert len(read_groups(tmp_path)) == 20
    assert main(["--log", str(tmp_path), "--alone"]) == 0
    _, head, shares, *rows = capsys.readouterr().out.splitlines()
    assert head.split()[-1] == "development"
    assert shares.split() == ["0.5%", "1.0%", "2.0%", "5.0%"]
    assert {row.split()[-1] for row in rows} == {"20"}
    assert len(rows) == 16


def test_a_log_that_cannot_be_read_is_named(tmp_path, capsys):
    (tmp_path / "a.txt").write_text("= no seed\n")
    assert main(["--log", str(tmp_path)]) == 1
    assert "a.txt:1: a group begins with its seed" in capsys.readouterr().err
