"""The engine on one GPU: kernels are checked against their oracles, then timed, then whole models.

Random weights of the real shapes; no checkpoint is needed. Floors and peers are measured in the
same run: the device's own copy bandwidth, torch's flash attention, transformers' continuous
batching. Ends with one line of JSON, which --json also writes to a file.

    python benchmarks/gpu_engine.py [--only checks,attention,alone,many] [--json PATH]
    python benchmarks/gpu_engine.py --smoke      tiny, on CPU in Triton's interpreter
"""

import argparse
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

Part = Callable[[], Any]
PARTS = ("checks", "attention", "alone", "many")


def measure(parts: list[str], *, smoke: bool) -> dict[str, Any]:
    # Imported here because --smoke decides whether kernels are compiled or interpreted.
    from gpu import attention, checks, serving  # noqa: PLC0415
    from gpu.machine import Machine  # noqa: PLC0415

    from backend.check import copy_bandwidth  # noqa: PLC0415

    machine = Machine.here(smoke=smoke)
    bandwidth = copy_bandwidth(machine.device, 2**12 if smoke else 2**31)
    result: dict[str, Any] = {
        "benchmark": "gpu_engine",
        "smoke": smoke,
        "machine": machine.facts(),
        "copy_bytes_per_s": bandwidth,
    }
    print(f"{machine.facts()}\ncopy: {bandwidth / 1e12:.2f} TB/s, read and written")
    runs: dict[str, Part] = {
        "checks": lambda: checks.run_checks(machine),
        "attention": lambda: {
            "decode": attention.decode(machine, bandwidth),
            "prefill": attention.prefill(machine),
        },
        "alone": lambda: serving.alone(machine, bandwidth),
        "many": lambda: serving.many(machine),
    }
    for part in parts:
        start = time.perf_counter()
        result[part] = runs[part]()
        print(f"\n{part} ({time.perf_counter() - start:.0f} s)")
        print(json.dumps(_rounded(result[part]), indent=1))
    return result


def _rounded(value: Any) -> Any:
    match value:
        case float():
            return float(f"{value:.4g}")
        case dict():
            return {key: _rounded(each) for key, each in value.items()}
        case list():
            return [_rounded(each) for each in value]
    return value


def main() -> None:
    parser = argparse.ArgumentParser(description="the engine's kernels and CUDA path on one GPU")
    parser.add_argument("--only", default=",".join(PARTS), help=f"some of {', '.join(PARTS)}")
    parser.add_argument("--json", type=Path, help="where to write the result as well")
    parser.add_argument("--smoke", action="store_true", help="tiny shapes on CPU, interpreted")
    options = parser.parse_args()
    parts = options.only.split(",")
    if unknown := set(parts) - set(PARTS):
        parser.error(f"--only: {', '.join(sorted(unknown))}")
    if options.smoke:
        os.environ["TRITON_INTERPRET"] = "1"
    result = _rounded(measure(parts, smoke=options.smoke))
    line = json.dumps(result)
    if options.json:
        options.json.write_text(line + "\n", encoding="utf-8")
    print(line)


if __name__ == "__main__":
    main()
