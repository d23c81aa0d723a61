"""A line of a calibration log: a comparison that the gateway made, or a pair labelled by hand.

Law: what is not surely right counts as wrong; a line that is neither is told, never guessed.
"""

from dataclasses import dataclass
from math import isfinite
from typing import Any


class LineError(ValueError):
    """The line is neither; the message says why."""


@dataclass(frozen=True, slots=True)
class Compared:
    """A would-be hit whose answer was compared with a fresh one."""

    score: float
    wrong: bool
    verifier: str
    """Digest of the verifier whose score it is."""
    unsure: bool = False


@dataclass(frozen=True, slots=True)
class LabelledPair:
    """Two questions, and whether one answer fits both."""

    asked: str
    stored: str
    same: bool


def parse_line(line: Any) -> Compared | LabelledPair | None:
    """Read a line's JSON; None is another line of the gateway's journal. Raises LineError.

    Another is that of an alias, too: it came to be a hit because it was right.
    """
    match line:
        case {"asked": str(asked), "stored": str(stored), "same": bool(same)}:
            return LabelledPair(asked, stored, same)
        case {"asked": _, "stored": _}:
            raise LineError("expected asked and stored as text, and same: true or false")
        case {"kind": str(), "alias": True}:
            return None
        case {"kind": str(), "outcome": "equal" | "different" | "unsure" as outcome}:
            return _compared(line, outcome)
        case {"kind": str()} if "outcome" not in line:
            return None
    raise LineError("expected a comparison of the gateway or {asked, stored, same}")


def _compared(line: dict[str, Any], outcome: str) -> Compared:
    score, verifier = line.get("score"), line.get("verifier")
    if isinstance(score, bool) or not isinstance(score, int | float):
        raise LineError("score: expected a number")
    if not (isfinite(score) and 0 <= score <= 1):
        raise LineError("score: expected a number from 0 to 1")
    if not isinstance(verifier, str) or not verifier:
        raise LineError("verifier: missing: whose score it is, is not known")
    return Compared(float(score), outcome != "equal", verifier, unsure=outcome == "unsure")
