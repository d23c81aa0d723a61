"""What pairs are made of: groups, other people's pairs and questions, rewordings of those."""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Final

from tools.verifier.groups import Group, read_groups
from tools.verifier.neighbours import Encode, neighbours
from tools.verifier.pairs import Labelled
from tools.verifier.people import People, read_people
from tools.verifier.rewordings import Rewording, read_rewordings

HERE: Final = Path(__file__).parent


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
    templates = HERE / "templates"
    return Material(
        written,
        neighbours(written, encode),
        others,
        read_rewordings(rewordings, texts),
        digests={
            "groups": _digest(groups.glob("*.txt")),
            "people": _digest(people.glob("*.jsonl.gz")),
            "rewordings": _digest(rewordings.glob("*.tsv")),
            "templates": _digest(chain(templates.rglob("*.py"), templates.rglob("*.txt"))),
        },
    )


def _digest(files: Iterable[Path]) -> str:
    digest = hashlib.sha256()
    for file in sorted(files):
        digest.update(hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()
