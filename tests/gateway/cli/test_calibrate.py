"""``refrain semantic calibrate`` as an operator runs it."""

import contextlib
import json
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from tiny_verifier import write_tiny_verifier

from embeddings.verify.calibration import parse_calibration
from embeddings.verify.recipe import overlap, weighed
from gateway.cli.main import main
from gateway.cli.offline import calibrate as calibrating
from gateway.semantic.calibrations import OWN_FILE, Calibrations
from gateway.semantic.ports import SemanticUnavailableError


@pytest.fixture
def run(capsys, tmp_path, monkeypatch):
    """Run the command in a directory of its own; returns exit code, output and errors."""
    monkeypatch.chdir(tmp_path)

    def command(*arguments):
        code = main(["semantic", "calibrate", *map(str, arguments)])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return command


def check(score, outcome="equal", verifier="ab" * 32, kind="shadow"):
    return {
        "time": 1.0,
        "rule": "default",
        "kind": kind,
        "similarity": 0.93,
        "score": score,
        "outcome": outcome,
        "verifier": verifier,
    }


def log_of(path, lines):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def clean(count):
    return [check(1 - place / 10_000) for place in range(count)]


def test_a_journal_becomes_a_table(run, tmp_path):
    lines = [*clean(400), check(0.1, "different"), check(0.2, "unsure"), {"kind": "reset"}]
    code, out, err = run(
        log_of(tmp_path / "checks.jsonl", lines), "--budget", "0.1%", "--budget", "1%"
    )
    assert (code, err) == (0, "")
    assert out.splitlines() == [
        "402 would-be hits of verifier abababababababab, 2 wrong, 1 of them unsure",
        "",
        "        surest hits        score from   wrong    share   at most (0.95 sure)",
        "                 51          0.995000       0    0.00%                5.70%",
        "                101          0.990000       0    0.00%                2.92%",
        "                154          0.984700       0    0.00%                1.93%",
        "                206          0.979500       0    0.00%                1.44%",
        "                257          0.974400       0    0.00%                1.16%",
        "                303          0.969800       0    0.00%                0.98%",
        "                359          0.964200       0    0.00%                0.83%",
        "                402          0.100000       2    0.50%                1.56%",
        "",
        "budget    threshold       hits served   wrong            at most (0.95 sure)",
        "0.1%           none   2,680 more judgements are needed",
        "1%         0.961000         391 (97%)       0                         0.76%",
        "",
        "So many more judgements are enough if the surest ones go on as so far.",
    ]
    assert not (tmp_path / ".refrain").exists()


def test_what_a_person_judged_replaces_what_the_gateway_found(run, tmp_path):
    def judged(of, same):
        return {"kind": "judged", "time": 9.0, "entry": "e", "key": "k", "of": of, "same": same}

    compared = (check(0.999, "unsure"), check(0.1, "different"), check(0.998), check(0.2, "unsure"))
    lines = [
        {**each, "entry": "e", "key": "k", "time": float(at)} for at, each in enumerate(compared)
    ]
    lines += [judged(0.0, same=False), judged(0.0, same=True), judged(2.0, same=False)]
    lines += [judged(1.0, same=True), judged(7.0, same=True)]
    code, out, _ = run(log_of(tmp_path / "checks.jsonl", [*clean(400), *lines]))
    assert code == 0
    first = "404 would-be hits of verifier abababababababab, 2 wrong, 1 of them unsure"
    assert out.splitlines()[0] == first


def test_what_is_written_is_what_the_gateway_takes(run, tmp_path):
    data = tmp_path / ".refrain"
    log_of(data / "semantic-checks.jsonl", clean(2000))
    code, out, _ = run("--write", "--confidence", "0.9")
    assert code == 0
    assert "written to .refrain/semantic-calibration.json" in out
    file = data / OWN_FILE
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert {each.name for each in data.iterdir()} == {"semantic-checks.jsonl", OWN_FILE}
    taken = Calibrations(data).of("ab" * 32)
    assert (taken.hits, taken.confidence) == (2000, 0.9)
    assert "refrain semantic calibrate semantic-checks.jsonl, 20" in taken.provenance
    code, _, _ = run("--write")
    assert code == 0
    assert Calibrations(data).of("ab" * 32).confidence == 0.95


def test_the_journal_is_read_with_what_it_was_before_it_grew_too_large(run, tmp_path):
    log_of(tmp_path / ".refrain" / "semantic-checks.jsonl.1", clean(300))
    log_of(tmp_path / ".refrain" / "semantic-checks.jsonl", [check(0.1)])
    code, out, _ = run("--budget", "1%")
    assert code == 0
    assert out.startswith("301 would-be hits")


def test_a_set_that_keeps_no_budget_is_not_written(run, tmp_path):
    file = log_of(tmp_path / "few.jsonl", clean(298))
    code, out, err = run(file, "--budget", "1%", "--data-dir", tmp_path / "d", "--write")
    assert code == 1
    assert "1%             none   1 more judgement is needed" in out
    assert out.endswith("enough if the surest ones go on as so far.\n")
    assert "none of the budgets is kept; nothing was written" in err
    assert not (tmp_path / "d").exists()
    assert run(log_of(tmp_path / "enough.jsonl", clean(299)), "--budget", "1%")[0] == 0


def test_where_the_surest_are_wrong_that_is_said(run, tmp_path):
    lines = [check(0.999, "different") for _ in range(50)] + clean(3000)
    code, out, _ = run(log_of(tmp_path / "log.jsonl", lines), "--budget", "1%")
    assert code == 1
    assert "too many of the surest hits are wrong" in out
    assert "go on as so far" not in out


def with_features(lines):
    return [{**line, "characters": 20, "overlap": 0.5} for line in lines]


def test_what_the_hits_are_like_is_written_with_them(run, tmp_path):
    data = tmp_path / ".refrain"
    log_of(data / "semantic-checks.jsonl", with_features(clean(300)))
    code, _, err = run("--write", "--budget", "1%")
    assert (code, err) == (0, "")
    bins = Calibrations(data).of("ab" * 32).features
    assert set(bins) == {"cosine", "score", "characters", "overlap"}
    assert (bins["cosine"].deciles, bins["cosine"].hits) == ((0.93,), (300, 0))
    assert bins["score"].hits == (30,) * 10


def test_near_misses_of_shadow_mode_have_features_too(run, tmp_path):
    near = [{**check(0.5, kind="near-miss"), "shadow": True} for _ in range(30)]
    lines = with_features([*clean(300), *near])
    code, _, err = run(log_of(tmp_path / "log.jsonl", lines), "--write", "--budget", "1%")
    assert (code, err) == (0, "")
    assert sum(Calibrations(tmp_path / ".refrain").of("ab" * 32).features["score"].hits) == 330


def test_pairs_have_features_too(run, tmp_path, scored):
    lines = pairs(300, asked="I want to reset it, how, at step {}?")
    code, _, err = run(log_of(tmp_path / "pairs.jsonl", lines), "--budget", "1%", "--write")
    assert (code, err) == (0, "")
    bins = Calibrations(tmp_path / ".refrain").of("cd" * 32).features
    assert bins["cosine"].deciles == (0.95,)


@pytest.mark.parametrize(
    ("lines", "why"),
    [
        (clean(300), "the features of 200 hits are needed, and 0 are known"),
        (
            with_features([*clean(300), check(0.9, kind="served")]),
            "1 of the hits come from sampling or promotion; only shadow mode and labelled pairs",
        ),
        (
            with_features([check(1 - place / 10_000, kind="near-miss") for place in range(300)]),
            "300 of the hits come from sampling or promotion",
        ),
    ],
)
def test_why_traffic_will_not_be_compared_is_said(run, tmp_path, lines, why):
    code, _, err = run(log_of(tmp_path / "log.jsonl", lines), "--budget", "1%", "--write")
    assert code == 0
    assert f"later traffic is not compared with this calibration: {why}" in err
    assert b"features" not in (tmp_path / ".refrain" / OWN_FILE).read_bytes()


def test_the_latest_verifier_counts_and_others_are_told(run, tmp_path):
    lines = [check(0.9, "different", verifier="old") for _ in range(50)] + clean(300)
    code, out, err = run(log_of(tmp_path / "log.jsonl", lines), "--budget", "1%")
    assert code == 0
    assert out.startswith("300 would-be hits of verifier abab")
    assert "passed over, of another verifier: 50" in err


def test_lines_that_are_none_are_told_with_their_place(run, tmp_path):
    file = log_of(tmp_path / "log.jsonl", [*clean(300), {"asked": "x", "stored": 1}])
    with file.open("a") as more:
        more.write('\n{"half": ')
    code, _, err = run(file)
    assert code == 0
    assert f"{file}:301: expected asked and stored as text" in err
    assert f"{file}:303: expected JSON" in err
    assert "passed over, no comparisons or pairs: 2" in err


@pytest.mark.parametrize("lines", [[], [{"kind": "reset"}], [{"x": 1}]])
def test_a_log_without_a_hit_is_an_error(run, tmp_path, lines):
    code, out, err = run(log_of(tmp_path / "log.jsonl", lines))
    assert (code, out) == (2, "")
    assert "log.jsonl: no would-be hit in it" in err


def test_a_log_that_is_not_there_is_an_error(run):
    code, _, err = run()
    assert code == 2
    assert ".refrain/semantic-checks.jsonl: not there: set shadow: on" in err


@pytest.mark.parametrize(
    "wrong", [("--budget", "1"), ("--budget", "30%"), ("--confidence", "2"), ("--confidence", "x")]
)
def test_bad_usage_is_told(run, wrong):
    code, _, err = run(*wrong)
    assert code == 2
    assert f"Invalid value for '{wrong[0]}'" in err


def test_a_full_disk_leaves_the_former_file(run, tmp_path, monkeypatch):
    data = tmp_path / ".refrain"
    log_of(data / "semantic-checks.jsonl", clean(300))
    (data / OWN_FILE).write_text("former")

    def full(_descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(calibrating.os, "fsync", full)
    code, _, err = run("--write", "--budget", "1%")
    assert code == 1
    assert "cannot be written: No space left on device" in err
    assert (data / OWN_FILE).read_text() == "former"
    assert len(list(data.iterdir())) == 2


class Scores:
    """The fake at the service's port: sure of what ends alike, and all are as near."""

    verifier, verifier_name, verifier_fault = "cd" * 32, "mini", ""
    failing = False
    without_vectors = ""

    async def embed(self, texts):
        if self.without_vectors:
            raise SemanticUnavailableError(self.without_vectors)
        return [(1.0, 0.0), (0.95, 0.3122)]

    async def score(self, asked, stored):
        if self.failing:
            raise SemanticUnavailableError("unavailable")
        return 0.9 if asked.endswith(stored[-5:]) else 0.2


@pytest.fixture
def scored(monkeypatch):
    @contextlib.asynccontextmanager
    async def service(_socket):
        yield scores

    scores = Scores()
    monkeypatch.setattr(calibrating, "scoring_service", service)
    return scores


def pairs(count, asked="How can I reset it, step {}?", same=True):
    return [
        {"asked": asked.format(n), "stored": f"How do I reset it, step {n}?", "same": same}
        for n in range(count)
    ]


def test_labelled_pairs_are_scored_as_the_gateway_does(run, tmp_path, scored):
    refused = [{"asked": "Is 2 more than 3?", "stored": "Is 2 more than 4?", "same": False}]
    lines = [*pairs(300), *refused, check(0.9, "different", verifier="ef")]
    code, out, err = run(log_of(tmp_path / "pairs.jsonl", lines), "--budget", "1%")
    assert code == 0
    assert out.startswith("300 would-be hits of verifier cdcdcdcdcdcdcdcd, 0 wrong")
    assert "passed over, refused by a guard: 1" in err
    assert "passed over, of another verifier: 1" in err


def test_without_a_model_no_pair_can_be_scored(run, tmp_path, scored):
    scored.verifier, scored.verifier_fault = "", "no model.safetensors"
    code, out, err = run(log_of(tmp_path / "pairs.jsonl", pairs(300)), "--budget", "1%")
    assert (code, out) == (1, "")
    assert "no trained verifier is loaded (no model.safetensors): no pair can be scored" in err


def test_a_service_that_fails_ends_the_command(run, tmp_path, scored):
    scored.failing = True
    code, out, err = run(
        log_of(tmp_path / "pairs.jsonl", pairs(20, asked="I want to reset it, how, at step {}?"))
    )
    assert (code, out) == (1, "")
    assert "a pair could not be scored: verifier-unavailable" in err


def test_an_encoder_that_fails_ends_the_command(run, tmp_path, scored):
    scored.without_vectors = "timeout"
    code, out, err = run(log_of(tmp_path / "pairs.jsonl", pairs(20)))
    assert (code, out) == (1, "")
    assert "a pair could not be scored: encoder-timeout" in err


def test_a_text_without_a_vector_is_far_from_all(run, tmp_path, scored):
    scored.without_vectors = "text-too-long"
    lines = pairs(300, asked="I want to reset it, how, at step {}?")
    log = log_of(tmp_path / "pairs.jsonl", lines)
    shared = overlap(lines[0]["asked"], lines[0]["stored"])
    code, out, _ = run(log, "--budget", "1%")
    assert code == 0
    assert f"{weighed(0.9, 0.0, shared):.6f}" in out
    scored.without_vectors = ""
    _, near, _ = run(log, "--budget", "1%")
    assert f"{weighed(0.9, 0.95, shared):.6f}" in near


def test_a_socket_where_nobody_answers_is_told(run, tmp_path):
    file = log_of(tmp_path / "pairs.jsonl", pairs(1))
    code, _, err = run(file, "--socket", tmp_path / "none.sock")
    assert code == 1
    assert "none.sock: no embeddings service answers there" in err


def test_a_service_that_cannot_start_is_told(run, tmp_path, monkeypatch):
    monkeypatch.setenv("REFRAIN_EMBEDDINGS_MODEL", str(tmp_path / "no-model"))
    code, _, err = run(log_of(tmp_path / "pairs.jsonl", pairs(1)))
    assert code == 1
    assert "the embeddings service did not start" in err


def test_a_real_service_scores_pairs(run, tmp_path):
    with tempfile.TemporaryDirectory(prefix="refrain-") as folder:
        socket = Path(folder) / "e.sock"
        verifier = write_tiny_verifier(Path(folder) / "verifier")
        argv = ["-m", "embeddings", "--socket", socket, "--data-dir", folder]
        process = subprocess.Popen([sys.executable, *argv, "--verifier", verifier])
        try:
            file = log_of(tmp_path / "pairs.jsonl", pairs(30))
            while not socket.exists():
                with pytest.raises(subprocess.TimeoutExpired):
                    process.wait(0.05)
            code, out, _ = run(file, "--socket", socket, "--budget", "20%", "--write")
        finally:
            process.kill()
            process.wait()
    assert code == 0
    assert "30 would-be hits of verifier" in out
    written = (tmp_path / ".refrain" / OWN_FILE).read_bytes()
    assert len(parse_calibration(written, "c").verifier) == 64
