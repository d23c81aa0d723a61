"""The engine's first twelve minutes on an NVIDIA card: is it right there, and how fast?

Paste the output into an issue. Weights are random, so nothing is downloaded. Each step is a
process of its own with a bound, and writes its file before the next begins: a crash or a hang
costs one step. Floors and peers are measured in the same run: the card's copy rate, torch's flash
attention and products. The last line is JSON, also in summary.json.

    python benchmarks/gpu/first_card.py [--out ./first-card] [--only machine,attention]
    python benchmarks/gpu/first_card.py --only many    beside transformers: 5 min
    python benchmarks/gpu/first_card.py --smoke        tiny, on CPU in Triton's interpreter
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
_PATHS = [str(ROOT), str(ROOT / "benchmarks")]
# The engine's image has Python's safe path, which leaves the script's own folder out.
sys.path[:0] = _PATHS

from gpu.summary import markdown, passed  # noqa: E402

_LAST_CHARACTERS = 400
"""What is kept of the log of a step that crashed or hung."""


@dataclass(frozen=True)
class Step:
    """``function`` of ``gpu`` in a process; ``seconds`` is its share of the whole time."""

    name: str
    seconds: int
    function: str
    arguments: tuple[str, ...] = ()
    asked_for: bool = False
    """Whether it runs only where --only names it."""


STEPS = (
    Step("machine", 40, "machine:facts"),
    Step("check", 90, "checks:backend_check"),
    Step("tests", 180, "checks:gpu_tests"),
    Step("attention", 120, "attention:attention"),
    Step("bf16", 70, "serving:decode", ("bf16",)),
    Step("fp8", 50, "serving:decode", ("fp8",)),
    Step("int4", 50, "serving:decode", ("int4",)),
    Step("fp8-kv", 50, "serving:decode", ("fp8-kv",)),
    Step("prefill", 40, "serving:prefill"),
    Step("profile", 30, "decode_profile:decode_profile"),
    Step("many", 300, "serving:many", asked_for=True),
)


def run_all(steps: Sequence[Step], out: Path, *, smoke: bool) -> dict[str, Any]:
    """Run ``steps`` and return their files; time that one does not need is for those behind it."""
    results: dict[str, Any] = {}
    deadline = time.monotonic()
    for step in steps:
        deadline += step.seconds
        print(f"{step.name} …", end=" ", file=sys.stderr, flush=True)
        found = results[step.name] = run_apart(step, out, deadline, smoke=smoke)
        print(f"{found['ended']}, {found['seconds']:.0f} s", file=sys.stderr, flush=True)
        if step.name == "machine" and "machine" not in found["result"]:
            break  # without a device the others say the same
    return results


def run_apart(step: Step, out: Path, deadline: float, *, smoke: bool) -> dict[str, Any]:
    """Run ``step`` in a process group of its own, and end all of it at ``deadline``."""
    file, log = out / f"{step.name}.json", out / f"{step.name}.log"
    file.unlink(missing_ok=True)
    command = [sys.executable, __file__, "--step", step.name, "--out", str(out)]
    environment = {
        "HF_HUB_OFFLINE": "1",
        **os.environ,
        "PYTHONPATH": os.pathsep.join([*_PATHS, *filter(None, [os.environ.get("PYTHONPATH")])]),
        **({"TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""} if smoke else {}),
    }
    began = time.monotonic()
    with log.open("wb") as output:
        process = subprocess.Popen(
            command + ["--smoke"] * smoke,
            env=environment,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            code: int | None = process.wait(max(deadline - began, 1))
        except subprocess.TimeoutExpired:
            code = None
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    # A process that hangs in the driver may outlive its killing.
    with suppress(subprocess.TimeoutExpired):
        process.wait(10)
    found = json.loads(file.read_text()) if file.is_file() else {"step": step.name, "result": {}}
    found["ended"] = {None: "timed out", 0: "done", 1: "failed"}.get(code, f"crashed: {code}")
    found["seconds"] = round(time.monotonic() - began, 1)
    if code != 0 and "error" not in found:
        found["error"] = log.read_text(errors="replace")[-_LAST_CHARACTERS:].strip()
    _write(file, found)
    return found


def run_here(step: Step, out: Path, *, smoke: bool) -> int:
    """Run ``step`` in this process; each figure is on disk before the next is measured."""
    found: dict[str, Any] = {"step": step.name, "result": {}}

    def note(name: str, value: Any) -> None:
        found["result"][name] = _rounded(value)
        _write(out / f"{step.name}.json", found)

    module, _, function = step.function.partition(":")
    try:
        # Imported here: the environment says whether kernels are compiled or interpreted.
        run = getattr(import_module(f"gpu.{module}"), function)
        machine = import_module("gpu.machine").Machine.here(smoke=smoke)
        run(machine, note, *step.arguments)
    except Exception as error:  # noqa: BLE001 (whatever a driver raises; the file names it)
        traceback.print_exc()
        found["error"] = f"{type(error).__name__}: {' '.join(str(error).split())}"[:1000]
    _write(out / f"{step.name}.json", found)
    return 1 if "error" in found else 0


def _write(path: Path, value: Any) -> None:
    """Replace ``path`` at once: its writer may be killed at any time."""
    new = path.with_suffix(".new")
    new.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")
    new.replace(path)


def _rounded(value: Any) -> Any:
    match value:
        case float():
            return float(f"{value:.4g}")
        case dict():
            return {str(key): _rounded(each) for key, each in value.items()}
        case list() | tuple():
            return [_rounded(each) for each in value]
    return value


def main() -> int:
    names = [step.name for step in STEPS]
    parser = argparse.ArgumentParser(description="the engine's first minutes on an NVIDIA card")
    parser.add_argument("--out", type=Path, default=Path("first-card"), help="a folder for files")
    parser.add_argument("--only", help=f"some of {', '.join(names)}")
    parser.add_argument("--smoke", action="store_true", help="tiny shapes on CPU, interpreted")
    parser.add_argument("--step", choices=names, help=argparse.SUPPRESS)
    options = parser.parse_args()
    out = options.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    if options.step:
        step = next(each for each in STEPS if each.name == options.step)
        return run_here(step, out, smoke=options.smoke)
    # Else the step that runs would outlive this process.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    chosen = [step.name for step in STEPS if options.smoke or not step.asked_for]
    if options.only is not None:
        chosen = options.only.split(",")
    if unknown := set(chosen) - set(names):
        parser.error(f"--only: {', '.join(sorted(unknown))}")
    steps = [step for step in STEPS if step.name in chosen]
    results = run_all(steps, out, smoke=options.smoke)
    summary = {"benchmark": "first_card", "smoke": options.smoke, "passed": passed(results)}
    _write(out / "summary.json", summary | {"steps": results})
    print(markdown(results), end="\n\n")
    print(json.dumps(summary | {"steps": results}))
    return 0 if summary["passed"] else 1


if __name__ == "__main__":
    sys.exit(main())
