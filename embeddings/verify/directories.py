"""Where the verifier's networks are. Light: a gateway imports it.

The first network comes with the gateway, the second one in a package that may be installed or not.
Weights that were just trained, or that a user names, have the second in the first one's folder.
"""

from pathlib import Path
from typing import Final

from embeddings.encoder.model_files import VERIFIER_DIRECTORY, packaged

PACKAGE: Final = "refrain_verifier"
SECOND: Final = "second"


def second_directory(directory: Path) -> Path | None:
    """Return where the second network of the verifier in `directory` is, None if it has none."""
    if directory.resolve() == VERIFIER_DIRECTORY.resolve():
        return packaged(PACKAGE)
    beside = directory / SECOND
    return beside if beside.is_dir() else None


def calibration_files(directory: Path) -> list[Path]:
    """Return the calibrations that may stand beside the networks of the verifier in `directory`."""
    second = second_directory(directory)
    places = [directory] if second is None else [directory, second]
    return [place / "calibration.json" for place in places]


def shipped_calibration_files() -> list[Path]:
    """Return the calibrations that may stand beside the installed networks."""
    return calibration_files(VERIFIER_DIRECTORY)
