"""Which calibration is in force: the operator's own for the verifier in use, else the shipped one.

Law: a file that is damaged or belongs to another verifier is logged and passed over. Without any
calibration no budget is known to be kept, and there are no semantic hits.
"""

import errno
import logging
import stat
from collections.abc import Callable
from pathlib import Path

from embeddings.encoder.model_files import VERIFIER_DIRECTORY, packaged_second
from embeddings.verify.calibration import Calibration, CalibrationError, parse_calibration

OWN_FILE = "semantic-calibration.json"
"""In the data directory."""

log = logging.getLogger(__name__)


class Calibrations:
    """Reads the shipped file once, and the operator's file after each change."""

    def __init__(self, data_dir: Path) -> None:
        self._path = data_dir / OWN_FILE
        self._read_at: tuple[int, int] | None = None
        self._own: Calibration | None = None
        self._problem = ""
        self._shipped: list[Calibration] | None = None
        self._logged = ""
        self.is_known: Callable[[], bool] = self.look
        """The default looks at the files; what was found counts whatever it tells."""

    def of(self, verifier: str) -> Calibration | None:
        self.is_known()
        own, problem = self._own, self._problem
        if own is not None and own.verifier != verifier:
            its, ours = own.verifier[:16], verifier[:16]
            own, problem = None, f"{self._path}: it is of verifier {its}, and {ours} is in use"
        found = own or self.find_shipped(verifier)
        if found is None:
            problem = f"{problem or 'no calibration'}: nothing is answered by meaning"
        if problem and problem != self._logged:
            log.warning("calibration: %s", problem)
        self._logged = problem
        return found

    def details(self, verifier: str) -> dict[str, str | int]:
        found = self.of(verifier)
        details: dict[str, str | int] = {
            "calibration": "none" if found is None else "own" if self.is_own(found) else "shipped",
            "calibration_hits": 0 if found is None else found.hits,
        }
        return details | {"problem": self._logged} if self._logged else details

    def own(self) -> Calibration | None:
        """Return the operator's calibration, whichever verifier it belongs to."""
        self.is_known()
        return self._own

    def look(self, deliver: Callable[..., object] | None = None) -> bool:  # noqa: ARG002
        """Read the files if they have changed; whatever they are like, that is known."""
        if self._shipped is None:
            self._shipped = shipped_calibrations()
        try:
            status = self._path.stat()
            state = (status.st_mtime_ns, status.st_size)
            if state != self._read_at:
                self._own, self._problem = _read_own(self._path, status.st_mode)
                self._read_at = state
        except FileNotFoundError:
            self._own, self._problem, self._read_at = None, "", None
        except OSError as error:
            self._own, self._problem = None, f"{self._path}: {error.strerror or error}"
        return True

    def is_own(self, calibration: Calibration | None) -> bool:
        return calibration is not None and calibration is self._own

    def find_shipped(self, verifier: str) -> Calibration | None:
        self.is_known()
        return next((each for each in self._shipped or () if each.verifier == verifier), None)


def _read_own(path: Path, mode: int) -> tuple[Calibration | None, str]:
    """Return the calibration, or None and what is wrong with it. Raises OSError."""
    if stat.S_ISFIFO(mode):  # who opens it may wait for ever
        raise OSError(errno.EINVAL, "it is no file")
    try:
        return parse_calibration(path.read_bytes(), str(path)), ""
    except CalibrationError as error:
        return None, str(error)


def known_calibrations(data_dir: Path | None) -> list[Calibration]:
    """Return the operator's calibration, if it is valid, and the shipped one."""
    own = None if data_dir is None else Calibrations(data_dir).own()
    return [*([] if own is None else [own]), *shipped_calibrations()]


def shipped_calibrations() -> list[Calibration]:
    """Return the calibrations installed with the verifier, without and with its second network."""
    found = []
    for directory in (VERIFIER_DIRECTORY, packaged_second()):
        file = None if directory is None else directory / "calibration.json"
        try:
            if file is not None:
                found.append(parse_calibration(file.read_bytes(), str(file)))
        except FileNotFoundError:
            pass  # the network is not installed
        except (OSError, CalibrationError) as error:
            log.warning("calibration: %s", error)
    return found
