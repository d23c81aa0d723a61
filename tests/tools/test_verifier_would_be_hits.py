"""Written logs through the real encoder, guards and verifier."""

import pytest

from embeddings.encoder.model_files import VERIFIER_DIRECTORY
from embeddings.verify.recipe import weighed
from embeddings.verify.verifier import load_verifier
from tools.verifier.groups import Group, read_groups
from tools.verifier.ranking import main
from tools.verifier.would_be_hits import Candidate, candidates, hits

GROUPS = [
    Group(
        ("How do I reset my password?", "How can I reset my password?"),
        ("How do I reset my router?", "Why is the sky blue?"),
    ),
    Group(("How do I descale a kettle?", "how do i descale my kettle"), ("Who invented it?",)),
]


@pytest.fixture(scope="module")
def verifier():
    return load_verifier(VERIFIER_DIRECTORY, threads=1)


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
    sure, near = Candidate(0.8, 0.8, wrong=True), Candidate(0.7, 0.95, wrong=False)
    assert list(hits([[sure, near], []], 0.0)) == [(pytest.approx(0.8), True)]
    assert list(hits([[sure, near], []])) == [(weighed(0.7, 0.95), False)]


def test_the_ranking_counts_the_wrong_among_the_surest(tmp_path, capsys):
    lines = [
        f"How do I reset my password on site {n}?\n= How can I reset my password on site {n}?\n"
        f"! How do I reset my router at site {n}?\n"
        for n in range(110)
    ]
    (tmp_path / "a.txt").write_text("\n".join(lines))
    assert len(read_groups(tmp_path)) == 110
    assert main(["--log", str(tmp_path)]) == 0
    head, *rows = capsys.readouterr().out.splitlines()
    assert head.split()[-1] == "100"
    assert {row.split()[-1] for row in rows} == {"0"}
    assert len(rows) == 7


def test_a_log_that_cannot_be_read_is_named(tmp_path, capsys):
    (tmp_path / "a.txt").write_text("= no seed\n")
    assert main(["--log", str(tmp_path)]) == 1
    assert "a.txt:1: a group begins with its seed" in capsys.readouterr().err
