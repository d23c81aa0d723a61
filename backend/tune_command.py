"""`refrain backend tune`: measure batch caps on the machine at hand and recommend one.

Exit codes: 0 a cap is recommended, 1 none keeps the targets or it could not run, 2 bad usage.
"""

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from backend.arguments import above_zero, add_engine_arguments, numbers, positive, seconds
from backend.engine.messages import EngineOptions
from backend.scheduler.tuning import KNEE_SHARE, Targets, Trial, recommend

_EPILOG = """\
examples:
  refrain backend tune --model ./my-model
  refrain backend tune --model ./my-model --target-itl-ms 50 --target-ttft-ms 500 --caps 4,8,16,32
  refrain backend tune --model ./my-model --budgets 256,512,1024 --prompt-tokens 2000 --seconds 120

The table goes to stdout as it is measured, progress to stderr. The last line is one JSON object.
"""

_CAPS = {"cpu": (1, 2, 4, 8, 16, 32), "cuda": (1, 4, 16, 32, 64, 128, 256)}
_HEADER = f"{'cap':>5} {'budget':>7} {'tok/s':>9} {'TTFT p99 ms':>12} {'ITL p99 ms':>11}  targets"


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to be measured: each cap with each token budget, for ``seconds`` in all."""

    caps: tuple[int, ...]
    budgets: tuple[int | None, ...]
    seconds: float
    prompt_tokens: int
    output_tokens: int
    targets: Targets

    @property
    def settings(self) -> list[tuple[int, int | None]]:
        """Caps with budgets, the least first."""
        return list(product(self.caps, self.budgets))


Measure = Callable[[int, int | None, float], Trial]
"""A cap and a budget, measured for so many seconds."""


def main(argv: Sequence[str]) -> int:
    """Run the command with ``argv``, which is without the program's name. Returns the exit code."""
    try:
        options = _parser().parse_args(argv)
    except SystemExit as stop:  # argparse has said why
        return stop.code if isinstance(stop.code, int) else 2
    # torch takes seconds to import, and --help does not need it.
    from backend.engine.tune_engine import device_of, engine_to_tune  # noqa: PLC0415
    from backend.models.config import ModelLoadError  # noqa: PLC0415
    from backend.ports import EngineError, RequestRejectedError  # noqa: PLC0415

    plan = _plan(options, device_of(options.device))
    try:
        lengths = (plan.prompt_tokens, plan.output_tokens)
        with engine_to_tune(_engine_options(options, plan), lengths) as measure:
            return run(plan, measure, _say)
    except (ModelLoadError, EngineError, RequestRejectedError) as error:
        sys.stderr.write(f"refrain backend tune: {' '.join(str(error).split())}\n")
        return 1
    except KeyboardInterrupt:
        return 130


def run(plan: Plan, measure: Measure, say: Callable[[str], None]) -> int:
    """Measure, say what came of it, line by line, and return the exit code."""
    say(_HEADER)
    trials: list[Trial] = []
    share = plan.seconds / len(plan.settings)
    for number, (cap, budget) in enumerate(plan.settings, 1):
        _progress(f"{number} of {len(plan.settings)}: cap {cap}, {share:.0f} s")
        trials.append(measure(cap, budget, share))
        say(_row(trials[-1], plan.targets))
    chosen = recommend(trials, plan.targets)
    say(_verdict(chosen, plan.targets))
    say(json.dumps(_summary(plan, trials, chosen)))
    return 0 if chosen is not None else 1


def _verdict(chosen: Trial | None, targets: Targets) -> str:
    if chosen is None:
        return "no cap keeps the targets; loosen them, or measure smaller caps or budgets"
    flags = f"--max-num-seqs {chosen.max_num_seqs}"
    if chosen.max_tokens_per_step is not None:
        flags += f" --max-tokens-per-step {chosen.max_tokens_per_step}"
    why = (
        "most throughput of those that keep the targets"
        if targets.any
        else f"the smallest with {KNEE_SHARE:.0%} of the throughput there is"
    )
    return f"recommended: {flags} ({why})"


def _row(trial: Trial, targets: Targets) -> str:
    budget = "-" if trial.max_tokens_per_step is None else str(trial.max_tokens_per_step)
    kept = ("kept" if trial.keeps(targets) else "missed") if targets.any else "-"
    return (
        f"{trial.max_num_seqs:>5} {budget:>7} {trial.throughput:>9.1f} "
        f"{_milliseconds(trial.ttft_p99):>12} {_milliseconds(trial.itl_p99):>11}  {kept}"
    )


def _milliseconds(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1000:.1f}"


def _summary(plan: Plan, trials: Sequence[Trial], chosen: Trial | None) -> dict[str, Any]:
    return {
        "tune": [_measured(trial) for trial in trials],
        "targets": {"ttft": plan.targets.ttft, "itl": plan.targets.itl},
        "prompt_tokens": plan.prompt_tokens,
        "output_tokens": plan.output_tokens,
        "recommended": None if chosen is None else _measured(chosen),
    }


def _measured(trial: Trial) -> dict[str, Any]:
    return {
        "max_num_seqs": trial.max_num_seqs,
        "max_tokens_per_step": trial.max_tokens_per_step,
        "tokens_per_second": round(trial.throughput, 1),
        "ttft_p99": trial.ttft_p99,
        "itl_p99": trial.itl_p99,
        "requests_begun": len(trial.first_token),
    }


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def _progress(line: str) -> None:
    sys.stderr.write(f"{line}\n")


def _plan(options: argparse.Namespace, device: str) -> Plan:
    def seconds(milliseconds: float | None) -> float | None:
        return None if milliseconds is None else milliseconds / 1000

    return Plan(
        caps=options.caps or _CAPS[device],
        budgets=options.budgets or (None,),
        seconds=options.seconds,
        prompt_tokens=options.prompt_tokens,
        output_tokens=options.output_tokens,
        targets=Targets(seconds(options.target_ttft_ms), seconds(options.target_itl_ms)),
    )


def _engine_options(options: argparse.Namespace, plan: Plan) -> EngineOptions:
    return EngineOptions(
        options.model,
        device=options.device,
        dtype=options.dtype,
        quantization=options.quantization,
        kv_dtype=options.kv_dtype,
        max_num_seqs=max(plan.caps),
        max_tokens_per_step=max(options.budgets) if options.budgets else None,
        max_model_len=options.max_model_len,
        kv_bytes=options.kv_bytes,
        threads=options.threads,
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="refrain backend tune",
        description="Measure batch caps on this machine and recommend one.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add_engine_arguments(parser)
    add = parser.add_argument
    add("--caps", type=numbers, metavar="N,N…", help="values of --max-num-seqs to measure")
    add(
        "--budgets", type=numbers, metavar="N,N…", help="values of --max-tokens-per-step to measure"
    )
    add(
        "--seconds",
        type=seconds,
        default=60.0,
        help="for all measurements together, without loading (default: %(default)s)",
    )
    add(
        "--prompt-tokens",
        type=positive,
        default=256,
        metavar="TOKENS",
        help="mean length of prompts (default: %(default)s)",
    )
    add(
        "--output-tokens",
        type=positive,
        default=64,
        metavar="TOKENS",
        help="mean length of answers (default: %(default)s)",
    )
    add(
        "--target-ttft-ms",
        type=above_zero,
        metavar="MS",
        help="TTFT to keep at the 99th percentile",
    )
    add("--target-itl-ms", type=above_zero, metavar="MS", help="ITL to keep at the 99th percentile")
    return parser
