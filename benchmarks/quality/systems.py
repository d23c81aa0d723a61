"""The verifiers measured: each with its weights, the gateway's own code, and its calibration."""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from embeddings.verify.calibration import Calibration, CalibrationError, parse_calibration
from embeddings.verify.directories import calibration_files
from embeddings.verify.recipe import overlap, weighed
from gateway.semantic.calibrations import Calibrations
from gateway.semantic.ports import SemanticUnavailableError, Verification, Verifier
from gateway.semantic.verifier import OF_THE_TEXT, CalibratedVerifier, Scorer
from policies.format.settings import DEFAULT_MAX_WRONG_HITS
from quality.kept import Kept
from quality.models import CORES, Scores, told
from quality.outcomes import Outcome

WHOLE = "whole"
BUDGETS = (0.002, 0.005, 0.01, 0.02, 0.05)
_SCORES = (0.1, 0.3, 0.5, 0.7, 0.9, 0.97, 0.99)
_SECONDS = 3600.0
_AT_A_TIME = 128


@dataclass(frozen=True, slots=True)
class System:
    """A verifier; `fixed` stands in for the threshold that follows from a budget."""

    name: str
    verifier: Verifier
    scorer: Scorer
    fixed: float | None = None

    def threshold(self, budget: float = DEFAULT_MAX_WRONG_HITS) -> float | None:
        return self.verifier.threshold(budget) if self.fixed is None else self.fixed

    def thresholds(self) -> dict[str, float]:
        """Return the thresholds to show beside the default's: by budget, else by score."""
        try:
            by_budget = {
                f"budget {budget:.1%}": threshold
                for budget in BUDGETS
                if (threshold := self.verifier.threshold(budget)) is not None
            }
        except CalibrationError:
            by_budget = {}
        if len(set(by_budget.values())) > 1:
            return by_budget
        return {f"score {threshold}": threshold for threshold in _SCORES}

    async def judged(
        self, found: Sequence[Outcome], *, label: str = "", refused_too: bool = False
    ) -> list[Outcome]:
        """Return the outcomes with a verification of every candidate.

        With `refused_too` a guard's refusal has the score that it kept from being asked for.
        """
        near = {
            (each.request.text, candidate.stored): candidate.similarity
            for each in found
            for candidate in each.tries
        }
        pairs = sorted(near, key=lambda pair: len(pair[0]) + len(pair[1]))
        said: dict[tuple[str, str], Verification] = {}
        batches = [pairs[start : start + _AT_A_TIME] for start in range(0, len(pairs), _AT_A_TIME)]
        # Few at a time: a long pair's guards have a second on a thread.
        free = asyncio.Semaphore(2 * CORES)

        async def verified(asked: str, stored: str) -> Verification:
            async with free:
                return await self._verified(asked, stored, near[asked, stored], refused_too)

        for batch in told(f"{label}, {self.name}: batches of pairs verified", batches):
            made = await asyncio.gather(*(verified(*pair) for pair in batch))
            said |= zip(batch, made, strict=True)
        return [
            replace(
                each,
                tries=tuple(
                    replace(one, verification=said[each.request.text, one.stored])
                    for one in each.tries
                ),
            )
            for each in found
        ]

    async def _verified(
        self, asked: str, stored: str, similarity: float, refused_too: bool
    ) -> Verification:
        said = await self.verifier.verify(asked, stored, similarity)
        if not refused_too or said.refusal is None or not is_guard(said.refusal):
            return said
        try:
            raw = await self.scorer.score(asked, stored)
            score = weighed(raw, similarity, overlap(asked, stored))
        except SemanticUnavailableError:
            return said
        return said._replace(score=score)


class CalibrationOf(Calibrations):
    """The calibration beside the weights measured, where those are not the shipped ones."""

    def __init__(self, directory: Path, data_dir: Path) -> None:
        super().__init__(data_dir)
        self._beside = [file for file in calibration_files(directory) if file.is_file()]

    def of(self, verifier: str) -> Calibration | None:
        """See ``Calibrations``. Raises CalibrationError."""
        found = [parse_calibration(file.read_bytes(), str(file)) for file in self._beside]
        own = next((each for each in found if each.verifier == verifier), None)
        return super().of(verifier) if own is None else own


def system(name: str, directory: Path, kept: Kept, nowhere: Path, fixed: float | None) -> System:
    """Return the system with the weights in a directory. Raises ModelError, CalibrationError."""
    scores = Scores(directory, kept)
    calibrations = CalibrationOf(directory, nowhere)
    verifier = CalibratedVerifier(scores, calibrations, seconds=_SECONDS)
    made = System(name, verifier, scores, fixed)
    made.threshold()
    return made


def guards_in(judged: Iterable[Outcome]) -> dict[str, int]:
    """Return the guards that refused a candidate, with how many, most first."""
    return _counted(judged, is_guard)


def faults(judged: Iterable[Outcome]) -> dict[str, int]:
    """Return what kept candidates from a verdict, with how many, most first."""
    return _counted(judged, lambda refusal: not is_guard(refusal))


def is_guard(refusal: str) -> bool:
    """Tell whether a refusal is a guard's, and no fault."""
    return refusal not in {*OF_THE_TEXT, "fault", "not-a-number"} and not refusal.startswith(
        "verifier-"
    )


def _counted(judged: Iterable[Outcome], holds: Callable[[str], bool]) -> dict[str, int]:
    said = (each.verification.refusal for outcome in judged for each in outcome.tries)
    return dict(Counter(each for each in said if each is not None and holds(each)).most_common())
