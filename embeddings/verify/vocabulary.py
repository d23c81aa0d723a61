"""What the word lists say about one word, looked up by any of its forms. Pure."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Final, NamedTuple

from embeddings.verify.lists import entries, words
from embeddings.verify.lists.brands import ACRONYMS, BRANDS
from embeddings.verify.lists.grammar import ADDABLE, FUNCTION, HARMLESS
from embeddings.verify.lists.kinds import KINDS
from embeddings.verify.lists.opposites import COMPLEMENTS, CONVERSE, OPPOSED
from embeddings.verify.lists.people import FEMALE, MALE
from embeddings.verify.lists.places import COUNTRIES, PLACES
from embeddings.verify.lists.synonyms import SYNONYMS
from embeddings.verify.lists.variants import VARIANTS, american
from embeddings.verify.stems import derived, stem

_Index = Mapping[str, frozenset[str]]
_NONE: Final[frozenset[str]] = frozenset()
_LONGEST_REMEMBERED: Final = 32


class Word(NamedTuple):
    """What is known of a word.

    `key`: the same for all its forms. `synonyms`: groups it belongs to. `opposed`, `converse`: keys
    of words that turn a question round. `kinds`: what it is one of. `name`: known as a name.
    `ordinary`: known as something else. `harmless`: may be added without changing the question.
    `complement`: may say what a negation says.
    """

    key: str
    synonyms: frozenset[str]
    opposed: frozenset[str]
    converse: frozenset[str]
    kinds: frozenset[str]
    name: bool
    ordinary: bool
    harmless: bool
    complement: bool


def word(text: str) -> Word:
    """Return what is known of a lower-case word, or of a phrase joined with hyphens."""
    return _remembered(text) if len(text) <= _LONGEST_REMEMBERED else _looked_up(text)


def related(a: Word, b: Word) -> bool:
    """Tell whether the two may say the same thing."""
    return (
        a.key == b.key
        or not a.synonyms.isdisjoint(b.synonyms)
        or (
            not (a.name or b.name or {a.key, b.key} & _ACRONYMS)
            and derived(a.key, b.key)
            and not opposed(a, b)
        )
    )


def opposed(a: Word, b: Word) -> bool:
    """Tell whether one word says the opposite of the other."""
    return opposed_to_any(a, frozenset({b.key}))


def opposed_to_any(word: Word, keys: frozenset[str]) -> bool:
    """Tell whether a word says the opposite of one of those with these keys."""
    return not (word.opposed.isdisjoint(keys) and _opposed_by_form(word.key).isdisjoint(keys))


_PREFIXES: Final = ("un", "dis", "in", "im", "il", "ir", "non", "mis", "anti", "de", "counter")


def _opposed_by_form(key: str) -> frozenset[str]:
    return _remembered_forms(key) if len(key) <= _LONGEST_REMEMBERED else _NONE


@lru_cache(8192)
def _remembered_forms(key: str) -> frozenset[str]:
    """Return what a prefix or suffix would make the opposite of a word: "unhappy" for "happy"."""
    forms: set[str] = set()
    if len(key) > 2:
        forms.update(prefix + key for prefix in _PREFIXES)
        base = key.removesuffix("ful").removesuffix("y")
        forms.update((base + "less", key + "less"))
    forms.update(
        key.removeprefix(x) for x in _PREFIXES if key.startswith(x) and len(key) > len(x) + 2
    )
    if key.endswith("less") and len(key) > 6:
        forms.update(key[:-4] + end for end in ("", "ful", "y"))
    # enable and disable, encourage and discourage
    if key.startswith("dis"):
        forms.add("en" + key[3:])
    if key.startswith("en"):
        forms.add("dis" + key[2:])
    return frozenset(forms - {key})


@lru_cache(8192)
def _remembered(text: str) -> Word:
    return _looked_up(text)


def _key(text: str) -> str:
    """Return the key of a word: the same for its forms, its spellings and short forms."""
    base = stem(american(text))
    return _VARIANTS.get(base, base)


def _looked_up(text: str) -> Word:
    if text in _ENTITIES:
        key = _ENTITIES[text]
        kinds = _KINDS.get(_key(text), _NONE) | _KINDS.get(key, _NONE)
        return Word(key, _NONE, _NONE, _NONE, kinds, text not in _PLAIN, False, False, False)
    key = _key(text)
    synonyms = _SYNONYMS.get(key, _NONE)
    against = _OPPOSED.get(key, _NONE)
    kinds = _KINDS.get(key, _NONE)
    return Word(
        key,
        synonyms,
        against,
        _CONVERSE.get(key, _NONE),
        kinds,
        name=text in MALE or text in FEMALE,
        ordinary=bool(synonyms or against or kinds) or text in HARMLESS or key in _ACRONYMS,
        harmless=text in HARMLESS,
        complement=text in COMPLEMENTS or key in COMPLEMENTS,
    )


def _entities(*texts: str) -> dict[str, str]:
    return {x: entry.split()[0] for text in texts for entry in entries(text) for x in entry.split()}


def _synonyms() -> Iterator[tuple[str, str]]:
    for place, group in enumerate(entries(SYNONYMS)):
        for text in group.split():
            yield _key(text), str(place)
    for entry in entries(ACRONYMS):
        names = entry.split("=")
        for name in names[1:]:
            yield _key(name), names[0]
            yield _key(names[0]), names[0]


def _opposites(text: str) -> Iterator[tuple[str, str]]:
    for entry in entries(text):
        left, right = (side.split() for side in entry.split("|"))
        for a in left:
            for b in right:
                yield _key(a), _key(b)
                yield _key(b), _key(a)


def _kinds() -> Iterator[tuple[str, str]]:
    for entry in entries(KINDS):
        kind, members = entry.split(":")
        for member in members.split(","):
            names = member.strip().split("=")
            for name in names:
                yield _key(name), f"{kind}:{names[0]}"


def _index(pairs: Iterable[tuple[str, str]]) -> _Index:
    index: defaultdict[str, set[str]] = defaultdict(set)
    for key, value in pairs:
        index[key].add(value)
    return {key: frozenset(values) for key, values in index.items()}


_VARIANTS: Final = {stem(american(x)): stem(american(base)) for x, base in VARIANTS.items()}
_ENTITIES: Final = _entities(COUNTRIES, PLACES, BRANDS)
_SYNONYMS: Final = _index(_synonyms())
_OPPOSED: Final = _index(_opposites(OPPOSED))
_CONVERSE: Final = _index(_opposites(CONVERSE))
_KINDS: Final = _index(_kinds())
_ACRONYMS: Final = frozenset(entry.split("=")[0] for entry in entries(ACRONYMS))
# Names that are plain words as well, and count as names only with a capital.
_PLAIN: Final = words("turkey china jordan chile who sat steam notion la mit un excel target")


def _phrases() -> Iterator[tuple[str, tuple[str, ...]]]:
    listed = f"{SYNONYMS} {OPPOSED} {KINDS} {ACRONYMS}"
    listed = listed.replace("=", " ").replace(";", " ").replace(",", " ")
    for text in (*_ENTITIES, *VARIANTS, *HARMLESS, *ADDABLE, *listed.split()):
        first, *rest = text.split("-")
        if rest and first not in FUNCTION:
            yield first, (first, *rest)


_FOUND: Final[defaultdict[str, set[tuple[str, ...]]]] = defaultdict(set)
for _first, _phrase in _phrases():
    _FOUND[_first].add(_phrase)
PHRASES: Final[Mapping[str, tuple[tuple[str, ...], ...]]] = {
    first: tuple(sorted(found, key=lambda x: (-len(x), x))) for first, found in _FOUND.items()
}
"""Phrases that count as one word, by their first word; the longest first."""
