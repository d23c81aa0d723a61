"""Corrected labels, the hits that are to be read, and the trials of held-out pairs."""

import gzip
import json
import subprocess
import sys
from pathlib import Path

import pytest
from quality import corrected, sets
from quality.corrected import (
    AS_READ,
    READ,
    CorrectedLabelsError,
    as_read,
    read_corrections,
    to_read,
    with_read,
)
from quality.outcomes import Outcome, Share, Try, wrong_among_hits
from quality.rows import ROWS, counted
from quality.sets import MissingDataError, banking77, gsm_plus, people, rewordings
from quality.table import table
from quality.trial import Request, Trial

from gateway.semantic.ports import Verification
from tools.verifier.material.people import HELD_OUT_SOURCES
from tools.verifier.material.rewordings import Rewording, digest

STORED = (Request("lost card", "lost", row=3), Request("stolen card", "stolen", row=4))
ASKED = (Request("my card is gone", "stolen", row=8), Request("card?", "lost", row=9))
TRIAL = Trial("banking77", STORED, ASKED)


def hit(request, stored, score=0.9):
    found = Try(stored.text, stored.answer, score, Verification(score))
    return Outcome(request, stored.answer, "semantic", (found,))


def line(**more):
    row = {"set": "banking77", "asked": 8, "stored": 3, "same": True, "reason": "both are gone"}
    return json.dumps(row | more) + "\n"


def test_a_hit_that_was_read_counts_as_it_was_read_and_another_as_published():
    outcomes = [hit(ASKED[0], STORED[0]), hit(ASKED[1], STORED[0]), hit(ASKED[1], STORED[1])]
    assert wrong_among_hits(outcomes) == Share(2, 3)
    right, wrong = ({(8, 3): True}, {(8, 3): True, (9, 3): False})
    assert wrong_among_hits(as_read(TRIAL, outcomes, right)) == Share(1, 3)
    assert wrong_among_hits(as_read(TRIAL, outcomes, wrong)) == Share(2, 3)
    assert as_read(TRIAL, outcomes, {(80, 3): True}) == outcomes


def test_a_miss_stays_one_and_an_exact_hit_is_of_its_own_words():
    miss = Outcome(ASKED[0], None, "miss", hit(ASKED[0], STORED[0]).tries)
    same = Request("lost card", "stolen", row=7)
    exact = Outcome(same, "lost", "exact")
    trial = Trial("banking77", STORED, (*ASKED, same))
    assert (miss.found, exact.found) == (None, "lost card")
    read = as_read(trial, [miss, exact], {(8, 3): True, (7, 3): True})
    assert (read[0], read[1].right) == (miss, True)


def test_labels_as_read_stand_beside_the_published_ones_where_somebody_read():
    results = {"banking77": {"whole": [hit(ASKED[0], STORED[0])]}}
    found = counted(with_read([TRIAL], results, {"banking77": {(8, 3): True}, "gsm_plus": {}}))
    shares = {row.name: each["whole"] for row, each in found.items()}
    assert list(shares) == [
        "BANKING77, wrong intent among hits",
        "BANKING77, wrong intent among hits, labels as read",
        "BANKING77, hit rate",
    ]
    assert [each.part for each in shares.values()] == [1, 0, 1]
    head, *rows = table(found, "whole")
    assert {row.index(")") for row in rows} == {head.index("whole") + len("whole") - 1}
    assert with_read([TRIAL], results, {"banking77": {}}) == results


def test_every_set_that_is_read_has_a_row_of_corrected_labels():
    assert {f"{name}{AS_READ}" for name in READ} <= {row.trial for row in ROWS}


def test_corrected_labels_are_read_by_rows(tmp_path):
    file = tmp_path / "labels.jsonl"
    file.write_text(line() + line(set="gsm_plus", asked=1, same=False))
    assert read_corrections(file) == {"banking77": {(8, 3): True}, "gsm_plus": {(1, 3): False}}
    assert set(read_corrections(corrected.FILE)) == set(READ)


@pytest.mark.parametrize(
    "second",
    [
        "no json",
        "[]",
        "{}",
        line(set="qqp"),
        line(asked="8"),
        line(asked=1, same=1),
        line(asked=1, more=1),
        line(same=False),
    ],
)
def test_a_line_that_cannot_be_read_is_named(tmp_path, second):
    file = tmp_path / "labels.jsonl"
    file.write_text(line() + second)
    with pytest.raises(CorrectedLabelsError, match=r"labels\.jsonl:2: expected set, asked"):
        read_corrections(file)


def test_hits_to_read_are_wrong_ones_of_both_and_say_nothing_of_whose_they_are():
    asked = tuple(Request(f"q{n}", "lost", row=n + 10) for n in range(4))
    trial = Trial("banking77", STORED, asked)
    wrong = [hit(each, STORED[1], 0.9 - n / 10) for n, each in enumerate(asked)]
    nearest = [*wrong[:3], hit(asked[3], STORED[0])]
    rows = list(to_read(trial, [wrong[3], wrong[2]], 0.65, nearest))
    assert {(row["asked"], row["stored"]) for row in rows} == {(12, 4), (10, 4)}
    assert {tuple(row) for row in rows} == {("set", "asked", "stored", "asked_text", "stored_text")}
    assert {row["stored_text"] for row in rows} == {"stolen card"}
    assert list(to_read(trial, wrong, None, nearest)) == []


def test_requests_carry_the_line_of_the_data_file(tmp_path):
    rows = [{"text": f"text {n}", "intent": f"intent {n % 9}"} for n in range(7000)]
    written(tmp_path / "banking77.jsonl", rows)
    trial = banking77(tmp_path)
    assert {rows[each.row]["text"] == each.text for each in (*trial.stored, *trial.asked)} == {True}


def test_a_problem_has_the_line_of_its_first_variant(tmp_path):
    row = {"seed_answer": "5", "answer": "5", "perturbation_type": "some"}
    rows = [
        {**row, "seed_question": seed, "question": f"{seed} {n}"} for n, seed in enumerate("ppq")
    ]
    written(tmp_path / "gsm_plus.jsonl", rows)
    trial = gsm_plus(tmp_path)
    assert [each.row for each in trial.stored] == [0, 2]
    assert [each.row for each in trial.asked] == [0, 1, 2]


def written(file, rows):
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))


def folder(directory, pairs, questions=()):
    """Write a folder of other people's pairs."""
    train = directory / "train"
    train.mkdir()
    for name, rows in (("pairs_some", pairs), ("questions", questions)):
        with gzip.open(train / f"{name}.jsonl.gz", "wt") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)
    return directory


def pair(number, source, label):
    return {
        "a": f"a{number} {source}",
        "b": f"b{number} {source}",
        "label": label,
        "source": source,
    }


def test_of_each_source_and_label_held_out_some_are_drawn_the_same_ones_each_time(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(sets, "PEOPLE_MOST", 5)
    held_out = min(HELD_OUT_SOURCES)
    rows = [pair(n, held_out, int(n < 20)) for n in range(23)]
    trial = people(folder(tmp_path, [*rows, pair(1, "trained on", 1)]))
    assert [(each.group, each.answer) for each in trial.asked] == [
        *[(held_out, None)] * 3,
        *[(held_out, "its")] * 5,
    ]
    assert len({each.realm for each in trial.stored}) == 8
    assert trial == people(tmp_path)


def test_a_held_out_question_is_asked_again_and_by_a_near_miss(tmp_path):
    held_out, trained_on = (
        next(text for n in range(99) if Rewording(text := f"q{n}", "", "").held_out is wanted)
        for wanted in (True, False)
    )
    data = folder(tmp_path, [pair(1, "some", 1)], [{"text": held_out, "source": "some"}])
    directory = tmp_path / "rewordings"
    directory.mkdir()
    lines = [f"{digest(each)}\t{each} again\t{each} not\n" for each in (held_out, trained_on)]
    (directory / "hand.tsv").write_text("".join(lines))
    trial = rewordings(data, directory)
    assert [each.text for each in trial.stored] == [held_out]
    assert [(each.text, each.answer, each.realm) for each in trial.asked] == [
        (f"{held_out} again", "its", 0),
        (f"{held_out} not", None, 0),
    ]


def test_no_held_out_rewording_is_told_by_the_folder(tmp_path):
    with pytest.raises(MissingDataError, match="no-such-folder has no held-out rewording"):
        rewordings(folder(tmp_path, [pair(1, "some", 1)]), tmp_path / "no-such-folder")


def test_a_benchmark_starts_from_anywhere(tmp_path):
    script = Path(__file__).parents[2] / "benchmarks" / "semantic_quality.py"
    ran = subprocess.run(
        [sys.executable, script, "--help"],
        check=False,
        cwd=tmp_path,
        env={},
        capture_output=True,
        text=True,
    )
    assert (ran.returncode, "--wrong-hits" in ran.stdout) == (0, True)
