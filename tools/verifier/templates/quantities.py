"""Numbers, amounts, dates and times: one value, the ways to write it."""

from collections.abc import Callable, Mapping
from random import Random
from typing import Final

from tools.verifier.templates.inflection import listed, number_words, ordinal

Made = tuple[tuple[str, ...], dict[str, tuple[str, ...]]]

MONTHS: Final = listed(
    "January February March April May June July August September October November December"
)
_ORDINALS: Final = listed("zeroth first second third fourth fifth sixth seventh eighth ninth tenth")


def _number(number: int) -> Made:
    written = [str(number)]
    if number >= 1000:
        written.append(f"{number:,}")
        if number % 1000 == 0 and number < 1_000_000:
            written.append(f"{number // 1000}k")
    if number <= 20 or (number % 10 == 0 and number <= 100) or number in {1000, 10000, 100000}:
        written.append(number_words(number))
    return tuple(written), {"ord": _ordinal_forms(number), "digits": (str(number),)}


def _ordinal_forms(number: int) -> tuple[str, ...]:
    return (ordinal(number), *_ORDINALS[number : number + 1])


def _within(low: int, high: int, step: int = 1) -> Callable[[Random], Made]:
    return lambda rng: _number(rng.randrange(low, high + 1, step))


def _scaled(rng: Random, units: tuple[tuple[str, str, str, int], ...], most: int) -> Made:
    """Write an amount in a unit and, where it comes out whole, in the next smaller one."""
    at = rng.randrange(len(units))
    one, many, short, _ = units[at]
    number = rng.choice((rng.randint(2, 9), rng.randint(2, most), rng.randrange(10, 101, 5)))
    written = [f"{number} {many}", f"{number} {short}"]
    if number <= 12:
        written.append(f"{number_words(number)} {many}")
    if at and number <= 12:
        smaller = units[at - 1]
        scaled = number * units[at][3]
        written.append(f"{scaled} {smaller[1]}")
    return tuple(written), {"adj": (f"{number}-{one}", f"{number} {one}")}


# Singular, plural, short, and how many of the unit before it make one.
_LENGTHS: Final = (
    ("millimetre", "millimetres", "mm", 1),
    ("centimetre", "centimetres", "cm", 10),
    ("metre", "metres", "m", 100),
    ("kilometre", "kilometres", "km", 1000),
)
_FEET: Final = (
    ("inch", "inches", "in", 1),
    ("foot", "feet", "ft", 12),
    ("yard", "yards", "yd", 3),
    ("mile", "miles", "mi", 1760),
)
_MASSES: Final = (
    ("gram", "grams", "g", 1),
    ("kilogram", "kilograms", "kg", 1000),
    ("tonne", "tonnes", "t", 1000),
)
_POUNDS: Final = (("ounce", "ounces", "oz", 1), ("pound", "pounds", "lb", 16))
_VOLUMES: Final = (("millilitre", "millilitres", "ml", 1), ("litre", "litres", "l", 1000))
_DURATIONS: Final = (
    ("second", "seconds", "sec", 1),
    ("minute", "minutes", "min", 60),
    ("hour", "hours", "hrs", 60),
    ("day", "days", "days", 24),
)
_LONG: Final = (
    ("day", "days", "days", 1),
    ("week", "weeks", "wks", 7),
)
_YEARS: Final = (("month", "months", "months", 1), ("year", "years", "yrs", 12))
_STORAGE: Final = (("megabyte", "megabytes", "MB", 1), ("gigabyte", "gigabytes", "GB", 1000))

_SPANS: Final = (
    ("half an hour", "30 minutes", "thirty minutes", "a half hour"),
    ("an hour", "60 minutes", "one hour", "1 hour"),
    ("a quarter of an hour", "15 minutes", "fifteen minutes"),
    ("an hour and a half", "90 minutes", "1.5 hours", "one and a half hours"),
    ("two weeks", "14 days", "a fortnight", "2 weeks"),
    ("a year", "12 months", "one year", "1 year", "twelve months"),
    ("six months", "half a year", "6 months"),
    ("a week", "7 days", "seven days", "one week"),
    ("two days", "48 hours", "2 days"),
    ("a day", "24 hours", "one day"),
    ("a decade", "ten years", "10 years"),
    ("a century", "100 years", "a hundred years"),
    ("a month", "one month", "1 month"),
)


def _length(rng: Random) -> Made:
    return _scaled(rng, rng.choice((_LENGTHS, _FEET)), 60)


def _mass(rng: Random) -> Made:
    return _scaled(rng, rng.choice((_MASSES, _POUNDS)), 60)


def _volume(rng: Random) -> Made:
    return _scaled(rng, _VOLUMES, 40)


def _duration(rng: Random) -> Made:
    if rng.random() < 0.3:
        return rng.choice(_SPANS), {}
    return _scaled(rng, rng.choice((_DURATIONS, _LONG, _YEARS)), 50)


def _storage(rng: Random) -> Made:
    return _scaled(rng, _STORAGE, 64)


def _money(rng: Random) -> Made:
    number = rng.choice(
        (rng.randint(2, 99), rng.randrange(100, 1000, 10), rng.randrange(1000, 50001, 500))
    )
    sign, many, code = rng.choice(
        (
            ("$", "dollars", "USD"),
            ("$", "dollars", "USD"),
            ("€", "euros", "EUR"),
            ("£", "pounds", "GBP"),
        )
    )
    written = [f"{sign}{number:,}", f"{number} {many}", f"{number} {code}", f"{sign}{number}"]
    if number % 1000 == 0:
        written.append(f"{sign}{number // 1000}k")
    return tuple(written), {}


def _clock(rng: Random) -> Made:
    hour, minute = rng.randint(1, 12), rng.choice((0, 0, 15, 30, 45))
    late = rng.random() < 0.6
    day_hour = hour % 12 + 12 * late
    half = "pm" if late else "am"
    if not minute:
        written = [f"{hour}{half}", f"{hour} {half}", f"{day_hour:02}:00", f"{hour}:00 {half}"]
    else:
        written = [
            f"{hour}:{minute:02}{half}",
            f"{hour}:{minute:02} {half}",
            f"{day_hour:02}:{minute:02}",
        ]
    if (hour, minute) == (12, 0):
        written.append("noon" if late else "midnight")
    return tuple(written), {}


def _date(rng: Random) -> Made:
    month, day = rng.choice(MONTHS), rng.randint(1, 28)
    short = month if len(month) <= 4 else month[:3]
    return (
        f"{month} {day}",
        f"{ordinal(day)} of {month}",
        f"{day} {month}",
        f"{month} {ordinal(day)}",
        f"{short} {day}",
    ), {}


def _percentage(rng: Random) -> Made:
    number = rng.choice((rng.randint(1, 15), rng.randrange(5, 100, 5)))
    return (f"{number}%", f"{number} percent", f"{number} per cent"), {}


def _version(rng: Random) -> Made:
    number = f"{rng.randint(1, 18)}" + rng.choice(("", f".{rng.randint(0, 12)}"))
    return (number,), {}


def _year(rng: Random) -> Made:
    number = rng.choice((rng.randint(1950, 2026), rng.randint(1995, 2026), rng.randint(1700, 1949)))
    return (str(number),), {}


def _dozens(rng: Random) -> Made:
    number = rng.choice((1, 2, 3, 4, 5))
    name = "a dozen" if number == 1 else f"{number_words(number)} dozen"
    return (str(12 * number), name), {}


KINDS: Final[Mapping[str, Callable[[Random], Made]]] = {
    "small": _within(2, 9),
    "int": _within(10, 30),
    "tens": _within(20, 90, 10),
    "big": _within(40, 400),
    "hundreds": _within(100, 900, 100),
    "thousands": _within(1000, 90000, 1000),
    "large": _within(1000, 99999),
    "age": _within(18, 80),
    "childage": _within(1, 15),
    "length": _length,
    "mass": _mass,
    "volume": _volume,
    "duration": _duration,
    "storage": _storage,
    "money": _money,
    "clock": _clock,
    "date": _date,
    "pct": _percentage,
    "version": _version,
    "year": _year,
    "dozens": _dozens,
}
