"""The calibration that ships with weights: a cache filled from groups, asked one by one."""

from random import Random

import pytest
from tiny_verifier import write_tiny_verifier

from embeddings.training.calibrating import filled, main, points
from embeddings.training.groups import Group
from embeddings.verifier import load_verifier
from embeddings.verify.calibration_file import parse_calibration

THINGS = ("password", "router", "kettle", "printer", "account", "phone", "watch", "lamp")
GROUPS = [
    Group(
        (f"How do I reset my {it}?", f"How can I reset my {it}?", f"Please reset my {it}, how?"),
        (f"How do I sell my {it}?", f"Where do I reset my {it}?"),
    )
    for it in THINGS
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_tiny_verifier(tmp_path_factory.mktemp("verifier"))


def test_one_question_of_each_group_is_asked_and_is_not_stored_itself():
    cache = filled(GROUPS, Random(1))
    assert [owner for _, owner in cache.asked] == list(range(len(GROUPS)))
    assert not {text for text, _ in cache.asked} & {text for text, _ in cache.stored}
    answered = [owner for _, owner in cache.stored if owner >= 0]
    assert 0 < len(answered) < len(GROUPS)
    assert len(cache.stored) == 2 * len(GROUPS) + len(answered)
    assert len(filled(GROUPS, Random(1), each=2).asked) == 2 * len(GROUPS)


def test_each_question_is_one_point_at_most_and_right_only_by_its_own_group(folder):
    verifier = load_verifier(folder, threads=1)
    cache = filled(GROUPS, Random(1))
    found = list(points(cache, verifier))
    assert 0 < len(found) <= len(cache.asked)
    assert sum(not wrong for _, wrong in found) <= sum(owner >= 0 for _, owner in cache.stored)
    assert all(0 <= score <= 1 for score, _ in found)


def test_what_is_written_is_of_the_verifier_and_says_of_what_it_was_made(folder, tmp_path, capsys):
    lines = []
    for group in GROUPS:
        seed, *same = group.same
        lines += [seed, *(f"= {text}" for text in same), *(f"! {text}" for text in group.misses)]
        lines.append("")
    (tmp_path / "held.txt").write_text("\n".join(lines))
    assert main([str(tmp_path), "--verifier", str(folder), "--each", "2"]) == 0
    digest = load_verifier(folder, threads=1).digest
    written = (folder / "calibration.json").read_bytes()
    assert "held-out groups" in parse_calibration(written, "c", verifier=digest).provenance
    assert "would-be hits" in capsys.readouterr().out


def test_a_directory_without_groups_is_told(folder, tmp_path, capsys):
    assert main([str(tmp_path), "--verifier", str(folder)]) == 1
    assert "no groups" in capsys.readouterr().err
