"""``python -m tools.verifier``: make the verifier's weights and calibrations again, in six stages.

    first      all-MiniLM-L6-v2 learns the pairs
    second     all-mpnet-base-v2 learns the pairs of which the first is not sure
    labels     the second scores pairs, of known and of unknown label
    students   two copies of the first go on with the pairs and the labels; their mean is kept
    files      the weights of both networks in eight bits
    calibrate  the calibration of their scores, without and with the second

Each stage leaves a file in --work and is left out if that is there. A stage that was stopped goes
on from its last checkpoint. plan.json beside them says from which step on which data was read.
README.md says where the data and the two packages of weights come from.

Exit codes: 0 written; 1 cannot train, one line on stderr says why; 2 bad usage.
"""

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import torch

from embeddings.encoder.model_files import DEFAULT_MODEL, ModelError, locate
from tools.verifier import calibrate
from tools.verifier.export import save_second, save_verifier
from tools.verifier.material.groups import GroupError
from tools.verifier.material.people import PeopleError
from tools.verifier.material.reading import read_material
from tools.verifier.material.rewordings import RewordingError
from tools.verifier.training.network import MAX_TOKENS, PairNetwork
from tools.verifier.training.stages import LABELS, SEED, Stages
from tools.verifier.training.teacher import TeacherError
from tools.verifier.vectors import sentence_vectors

WRITTEN: Final = Path(__file__).parent / "written"


def main(argv: Sequence[str]) -> int:
    """Parse `argv`, run the stages, return the exit code."""
    options = _parser().parse_args(argv)
    work: Path = options.work
    out: Path = options.out or work / "verifier"
    torch.set_num_threads(options.threads)
    torch.manual_seed(SEED)
    try:
        work.mkdir(parents=True, exist_ok=True)
        material = read_material(
            options.groups, options.people, options.rewordings, sentence_vectors
        )
        _say(
            f"{len(material.groups):,} groups, {len(material.near):,} near pairs of two groups, "
            f"{len(material.people.pairs):,} pairs of other people, "
            f"{len(material.rewordings):,} rewordings"
        )
        first, second = Stages(work, material, options.steps, options.labels, _say).run()
        _write(first, second, out)
        calibrate.run(out, WRITTEN / "calibration")
    except (
        GroupError,
        ModelError,
        PeopleError,
        RewordingError,
        TeacherError,
        OSError,
    ) as error:
        print(f"verifier: {error}", file=sys.stderr)
        return 1
    return 0


def _write(first: PairNetwork, second: PairNetwork, out: Path) -> None:
    tokenizer = locate(DEFAULT_MODEL).directory / "tokenizer.json"
    save_verifier(first.state_dict(), _config(first, "refrain-verifier-small"), tokenizer, out)
    save_second(second.state_dict(), _config(second, "refrain-verifier-large"), out)
    _say(f"written: {out}")


def _config(network: PairNetwork, name: str) -> Mapping[str, Any]:
    kept = {key: value for key, value in network.config.items() if not key.startswith("_")}
    return {**kept, "name": name, "max_tokens": MAX_TOKENS}


def _say(line: str) -> None:
    print(line, flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tools.verifier",
        description="Make the weights and the calibrations of the verifier again.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--work", type=Path, required=True, help="folder of checkpoints and labels")
    add("--people", type=Path, required=True, help="folder of public sets (README.md)")
    add(
        "--out",
        type=Path,
        help="folder to write, the second network to its folder second (default: WORK/verifier)",
    )
    add("--groups", type=Path, default=WRITTEN / "groups", help="folder of hand-written groups")
    add(
        "--rewordings",
        type=Path,
        default=WRITTEN / "rewordings",
        help="folder of hand-written rewordings",
    )
    add("--threads", type=int, default=os.cpu_count() or 1, help="(default here: %(default)s)")
    add("--labels", type=int, default=LABELS, help="pairs to label (default: %(default)s)")
    add("--steps", type=int, help="of each training, to try it; default: what shipped weights took")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
