"""The trainings one after another, and what each leaves in the work folder.

``plan.json`` there says from which step on which data and rates were in use: a stopped training may
go on with more data than it began with.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from random import Random
from typing import Any, Final

import torch
from torch import Tensor

from embeddings.encoder.model_files import DEFAULT_MODEL, locate
from tools.verifier.material.pairs import Labelled
from tools.verifier.material.reading import Material
from tools.verifier.training.fitting import Plan, fit, scores, steps_done
from tools.verifier.training.mixture import mixture, unsure
from tools.verifier.training.network import PairNetwork, PairReader
from tools.verifier.training.screening import screened
from tools.verifier.training.teacher import unpack_teacher
from tools.verifier.vectors import sentence_vectors

SEED: Final = 17
FIRST: Final = Plan(steps=6_000, tokens=2560, rate=1.5e-4)
SECOND: Final = Plan(steps=4_500, tokens=2048, rate=5e-5, head=20)
STUDENT: Final = Plan(steps=2_800, tokens=2560, rate=1.2e-4)
STUDENTS: Final = ("student-1", "student-2")
"""The mean of weights that were trained from one start on other pairs beats each of them
(model soups, arXiv:2203.05482)."""
LABELS: Final = 120_000
_SCORED_AT_ONCE: Final = 2_000

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Stages:
    """The trainings in the folder `work`.

    `steps` is how many each of them takes, None for as many as its plan says; `labels` is how many
    pairs the second network scores for the students.
    """

    work: Path
    material: Material
    steps: int | None
    labels: int
    say: Say

    def run(self) -> tuple[PairNetwork, PairNetwork]:
        """Return the first and the second network of the verifier, trained. Raises TeacherError."""
        directory = locate(DEFAULT_MODEL).directory
        start = self._trained("first", directory, FIRST)
        reader = PairReader(directory, start.kind)

        def guess(pairs: Sequence[tuple[str, str]]) -> list[float]:
            logits = torch.from_numpy(scores(start, reader, pairs))
            said: list[float] = torch.sigmoid(logits).tolist()
            return said

        folder = unpack_teacher(self.work / "mpnet")
        second = self._trained(
            "second",
            folder,
            SECOND,
            pairs=lambda rng: screened(mixture(self.material, rng), guess, rng),
        )
        labels = self.work / "labels.jsonl"
        if not labels.exists():
            self._label(labels, second, PairReader(folder, second.kind))
        taught = replace(self.material, taught=list(_read_labels(labels)))
        students = []
        for name in STUDENTS:
            student = self._trained(
                name,
                directory,
                STUDENT,
                pairs=lambda rng: mixture(taught, rng),
                start=start.state_dict(),
            )
            students.append(student.state_dict())
        mean = {name: sum(each[name] for each in students) / len(students) for name in students[0]}
        student.load_state_dict(mean)
        return student, second

    def _trained(
        self,
        name: str,
        directory: Path,
        plan: Plan,
        *,
        pairs: Callable[[Random], Iterator[Labelled]] | None = None,
        start: Mapping[str, Tensor] | None = None,
    ) -> PairNetwork:
        """Train a network of the weights in `directory`, by default on the mixture."""
        network = PairNetwork(directory)
        if start is not None:
            network.load_state_dict(start)
        plan = plan if self.steps is None else replace(plan, steps=self.steps)
        checkpoint = self.work / f"{name}.pt"
        self._keep_plan(name, steps_done(checkpoint), plan)
        fit(
            network,
            pairs or (lambda rng: mixture(self.material, rng)),
            PairReader(directory, network.kind),
            plan,
            seed=name,
            checkpoint=checkpoint,
            report=lambda line: self.say(f"{name}: {line}"),
        )
        return network

    def _keep_plan(self, name: str, done: int, plan: Plan) -> None:
        """Write down what a stage learns from after so many steps."""
        file = self.work / "plan.json"
        kept: dict[str, list[dict[str, Any]]] = (
            json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
        )
        now = {"plan": asdict(plan), "material": self.material.digests}
        parts = kept.setdefault(name, [])
        if done < plan.steps and (not parts or {**parts[-1], "from": 0} != {**now, "from": 0}):
            parts.append({"from": done, **now})
        file.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")

    def _label(self, file: Path, network: PairNetwork, reader: PairReader) -> None:
        """Write pairs with the second network's probability that they are the same.

        If a label is known, the target is the mean of both: a label that the network doubts is
        often wrong, or hangs on what the question does not say.
        """
        pairs = unsure(self.material.groups, sentence_vectors, Random(SEED), self.labels)
        fresh = file.with_suffix(".new")
        with fresh.open("w", encoding="utf-8") as out:
            for start in range(0, len(pairs), _SCORED_AT_ONCE):
                some = pairs[start : start + _SCORED_AT_ONCE]
                logits = scores(network, reader, [(a, b) for a, b, _ in some])
                said = torch.sigmoid(torch.from_numpy(logits)).tolist()
                for (a, b, known), guess in zip(some, said, strict=True):
                    target = guess if known is None else (guess + known) / 2
                    out.write(json.dumps([a, b, round(target, 4)]) + "\n")
                self.say(f"labels: {start + len(some):,} of {len(pairs):,}")
        fresh.replace(file)


def _read_labels(file: Path) -> Iterator[Labelled]:
    with file.open(encoding="utf-8") as lines:
        for line in lines:
            a, b, target = json.loads(line)
            yield Labelled(a, b, target)
