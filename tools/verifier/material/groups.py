"""Hand-written groups of questions: one seed, its rewordings, its near misses.

    How do I get a refund for a cancelled flight?
    = my flight got cancelled, how can I be reimbursed
    ! How do I get a refund for a delayed flight?

An answer to the seed fits every ``=`` line, and no ``!`` line. Groups are set apart by blank lines.
All of them were written for this project.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

_SAME, _MISS = "= ", "! "


class GroupError(Exception):
    """A line that cannot be read; names file and line."""


@dataclass(frozen=True, slots=True)
class Group:
    """Questions that one answer fits (the seed first), and those that it does not."""

    same: tuple[str, ...]
    misses: tuple[str, ...]


def read_groups(directory: Path) -> list[Group]:
    """Return the groups of all text files in a directory, in the order of names and lines.

    Raises GroupError, OSError.
    """
    groups = [group for file in sorted(directory.glob("*.txt")) for group in _groups(file)]
    if not groups:
        raise GroupError(f"{directory}: no groups in *.txt")
    return groups


def _groups(file: Path) -> Iterator[Group]:
    block: list[tuple[int, str]] = []
    lines = file.read_text(encoding="utf-8").splitlines()
    for number, line in enumerate([*lines, ""], 1):
        if line.strip():
            block.append((number, line))
        elif block:
            yield _group(file, block)
            block = []


def _group(file: Path, block: Sequence[tuple[int, str]]) -> Group:
    (number, seed), *rest = block
    if seed.startswith((_SAME, _MISS)):
        raise GroupError(f"{file}:{number}: a group begins with its seed, not with {seed[:2]!r}")
    same, misses = [seed.strip()], list[str]()
    for at, line in rest:
        kind, text = line[:2], line[2:].strip()
        if kind not in (_SAME, _MISS) or not text:
            raise GroupError(f"{file}:{at}: expected '= ' or '! ' and a question")
        (same if kind == _SAME else misses).append(text)
    if len(same) < 2 or not misses:
        raise GroupError(f"{file}:{number}: expected at least one '= ' and one '! ' line")
    if len({text.casefold() for text in (*same, *misses)}) != len(block):
        raise GroupError(f"{file}:{number}: the same question twice in one group")
    return Group(tuple(same), tuple(misses))
