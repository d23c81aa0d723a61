"""Faults on purpose, under load: upstreams, stores, disk, clock and processes.

    make chaos
    make chaos CHAOS="--only redis --seconds 5"

Real processes: ``refrain serve`` with its workers, real Redis servers, real signals, real files. A
client asks without a pause and checks every byte. After each fault, all that was answered is asked
again with ``only-if-cached``. The exit code is 1 if an invariant is broken:

- no wrong answer, no other tenant's answer, no part of an answer as if it were whole;
- nothing but whole answers is stored, and what was answered before the fault is found after it;
- every request ends in time, and every error has the right form;
- hits and misses are normal again after the fault.
"""

import argparse
import asyncio
import json
import os
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "support")]
os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])

from tests.chaos.installation import UnavailableError  # noqa: E402
from tests.chaos.scenarios import SCENARIOS, run  # noqa: E402

COLUMNS = (
    ("requests", 9),
    ("hits", 7),
    ("misses", 7),
    ("broke", 6),
    ("wrong", 6),
    ("truncated", 10),
    ("formless", 9),
    ("hung", 5),
    ("lost", 5),
    ("slowest_s", 10),
    ("recovery_s", 11),
)


def main() -> int:
    """Print a table and, last, one line of JSON; return the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=3.0, help="of each fault")
    parser.add_argument("--only", action="append", help="scenarios whose name has this, repeatable")
    parser.add_argument("--list", action="store_true", help="print the names alone")
    options = parser.parse_args()
    chosen = [
        each
        for each in SCENARIOS
        if not options.only or any(word in each.name for word in options.only)
    ]
    if options.list:
        print("\n".join(each.name for each in chosen))
        return 0
    began = time.monotonic()
    print(f"{'':28}" + "".join(f"{name:>{width}}" for name, width in COLUMNS) + "  errors")
    figures, broken, skipped = {}, {}, {}
    for scenario in chosen:
        try:
            with tempfile.TemporaryDirectory(prefix="chaos-") as folder:
                result = asyncio.run(run(scenario, Path(folder), options.seconds))
        except UnavailableError as why:
            skipped[scenario.name] = str(why)
            print(f"{scenario.name:28}  skipped: {why}", flush=True)
            continue
        figures[scenario.name] = result.figures
        cells = "".join(f"{result.figures[name]!s:>{width}}" for name, width in COLUMNS)
        said = " ".join(f"{n} x {status}" for status, n in result.figures["errors"].items())
        print(f"{scenario.name:28}{cells}  {said}", flush=True)
        for event in result.figures.get("events", ()):
            print(f"{'':28}  {event}")
        if result.broken:
            broken[scenario.name] = list(result.broken)
            for fault in result.broken:
                print(f"{'':28}  BROKEN: {fault}", flush=True)
    print(
        "lost: answers that were received whole in time and are not found afterwards. "
        "recovery: from the fault's end to normal hits and misses."
    )
    print(
        json.dumps(
            {
                "benchmark": "chaos",
                "seconds": options.seconds,
                "took_s": round(time.monotonic() - began),
                "scenarios": figures,
                "skipped": skipped,
                "broken": broken,
            }
        )
    )
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
