"""``python -m tools.verifier.calibrate``: calibrate the trained verifier.

The log in ``calibration/`` was written for this and is not trained on: a stored question, the same
asked freely and in nearly the same words, a near miss, another question of the same topic. Half of
what shares its wording with the stored question is another question, and half of what does not is
the same. Questions that the gateway would not look up by meaning were taken out. README.md tells
how its labels were checked.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from embeddings.encoder.model_files import VERIFIER_DIRECTORY, ModelError
from embeddings.verify.calibration import calibrated, written_calibration
from embeddings.verify.directories import second_directory
from embeddings.verify.verifier import Verifier, load_verifier
from tools.verifier.material.groups import Group, GroupError, read_groups
from tools.verifier.would_be_hits import candidates, hits

LOG: Final = Path(__file__).parent / "written" / "calibration"
_BUDGETS: Final = (0.001, 0.005, 0.01, 0.02, 0.05, 0.1)


def main(argv: Sequence[str]) -> int:
    """Parse `argv`, calibrate, return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.verifier.calibrate",
        description="Calibrate a verifier with the log in calibration/. Takes three minutes.",
        allow_abbrev=False,
    )
    parser.add_argument("--verifier", type=Path, default=VERIFIER_DIRECTORY, help="its folder")
    options = parser.parse_args(argv)
    try:
        run(options.verifier, LOG)
    except (GroupError, ModelError, OSError) as error:
        print(f"calibrate: {error}", file=sys.stderr)
        return 1
    return 0


def run(directory: Path, log: Path) -> None:
    """Write a calibration.json beside the weights, and print what each budget keeps.

    Once without the second network and, where there is one, once with it. `log` has a folder for
    each writer. Raises ModelError, GroupError, OSError.
    """
    pools = [read_groups(folder) for folder in sorted(log.iterdir())]
    second = second_directory(directory)
    for alone, out in ((True, directory), *([] if second is None else [(False, second)])):
        _calibrate(load_verifier(directory, os.cpu_count() or 1, alone=alone), pools, out)


def _calibrate(verifier: Verifier, pools: Sequence[Sequence[Group]], out: Path) -> None:
    groups = [group for pool in pools for group in pool]
    found = [some for pool in pools for some in candidates(pool, verifier)]
    surest = list(hits(found))
    points = [(each.score, each.wrong) for each in surest]
    provenance = (
        f"{len(found):,} questions asked of {len(groups):,} stored, written for this and held out"
    )
    calibration = calibrated(
        points,
        verifier=verifier.digest,
        provenance=provenance,
        features=[each.features for each in surest],
    )
    (out / "calibration.json").write_bytes(written_calibration(calibration))
    right = sum(len(group.same) - 1 for group in groups)
    print(f"{verifier.name}: {provenance}; {len(points)} would-be hits, ", end="")
    print(f"{sum(wrong for _, wrong in points)} wrong")
    for budget in _BUDGETS:
        step = calibration.step(budget)
        kept = "none is known" if step is None else _kept(step.threshold, points, right)
        print(f"  at most {budget:6.1%} wrong: {kept}")


def _kept(threshold: float, points: Sequence[tuple[float, bool]], right: int) -> str:
    served = [wrong for score, wrong in points if score >= threshold]
    found = len(served) - sum(served)
    return (
        f"score {threshold:.4f}, {len(served)} hits, {sum(served)} wrong, {found / right:.1%} of "
        "those that could be served"
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
