"""One key for all forms of a word: plural, past, -ing, comparative. Pure.

A stem is a key, not a word: it only has to be the same for the forms of one word.
"""

import re
from functools import lru_cache
from typing import Final

from embeddings.verify.lists import words
from embeddings.verify.lists.inflections import IRREGULAR, UNINFLECTED

_VOWELS: Final = "aeiouy"
# One vowel sound and one consonant: the e that -ing and -ed took away is put back ("hop", "hope").
_LOST_E: Final = re.compile(
    r"[^aeiou]*(?:[aeiouy][^aeiouywx]|.*(?:[cvzu]|[^aeious]s|[aeiou]{2}s|dg|rg))"
)
_ONE_SOUND: Final = re.compile(r"[^aeiouy]*[aeiouy]+[^aeiouy]*")
_SUFFIXES: Final = words(
    """
    y e ed ing er or est ion ions tion ation ition ations ment ments ement al able ible ability
    ibility ance ence ancy ency ant ent ity ness ly ally ily ist ism ive ative ful ous ic ical ian
    age ure ise ize ised ized ising izing isation ization ify ified ifying ification ication
    ications s es ies iness ier iest
    abl ibl anc enc iv ativ ag ur is iz
    """
)
_LONGEST_REMEMBERED: Final = 32


def stem(word: str) -> str:
    """Return the key of a lower-case word."""
    return _remembered(word) if len(word) <= _LONGEST_REMEMBERED else word


@lru_cache(8192)
def _remembered(word: str) -> str:
    if word in IRREGULAR:
        return _bare(IRREGULAR[word])
    if word in UNINFLECTED or len(word) < 4 or not word.isascii():
        return word
    return _bare(_uninflected(word))


def _uninflected(word: str) -> str:
    if word.endswith("s") and not word.endswith(("ss", "us", "is")):
        if word.endswith("ies") and len(word) > 4:
            return word[:-3] + "y"
        if word.endswith(("ches", "shes", "sses", "xes", "zzes")):
            return word[:-2]
        return IRREGULAR.get(word[:-1], word[:-1])
    if word.endswith("ied") and len(word) > 4:
        return word[:-3] + "y"
    for end in ("ing", "ed"):
        base = word.removesuffix(end)
        if base != word and len(base) > 2 and any(x in _VOWELS for x in base):
            return _without_ending(base)
    return word


def _without_ending(base: str) -> str:
    if base[-1] == base[-2] and base[-1] not in "lsz" and base[-1] not in "aeou":
        return base[:-1]
    if base[-1] == base[-2] == "l" and not _ONE_SOUND.fullmatch(base):
        return base[:-1]
    if _ONE_SOUND.fullmatch(base) and _LOST_E.fullmatch(base):
        return base + "e"
    return base


def _bare(word: str) -> str:
    """Drop a final e, except from words of one vowel sound, where it tells "plan" from "plane"."""
    if word.endswith("e") and len(word) > 4 and not _ONE_SOUND.fullmatch(word[:-1]):
        return word[:-1]
    return word


def derived(a: str, b: str) -> bool:
    """Tell whether two stems look like derivations of one word: "apply" and "application"."""
    shared = 0
    for x, y in zip(a, b, strict=False):
        if x != y:
            break
        shared += 1
    if shared == len(a) or shared == len(b):
        return shared > 2 and _is_suffix(a[shared:]) and _is_suffix(b[shared:])
    # The shared part may go on for a letter or two after a suffix begins.
    return any(
        _is_suffix(a[end:]) and _is_suffix(b[end:]) for end in range(shared, max(shared - 3, 3), -1)
    )


_GIVING: Final = ("or", "er")
_GETTING: Final = "ee"
_SALTS: Final = ("ate", "ite", "ide", "ine", "ane", "ene")


def told_apart(a: str, b: str) -> bool:
    """Tell whether an ending makes two words: "lessor" and "lessee", "sulphite" and "sulphate"."""
    a, b = a.removesuffix("s"), b.removesuffix("s")
    if a == b:
        return False
    if a[:-3] == b[:-3] and a.endswith(_SALTS) and b.endswith(_SALTS):
        return True
    return a[:-2] == b[:-2] and any(
        x.endswith(_GETTING) and y.endswith(_GIVING) for x, y in ((a, b), (b, a))
    )


def _is_suffix(end: str) -> bool:
    return end == "" or end in _SUFFIXES
