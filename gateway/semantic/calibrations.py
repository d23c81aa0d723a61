"""Which calibration is in force: the operator's own for the verifier in use, else the shipped one.

Laws: a file that is damaged or belongs to another verifier is logged and passed over. Without any
calibration no budget is known to be kept, and there are no semantic hits. Traffic that does not
resemble the calibration is an event; it changes no answer. No text of the traffic is kept.
"""

import errno
import logging
import stat
from collections.abc import Callable
from pathlib import Path

from cachetools import FIFOCache

from embeddings.verify.calibration import Calibration, CalibrationError, parse_calibration
from embeddings.verify.directories import shipped_calibration_files
from embeddings.verify.resemblance import LIMIT, MOST, Tally
from gateway.semantic.ports import SurestCandidate
from policies.format.settings import DEFAULT_MIN_SIMILARITY

OWN_FILE = "semantic-calibration.json"
"""In the data directory."""

MOST_MISSED = 32
"""Verifiers for which the shipped files are read again."""
LOOK_EVERY = 50
"""Would-be hits between two comparisons of the traffic with the calibration."""
QUIET_SECONDS = 3600.0
"""After an event about the traffic there is no other for so long."""

log = logging.getLogger(__name__)
_EVENT = {"fields": {"event": "calibration"}}


class Calibrations:
    """Reads the operator's file after each change, and the shipped files once.

    For each verifier without a calibration the shipped files are read once more: the verifier's
    package may have been installed since.
    """

    def __init__(self, data_dir: Path) -> None:
        self._path = data_dir / OWN_FILE
        self._read_at: tuple[int, int] | None = None
        self._own: Calibration | None = None
        self._problem = ""
        self._shipped: list[Calibration] | None = None
        self._missed: dict[str, bool] = {}
        """Verifiers without a shipped calibration, and whether it was looked for since."""
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
        elif not all(tuple(self._missed.values())):
            self._missed = dict.fromkeys(self._missed, True)
            known = {each.verifier for each in self._shipped}
            more = [each for each in shipped_calibrations() if each.verifier not in known]
            self._shipped = [*self._shipped, *more]
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
        found = next((each for each in self._shipped or () if each.verifier == verifier), None)
        if found is None and len(self._missed) < MOST_MISSED:
            self._missed.setdefault(verifier, False)
        return found


class Traffic:
    """Compares a worker's would-be hits with the calibration in force.

    A calibration has each pair once, so a pair counts once here until ``MOST`` other pairs have
    counted. A rule with another ``min_similarity`` than the default is left out: it looks other
    candidates up, and all their features differ.
    """

    def __init__(
        self, in_force: Callable[[], Calibration | None], clock: Callable[[], float]
    ) -> None:
        self._in_force = in_force
        self._clock = clock
        self._calibration: Calibration | None = None
        self._tally: Tally | None = None
        self._counted: FIFOCache[int, None] = FIFOCache(MOST)
        self._is_unlike = False
        self._quiet_until = float("-inf")

    def note(self, candidate: SurestCandidate) -> None:
        """Count the surest candidate of a lookup, unless its pair was counted of late."""
        if (tally := self._current()) is None or candidate.pair in self._counted:
            return
        if candidate.min_similarity != DEFAULT_MIN_SIMILARITY:
            return
        self._counted[candidate.pair] = None
        tally.add(candidate.features)
        if tally.seen % LOOK_EVERY == 0:
            self._look()

    def distances(self) -> dict[str, float]:
        """Return how far each feature is from the calibration's; nothing before that is known."""
        tally = self._current()
        return {} if tally is None else tally.distances()

    def problem(self) -> str:
        """Return in words what does not resemble the calibration; empty if all does."""
        far = {name: value for name, value in self.distances().items() if value > LIMIT}
        if not far:
            return ""
        features = ", ".join(f"{name} {value:.2f}" for name, value in far.items())
        text = "traffic does not resemble the calibration"
        return f"{text}: {features} (limit {LIMIT}); calibrate on your own traffic"

    def _current(self) -> Tally | None:
        calibration = self._in_force()
        if calibration is not self._calibration:
            bins = None if calibration is None else calibration.features
            self._calibration, self._is_unlike = calibration, False
            self._tally = None if bins is None else Tally(bins)
            self._counted.clear()
        return self._tally

    def _look(self) -> None:
        problem = self.problem()
        if bool(problem) == self._is_unlike or self._clock() < self._quiet_until:
            return
        self._is_unlike, self._quiet_until = bool(problem), self._clock() + QUIET_SECONDS
        if problem:
            log.warning("%s", problem, extra=_EVENT)
        else:
            log.info("traffic resembles the calibration again", extra=_EVENT)


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
    for file in shipped_calibration_files():
        try:
            found.append(parse_calibration(file.read_bytes(), str(file)))
        except FileNotFoundError:
            pass  # the network is not installed
        except (OSError, CalibrationError) as error:
            log.warning("calibration: %s", error)
    return found
