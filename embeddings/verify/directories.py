"""Where the verifier's networks are. Light: a gateway imports it."""

from pathlib import Path
from typing import Final

from embeddings.encoder.model_files import VERIFIER_DIRECTORY

SECOND: Final = "second"


def second_directory(directory: Path) -> Path | None:
    """Return where the second network of the verifier in `directory` is, None if it has none."""
    beside = directory / SECOND
    return beside if beside.is_dir() else None


def calibration_files(directory: Path) -> list[Path]:
    """Return the calibrations that may stand beside the networks in `directory`."""
    second = second_directory(directory)
    places = [directory] if second is None else [directory, second]
    return [place / "calibration.json" for place in places]


def shipped_calibration_files() -> list[Path]:
    """Return the calibrations that may stand beside the installed networks."""
    return calibration_files(VERIFIER_DIRECTORY)
