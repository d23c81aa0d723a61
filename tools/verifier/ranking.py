"""``python -m tools.verifier.ranking``: how many of the surest hits are wrong.

On the development log, which is neither trained on nor calibrated with, for several weights of the
cosine: what the network, the guards and the weight are compared by before anything is calibrated.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from typing import Final

from embeddings.encoder.model_files import VERIFIER_DIRECTORY, ModelError
from embeddings.verify.recipe import WEIGHT
from embeddings.verify.verifier import load_verifier
from tools.verifier.groups import GroupError, read_groups
from tools.verifier.would_be_hits import candidates, hits

_HERE: Final = Path(__file__).parent
_WEIGHTS: Final = (0.0, 4.0, 8.0, 12.0, 16.0, 24.0, 48.0)
_EVERY: Final = 100


def main(argv: Sequence[str]) -> int:
    """Print a row for each weight; return the exit code."""
    arguments = _parser().parse_args(argv)
    try:
        verifier = load_verifier(arguments.verifier, threads=os.cpu_count() or 1)
        found = list(candidates(read_groups(arguments.log), verifier))
    except (GroupError, ModelError, OSError) as error:
        print(f"ranking: {error}", file=sys.stderr)
        return 1
    ends = range(_EVERY, sum(map(bool, found)) + 1, _EVERY)
    print("wrong among the surest" + "".join(f"{end:6}" for end in ends))
    for weight in sorted({*_WEIGHTS, WEIGHT}):
        surest = sorted(hits(found, weight), key=lambda hit: -hit[0])
        wrong = list(accumulate(wrong for _, wrong in surest))
        print(f"cosine weighs {weight:4g}    " + "".join(f"{wrong[end - 1]:6}" for end in ends))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tools.verifier.ranking", description=__doc__, allow_abbrev=False
    )
    parser.add_argument("--log", type=Path, default=_HERE / "development", help="folder of groups")
    parser.add_argument("--verifier", type=Path, default=VERIFIER_DIRECTORY, help="its folder")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
