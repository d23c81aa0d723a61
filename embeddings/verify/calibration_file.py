"""A calibration as JSON, and back.

Law: a file is read whole or refused, with its name and the key that is wrong; that of another
verifier is refused, because its scores mean something else.
"""

import json
from typing import Any, Final, NoReturn

from embeddings.verify.calibration import Calibration, CalibrationError, Step

FORMAT: Final = 1
MOST_STEPS: Final = 100_000
_KEYS: Final = ("format", "verifier", "confidence", "provenance", "steps")


def written_calibration(calibration: Calibration) -> bytes:
    """Return the file's content: steps of score, hits with at least that score, wrong ones."""
    head = {
        "format": FORMAT,
        "verifier": calibration.verifier,
        "confidence": calibration.confidence,
        "provenance": calibration.provenance,
    }
    steps = ",\n  ".join(
        json.dumps([step.threshold, step.hits, step.wrong]) for step in calibration.steps
    )
    whole = f'{json.dumps(head, indent=1)[:-2]},\n "steps": [\n  {steps}\n ]\n}}\n'
    return whole.encode()


def parse_calibration(data: bytes, source: str, *, verifier: str | None = None) -> Calibration:
    """Read a file's content; ``source`` is its name for messages. Raises CalibrationError.

    Only one of ``verifier`` is taken, where that is given.
    """
    try:
        read = json.loads(data, object_pairs_hook=_once, parse_constant=_no_number)
    except CalibrationError as error:
        raise CalibrationError(f"{source}: {error}") from None
    except (ValueError, RecursionError):
        raise CalibrationError(f"{source}: expected JSON") from None
    try:
        calibration = _calibration(read)
    except CalibrationError as error:
        raise CalibrationError(f"{source}: {error}") from None
    if verifier is not None and calibration.verifier != verifier:
        raise CalibrationError(
            f"{source}: verifier: it is of {_short(calibration.verifier)}, "
            f"and {_short(verifier)} is in use"
        )
    return calibration


def _calibration(read: Any) -> Calibration:
    _known_keys(read)
    if read["format"] != FORMAT or isinstance(read["format"], bool):
        raise CalibrationError(f"format: expected {FORMAT}")
    for key in ("verifier", "provenance"):
        if not isinstance(read[key], str):
            raise CalibrationError(f"{key}: expected text")
    if not read["verifier"]:
        raise CalibrationError("verifier: expected a digest")
    confidence, steps = read["confidence"], read["steps"]
    if not _is_number(confidence) or not 0 < confidence < 1:
        raise CalibrationError("confidence: expected a number between 0 and 1")
    if not isinstance(steps, list) or len(steps) > MOST_STEPS:
        raise CalibrationError(f"steps: expected a list of at most {MOST_STEPS}")
    return Calibration(read["verifier"], _steps(steps), float(confidence), read["provenance"])


def _known_keys(read: Any) -> None:
    if not isinstance(read, dict):
        raise CalibrationError("expected a JSON object")
    for key in (*_KEYS, *read):
        if key not in read:
            raise CalibrationError(f"{key}: missing")
        if key not in _KEYS:
            raise CalibrationError(f"{key}: unknown key; known are {', '.join(_KEYS)}")


def _steps(rows: list[Any]) -> tuple[Step, ...]:
    steps: list[Step] = []
    last = Step(2.0, 0, 0)
    for number, row in enumerate(rows):
        match row:
            case [int() | float() as threshold, int() as hits, int() as wrong] if not any(
                isinstance(each, bool) for each in row
            ):
                step = Step(float(threshold), hits, wrong)
            case _:
                raise CalibrationError(f"steps[{number}]: expected [score, hits, wrong]")
        if not 0 <= step.threshold <= 1:
            raise CalibrationError(f"steps[{number}]: expected a score from 0 to 1")
        if step.threshold >= last.threshold or step.hits <= last.hits:
            raise CalibrationError(f"steps[{number}]: expected a lower score and more hits")
        if not 0 <= step.wrong - last.wrong <= step.hits - last.hits:
            raise CalibrationError(
                f"steps[{number}]: expected as many wrong hits as before, or more, and no more "
                "than there are further hits"
            )
        steps.append(step)
        last = step
    return tuple(steps)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _short(digest: str) -> str:
    return f"verifier {digest[:16]}"


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    read = dict(pairs)
    if len(read) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise CalibrationError(f"{twice}: written twice")
    return read


def _no_number(name: str) -> NoReturn:
    raise CalibrationError(f"{name} is no number")
