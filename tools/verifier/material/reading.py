"""All that pairs are made of, read at once and named by digests."""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Final

from tools.verifier import templates
from tools.verifier.material.groups import Group, read_groups
from tools.verifier.material.neighbours import Encode, neighbours
from tools.verifier.material.pairs import Labelled
from tools.verifier.material.people import People, read_people
from tools.verifier.material.rewordings import Rewording, read_rewordings

TEMPLATES: Final = Path(templates.__file__).parent


@dataclass(frozen=True, slots=True)
class Material:
    """`near` are pairs of alike questions of two groups; `taught` are pairs that a network scored.

    `digests` name what it was read from.
    """

    groups: Sequence[Group]
    near: Sequence[tuple[str, str]]
    people: People
    rewordings: Sequence[Rewording]
    taught: Sequence[Labelled] = ()
    digests: dict[str, str] = field(default_factory=dict)


def read_material(groups: Path, people: Path, rewordings: Path, encode: Encode) -> Material:
    """Read three folders. Raises GroupError, PeopleError, RewordingError, OSError."""
    written, others = read_groups(groups), read_people(people)
    texts = chain(
        chain.from_iterable(others.questions.values()),
        (text for pair in others.pairs for text in (pair.a, pair.b)),
    )
    return Material(
        written,
        neighbours(written, encode),
        others,
        read_rewordings(rewordings, texts),
        digests={
            "groups": _digest(groups.glob("*.txt")),
            "people": _digest(people.glob("*.jsonl.gz")),
            "rewordings": _digest(rewordings.glob("*.tsv")),
            "templates": _digest(chain(TEMPLATES.rglob("*.py"), TEMPLATES.rglob("*.txt"))),
        },
    )


def _digest(files: Iterable[Path]) -> str:
    digest = hashlib.sha256()
    for file in sorted(files):
        digest.update(hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()
