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
import hashlib
import json
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from random import Random
from typing import Final

import torch
from torch import Tensor

from embeddings.encoder.model_files import DEFAULT_MODEL, VERIFIER_DIRECTORY, ModelError, locate
from tools.verifier import calibrate
from tools.verifier.export import save_verifier
from tools.verifier.fitting import Plan, fit, scores
from tools.verifier.groups import Group, GroupError, read_groups
from tools.verifier.mixture import Labelled, mixture, neighbours, unsure
from tools.verifier.network import MAX_TOKENS, PairNetwork, PairReader
from tools.verifier.teacher import TeacherError, unpack_teacher
from tools.verifier.vectors import sentence_vectors

HERE: Final = Path(__file__).parent
SEED: Final = 17
TEACHER: Final = Plan(steps=2_400, tokens=2048, rate=6e-5, head=20)
FIRST: Final = Plan(steps=6_000, tokens=2560, rate=1.5e-4)
STUDENT: Final = Plan(steps=2_800, tokens=2560, rate=1.2e-4)
STUDENTS: Final = ("student-1", "student-2")
"""The mean of weights that were trained from one start on other pairs beats each of them
(model soups, arXiv:2203.05482)."""
LABELS: Final = 120_000
_SCORED_AT_ONCE: Final = 2_000


class PlanError(Exception):
    """The work folder holds files of another plan; the message says what differs."""


def main(argv: Sequence[str]) -> int:
    """Parse `argv`, run the stages, return the exit code."""
    options = _parser().parse_args(argv)
    work: Path = options.work
    torch.set_num_threads(options.threads)
    torch.manual_seed(SEED)
    try:
        work.mkdir(parents=True, exist_ok=True)
        _keep_plan(work, options)
        groups = read_groups(options.groups)
        near = neighbours(groups, sentence_vectors)
        _say(f"{len(groups):,} groups, {len(near):,} near pairs of two groups")
        stages = Stages(work, groups, near, options)
        student = stages.run()
        _write(student, options.out)
        calibrate.run(options.out, HERE / "calibration")
    except (GroupError, ModelError, PlanError, TeacherError, OSError) as error:
        print(f"verifier: {error}", file=sys.stderr)
        return 1
    return 0


@dataclass(frozen=True, slots=True)
class Stages:
    """The trainings and what they leave in the folder `work`."""

    work: Path
    groups: list[Group]
    near: list[tuple[str, str]]
    options: argparse.Namespace

    def run(self) -> PairNetwork:
        """Return the student, trained."""
        labels = self.work / "labels.jsonl"
        directory = locate(DEFAULT_MODEL).directory
        first = self._trained("first", directory, FIRST)
        if not labels.exists():
            folder = unpack_teacher(self.work / "teacher")
            teacher = self._trained("teacher", folder, TEACHER)
            self._label(labels, teacher, PairReader(folder, teacher.kind))
        taught = list(_read_labels(labels))
        students = []
        for name in STUDENTS:
            student = self._trained(name, directory, STUDENT, taught, first.state_dict())
            students.append(student.state_dict())
        mean = {name: sum(each[name] for each in students) / len(students) for name in students[0]}
        student.load_state_dict(mean)
        return student

    def _trained(
        self,
        name: str,
        directory: Path,
        plan: Plan,
        taught: Sequence[Labelled] = (),
        start: Mapping[str, Tensor] | None = None,
    ) -> PairNetwork:
        network = PairNetwork(directory)
        if start is not None:
            network.load_state_dict(start)
        fit(
            network,
            lambda rng: mixture(self.groups, self.near, taught, rng),
            PairReader(directory, network.kind),
            replace(plan, steps=_steps(plan, self.options)),
            seed=name,
            checkpoint=self.work / f"{name}.pt",
            report=lambda line: _say(f"{name}: {line}"),
        )
        return network

    def _label(self, file: Path, teacher: PairNetwork, reader: PairReader) -> None:
        """Write pairs with the teacher's probability that they are the same.

        If a label is known, the target is the mean of both: a label that the teacher doubts is
        often wrong, or hangs on what the question does not say.
        """
        pairs = unsure(self.groups, sentence_vectors, Random(SEED), self.options.labels)
        fresh = file.with_suffix(".new")
        with fresh.open("w", encoding="utf-8") as out:
            for start in range(0, len(pairs), _SCORED_AT_ONCE):
                some = pairs[start : start + _SCORED_AT_ONCE]
                logits = scores(teacher, reader, [(a, b) for a, b, _ in some])
                said = torch.sigmoid(torch.from_numpy(logits)).tolist()
                for (a, b, known), guess in zip(some, said, strict=True):
                    target = guess if known is None else (guess + known) / 2
                    out.write(json.dumps([a, b, round(target, 4)]) + "\n")
                _say(f"labels: {start + len(some):,} of {len(pairs):,}")
        fresh.replace(file)


def _keep_plan(work: Path, options: argparse.Namespace) -> None:
    """Write what the files in `work` are made from. Raises PlanError if it was something else."""
    plans = {"teacher": TEACHER, "first": FIRST, "students": STUDENT}
    plan = {
        "seed": SEED,
        "labels": options.labels,
        **{name: {**asdict(plan), "steps": _steps(plan, options)} for name, plan in plans.items()},
        "groups": _digest(options.groups.glob("*.txt")),
        "templates": _digest(
            file
            for file in (Path(__file__).parent / "templates").rglob("*")
            if file.suffix in {".py", ".txt"}
        ),
    }
    file = work / "plan.json"
    made = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    if any(path != file for path in work.iterdir()) and made != plan:
        other = [key for key in plan if plan[key] != made.get(key)]
        raise PlanError(
            f"{work} holds files of another plan (in {file.name} differ: {', '.join(other)}); "
            "give an empty folder with --work, or remove these files"
        )
    file.write_text(json.dumps(plan, indent=1) + "\n", encoding="utf-8")


def _steps(plan: Plan, options: argparse.Namespace) -> int:
    return int(options.steps or plan.steps)


def _digest(files: Iterable[Path]) -> str:
    digest = hashlib.sha256()
    for file in sorted(files):
        digest.update(hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()


def _read_labels(file: Path) -> Iterator[Labelled]:
    with file.open(encoding="utf-8") as lines:
        for line in lines:
            a, b, target = json.loads(line)
            yield Labelled(a, b, target)


def _write(student: PairNetwork, out: Path) -> None:
    config = {
        **{name: value for name, value in student.config.items() if not name.startswith("_")},
        "name": "refrain-verifier",
        "max_tokens": MAX_TOKENS,
    }
    tokenizer = locate(DEFAULT_MODEL).directory / "tokenizer.json"
    save_verifier(student.state_dict(), config, tokenizer, out)
    _say(f"written: {out}")


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
    add("--labels", type=int, default=LABELS, help="pairs to label (default: %(default)s)")
    add("--steps", type=int, help="of each training, to try it; default: what shipped weights took")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
