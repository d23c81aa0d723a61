"""``python -m tools.verifier``: make the verifier's weights and calibration again, in four stages.

    teacher    all-mpnet-base-v2 learns the pairs
    labels     the teacher scores pairs of which no label is known
    student    all-MiniLM-L6-v2 learns the pairs and the teacher's labels
    files      weights in eight bits, and the calibration of their scores

Each stage leaves a file in --work and is left out if that is there. A stage that was stopped goes
on from its last checkpoint. Everything comes from this repository and two packages of weights
(README.md).

Exit codes: 0 written; 1 cannot train, one line on stderr says why; 2 bad usage.
"""

import argparse
import json
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Final

import torch

from embeddings.encoder.model_files import DEFAULT_MODEL, VERIFIER_DIRECTORY, ModelError, locate
from embeddings.verify.files import save_verifier
from tools.verifier import calibrate
from tools.verifier.fitting import Plan, fit, scores
from tools.verifier.groups import Group, GroupError, read_groups
from tools.verifier.mixture import Labelled, mixture, neighbours, untaught
from tools.verifier.network import MAX_TOKENS, PairNetwork, PairReader
from tools.verifier.teacher import TeacherError, unpack_teacher
from tools.verifier.vectors import sentence_vectors

HERE: Final = Path(__file__).parent
SEED: Final = 17
TEACHER: Final = Plan(steps=3000, tokens=1024, rate=5e-5, head=20)
STUDENT: Final = Plan(steps=12_000, tokens=2560, rate=1.5e-4)
LABELS: Final = 40_000
_SCORED_AT_ONCE: Final = 2_000


def main(argv: Sequence[str]) -> int:
    """Parse `argv`, run the stages, return the exit code."""
    options = _parser().parse_args(argv)
    work: Path = options.work
    torch.set_num_threads(options.threads)
    torch.manual_seed(SEED)
    try:
        work.mkdir(parents=True, exist_ok=True)
        groups = read_groups(options.groups)
        near = neighbours(groups, sentence_vectors)
        _say(f"{len(groups):,} groups, {len(near):,} near pairs of two groups")
        taught = _labels(work, groups, near, options)
        student = _student(work, groups, near, taught, options)
        _write(student, options.out)
        calibrate.run(options.out, HERE / "calibration")
    except (GroupError, ModelError, TeacherError, OSError) as error:
        print(f"verifier: {error}", file=sys.stderr)
        return 1
    return 0


def _labels(
    work: Path, groups: list[Group], near: list[tuple[str, str]], options: argparse.Namespace
) -> list[Labelled]:
    """Return the pairs that the teacher labelled; train it and ask it if that was not done."""
    file = work / "labels.jsonl"
    if not file.exists():
        directory = unpack_teacher(work / "teacher")
        teacher = PairNetwork(directory)
        reader = PairReader(directory, teacher.kind)
        plan = _shortened(TEACHER, options.steps)
        fit(
            teacher,
            lambda rng: mixture(groups, near, [], rng),
            reader,
            plan,
            seed=SEED,
            checkpoint=work / "teacher.pt",
            report=lambda line: _say(f"teacher: {line}"),
        )
        pairs = untaught(groups, sentence_vectors, Random(SEED), options.labels)
        fresh = file.with_suffix(".new")
        with fresh.open("w", encoding="utf-8") as out:
            for start in range(0, len(pairs), _SCORED_AT_ONCE):
                some = pairs[start : start + _SCORED_AT_ONCE]
                logits = torch.tensor(scores(teacher, reader, some))
                for (a, b), target in zip(some, torch.sigmoid(logits).tolist(), strict=True):
                    out.write(json.dumps([a, b, round(target, 4)]) + "\n")
                _say(f"labels: {start + len(some):,} of {len(pairs):,}")
        fresh.replace(file)
    return list(_read_labels(file))


def _read_labels(file: Path) -> Iterator[Labelled]:
    with file.open(encoding="utf-8") as lines:
        for line in lines:
            a, b, target = json.loads(line)
            yield Labelled(a, b, target)


def _student(
    work: Path,
    groups: list[Group],
    near: list[tuple[str, str]],
    taught: list[Labelled],
    options: argparse.Namespace,
) -> PairNetwork:
    directory = locate(DEFAULT_MODEL).directory
    student = PairNetwork(directory)
    fit(
        student,
        lambda rng: mixture(groups, near, taught, rng),
        PairReader(directory, student.kind),
        _shortened(STUDENT, options.steps),
        seed=SEED + 1,
        checkpoint=work / "student.pt",
        report=lambda line: _say(f"student: {line}"),
    )
    return student


def _write(student: PairNetwork, out: Path) -> None:
    config = {
        **{name: value for name, value in student.config.items() if not name.startswith("_")},
        "name": "refrain-verifier",
        "max_tokens": MAX_TOKENS,
    }
    tokenizer = locate(DEFAULT_MODEL).directory / "tokenizer.json"
    save_verifier(student.state_dict(), config, tokenizer, out)
    _say(f"written: {out}")


def _shortened(plan: Plan, steps: int | None) -> Plan:
    return plan if steps is None else Plan(steps, plan.tokens, plan.rate, plan.head)


def _say(line: str) -> None:
    print(line, flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tools.verifier",
        description="Make the weights and the calibration of the verifier again.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--work", type=Path, required=True, help="folder of checkpoints and labels")
    add(
        "--out",
        type=Path,
        default=VERIFIER_DIRECTORY,
        help="folder to write (default: %(default)s)",
    )
    add("--groups", type=Path, default=HERE / "groups", help="folder of hand-written groups")
    add("--threads", type=int, default=os.cpu_count() or 1, help="(default here: %(default)s)")
    add("--labels", type=int, default=LABELS, help="pairs for the teacher (default: %(default)s)")
    add("--steps", type=int, help="of each training, to try it; default: what shipped weights took")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
