"""Words that fill slots. A line of ``words/KIND.txt`` is one word, read when first needed.

``physician|doctor; key=value`` - what stands between bars can replace each other anywhere; fields
name other forms. In a field, ``/`` separates things of which a filled slot keeps one.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random
from typing import Final

from tools.verifier.templates import inflection, quantities

FOLDER: Final = Path(__file__).parent

Forms = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Word:
    """A slot's value: its own forms, and other forms by name. Forms of a tuple are equal."""

    forms: Forms
    fields: Mapping[str, Forms]

    def get(self, field: str) -> Forms:
        """Return the forms of a field, by rule where the list does not tell."""
        if not field:
            return self.forms
        if field in self.fields:
            return self.fields[field]
        name, _, rest = field.partition(".")
        if rest and name in self.fields:
            return Word(self.fields[name], {}).get(rest)
        return tuple(_RULES[field](form) for form in self.forms)

    def settled(self, rng: Random) -> "Word":
        """Keep one thing of each field that offers several."""
        return Word(
            self.forms,
            {
                name: tuple(rng.choice("|".join(forms).split("/")).split("|"))
                for name, forms in self.fields.items()
            },
        )


def _possessive(noun: str) -> str:
    return noun + ("'" if noun.endswith("s") and noun.islower() else "'s")


_RULES: Final[Mapping[str, Callable[[str], str]]] = {
    "pl": inflection.plural,
    "s": inflection.third_person,
    "past": inflection.past,
    "pp": inflection.past,
    "ing": inflection.ing,
    "cmp": inflection.comparative,
    "sup": inflection.superlative,
    "poss": _possessive,
    "cap": lambda text: text[:1].upper() + text[1:],
    "one": lambda text: text,
}


def _word(line: str) -> Word:
    base, *fields = (part.strip() for part in line.split(";"))
    named = dict(field.split("=", 1) for field in fields)
    made = {name.strip(): _forms(value) for name, value in named.items()}
    if "past" in made and "pp" not in made:
        made["pp"] = made["past"]
    return Word(_forms(base), made)


def _forms(text: str) -> Forms:
    return tuple(form.strip() for form in text.split("|"))


@cache
def words(kind: str) -> Sequence[Word]:
    """Read a kind's list."""
    text = (FOLDER / "words" / f"{kind}.txt").read_text(encoding="utf-8")
    lines = (line.strip() for line in text.splitlines())
    return tuple(_word(line) for line in lines if line and not line.startswith("#"))


_PRONOUNS: Final = {
    "m": {"he": ("he",), "him": ("him",), "his": ("his",), "himself": ("himself",)},
    "f": {"he": ("she",), "him": ("her",), "his": ("her",), "himself": ("herself",)},
}


def _full_name(rng: Random) -> Word:
    first = rng.choice(words(rng.choice(("man", "woman"))))
    last = rng.choice(words("lastname")).forms[0]
    given = first.forms[0]
    return Word(
        (f"{given} {last}",),
        {**_PRONOUNS[first.fields["g"][0]], "first": (given,), "last": (last,)},
    )


def _first_name(kind: str, rng: Random) -> Word:
    found = rng.choice(words(rng.choice(("man", "woman")) if kind == "name" else kind))
    # Mostly the name in full, sometimes its short form.
    forms = (found.forms[0],) * 3 + found.forms[1:]
    return Word(forms, _PRONOUNS[found.fields["g"][0]])


def _person(rng: Random) -> Word:
    """Somebody by name, or "the nurse", or "my uncle"."""
    kind, before = rng.choice((("name", ""), ("full", ""), ("job", "the "), ("relative", "my ")))
    word = draw(kind, rng)
    return Word(tuple(before + form for form in word.forms), {})


def near(word: Word, kind: str, rng: Random) -> Word:
    """Draw another word, for a full name often one that shares its first or last name."""
    other = draw(kind, rng)
    if kind != "full" or rng.random() < 0.4:
        return other
    if rng.random() < 0.5:
        made = (f"{word.fields['first'][0]} {other.fields['last'][0]}",)
        return Word(made, {**word.fields, "last": other.fields["last"]})
    return Word(
        (f"{other.fields['first'][0]} {word.fields['last'][0]}",),
        {**other.fields, "last": word.fields["last"]},
    )


def draw(kind: str, rng: Random) -> Word:
    """Fill a slot of this kind."""
    if kind in {"name", "man", "woman"}:
        return _first_name(kind, rng)
    if kind == "full":
        return _full_name(rng)
    if kind == "person":
        return _person(rng)
    if kind in quantities.KINDS:
        return Word(*quantities.KINDS[kind](rng))
    return rng.choice(words(kind)).settled(rng)
