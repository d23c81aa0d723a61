"""The systems measured: decision and verifier of each, behind the gateway's own port."""

from dataclasses import dataclass, replace
from pathlib import Path

from embeddings.encoder.model_files import ModelError
from embeddings.verify.calibration import Calibration, CalibrationError
from embeddings.verify.calibration_file import parse_calibration
from embeddings.verify.guards import guard
from gateway.semantic.calibrations import Calibrations
from gateway.semantic.ports import Verification, Verifier
from gateway.semantic.verifier import CalibratedVerifier
from policies.decision import Decision
from policies.format.settings import DEFAULT_MAX_WRONG_HITS
from quality.kept import Kept
from quality.remembered import Remembered
from quality.scores import Scores

GUARDS = "guards, any score"
WHOLE = "whole"
BUDGETS = (0.002, 0.005, 0.01, 0.02, 0.05)
_SCORES = (0.1, 0.3, 0.5, 0.7, 0.9, 0.97, 0.99)
_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class System:
    """A verifier, and what it is asked to keep to."""

    name: str
    verifier: Verifier
    max_wrong_hits: float = DEFAULT_MAX_WRONG_HITS
    min_similarity: float | None = None
    """The floor, where it is not the default policy's."""

    def decision(self, default: Decision) -> Decision:
        floor = default.min_similarity if self.min_similarity is None else self.min_similarity
        return replace(default, max_wrong_hits=self.max_wrong_hits, min_similarity=floor)


class Guards:
    """See the port ``Verifier``: what the guards leave to the model, all of it taken."""

    async def verify(self, asked: str, stored: str, similarity: float) -> Verification:
        del similarity
        refusal = guard(asked, stored)
        return Verification(1.0 if refusal is None else 0.0, refusal)

    def threshold(self, max_wrong_hits: float, verifier: str = "") -> float | None:
        del verifier
        return None if max_wrong_hits <= 0 else 0.5


@dataclass(frozen=True, slots=True)
class Held:
    """See the port ``Verifier``: another's verdicts, held against a threshold given beforehand."""

    verifier: Verifier
    fixed: float | None

    async def verify(self, asked: str, stored: str, similarity: float) -> Verification:
        return await self.verifier.verify(asked, stored, similarity)

    def threshold(self, max_wrong_hits: float, verifier: str = "") -> float | None:
        del verifier
        return self.fixed if max_wrong_hits > 0 else None


class CalibrationOf(Calibrations):
    """The calibration beside the weights measured, where those are not the shipped ones."""

    def __init__(self, directory: Path, data_dir: Path) -> None:
        super().__init__(data_dir)
        self._beside = directory / "calibration.json"

    def of(self, verifier: str) -> Calibration | None:
        """See there."""
        if not self._beside.is_file():
            return super().of(verifier)
        return parse_calibration(self._beside.read_bytes(), str(self._beside), verifier=verifier)


def guards(kept: Kept) -> System:
    return System(GUARDS, Remembered(Guards(), "guards", kept))


def whole(directory: Path, kept: Kept, nowhere: Path, fixed: float | None) -> System | str:
    """Return the whole with the weights in a directory, or why there is none.

    `fixed` stands in for the threshold that follows from the budget, where it is given.
    """
    try:
        scores = Scores(directory, kept)
    except ModelError as error:
        return str(error)
    calibrated = CalibratedVerifier(scores, CalibrationOf(directory, nowhere), seconds=_SECONDS)
    verifier = Remembered(calibrated, scores.verifier or "", kept)
    return System(WHOLE, verifier if fixed is None else Held(verifier, fixed))


def thresholds(system: System) -> dict[str, float]:
    """Return the thresholds to show beside the default's: by budget, else some to choose from."""
    try:
        by_budget = {
            f"budget {budget:.1%}": threshold
            for budget in BUDGETS
            if (threshold := system.verifier.threshold(budget)) is not None
        }
    except CalibrationError:
        by_budget = {}
    if len(set(by_budget.values())) > 1:
        return by_budget
    return {f"score {threshold}": threshold for threshold in _SCORES}


def all_candidates(system: System) -> System:
    """Return the system with every candidate verified and none served: to sweep thresholds."""
    held = Held(system.verifier, None)
    return replace(system, name=f"{system.name}, all candidates", verifier=held)
