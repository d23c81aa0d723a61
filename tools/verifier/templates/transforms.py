"""Edits of any question: harmless ones, by which it stays the same, and ones that change it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Final

from tools.verifier.templates import changing, keeping

Edit = Callable[[str, Random], str]


@dataclass(frozen=True, slots=True)
class Alteration:
    """A text that now asks something else, and by what kind of edit."""

    text: str
    kind: str


_KEEPING: Final[Sequence[tuple[Edit, int]]] = (
    (keeping.lower_case, 3),
    (keeping.loose_end, 3),
    (keeping.polite, 4),
    (keeping.indirect, 4),
    (keeping.whether, 3),
    (keeping.requested, 4),
    (keeping.with_background, 2),
    (keeping.contracted, 3),
    (keeping.typo, 3),
    (keeping.without_articles, 2),
    (keeping.numbers_rewritten, 3),
    (keeping.respelled, 2),
    (keeping.with_filler, 3),
    (keeping.chatty, 2),
    (keeping.synonym, 3),
    (keeping.no_marks, 1),
)

_CHANGING: Final[Sequence[tuple[str, Edit, int]]] = (
    ("number", changing.number, 4),
    ("numbers swapped", changing.numbers_swapped, 3),
    ("unit", changing.unit, 3),
    ("negation", changing.negation, 4),
    ("name", changing.name, 4),
    ("opposite", changing.opposite, 4),
    ("roles", changing.roles, 3),
    ("question word", changing.question_word, 3),
    ("qualifier", changing.qualifier, 1),
    ("qualifier dropped", changing.qualifier_dropped, 2),
    ("quantifier", changing.quantifier, 3),
    ("modifier dropped", changing.modifier_dropped, 2),
    ("person", changing.person, 1),
)


def reworded(text: str, rng: Random) -> str:
    """Return the same question written otherwise: one to three harmless edits."""
    result = text
    for _ in range(rng.choice((1, 1, 1, 2, 2, 3))):
        (edit,) = rng.choices([e for e, _ in _KEEPING], [weight for _, weight in _KEEPING])
        result = edit(result, rng)
    tries = 0
    while result == text and tries < 8:
        result = rng.choice(_KEEPING)[0](text, rng)
        tries += 1
    return result


def altered(text: str, rng: Random) -> Alteration | None:
    """Return a near miss of the question, or None if no edit applies."""
    left = list(_CHANGING)
    while left:
        (chosen,) = rng.choices(left, [weight for _, _, weight in left])
        kind, edit, _ = chosen
        result = edit(text, rng)
        if result.casefold() != text.casefold():
            return Alteration(result, kind)
        left.remove(chosen)
    return None
