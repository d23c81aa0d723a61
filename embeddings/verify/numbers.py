"""Numbers in words and digits, brought to one form.

A number keeps the digits it was written with (3.10 is no 3.1: versions), except for separators of
thousands. Numbers in words become digits; ordinals, in words or digits, become "2th" and so on.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Final


def _counted(first: int, step: int, words: str) -> Mapping[str, int]:
    return {word: first + step * place for place, word in enumerate(words.split())}


_UNITS: Final = _counted(
    0,
    1,
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen "
    "sixteen seventeen eighteen nineteen",
)
_TENS: Final = _counted(20, 10, "twenty thirty forty fifty sixty seventy eighty ninety")
_SCALES: Final = {"thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12}
_ORDINALS: Final = _counted(
    1,
    1,
    "first second third fourth fifth sixth seventh eighth ninth tenth eleventh twelfth",
)
NUMBER_WORDS: Final = frozenset({*_UNITS, *_TENS, *_SCALES, "hundred"})
ORDINAL_WORDS: Final = frozenset(_ORDINALS)
_THOUSANDS: Final = re.compile(r"[-+]?\d{1,3}(?:,\d{3})+(?:\.\d+)?")
_ORDINAL_DIGITS: Final = re.compile(r"(\d+)(?:st|nd|rd|th)", re.IGNORECASE)


def digits(written: str) -> str:
    """Return the one form of a number written in digits, "1,000" or "3rd" for instance."""
    ordinal = _ORDINAL_DIGITS.fullmatch(written)
    if ordinal:
        return f"{ordinal[1]}th"
    return written.replace(",", "") if _THOUSANDS.fullmatch(written) else written


def ordinal_word(word: str) -> str | None:
    """Return "3th" for "third", None for what is no ordinal."""
    value = _ORDINALS.get(word)
    return None if value is None else f"{value}th"


def number_words(words: Sequence[str]) -> tuple[str, int] | None:
    """Read a number off the front of lower-case words.

    Return its digits and how many words it took: ("125", 5) for one hundred and twenty five. None
    when the first word is no number word.
    """
    if not words or words[0] not in NUMBER_WORDS:
        return None
    total, part, taken = 0, 0, 0
    # What follows must be worth less than this to belong to the number: "twenty twenty" is two.
    room = scale = 10**15
    for place, word in enumerate(words):
        value = _UNITS.get(word) or _TENS.get(word, 0)
        if 0 < value < room or (place == 0 and word in _UNITS):
            part += value
            room = 10 if word in _TENS else 0
        elif word == "hundred" and part < 100:
            part = max(part, 1) * 100
            room = 100
        elif _SCALES.get(word, scale) < scale:
            room = scale = _SCALES[word]
            total += max(part, 1) * scale
            part = 0
        elif word == "and" and room >= 100 and _is_small(words[place + 1 : place + 2]):
            continue
        else:
            break
        taken = place + 1
    return str(total + part), taken


def _is_small(words: Sequence[str]) -> bool:
    return any(word in _UNITS or word in _TENS for word in words)
