"""Frames: meanings that lie close together, each in several phrasings, with slots for words.

A file is a family, blank lines part its frames. ``--`` ends a meaning; a line of ``! `` is one
in one phrasing. Two phrasings of one meaning are the same question, of two meanings are not, and
another word in a slot makes another question. ``{city2}`` is the second word of kind ``city``,
``{city2.dem}`` a form of it, ``[a|b]`` a choice that does not matter. Directives before the first:
``@swap x y`` exchanging these words changes the meaning (but not one that begins with ``--=`` or
``!=``), ``@sym x y`` it never does,
``@fix x`` changing it may not change the meaning, ``@free x`` it surely does not.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from random import Random
from typing import Final

from tools.verifier.templates.inflection import with_right_articles
from tools.verifier.templates.lexicon import FOLDER, Word, draw, near

SLOT: Final = re.compile(r"\{(([a-z]+)\d*)(?:\.([\w.]+))?\}")
_CHOICE: Final = re.compile(r"\[([^\[\]]*)\]")
_SENTENCE_START: Final = re.compile(r"(^|[.?!] )([a-z])")

Filling = Mapping[str, Word]
Meaning = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Frame:
    """Meanings that look alike; which exchanges of words matter."""

    family: str
    meanings: tuple[Meaning, ...]
    kinds: Mapping[str, str]
    swap: tuple[tuple[str, str], ...] = ()
    sym: tuple[tuple[str, str], ...] = ()
    fix: frozenset[str] = frozenset()
    free: frozenset[str] = frozenset()
    symmetric: frozenset[Meaning] = frozenset()
    """Meanings in which ``swap`` changes nothing."""

    @property
    def mutable(self) -> frozenset[str]:
        """The slots in which another word makes another question."""
        return frozenset(self.kinds) - self.fix - self.free


def _parse(family: str, block: str) -> Frame:
    meanings: list[list[str]] = [[]]
    symmetric = []
    given: dict[str, list[tuple[str, ...]]] = {"swap": [], "sym": [], "fix": [], "free": []}
    for line in block.splitlines():
        if line.startswith("@"):
            name, *slots = line[1:].split()
            given[name].append(tuple(slots))
        elif line in {"--", "--="}:
            meanings.append([])
        elif line.startswith(("! ", "!= ")):
            meanings.append([line.partition(" ")[2]])
        elif line and not line.startswith("# "):
            meanings[-1].append(line)
        if line.startswith(("--=", "!=")):
            symmetric.append(meanings[-1])
    return Frame(
        family,
        tuple(tuple(meaning) for meaning in meanings if meaning),
        {name: kind for name, kind, _ in SLOT.findall(block)},
        tuple((one, other) for one, other in given["swap"]),
        tuple((one, other) for one, other in given["sym"]),
        frozenset(name for names in given["fix"] for name in names),
        frozenset(name for names in given["free"] for name in names),
        frozenset(tuple(meaning) for meaning in symmetric),
    )


@cache
def frames() -> Mapping[str, Sequence[Frame]]:
    """Read all frames, by family."""
    found: dict[str, list[Frame]] = {}
    for path in sorted((FOLDER / "frames").glob("*.txt")):
        family = path.stem.rstrip("0123456789_")
        blocks = re.split(r"\n\s*\n", path.read_text(encoding="utf-8").strip())
        made = [_parse(family, block) for block in blocks]
        found[family] = [*found.get(family, []), *(frame for frame in made if frame.meanings)]
    return found


def another(kind: str, taken: Iterable[Word], rng: Random, instead: Word | None = None) -> Word:
    """Draw a word of this kind that no other slot holds in any writing."""
    written = {form.casefold() for word in taken for form in word.forms}
    while True:
        word = draw(kind, rng) if instead is None else near(instead, kind, rng)
        if not written & {form.casefold() for form in word.forms}:
            return word


def filled(frame: Frame, rng: Random) -> dict[str, Word]:
    """Fill every slot, with words that differ from one another."""
    filling: dict[str, Word] = {}
    for name, kind in frame.kinds.items():
        filling[name] = another(kind, filling.values(), rng)
    return filling


def slots_of(phrasing: str) -> frozenset[str]:
    """Return the slots a phrasing mentions."""
    return frozenset(name for name, _, _ in SLOT.findall(phrasing))


def render(phrasing: str, filling: Filling, rng: Random) -> str:
    """Write a phrasing out: choices made, words put in, articles and capitals right."""
    text = phrasing
    while _CHOICE.search(text):
        text = _CHOICE.sub(lambda found: rng.choice(found[1].split("|")), text)
    chosen: dict[str, int] = {}

    def word(found: re.Match[str]) -> str:
        forms = filling[found[1]].get(found[3] or "")
        if found[1] not in chosen:
            chosen[found[1]] = 0 if rng.random() < 0.55 else rng.randrange(len(forms))
        return forms[chosen[found[1]] % len(forms)]

    text = re.sub(r"\s+", " ", SLOT.sub(word, text)).strip()
    text = re.sub(r" ([,.?!;])", r"\1", text)
    text = re.sub(r"\b([Tt])he the\b", r"\1he", text)
    text = with_right_articles(text)
    return _SENTENCE_START.sub(lambda found: found[1] + found[2].upper(), text)
