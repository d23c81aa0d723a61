"""Labels that were corrected after reading, and the wrong hits that are to be read.

Some labels of public sets are wrong: two intents stand for one question. A line of
``data/corrected_labels.jsonl`` is a hit that somebody read:

    {"set": "banking77", "asked": 17, "stored": 4, "same": true, "reason": "..."}

Asked and stored are lines of the set's file, from 0; `same` says whether one answer fits both.
"""

import json
import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from quality.outcomes import Outcome
from quality.trial import SEED, Request, Trial

FILE = Path(__file__).parent / "data" / "corrected_labels.jsonl"
AS_READ = ", labels as read"
READ = ("banking77", "gsm_plus")
"""The trials whose wrong hits are read."""
_FIELDS = {"set": str, "asked": int, "stored": int, "same": bool, "reason": str}

Corrections = Mapping[str, Mapping[tuple[int, int], bool]]
"""By trial and rows, asked and stored: whether one answer fits both."""


class CorrectedLabelsError(Exception):
    """A line that cannot be read; names file and line."""


def read_corrections(file: Path = FILE) -> Corrections:
    """Read the corrected labels. Raises CorrectedLabelsError, OSError."""
    found: dict[str, dict[tuple[int, int], bool]] = {name: {} for name in READ}
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
        row = _row(line)
        if row is None or (row["asked"], row["stored"]) in found[row["set"]]:
            raise CorrectedLabelsError(
                f"{file}:{number}: expected {', '.join(_FIELDS)}; "
                f"a set of {', '.join(READ)}; each pair once"
            )
        found[row["set"]][row["asked"], row["stored"]] = row["same"]
    return found


def _row(line: str) -> dict[str, Any] | None:
    """Return a line's fields, None if they are not what they have to be."""
    try:
        row = json.loads(line)
    except ValueError:
        return None
    if not isinstance(row, dict) or {k: type(v) for k, v in row.items()} != _FIELDS:
        return None
    return row if row["set"] in READ else None


def with_read(
    trials: Sequence[Trial],
    results: Mapping[str, Mapping[str, Sequence[Outcome]]],
    corrections: Corrections,
) -> dict[str, Mapping[str, Sequence[Outcome]]]:
    """Return the results, and those by corrected labels under the trial's name and `AS_READ`.

    A trial without a corrected label has its published ones only.
    """
    more = {
        trial.name + AS_READ: {
            system: as_read(trial, outcomes, known)
            for system, outcomes in results[trial.name].items()
        }
        for trial in trials
        if (known := corrections.get(trial.name))
    }
    return {**results, **more}


def as_read(
    trial: Trial, outcomes: Sequence[Outcome], known: Mapping[tuple[int, int], bool]
) -> list[Outcome]:
    """Return the outcomes, of which a hit that was read is right or wrong as it was read."""
    asked, stored = _texts(trial.asked), _texts(trial.stored)
    # Several rows may hold one text, and what was read are the texts.
    same: dict[tuple[str, str | None], bool] = {
        (asked[one], stored[other]): fits
        for (one, other), fits in known.items()
        if one in asked and other in stored
    }
    return [_read(outcome, same) for outcome in outcomes]


def _read(outcome: Outcome, same: Mapping[tuple[str, str | None], bool]) -> Outcome:
    fits = same.get((outcome.request.text, outcome.found))
    if fits is None:
        return outcome
    answer = outcome.served if fits else None
    return replace(outcome, request=replace(outcome.request, answer=answer))


def to_read(
    trial: Trial, judged: Sequence[Outcome], threshold: float | None, nearest: Sequence[Outcome]
) -> Iterator[dict[str, Any]]:
    """Yield a system's wrong hits at a threshold, and as many of plain cosine's, the surest ones.

    Nothing says whose a hit is, and the order is drawn, so that a reader is blind to it.
    """
    ours = [each for each in (outcome.at(threshold) for outcome in judged) if each.wrong]
    theirs = [each for each in (outcome.at(-math.inf) for outcome in nearest) if each.wrong]
    theirs.sort(key=lambda each: each.tries[-1].similarity, reverse=True)
    rows: dict[tuple[str | None, str | None], int | None] = {
        (request.text, request.answer): request.row for request in reversed(trial.stored)
    }
    hits = {
        (each.request.row, rows[served]): each
        for each in (*ours, *theirs[: len(ours)])
        if (served := (each.found, each.served)) in rows
    }
    pairs = sorted(hits.items(), key=lambda item: [row or 0 for row in item[0]])
    random.Random(SEED).shuffle(pairs)
    for (asked, stored), each in pairs:
        yield {
            "set": trial.name,
            "asked": asked,
            "stored": stored,
            "asked_text": each.request.text,
            "stored_text": each.found,
        }


def _texts(requests: Sequence[Request]) -> dict[int | None, str]:
    return {request.row: request.text for request in requests}
