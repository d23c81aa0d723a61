"""Whether a text is in another language than English, by its letters and its function words.

Law: pure and total; a few words without any function word are English unless marked otherwise.
"""

import re

from gateway.semantic.eligibility import words as lists
from gateway.semantic.eligibility.tokens import Worded, worded

MOST_WITHOUT_FUNCTION_WORDS = 9
"""Twice as many with one of them, and so on."""
OTHER_LETTERS = 0.1
"""Share of letters that are not Latin, from which on a text is written in another script."""

_LOWER_ACCENTED = re.compile(r"\b[a-z]*[\u00df-\u00f6\u00f8-\u00ff][a-z]*\b")
_LATIN_ENDS = "\u024f"


def is_foreign(text: Worded) -> bool:
    """Judge a text in Latin letters by its function words."""
    vocabulary = text.vocabulary
    english = len(vocabulary & lists.ENGLISH)
    foreign = len(vocabulary & lists.FOREIGN)
    perhaps = len(vocabulary & lists.PERHAPS_FOREIGN)
    if foreign and (foreign + perhaps) * 2 > english:
        return True
    if len(text.words) > MOST_WITHOUT_FUNCTION_WORDS * (english + 1):
        return True
    if english:
        return perhaps > english + 1
    return perhaps > 1 or (
        not text.text.isascii() and _LOWER_ACCENTED.search(text.text) is not None
    )


def is_prose(text: str) -> bool:
    """Tell whether a text is English sentences: rows of data have no function words."""
    return is_english(text) and not worded(text).vocabulary.isdisjoint(lists.ENGLISH)


def is_english(text: str) -> bool:
    """Tell whether an English encoder makes sense of a text."""
    if not text.isascii():
        letters = [character for character in text if character.isalpha()]
        if sum(letter > _LATIN_ENDS for letter in letters) > OTHER_LETTERS * len(letters):
            return False
    return not is_foreign(worded(text))
