"""A calibration as JSON, and back.

Law: a file is read whole or refused, with its name and the key that is wrong; that of another
verifier is refused, because its scores mean something else.
"""

from typing import Annotated, Final, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from embeddings.verify.calibration import Calibration, CalibrationError, Step

MOST_STEPS: Final = 100_000
_Score = Annotated[float, Field(ge=0, le=1)]


class _File(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")

    format: Annotated[int, Field(ge=1, le=1)]
    verifier: Annotated[str, Field(min_length=1)]
    confidence: Annotated[float, Field(gt=0, lt=1)]
    provenance: str
    steps: Annotated[tuple[tuple[_Score, int, int], ...], Field(max_length=MOST_STEPS)]

    @model_validator(mode="after")
    def _loosen_step_by_step(self) -> Self:
        last = (2.0, 0, 0)
        for number, (score, hits, wrong) in enumerate(self.steps):
            if score >= last[0] or hits <= last[1]:
                raise ValueError(f"steps[{number}]: expected a lower score and more hits")
            if not 0 <= wrong - last[2] <= hits - last[1]:
                raise ValueError(f"steps[{number}]: expected 0 to {hits - last[1]} more wrong hits")
            last = score, hits, wrong
        return self


def written_calibration(calibration: Calibration) -> bytes:
    """Return the file's content: steps of score, hits with at least that score, wrong ones."""
    file = _File(
        format=1,
        verifier=calibration.verifier,
        confidence=calibration.confidence,
        provenance=calibration.provenance,
        steps=tuple([(step.threshold, step.hits, step.wrong) for step in calibration.steps]),
    )
    head, key, steps = file.model_dump_json().rpartition(',"steps":')
    return (head + key + steps.replace("[", "\n[") + "\n").encode()


def parse_calibration(data: bytes, source: str, *, verifier: str | None = None) -> Calibration:
    """Read a file's content; ``source`` is its name for messages. Raises CalibrationError.

    Only one of ``verifier`` is taken, where that is given.
    """
    try:
        file = _File.model_validate_json(data)
    except ValidationError as error:
        fault = error.errors(include_url=False, include_input=False)[0]
        parts = [f"[{part}]" if isinstance(part, int) else f"{part}" for part in fault["loc"]]
        where = "".join(parts) + ": " if parts else ""
        what = "expected JSON" if fault["type"] == "json_invalid" else fault["msg"]
        raise CalibrationError(f"{source}: {where}{what.removeprefix('Value error, ')}") from None
    if verifier is not None and file.verifier != verifier:
        raise CalibrationError(
            f"{source}: verifier: it is of verifier {file.verifier[:16]}, "
            f"and verifier {verifier[:16]} is in use"
        )
    steps = tuple([Step(*row) for row in file.steps])
    return Calibration(file.verifier, steps, file.confidence, file.provenance)
