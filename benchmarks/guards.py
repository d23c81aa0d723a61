"""What the guards before the verifier refuse, on hand-written groups of questions.

    python benchmarks/guards.py FILE_OR_FOLDER [--half tune|report] [--show REASON] [--missed N]

A group is a question, its rewordings (`= `) and its near misses (`! `). Of all pairs of a question
or rewording with another one (same) and with a near miss (different) the share refused is printed,
by reason. Groups fall into halves by a hash of their first line: lists and rules are tuned on one,
figures come from the other.
"""

import argparse
import hashlib
import json
import sys
import time
from collections import Counter
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import NamedTuple

from embeddings.verify.guards import guard


class Pair(NamedTuple):
    a: str
    b: str
    same: bool
    seed: bool
    """Is one of them the group's own question, from which the other was written?"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("groups", type=Path)
    parser.add_argument("--half", choices=["tune", "report", "both"], default="report")
    parser.add_argument("--show", metavar="REASON", help="print rewordings refused for it")
    parser.add_argument("--missed", type=int, default=0, help="print so many near misses let by")
    parser.add_argument("--every", type=int, default=1, help="take each so manieth group only")
    arguments = parser.parse_args()
    pairs = list(read(arguments.groups, arguments.half, arguments.every))
    started = time.process_time()
    reasons = [guard(pair.a, pair.b) for pair in pairs]
    per_pair = (time.process_time() - started) / max(len(pairs), 1) * 1e6
    result: dict[str, object] = {"benchmark": "guards", "half": arguments.half}
    for name, same, seeds in (
        ("same, with the seed", True, {True}),
        ("different, with the seed", False, {True}),
        ("same", True, {True, False}),
        ("different", False, {True, False}),
    ):
        of = [
            reason
            for pair, reason in zip(pairs, reasons, strict=True)
            if pair.same is same and pair.seed in seeds
        ]
        refused = Counter(reason for reason in of if reason)
        total = sum(refused.values())
        print(f"{name}: {total} of {len(of)} refused, {total / max(len(of), 1):.1%}")
        for why, count in refused.most_common() if False in seeds else ():
            print(f"    {why:12}{count:7} {count / len(of):7.2%}")
        result[name] = {"pairs": len(of), "refused": round(total / max(len(of), 1), 4)}
    for pair, reason in zip(pairs, reasons, strict=True):
        if pair.same and reason and arguments.show in {reason, "all"}:
            print(f"  {reason:10} {pair.a}\n             {pair.b}")
    missed = [x for x, reason in zip(pairs, reasons, strict=True) if not x.same and not reason]
    for pair in missed[:: max(len(missed) // max(arguments.missed, 1), 1)][: arguments.missed]:
        print(f"  let by     {pair.a}\n             {pair.b}")
    result["us_per_pair"] = round(per_pair, 1)
    print(json.dumps(result))
    return 0


def read(path: Path, half: str, every: int = 1) -> Iterator[Pair]:
    files = sorted(path.glob("*.txt")) if path.is_dir() else [path]
    for file in files:
        for group in file.read_text(encoding="utf-8").split("\n\n"):
            lines = [line for line in group.splitlines() if line.strip()]
            if not lines:
                continue
            first, second = hashlib.sha256(lines[0].encode()).digest()[:2]
            if second % every or (half != "both" and (first % 2 == 0) is not (half == "tune")):
                continue
            same = [lines[0], *(line[2:] for line in lines if line.startswith("= "))]
            other = [line[2:] for line in lines if line.startswith("! ")]
            seed = same[0]
            yield from (Pair(a, b, True, a is seed) for a, b in combinations(same, 2))
            yield from (Pair(a, b, False, a is seed) for a in same for b in other)


if __name__ == "__main__":
    sys.exit(main())
