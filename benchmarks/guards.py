"""What the guards before the verifier refuse, on hand-written groups of questions.

    python -m benchmarks.guards [FOLDER ...] [--half tune|report|both] [--show REASON] [--missed N]

A group is a question, its rewordings (`= `) and its near misses (`! `). Of all pairs of a question
or rewording with another one (same) and with a near miss (different) the share refused is printed,
by reason. Groups fall into halves by a hash of their first line: lists and thresholds are chosen on
one, figures come from the other. Without arguments it reads what the verifier is trained and chosen
on.
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
from embeddings.verify.vocabulary import common_words
from tools.verifier.material.groups import read_groups

GROUPS = [
    Path(__file__).parents[1] / "tools/verifier/written" / x for x in ("groups", "development")
]


class Pair(NamedTuple):
    a: str
    b: str
    same: bool
    seed: bool
    """Is one of them the group's own question, from which the other was written?"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("groups", type=Path, nargs="*", default=GROUPS)
    parser.add_argument("--half", choices=["tune", "report", "both"], default="report")
    parser.add_argument("--show", metavar="REASON", help="print rewordings refused for it")
    parser.add_argument("--missed", type=int, default=0, help="print so many near misses let by")
    arguments = parser.parse_args()
    pairs = [pair for path in arguments.groups for pair in read(path, arguments.half)]
    common = common_words()
    started = time.process_time()
    reasons = [guard(pair.a, pair.b, common) for pair in pairs]
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
        for why, count in refused.most_common():
            print(f"    {why:12}{count:7} {count / len(of):7.2%}")
        shares = {why: round(count / len(of), 5) for why, count in sorted(refused.items())}
        result[name] = {"pairs": len(of), "refused": round(total / max(len(of), 1), 5), **shares}
    for pair, reason in zip(pairs, reasons, strict=True):
        if pair.same and reason and arguments.show in {reason, "all"}:
            print(f"  {reason:10} {pair.a}\n             {pair.b}")
    missed = [x for x, reason in zip(pairs, reasons, strict=True) if not x.same and not reason]
    for pair in missed[:: max(len(missed) // max(arguments.missed, 1), 1)][: arguments.missed]:
        print(f"  let by     {pair.a}\n             {pair.b}")
    result["us_per_pair"] = round(per_pair, 1)
    print(json.dumps(result))
    return 0


def read(path: Path, half: str) -> Iterator[Pair]:
    for group in read_groups(path):
        seed = group.same[0]
        first = hashlib.sha256(seed.encode()).digest()[0]
        if half != "both" and (first % 2 == 0) is not (half == "tune"):
            continue
        yield from (Pair(a, b, True, a is seed) for a, b in combinations(group.same, 2))
        yield from (Pair(a, b, False, a is seed) for a in group.same for b in group.misses)


if __name__ == "__main__":
    sys.exit(main())
