"""Numbers with what they count, and whether two texts speak of the same ones. Pure.

Digits, number words, ordinals, fractions and dozens are brought to one value. "Both", "a pair" and
"single" are weak: they may account for a number of the other text and need no account themselves.
"""

import re
from collections.abc import Mapping, Sequence
from fractions import Fraction
from functools import lru_cache
from typing import Final, NamedTuple

from embeddings.verify.lexicon import UNITS
from embeddings.verify.lexing import Lexeme, Piece
from embeddings.verify.lists import words
from embeddings.verify.numbers import (
    NUMBER_WORDS,
    ORDINAL_WORDS,
    digits,
    number_words,
    ordinal_word,
)


class Quantity(NamedTuple):
    """A number: its value in one form, its unit if one stands beside it, and where it stands.

    `measure`: the same in the smallest unit of its kind, "60 second" for a minute; "" for none.
    """

    value: str
    unit: str | None
    weak: bool
    place: int = 0
    measure: str = ""


_WEAK: Final[Mapping[str, str]] = {
    "both": "2", "pair": "2", "pairs": "2", "couple": "2", "twins": "2", "twin": "2",
    "double": "2", "doubled": "2", "doubles": "2", "doubling": "2", "square": "2",
    "triple": "3", "tripled": "3", "triplets": "3", "trio": "3", "single": "1",
    "alone": "1", "sole": "1", "quadruple": "4", "quadruples": "4", "one": "1", "once": "1",
    "noon": "12", "midday": "12", "midnight": "12",
}  # fmt: skip
_STRONG: Final[Mapping[str, str]] = {
    "dozen": "12", "twice": "2", "thrice": "3", "half": "1/2", "halves": "1/2", "halved": "1/2",
    "fortnight": "14", "squared": "2", "cubed": "3",
}  # fmt: skip
_PARTS: Final[Mapping[str, int]] = {
    "half": 2, "halves": 2, "third": 3, "thirds": 3, "quarter": 4, "quarters": 4, "fourth": 4,
    "fourths": 4, "fifth": 5, "fifths": 5, "sixth": 6, "sixths": 6, "seventh": 7, "sevenths": 7,
    "eighth": 8, "eighths": 8, "ninth": 9, "ninths": 9, "tenth": 10, "tenths": 10,
}  # fmt: skip
_ROMAN: Final[Mapping[str, str]] = {
    "II": "2", "III": "3", "IV": "4", "VI": "6", "VII": "7", "VIII": "8", "IX": "9", "XI": "11",
}  # fmt: skip
_PLAIN: Final = re.compile(r"[-+]?\d{1,15}(?:\.\d{1,9})?")
_FRACTION: Final = re.compile(r"(\d{1,6})/([1-9]\d{0,5})")
_ISO_DATE: Final = re.compile(r"(\d{4})-(\d{2})-(\d{2})")
_ORDINAL: Final = re.compile(r"(\d+)th")
_SCALES: Final[Mapping[str, int]] = {
    "k": 10**3, "thousand": 10**3, "million": 10**6, "mio": 10**6, "billion": 10**9, "bn": 10**9,
    "trillion": 10**12, "hundred": 100, "dozen": 12,
}  # fmt: skip
_SYMBOLS: Final[Mapping[str, str]] = {
    "$": "dollar", "\u20ac": "euro", "\u00a3": "sterling", "%": "percent", "\u00b0": "degree",
    "\u00a5": "yen", "\u20b9": "rupee",
}  # fmt: skip
_OTHER_UNITS: Final[Mapping[str, str]] = {
    "bucks": "dollar", "buck": "dollar", "usd": "dollar", "quid": "sterling", "p.m": "pm",
    "a.m": "am", "am": "am", "pm": "pm", "pct": "percent", "percent": "percent", "m": "metre",
    "ml": "millilitre", "millilitres": "millilitre", "milliliters": "millilitre",
    "cents": "cent", "cent": "cent", "centimes": "cent", "pence": "cent", "kilo": "kilogram",
    "kilos": "kilogram", "mg": "milligram", "milligrams": "milligram", "s": "second", "h": "hour",
    "g": "gram", "l": "litre", "c": "celsius", "f": "fahrenheit", "yo": "year",
    "degrees": "degree", "degree": "degree", "mph": "mph", "kmh": "kmh", "yen": "yen",
    "rupees": "rupee", "rupee": "rupee", "rs": "rupee", "mb": "megabyte", "gb": "gigabyte",
    "tb": "terabyte", "kb": "kilobyte",
}  # fmt: skip
# What a unit is worth in the smallest of its kind. Days are not made months.
_SIZES: Final[Mapping[str, Mapping[str, int | str]]] = {
    "second": {"second": 1, "minute": 60, "hour": 3600, "day": 86400, "week": 604800},
    "month": {"month": 1, "year": 12},
    "millimetre": {"millimetre": 1, "centimetre": 10, "metre": 1000, "kilometre": 10**6},
    "gram": {"gram": 1, "kilogram": 1000},
    "millilitre": {"millilitre": 1, "litre": 1000},
    "cent": {"cent": 1, "dollar": 100, "euro": 100, "sterling": 100},
    "kilobyte": {"kilobyte": 1, "megabyte": 1000, "gigabyte": 10**6, "terabyte": 10**9},
    "part": {"percent": "1/100", "": 1},
}
_WORTH: Final = {
    unit: (least, Fraction(worth))
    for least, units in _SIZES.items()
    for unit, worth in units.items()
}
_DEGREES: Final = frozenset({"degree", "degrees", "\u00b0"})
_SCALE_NAMES: Final[Mapping[str, str]] = {
    "c": "celsius", "celsius": "celsius", "centigrade": "celsius", "f": "fahrenheit",
    "fahrenheit": "fahrenheit",
}  # fmt: skip
_LOOK_AHEAD: Final = 12
_REMEMBERED: Final = 1024
OPENERS: Final = NUMBER_WORDS | _WEAK.keys() | _STRONG.keys() | _PARTS.keys() | ORDINAL_WORDS
"""Words that a quantity may start with."""
_BARE_POINT: Final = re.compile(r"-?\.\d")
_CLOCK: Final = re.compile(r"(\d{1,2}):(\d\d)")
_POINTED_CLOCK: Final = re.compile(r"(\d{1,2})\.([0-5]\d)")
_HALVES: Final = frozenset({"am", "pm", "a.m", "p.m"})
_TIME_WORDS: Final = _HALVES | words(
    "at by until till before after around since o'clock oclock time clock h hours"
)
_RUNNING: Final = words("run runs ran running runner race races pace marathon jog jogging sprint")
_COUNT: Final = re.compile(r"\d{1,4}")
_LESSER: Final[Mapping[str, frozenset[str]]] = {
    "hour": frozenset({"minute", "second"}),
    "minute": frozenset({"second"}),
}


def symbol_unit(symbol: str) -> str | None:
    """Return the unit a symbol stands for."""
    return _SYMBOLS.get(symbol)


@lru_cache(_REMEMBERED)
def measured(value: str, unit: str | None) -> str:
    """Return a value in the smallest unit of its kind, "" if there is none."""
    worth = _WORTH.get(unit or "")
    if unit is None and "/" not in value:
        return ""
    if worth is None or not (_PLAIN.fullmatch(value) or _FRACTION.fullmatch(value)):
        return ""
    return f"{Fraction(value) * worth[1]} {worth[0]}"


def quantity(lexemes: Sequence[Lexeme], place: int) -> tuple[Quantity, int] | None:
    """Read the quantity that starts at `place`; return it and how many lexemes it took.

    Every number in digits is one. A word may be none, and is not if it is neither in `OPENERS` nor
    a name.
    """
    lexeme = lexemes[place]
    if lexeme.piece is Piece.NUMBER:
        found: tuple[Quantity, int] | None = _written(lexemes, place)
    elif lexeme.text in _ROMAN and lexeme.named:
        found = Quantity(_ROMAN[lexeme.text], None, weak=False), 1
    else:
        found = _worded(lexemes, place, lexeme.text.casefold())
    if found is None:
        return None
    read, taken = found
    weak = read.weak or read.value == "1" or (read.value == "2" and _known(lexemes, place))
    if not read.measure:
        read = read._replace(measure=measured(read.value, read.unit))
    return _lasting(lexemes, place, read._replace(weak=weak), taken)


def _lasting(
    lexemes: Sequence[Lexeme], place: int, read: Quantity, taken: int
) -> tuple[Quantity, int]:
    """Read on where minutes follow hours, or seconds minutes: "1 hour and 30 minutes"."""
    less = _LESSER.get(read.unit or "")
    following = place + taken
    if less is None or following >= len(lexemes) or not read.measure:
        return read, taken
    if lexemes[following].text != "and" or lexemes[following].starts:
        return read, taken
    following += 1
    if following + 1 >= len(lexemes) or not _COUNT.fullmatch(lexemes[following].text):
        return read, taken
    unit, more = _unit(lexemes, following + 1)
    # "... and 30 minutes of it".
    if unit not in less or [x.text for x in lexemes[following + 1 + more :][:1]] == ["of"]:
        return read, taken
    rest = measured(lexemes[following].text, unit)
    total = Fraction(read.measure.split()[0]) + Fraction(rest.split()[0])
    whole = Quantity(str(total), "second", weak=False, measure=f"{total} second")
    return whole, following + 1 + more - place


def _known(lexemes: Sequence[Lexeme], place: int) -> bool:
    """Tell whether it is "the two": that may be left out."""
    return (
        place > 0 and lexemes[place].text in {"two", "2"} and lexemes[place - 1].text in _POINTING
    )


_POINTING: Final = frozenset({"the", "these", "those", "which", "my", "our", "between", "of"})


def _worded(lexemes: Sequence[Lexeme], place: int, lower: str) -> tuple[Quantity, int] | None:
    ahead = [x.text.casefold() for x in lexemes[place + 1 : place + 4]]
    following = ahead[0] if ahead else ""
    if lower in {"half", "quarter"} and ahead[1:2] and following in {"past", "to"}:
        return _clock(lower, ahead)
    if lower in {"half", "quarter"}:
        skipped = 2 if following == "of" else int(following in {"a", "an"})
        unit, taken = _unit(lexemes, place + 1 + skipped)
        if unit:
            return Quantity(f"1/{_PARTS[lower]}", unit, weak=False), 1 + skipped + taken
    if lower == "one" and following not in NUMBER_WORDS and following not in _PARTS:
        unit, taken = _unit(lexemes, place + 1)
        return Quantity("1", unit, weak=True), 1 + taken
    if lower in NUMBER_WORDS:
        return _spelled(lexemes, place)
    if (
        lower in _PARTS
        and place
        and lexemes[place - 1].text in {"a", "an"}
        and (following == "of" or lower == "quarter")
    ):
        return Quantity(f"1/{_PARTS[lower]}", None, weak=False), 1
    if lower in _WEAK:
        return Quantity(_WEAK[lower], None, weak=True), 1
    if lower in _STRONG:
        return Quantity(_STRONG[lower], None, weak=False), 1
    ordinal = None if lower == "first" else ordinal_word(lower)
    return None if ordinal is None else (Quantity(ordinal[:-2], None, weak=False), 1)


def _clock(part: str, ahead: Sequence[str]) -> tuple[Quantity, int] | None:
    """Read "half past eight"."""
    found = number_words(ahead[1:]) if ahead[1] in NUMBER_WORDS else (ahead[1], 1)
    if found is None or not found[0].isdecimal() or not 0 < int(found[0]) < 25:
        return None
    hour, minute = int(found[0]), 30 if part == "half" else 15
    if ahead[0] == "to":
        hour, minute = hour - 1, 60 - minute
    return Quantity(f"{hour % 12 or 12}:{minute}", None, weak=False), 2 + found[1]


def _written(lexemes: Sequence[Lexeme], place: int) -> tuple[Quantity, int]:
    form, taken = digits(lexemes[place].text.removeprefix("+")), 1
    if _BARE_POINT.match(form):
        form = form.replace(".", "0.", 1)
    ordinal, clock = _ORDINAL.fullmatch(form), _CLOCK.fullmatch(form)
    if place + 1 < len(lexemes) and lexemes[place + 1].text.casefold() in _HALVES:
        clock = clock or _POINTED_CLOCK.fullmatch(form)
    fraction = _FRACTION.fullmatch(form)
    if ordinal:
        form = ordinal[1]
    elif clock and (unit := _run(clock, lexemes, place + 1)):
        lasting = int(clock[1]) * (3600 if unit == "hour" else 60)
        lasting += int(clock[2]) * (60 if unit == "hour" else 1)
        spoken = _unit(lexemes, place + 1)[1]
        return Quantity(str(lasting), "second", weak=False), 1 + spoken
    elif clock and _is_time(lexemes, place):
        hour = str(int(clock[1]) % 12 or 12)
        form = hour if clock[2] == "00" else f"{hour}:{clock[2]}"
    elif fraction:
        form = str(Fraction(int(fraction[1]), int(fraction[2])))
    elif place + 1 < len(lexemes) and _PLAIN.fullmatch(form):
        form, more = _scaled(form, lexemes, place + 1)
        taken += more
    unit = _SYMBOLS.get(lexemes[place - 1].text) if place else None
    following, more = _unit(lexemes, place + taken)
    if unit in {None, "degree"}:
        unit = following
    run = unit is None and place + 1 < len(lexemes) and lexemes[place + 1].text == "k"
    # A 5k is a run of 5 km as well.
    run = run and _is_run(lexemes)
    measure = measured(str(Fraction(form) / 1000), "kilometre") if run and taken > 1 else ""
    return Quantity(_canonical(form, unit), unit, weak=False, measure=measure), taken + more


def _is_time(lexemes: Sequence[Lexeme], place: int) -> bool:
    """Tell whether a word of time stands beside 15:20, which may be a ratio or a verse."""
    beside = lexemes[max(place - 1, 0) : place + 2]
    return any(x.text.casefold() in _TIME_WORDS for x in beside)


def _is_run(lexemes: Sequence[Lexeme]) -> bool:
    return any(x.text.casefold() in _RUNNING for x in lexemes)


def _run(clock: re.Match[str], lexemes: Sequence[Lexeme], place: int) -> str | None:
    """Return of what 27:30 counts the 27 if it is a duration, None for a time of day."""
    unit, _ = _unit(lexemes, place)
    if unit in _LESSER:
        return unit
    minutes = int(clock[1]) > 24 and int(clock[2]) < 60 and _is_run(lexemes)
    return "minute" if minutes else None


def _scaled(form: str, lexemes: Sequence[Lexeme], place: int) -> tuple[str, int]:
    text = lexemes[place].text.casefold()
    if text in _SCALES:
        return str(Fraction(form) * _SCALES[text]), 1
    if lexemes[place].piece is Piece.NUMBER and "." not in form:
        part = _FRACTION.fullmatch(lexemes[place].text)
        if part and 0 < int(part[1]) < int(part[2]):
            return str(Fraction(form) + Fraction(int(part[1]), int(part[2]))), 1
    if text == "and" and [x.text for x in lexemes[place + 1 : place + 3]] == ["a", "half"]:
        return str(Fraction(form) + Fraction(1, 2)), 3
    return form, 0


def _spelled(lexemes: Sequence[Lexeme], place: int) -> tuple[Quantity, int] | None:
    ahead = [
        x.text.casefold() if x.piece is Piece.WORD else ""
        for x in lexemes[place : place + _LOOK_AHEAD]
    ]
    found = number_words(ahead)
    if found is None:
        return None
    form, taken = found
    if ahead[taken : taken + 1] and ahead[taken] in _PARTS and int(form) < 100:
        return Quantity(str(Fraction(int(form), _PARTS[ahead[taken]])), None, weak=False), taken + 1
    if ahead[taken : taken + 1] == ["dozen"]:
        form, taken = str(int(form) * 12), taken + 1
    if ahead[taken : taken + 3] == ["and", "a", "half"]:
        form, taken = str(Fraction(form) + Fraction(1, 2)), taken + 3
    unit, more = _unit(lexemes, place + taken)
    return Quantity(_canonical(form, unit), unit, weak=False), taken + more


def _unit(lexemes: Sequence[Lexeme], place: int) -> tuple[str | None, int]:
    if place >= len(lexemes):
        return None, 0
    text = lexemes[place].text.casefold()
    if text in _DEGREES:
        scale = lexemes[place + 1].text.casefold() if place + 1 < len(lexemes) else ""
        named = _SCALE_NAMES.get(scale)
        return (named, 2) if named else ("degree", 1)
    unit = _OTHER_UNITS.get(text) or _SYMBOLS.get(text) or UNITS.get(text)
    return (unit, 1) if unit else (None, 0)


@lru_cache(_REMEMBERED)
def _canonical(form: str, unit: str | None) -> str:
    if not _PLAIN.fullmatch(form) or (form.startswith("0") and not form.startswith("0.")):
        return form
    if unit is not None:
        return str(Fraction(form))
    whole, dot, part = form.partition(".")
    # 2.0 is 2, but without a unit 3.10 may be a version.
    return whole if dot and not part.strip("0") else form
