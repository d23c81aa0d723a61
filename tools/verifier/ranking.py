"""``python -m tools.verifier.ranking``: how many right hits there are at few wrong ones.

On the development log and, with --people, on the intents of other people, neither of which is
trained on nor calibrated with. For several weights of the cosine: what networks, guards and weights
are compared by before anything is calibrated.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Final

from embeddings.encoder.model_files import VERIFIER_DIRECTORY, ModelError
from embeddings.verify.recipe import WEIGHT, WORDING
from embeddings.verify.verifier import load_verifier
from tools.verifier.material.groups import GroupError, read_groups
from tools.verifier.material.people import PeopleError, read_people
from tools.verifier.would_be_hits import Candidate, candidates, hits, intents

_HERE: Final = Path(__file__).parent
_WEIGHTS: Final = (0.0, 4.0, 8.0, 16.0)
_WORDINGS: Final = (0.0, 12.0, 24.0, 48.0)
_WRONG: Final = (0.005, 0.01, 0.02, 0.05)

Log = Sequence[Sequence[Candidate]]


def main(argv: Sequence[str]) -> int:
    """Print a row for each pair of weights; return the exit code."""
    arguments = _parser().parse_args(argv)
    try:
        verifier = load_verifier(
            arguments.verifier, threads=os.cpu_count() or 1, alone=arguments.alone
        )
        logs: dict[str, Log] = {
            "development": list(candidates(read_groups(arguments.log), verifier))
        }
        if arguments.people is not None:
            people = read_people(arguments.people).development
            logs["intents"] = list(intents(people, verifier))
    except (GroupError, ModelError, PeopleError, OSError) as error:
        print(f"ranking: {error}", file=sys.stderr)
        return 1
    print("right hits where this share of the hits is wrong")
    print(f"{'cosine, wording':18}", *(f"{name:>28}" for name in logs))
    print(f"{'':18}", *("".join(f"{wrong:7.1%}" for wrong in _WRONG) for _ in logs))
    grid = dict.fromkeys([(WEIGHT, WORDING), *product(_WEIGHTS, _WORDINGS)])
    for weight, wording in grid:
        cells = (
            "".join(f"{right_at(log, share, weight, wording):7}" for share in _WRONG)
            for log in logs.values()
        )
        print(f"{weight:6g}, {wording:8g}  ", *cells)
    return 0


def right_at(log: Log, share: float, weight: float, wording: float) -> int:
    """Return the most right hits among the surest of which at most this share is wrong."""
    right = wrong = most = 0
    for hit in sorted(hits(log, weight, wording), key=lambda hit: -hit.score):
        wrong += hit.wrong
        right += not hit.wrong
        if wrong <= share * (right + wrong):
            most = right
    return most


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tools.verifier.ranking", description=__doc__, allow_abbrev=False
    )
    add = parser.add_argument
    add("--log", type=Path, default=_HERE / "written" / "development", help="folder of groups")
    add("--people", type=Path, help="folder of public sets (SOURCES.md)")
    add("--verifier", type=Path, default=VERIFIER_DIRECTORY, help="its folder")
    add("--alone", action="store_true", help="without the second network")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
