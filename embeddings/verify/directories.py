"""Where the verifier's networks are installed. Light: a gateway imports it."""

from importlib.util import find_spec
from pathlib import Path
from typing import Final

from embeddings.encoder.model_files import VERIFIER_DIRECTORY

SECOND: Final = "second"
_PACKAGE: Final = "refrain_verifier"


def second_directory(directory: Path) -> Path | None:
    """Return where the second network of the verifier in `directory` is, None if it has none.

    It is the folder `second` there or, for the shipped verifier, the package refrain-verifier.
    """
    beside = directory / SECOND
    if beside.is_dir():
        return beside
    if directory != VERIFIER_DIRECTORY:
        return None
    spec = find_spec(_PACKAGE)
    return None if spec is None or spec.origin is None else Path(spec.origin).parent / "model"


def calibration_files(directory: Path) -> list[Path]:
    """Return the calibrations that may stand beside the networks in `directory`."""
    second = second_directory(directory)
    places = [directory] if second is None else [directory, second]
    return [place / "calibration.json" for place in places]


def shipped_calibration_files() -> list[Path]:
    """Return the calibrations that may stand beside the installed networks."""
    return calibration_files(VERIFIER_DIRECTORY)
