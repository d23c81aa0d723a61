"""`python -m embeddings.training.calibrating GROUPS`: the calibration that ships with the weights.

GROUPS are groups of questions that the weights were not trained on. A cache is filled with the near
misses of all of them, and for some with one rewording that is right; then a question of each is
asked, as the gateway would look it up: nearest four, guards, verifier. Each is one point at most,
the candidate that the verifier is surest of: a hit at just the thresholds that its score reaches.

Law: one question of a group is asked unless told otherwise. Two of them err together, and the bound
takes points for independent.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Final

import numpy as np

from embeddings.encoder import EncoderSettings, load_encoder
from embeddings.model_files import DEFAULT_MODEL, VERIFIER_DIRECTORY, ModelError
from embeddings.training.groups import Group, GroupError, read_groups
from embeddings.verifier import Verifier, load_verifier
from embeddings.verify.calibration import Calibration, calibrated, upper_bound
from embeddings.verify.calibration_file import written_calibration
from embeddings.verify.guards import guard

FILE: Final = "calibration.json"
SEED: Final = 20261121
BUDGETS: Final = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05)
# As the gateway looks up: candidates, and the floor of its default policy.
_NEAREST: Final = 4
_LEAST_COSINE: Final = 0.75
_ANSWERED: Final = 0.5
"""Share of the questions whose answer is stored; the others find near misses alone."""


@dataclass(frozen=True, slots=True)
class Cache:
    """Questions stored, questions asked, and of each which group it is of; -1 for a near miss."""

    stored: tuple[tuple[str, int], ...]
    asked: tuple[tuple[str, int], ...]


def filled(groups: Sequence[Group], rng: Random, *, each: int = 1) -> Cache:
    """Return what is stored and asked; up to ``each`` questions of a group are asked."""
    stored: list[tuple[str, int]] = []
    asked: list[tuple[str, int]] = []
    for number, group in enumerate(groups):
        same = rng.sample(group.same, len(group.same))
        stored += [(text, -1) for text in group.misses]
        if rng.random() < _ANSWERED:
            stored.append((same.pop(), number))
        asked += [(text, number) for text in same[:each]]
    return Cache(tuple(stored), tuple(asked))


def points(cache: Cache, verifier: Verifier) -> Iterator[tuple[float, bool]]:
    """Yield score and whether it is wrong of each question's surest candidate, if it has one."""
    vectors = _vectors([text for text, _ in (*cache.stored, *cache.asked)])
    stored, asked = vectors[: len(cache.stored)], vectors[len(cache.stored) :]
    for (text, owner), vector in zip(cache.asked, asked, strict=True):
        cosine = stored @ vector
        near = [at for at in np.argsort(-cosine)[:_NEAREST] if cosine[at] >= _LEAST_COSINE]
        found = []
        for at in near:
            candidate, its = cache.stored[at]
            if guard(text, candidate) is None:
                (score,) = verifier.score([(text, candidate)])
                if isinstance(score, float):
                    found.append((score, its != owner))
        if found:
            yield max(found)


def _vectors(texts: Sequence[str]) -> "np.ndarray[tuple[int, int], np.dtype[np.float32]]":
    encoder = load_encoder(EncoderSettings(DEFAULT_MODEL, "cpu", threads=1))
    vectors = np.zeros((len(texts), encoder.dimensions), dtype=np.float32)
    for start in range(0, len(texts), 64):
        for place, vector in enumerate(encoder.encode(texts[start : start + 64]), start):
            if not isinstance(vector, str):  # else why there is none
                vectors[place] = vector
    return vectors


def main(argv: Sequence[str]) -> int:
    """Parse `argv`, calibrate, write, return the exit code."""
    arguments = _parser().parse_args(argv)
    try:
        groups = read_groups(arguments.groups)
        verifier = load_verifier(arguments.verifier, threads=1)
    except (GroupError, ModelError, OSError) as error:
        print(f"calibrating: {error}", file=sys.stderr)  # noqa: T201
        return 1
    cache = filled(groups, Random(SEED), each=arguments.each)
    calibration = calibrated(
        points(cache, verifier),
        verifier=verifier.digest,
        provenance=f"{len(cache.asked):,} questions of {len(groups):,} held-out groups written for "
        f"this project, among {len(cache.stored):,} stored ones, most of them near misses",
    )
    _print_table(calibration)
    (arguments.verifier / FILE).write_bytes(written_calibration(calibration))
    return 0


def _print_table(calibration: Calibration) -> None:
    print(f"{calibration.hits} would-be hits")  # noqa: T201
    for budget in BUDGETS:
        step = calibration.step(budget)
        if step is None:
            print(f"{budget:7.2%}  none")  # noqa: T201
            continue
        bound = upper_bound(step.wrong, step.hits, calibration.confidence)
        told = f"{step.threshold:.6f}  {step.hits} hits, {step.wrong} wrong, at most {bound:.2%}"
        print(f"{budget:7.2%}  {told}")  # noqa: T201


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m embeddings.training.calibrating",
        description="Calibrate the verifier on groups of questions that it was not trained on.",
        allow_abbrev=False,
    )
    parser.add_argument("groups", type=Path, metavar="GROUPS", help="directory of held-out groups")
    parser.add_argument("--verifier", type=Path, default=VERIFIER_DIRECTORY, metavar="DIR")
    parser.add_argument(
        "--each", type=int, default=1, metavar="N", help="questions asked of a group (default: 1)"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
