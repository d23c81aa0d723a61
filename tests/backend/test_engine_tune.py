"""`refrain backend tune`: the load it makes, what it prints, and the real command."""

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from backend.__main__ import main
from backend.engine.tune import Load, measure
from backend.ports import EngineError
from backend.scheduler.request import FinishReason, TextDelta
from backend.scheduler.tuning import Targets, Trial
from backend.tune_command import Plan, run

pytest_plugins = ["running_backend"]

ROOT = Path(__file__).parents[2]
LOAD = Load(prompt_tokens=10, output_tokens=4, vocab_size=50)


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


class ClockedGenerator:
    """Each token takes 10 ms on the clock; notes how many run together."""

    def __init__(self, clock, ends_at):
        self.clock, self.ends_at = clock, ends_at
        self.running = self.most = 0
        self.requests = []

    async def generate(self, request):
        self.requests.append(request)
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            for number in range(1, request.sampling.max_tokens + 1):
                await asyncio.sleep(0)
                if self.clock.now >= self.ends_at:
                    await asyncio.Event().wait()
                self.clock.now += 0.01
                last = number == request.sampling.max_tokens
                yield TextDelta(0, "x", number, FinishReason.LENGTH if last else None)
        finally:
            self.running -= 1


async def tuned(generator, clock, cap):
    return await measure(
        generator, LOAD, max_num_seqs=cap, max_tokens_per_step=None, seconds=0.2, clock=clock
    )


async def test_as_many_callers_as_the_cap_and_all_of_them_end():
    clock = Clock()
    generator = ClockedGenerator(clock, ends_at=1.0)
    await tuned(generator, clock, 3)
    assert (generator.most, generator.running) == (3, 0)


async def test_latencies_and_tokens_after_the_warm_up_are_counted():
    clock = Clock()
    generator = ClockedGenerator(clock, ends_at=1.0)
    trial = await tuned(generator, clock, 1)
    assert trial.seconds == pytest.approx(1.0 - 0.04)
    assert trial.num_tokens == len(trial.first_token) + len(trial.between_tokens)
    assert 95 <= trial.num_tokens <= 97  # a hundred, less the warm-up's
    latencies = (*trial.first_token, *trial.between_tokens)
    assert latencies == pytest.approx([0.01] * len(latencies))


async def test_every_cap_is_given_the_same_requests_and_no_two_are_alike():
    asked = []
    for _ in range(2):
        clock = Clock()
        generator = ClockedGenerator(clock, ends_at=1.0)
        await tuned(generator, clock, 2)
        asked.append([(r.prompt_tokens, r.sampling.max_tokens) for r in generator.requests])
    assert asked[0] == asked[1]
    assert len(set(asked[0])) == len(asked[0])
    assert all(5 <= len(prompt) <= 15 and 2 <= length <= 6 for prompt, length in asked[0])
    assert all(max(prompt) < 50 for prompt, _ in asked[0])


async def test_what_the_engine_raises_ends_the_measurement():
    class Broken:
        async def generate(self, request):
            raise EngineError("out of order")
            yield

    with pytest.raises(EngineError, match="out of order"):
        await tuned(Broken(), Clock(), 2)


def ran(targets, trials):
    plan = Plan((1, 2), (None,), 10.0, 256, 64, targets)
    asked, said = [], []

    def measure_one(cap, budget, seconds):
        asked.append((cap, budget, seconds))
        return trials[cap]

    code = run(plan, measure_one, said.append)
    assert asked == [(1, None, 5.0), (2, None, 5.0)]
    return code, said


TRIALS = {
    1: Trial(1, None, 2.0, 200, (0.1,), (0.010,)),
    2: Trial(2, None, 2.0, 380, (0.2,), (0.020,)),
}


def test_a_table_a_recommendation_and_one_json_line_last():
    code, said = ran(Targets(itl=0.015), TRIALS)
    assert code == 0
    header, first, second, verdict, last = said
    assert "TTFT p99" in header
    assert first.split() == ["1", "-", "100.0", "100.0", "10.0", "kept"]
    assert second.split() == ["2", "-", "190.0", "200.0", "20.0", "missed"]
    assert verdict.startswith("recommended: --max-num-seqs 1 ")
    summary = json.loads(last)
    assert summary["recommended"]["max_num_seqs"] == 1
    assert [each["tokens_per_second"] for each in summary["tune"]] == [100.0, 190.0]


def test_targets_that_nothing_keeps_are_a_failure_and_told():
    code, said = ran(Targets(ttft=0.001), TRIALS)
    assert code == 1
    assert "no cap keeps the targets" in said[-2]
    assert json.loads(said[-1])["recommended"] is None


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "--model"),
        (["--model", "m", "--caps", "1,x"], "expected a whole number of at least 1, got 'x'"),
        (["--model", "m", "--seconds", "0"], "expected a time above 0, such as 500ms"),
        (["--model", "m", "--target-itl-ms", "fast"], "expected a number above 0"),
    ],
)
def test_bad_usage(capsys, arguments, said):
    assert main(["tune", *arguments]) == 2
    assert said in capsys.readouterr().err


def test_help_has_examples(capsys):
    assert main(["tune", "--help"]) == 0
    assert "refrain backend tune --model" in capsys.readouterr().out
    assert main(["--help"]) == 0
    assert "refrain backend tune" in capsys.readouterr().out


def command(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "backend", "tune", *map(str, arguments)],
        cwd=ROOT,
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_the_command_measures_a_real_engine(chat_model):
    sizes = ("--prompt-tokens", 40, "--output-tokens", 8, "--seconds", 1.5)
    done = command("--model", chat_model, "--device", "cpu", "--caps", "2,1", *sizes)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 5
    summary = json.loads(lines[-1])
    assert [each["max_num_seqs"] for each in summary["tune"]] == [1, 2]
    assert all(each["tokens_per_second"] > 0 for each in summary["tune"])
    assert summary["recommended"]["max_num_seqs"] in {1, 2}


def test_a_missing_model_is_one_line(tmp_path):
    done = command("--model", tmp_path / "nowhere")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("refrain backend tune: ")
    assert len(done.stderr.splitlines()) == 1
