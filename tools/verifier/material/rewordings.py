"""Free rewordings of other people's questions, and near misses of them, written by hand.

A line of ``rewordings/*.tsv`` is the digest of a question, a rewording, and a near miss. The
question itself stands in the folder of public sets (people.py), and is not copied.
"""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Final

from tools.verifier.material.pairs import Labelled

_COLUMNS: Final = 3
_DIGITS: Final = 16
_HELD_OUT_SHARE: Final = 10


class RewordingError(Exception):
    """A line that cannot be read; names file and line."""


@dataclass(frozen=True, slots=True)
class Rewording:
    """A question, the same asked otherwise, and one alike that asks something else."""

    question: str
    same: str
    miss: str

    @property
    def held_out(self) -> bool:
        return is_held_out(self.question)


def digest(question: str) -> str:
    """Return what stands for a question in the files."""
    return hashlib.sha256(question.encode()).hexdigest()[:_DIGITS]


def is_held_out(question: str) -> bool:
    """Tell whether a question is of the tenth whose rewordings are never trained on."""
    return int(digest(question), 16) % _HELD_OUT_SHARE == 0


def read_rewordings(directory: Path, questions: Iterable[str]) -> list[Rewording]:
    """Return the rewordings of these questions, in the order of files and lines.

    A line of another question is left out. Raises RewordingError, OSError.
    """
    known = {digest(question): question for question in questions}
    found = []
    for file in sorted(directory.glob("*.tsv")):
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
            columns = line.split("\t")
            if len(columns) != _COLUMNS or not all(map(str.strip, columns)):
                raise RewordingError(
                    f"{file}:{number}: expected a digest, a rewording and a near miss"
                )
            if columns[0] in known:
                found.append(Rewording(known[columns[0]], columns[1], columns[2]))
    return found


def reworded_pairs(rewordings: Sequence[Rewording], rng: Random) -> Iterator[Labelled]:
    """Yield pairs without end: half the same; half near misses, of the question or the rewording.

    Those held out are left out.
    """
    kept = [each for each in rewordings if not each.held_out]
    while kept:
        for each in rng.sample(kept, len(kept)):
            yield Labelled(each.question, each.same, 1.0, "rewordings")
            beside = each.question if rng.random() < 0.5 else each.same
            yield Labelled(beside, each.miss, 0.0, "rewordings")
