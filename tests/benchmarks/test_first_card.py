"""The command for a first card runs to its end in small; what fails there costs one step alone."""

import copy
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed")

import compiled_kernels as kernels
from gpu import first_card
from gpu.first_card import STEPS, Step, run_apart
from gpu.id_loading import ids_in_turn
from gpu.summary import markdown, passed

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "benchmarks" / "gpu" / "first_card.py"


def run(*arguments, **environment):
    return subprocess.run(
        [sys.executable, str(SCRIPT), *arguments],
        env={**os.environ, "CUDA_VISIBLE_DEVICES": "", **environment},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )


@pytest.fixture(scope="module")
def smoke(tmp_path_factory):
    out = tmp_path_factory.mktemp("first-card")
    # As in the engine's image.
    return run("--smoke", "--out", str(out), PYTHONSAFEPATH="1"), out


def test_every_step_runs_in_small(smoke):
    done, out = smoke
    assert done.returncode == 0, done.stdout + done.stderr
    summary = json.loads(done.stdout.splitlines()[-1])
    assert summary == json.loads((out / "summary.json").read_text())
    assert summary["passed"]
    steps = summary["steps"]
    assert list(steps) == [step.name for step in STEPS]
    for name, step in steps.items():
        assert step == json.loads((out / f"{name}.json").read_text())
        assert step["ended"] == "done"
    found = {name: step["result"] for name, step in steps.items()}
    assert found["check"]["backend_check"]["passed"]
    assert found["check"]["self_check_with_window"]["comparisons"] > 10
    assert found["tests"]["counts"]["skipped"] > 100
    for case in ("decode, 2 x 40 keys", "prefill, 1 x 40"):
        ways = found["attention"][case]["ways_us"]
        assert len(ways) == 8
        assert all(isinstance(each, float) for each in ways.values())
        assert found["attention"][case]["ways_differ_by"] < 1e-5
    read = {}
    for form in ("bf16", "fp8", "int4", "fp8-kv"):
        for batch in ("1 x 8", "2 x 8"):
            assert found[form][batch]["tokens_per_s"] > 0
        read[form] = found[form]["1 x 8"]["read_bytes"]
    assert read["int4"] < read["fp8"] < read["fp8-kv"] < read["bf16"]
    assert found["prefill"]["100 tokens"]["tokens_per_s"] > 0
    assert found["profile"]["2 x 8"]["rows"]
    assert found["many"]["equal_answers"] == [found["many"]["requests"]]


def test_the_summary_is_a_table_with_details(smoke):
    said, *details = smoke[0].stdout.split("<details>")
    assert len(details) == 2
    assert "What went wrong" not in said
    for row in ("decode 2 x 8 in int4, tiny", "attention, decode, 2 x 40 keys", "prefill of 100"):
        assert f"| {row}" in said
    assert "| 5 stages, in turn |" in details[0]


def test_a_summary_of_steps_that_stopped_anywhere_is_written(smoke):
    steps = json.loads(smoke[0].stdout.splitlines()[-1])["steps"]
    for name, step in steps.items():
        for kept in range(len(step["result"])):
            cut = copy.deepcopy(steps)
            cut[name]["result"] = dict(list(step["result"].items())[:kept])
            cut[name] |= {"ended": "timed out", "error": "the last line"}
            assert f"| step `{name}` | **timed out** after" in markdown(cut)
            assert not passed(cut)


def test_what_is_wrong_on_a_card_is_named():
    kernel = {"kernel": "rms_norm", "shape": "5 x 32", "difference": 1, "allowed": 0, "error": ""}
    model = {"model": "m", "kernels": [kernel | {"passed": False}]}
    good = {"ended": "done", "seconds": 1, "result": {}}
    wrong = {
        "check": {"backend_check": {"passed": False, "models": [model]}},
        "tests": {"counts": {"failed": 1}, "failures": {"t.py::t": "assert\n 1"}, "exit_code": 1},
        "int4": {"self_check": {"replaced": ["attention: PyTorch's"]}},
    }
    assert passed(dict.fromkeys(wrong, good))
    for name, result in wrong.items():
        assert not passed({name: good | {"result": result}})
    text = markdown({name: good | {"result": result} for name, result in wrong.items()})
    for line in (
        "- m: rms_norm, 5 x 32: 1 where 0 is allowed",
        "- int4: attention: PyTorch's",
        "- `t.py::t`: assert 1",
    ):
        assert f"\n{line}\n" in text + "\n"


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_card_it_says_so_at_once(tmp_path):
    done = run("--out", str(tmp_path))
    assert done.returncode == 1
    assert "finds no CUDA device" in done.stdout
    assert list(json.loads(done.stdout.splitlines()[-1])["steps"]) == ["machine"]


def test_a_step_that_hangs_is_ended_and_keeps_its_figures(tmp_path, monkeypatch):
    script = tmp_path / "hangs.py"
    file = str(tmp_path / "hangs.json")
    script.write_text(
        "import json, pathlib, threading\n"
        f"pathlib.Path({file!r}).write_text(json.dumps({{'result': {{'first': 1}}}}))\n"
        "print('the first figure is there', flush=True)\n"
        "threading.Event().wait()\n"
    )
    monkeypatch.setattr(first_card, "__file__", str(script))
    step = Step("hangs", 1, "")
    found = run_apart(step, tmp_path, time.monotonic() + 5, smoke=True)
    assert (found["ended"], found["result"]) == ("timed out", {"first": 1})
    assert found["error"] == "the first figure is there"


def test_a_step_that_crashes_says_how(tmp_path, monkeypatch):
    script = tmp_path / "crashes.py"
    script.write_text("import os\nprint('CUDA error', flush=True)\nos.abort()\n")
    monkeypatch.setattr(first_card, "__file__", str(script))
    found = run_apart(Step("crashes", 1, ""), tmp_path, time.monotonic() + 60, smoke=True)
    assert (found["ended"], found["error"]) == ("crashed: -6", "CUDA error")
    assert json.loads((tmp_path / "crashes.json").read_text()) == found


def test_all_steps_take_twelve_minutes_at_most():
    assert sum(step.seconds for step in STEPS if not step.asked_for) <= 12 * 60


@pytest.mark.parametrize("kind", [kernels.decode, kernels.prefill], ids=lambda kind: kind.__name__)
def test_ids_in_turn_leave_no_tile_in_flight(monkeypatch, tmp_path, kind):
    """The other way of loading compiles for a real card, and is the one that waits."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    call = kind(torch.bfloat16, 128, 90)

    def in_turn():
        with ids_in_turn():
            return call()

    served, other = (
        kernels.compile_for(90, kernels.launches(each, monkeypatch)[0], tmp_path).tiles_in_flight
        for each in (call, in_turn)
    )
    assert served >= 2
    assert other == 0
