"""Numbers and units: the same ones, counting the same things. Pure.

Digits, words, fractions, percents and times are brought to one value; 90 minutes are 1.5 hours.
"Both", "one" and the like are weak: they may account for a number of the other text and need no
account themselves.
"""

import re
from collections import Counter
from collections.abc import Sequence
from typing import Final, NamedTuple

from embeddings.verify.guards.reader import FUNCTION, LONGEST, Kind, Reading, Token, stem
from embeddings.verify.guards.reader import words_of as _words


class Quantity(NamedTuple):
    """A number.

    `value`: in one form. `unit`: what stands beside it, "" for none. `measure`: the same in the
    base unit of its kind, ("second", 60.0) for a minute. `counts`: stem of the word that it stands
    before, "" for none. `named`: it is a part of a name, as in "BRCA2".
    """

    value: str
    unit: str = ""
    measure: tuple[str, float] | None = None
    weak: bool = False
    counts: str = ""
    named: bool = False


Numbers = tuple[Quantity, ...]
"""The numbers of a text."""


def _counted(first: int, step: int, listed: str) -> dict[str, int]:
    return {word: first + step * place for place, word in enumerate(listed.split())}


_ONES: Final = _counted(
    0, 1, "zero one two three four five six seven eight nine ten eleven twelve"
) | (_counted(13, 1, "thirteen fourteen fifteen sixteen seventeen eighteen nineteen"))
_TENS: Final = _counted(20, 10, "twenty thirty forty fifty sixty seventy eighty ninety")
_THOUSANDS: Final = {"thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12}
_SCALES: Final = _THOUSANDS | {"k": 10**3, "grand": 10**3, "bn": 10**9, "hundred": 100, "dozen": 12}
_SPELLED: Final = frozenset({*_ONES, *_TENS, *_THOUSANDS, "hundred"}) - {"zero"}
_ORDINALS: Final = _counted(2, 1, "second third fourth fifth sixth seventh eighth ninth tenth")
_PARTS: Final = {
    "half": 2, "halves": 2, "quarter": 4, "quarters": 4,
    **{word + end: value for word, value in _ORDINALS.items() if value > 2 for end in ("", "s")},
}  # fmt: skip
_WEAK: Final = {
    word: value
    for value, listed in {
        "0": "zero", "0.5": "half halves halved", "1": "single alone sole once",
        "2": "both pair pairs couple twin twins double doubled doubling square twice "
        "another additional extra", "3": "triple", "12": "noon midday midnight dozen",
    }.items()
    for word in listed.split()
}  # fmt: skip
# A unit, the base of its kind, its worth in that (0: not told), its other words. Days are not made
# months; a dollar and a euro have their cents each. Case counts
# where two units differ in it (reader.CASED).
_UNITS_LISTED: Final = """
    second second 1 seconds sec secs s; millisecond second .001 milliseconds ms;
    minute second 60 minutes min mins;
    hour second 3600 hours hr hrs h; day second 86400 days; week second 604800 weeks;
    fortnight second 1209600; month month 1 months; year month 12 years yr yrs yo;
    metre metre 1 meter metres meters m; millimetre metre .001 millimetres
    millimeter millimeters mm;
    centimetre metre .01 centimeter centimetres centimeters cm;
    kilometre metre 1000 kilometer kilometres kilometers km kms; mile metre 0 miles mi;
    inch metre 0 inches; foot metre 0 feet ft; yard metre 0 yards;
    gram gram 1 gramme grams grammes g; kilogram gram 1000 kilograms kilogrammes kg kgs kilo kilos;
    milligram gram .001 milligrams mg; microgram gram .000001 micrograms mcg ug \u03bcg;
    iu iu 0 ius; watt watt 1 watts w; kilowatt watt 1000 kilowatts kw;
    megawatt watt 0 megawatts MW; milliwatt watt 0 milliwatts mW;
    wh joule 0; kwh joule 0; kj joule 0 kilojoules; kcal joule 0 kilocalories; volt volt 0 volts v;
    amp ampere 0 amps amperes; bar pressure 0; psi pressure 0; tablespoon cup 0 tablespoons tbsp;
    teaspoon cup 0 teaspoons tsp; cup cup 0 cups; acre area 0 acres; hectare area 0 hectares ha;
    lb gram 0 lbs; ounce gram 0 ounces oz; pound pound 0 pounds;
    litre litre 1 liter litres liters l; millilitre litre .001 millilitres
    milliliters milliliter ml;
    gallon litre 0 gallons; kilobyte byte 1 kilobytes kb; megabyte byte 1000 megabytes mb;
    gigabyte byte 1000000 gigabytes gb; terabyte byte 1000000000 terabytes tb;
    megabit bit 0 megabits Mb mbit; gigabit bit 0 gigabits Gb gbit; mbps mbps 0; MBps mbps 0;
    cent money 1 cents pence; dollar money 100 dollars usd $ bucks buck;
    euro money 100 euros eur \u20ac; sterling money 100 gbp quid \u00a3; yen money 0 \u00a5 jpy;
    rupee money 0 rupees rs inr \u20b9; franc money 0 francs chf; percent part .01 % pct;
    celsius degree 0 centigrade c; fahrenheit degree 0 f; degree degrees 0 \u00b0 degrees;
    am am 0 a.m; pm pm 0 p.m; mph mph 0; kmh kmh 0 kph
"""
_ENTRIES: Final = [entry.split() for entry in _UNITS_LISTED.split(";")]
UNITS: Final = {word: name for name, _, _, *others in _ENTRIES for word in (name, *others)}
"""Words and signs of units, with the one name of each."""
_WORTH: Final = {name: (base, float(worth)) for name, base, worth, *_ in _ENTRIES}
# "60 mph" is "60 miles per hour", 20 degrees may be Celsius, a pound is a weight or money.
_ALIKE: Final = {"mph": {"mile"}, "kmh": {"kilometre"}, "degree": {""}, "pound": {"lb", "sterling"}}
_DURATIONS: Final = {name for name, (base, _) in _WORTH.items() if base == "second"}
_PLAIN: Final = re.compile(r"[-+]?\d{1,15}(?:\.\d{1,9})?")
_FRACTION: Final = re.compile(r"(\d{1,3})/([1-9]\d?)")
_ORDINAL: Final = re.compile(r"(\d+)(?:st|nd|rd|th)", re.IGNORECASE)
_CLOCK: Final = re.compile(r"([01]?\d|2[0-3])[:.]([0-5]\d)")
_DECADE: Final = re.compile(r"(?:\d\d)?\d0")
_DATE: Final = re.compile(r"\d{4}-\d{2}-\d{2}")
_DAY_HALVES: Final = _words("am pm a.m p.m")
_ARTICLES: Final = _words("a an per each every this that")
_ONE: Final = frozenset({"1", "a"})
_LONGEST_SPELLED: Final = 12
# Texts of fewer words together are short: a longer one has numbers worked out, or by the way.
_SHORT: Final = 50
_FEW: Final = 3
# So many numbers in one text are worked with.
_MANY: Final = 3
_NEAR: Final = 0.7
_ALMOST: Final = 0.9


def find_numbers(text: Reading) -> Numbers:
    """Return the numbers of a text."""
    tokens = text.tokens
    found: list[Quantity] = []
    place = 0
    while place < len(tokens):
        read = _quantity(tokens, place)
        if read is None:
            place += 1
            continue
        quantity, taken = read
        if tokens[place].glued:
            quantity = quantity._replace(weak=False, named=True)
        place += taken
        after = tokens[place] if place < len(tokens) else None
        if after and not after.apart and after.text not in FUNCTION:
            quantity = quantity._replace(counts=stem(after.text[:LONGEST]))
        found.append(quantity)
    return tuple(found)


def differ_in_numbers(a: Reading, b: Reading, x: Numbers, y: Numbers, close: float) -> str | None:
    """Return "number" or "unit" if the texts differ in one."""
    short = len(a.words) + len(b.words) < _SHORT
    left, right = _unaccounted(x, y), _unaccounted(y, x)
    # "1 egg" is an egg, but "type 1" is not "type 2".
    left, right = left or (right and _ones(x, y)), right or (left and _ones(y, x))
    if any(q.named for q in (*left, *right)):
        return "number"
    if left or right:
        # "1 hour and 30 minutes" are 90 minutes.
        if {q.unit for q in (*left, *right)} <= _DURATIONS and _lasting(x) == _lasting(y):
            return None
        if any(sum(not q.weak for q in z) >= _MANY for z in (x, y)):
            return "number"  # with another number it is another sum
        if not close and max(len(a.content), len(b.content)) > _FEW:
            return None  # a story and its sum
        least = _ALMOST if not (left and right) else 0.0 if short else _NEAR
        return "number" if close >= least else None
    if _exchanged(a, b, x, y, close):
        return "number"
    return "unit" if (short or close >= _NEAR) and _otherwise_measured(x, y) else None


def _unaccounted(mine: Numbers, theirs: Numbers) -> list[Quantity]:
    """Return the numbers of one text that are not in the other."""
    values = {part for x in theirs for part in _split(x.value)}
    measures = {x.measure for x in theirs}
    return [
        x
        for x in mine
        if not x.weak
        and not values.issuperset(_split(x.value))
        and not (x.measure and x.measure in measures)
    ]


def _ones(mine: Numbers, theirs: Numbers) -> list[Quantity]:
    """Return the digit 1 of one text, if the other has none, and no "one"."""
    values = {x.value for x in theirs}
    return [x for x in mine if x.value == "1" and x.value not in values]


def _split(value: str) -> Sequence[str]:
    """Return the numbers of a time, ratio or date, which may be written out: "5 to 3" for 5:3."""
    if ":" in value or "/" in value or _DATE.fullmatch(value):
        return [part.lstrip("0") or "0" for part in re.split("[:/-]", value)]
    return [value]


def _lasting(numbers: Numbers) -> float:
    """Return how many seconds all durations last together."""
    return sum(x.measure[1] for x in numbers if x.measure and x.measure[0] == "second")


def _exchanged(a: Reading, b: Reading, x: Numbers, y: Numbers, close: float) -> bool:
    """Tell whether the same numbers stand in another order in a sum, or count other things."""
    ratios = [{q.value.removeprefix("0") for q in z if ":" in q.value} for z in (x, y)]
    if ratios[0] and ratios[1] and ratios[0] != ratios[1]:
        return True
    left, right = ([q.value for q in z] for z in (x, y))
    if close >= _ALMOST and len(left) == len(right) and set(left) == set(right):
        if sorted(left) != sorted(right):
            return True
        frames = ([t.text for t in text.tokens if t.kind is not Kind.NUMBER] for text in (a, b))
        if left != right and next(frames) == next(frames):
            return True
    counted = [_counted_by(z) for z in (x, y)]
    pairs = {(counted[0][key], counted[1][key]) for key in counted[0].keys() & counted[1].keys()}
    return any(one != other and (other, one) in pairs for one, other in pairs)


def _counted_by(numbers: Numbers) -> dict[str, str]:
    """Return the number of each thing that has one only."""
    several = Counter(x.counts for x in numbers)
    return {x.counts: x.value for x in numbers if x.counts and several[x.counts] == 1}


def _otherwise_measured(x: Numbers, y: Numbers) -> bool:
    """Tell whether a number has a unit in both texts, and not the same."""
    left, right = _units(x), _units(y)
    return any(
        left[value].isdisjoint(right[value]) and "" not in left[value] | right[value]
        for value in left.keys() & right.keys()
    )


def _units(numbers: Numbers) -> dict[str, set[str]]:
    units: dict[str, set[str]] = {}
    for x in numbers:
        if x.value not in _ONE:
            units.setdefault(x.value, set()).update(_ALIKE.get(x.unit, {x.unit}))
    return units


def _at(tokens: Sequence[Token], place: int) -> str:
    return tokens[place].text if 0 <= place < len(tokens) else ""


def _quantity(tokens: Sequence[Token], place: int) -> tuple[Quantity, int] | None:
    """Read the number that starts at a place; return it and how many tokens it took."""
    token = tokens[place]
    read = _digits(tokens, place) if token.kind is Kind.NUMBER else _worded(tokens, place)
    if read is None:
        return None
    found, taken = read
    weak = found.weak or found.value in _ONE
    return found._replace(weak=weak, measure=_measure(found)), taken


def _measure(quantity: Quantity) -> tuple[str, float] | None:
    base, worth = _WORTH[quantity.unit] if quantity.unit else ("part", 1.0)
    value = "1" if quantity.value == "a" else quantity.value
    # A number without a unit is a share, if at all.
    if not worth or not (quantity.unit or value.startswith("0.")) or not _PLAIN.fullmatch(value):
        return None
    return base, round(float(value) * worth, 5)


def _form(value: float) -> str:
    return f"{value:.9f}".rstrip("0").rstrip(".")


def _digits(tokens: Sequence[Token], place: int) -> tuple[Quantity, int]:
    form, taken = tokens[place].text.removeprefix("+"), 1
    form = form.replace(".", "0.", 1) if form.startswith((".", "-.")) else form
    before, following = _at(tokens, place - 1), _at(tokens, place + 1)
    if following == "s" and _DECADE.fullmatch(form) and (len(form) == 4 or before == "the"):
        # "The 80s" are no seconds; of "the 20s" it is not known which.
        return Quantity(form if len(form) == 4 or form < "30" else f"19{form}"), 2
    unit = UNITS[before] if before in UNITS and tokens[place - 1].kind is Kind.SYMBOL else ""
    clock, fraction = _CLOCK.fullmatch(form), _FRACTION.fullmatch(form)
    if ordinal := _ORDINAL.fullmatch(form):
        form = ordinal[1]
    elif clock and (following in _DAY_HALVES or form.endswith(":00")):
        # Without its half of the day it may be a ratio, a verse or a pace.
        unit = "pm" if int(clock[1]) > 12 else unit
        form = str(int(clock[1]) % 12 or 12) + ("" if clock[2] == "00" else f":{clock[2]}")
    elif fraction:
        form = _form(int(fraction[1]) / int(fraction[2]))
    elif _PLAIN.fullmatch(form):
        form, more = _scaled(form, tokens, place + 1)
        taken += more
    whole, _, part = form.partition(".")
    # 2.0 is 2, but 3.10 may be a version.
    form = form if part.strip("0") else whole
    named, more = _unit(tokens, place + taken)
    return Quantity(form, unit or named), taken + more


def _scaled(form: str, tokens: Sequence[Token], place: int) -> tuple[str, int]:
    """Read on: "5 million", "2 1/2", "2 and a half"."""
    word = _at(tokens, place)
    if word in _SCALES:
        return _form(float(form) * _SCALES[word]), 1
    if word == "and" and [x.text for x in tokens[place + 1 : place + 3]] == ["a", "half"]:
        return _form(float(form) + 0.5), 3
    part = _FRACTION.fullmatch(word)
    if part and "." not in form and 0 < int(part[1]) < int(part[2]):
        return _form(float(form) + int(part[1]) / int(part[2])), 1
    return form, 0


def _worded(tokens: Sequence[Token], place: int) -> tuple[Quantity, int] | None:
    word, following = tokens[place].text, _at(tokens, place + 1)
    if word in _SPELLED:
        form, taken = _spelled([x.text for x in tokens[place : place + _LONGEST_SPELLED]])
        if (after := _at(tokens, place + taken)) in _PARTS and float(form) < 100:
            return Quantity(_form(float(form) / _PARTS[after])), taken + 1
        form, more = _scaled(form, tokens, place + taken)
        unit, named = _unit(tokens, place + taken + more)
        return Quantity(form, unit), taken + more + named
    if word in _ARTICLES and len(following) > 2 and following != "second":
        unit, named = _unit(tokens, place + 1)
        if unit and _WORTH[unit][1]:
            half = [x.text for x in tokens[place + 2 : place + 5]] == ["and", "a", "half"]
            return (Quantity("1.5", unit), 5) if half else (Quantity("a", unit), 1 + named)
    if word in _PARTS:
        skipped = 1 + (following == "of")
        skipped += _at(tokens, place + skipped) in {"a", "an"}
        unit, named = _unit(tokens, place + skipped)
        share = word.startswith(("half", "quarter")) or _at(tokens, place - 1) in {"a", "an"}
        if share and (unit or word not in _ORDINALS or following == "of"):
            weak = word.startswith("hal") and not unit
            return Quantity(_form(1 / _PARTS[word]), unit, weak=weak), skipped + named
    if word in _WEAK:
        return Quantity(_WEAK[word], weak=word != "dozen"), 1
    return (Quantity(str(_ORDINALS[word])), 1) if word in _ORDINALS else None


def _spelled(words: Sequence[str]) -> tuple[str, int]:
    """Return the digits of the number words in front, and how many words they took."""
    total, part, taken = 0, 0, 0
    # What follows must be worth less than this to belong to the number: "twenty twenty" is two.
    room = scale = 10**15
    for place, word in enumerate(words):
        value = _ONES.get(word) or _TENS.get(word, 0)
        if 0 < value < room:
            part += value
            room = 10 if word in _TENS else 0
        elif word == "hundred" and part < 100:
            part, room = max(part, 1) * 100, 100
        elif _THOUSANDS.get(word, scale) < scale:
            room = scale = _THOUSANDS[word]
            total, part = total + max(part, 1) * scale, 0
        elif word == "and" and room >= 100 and {*words[place + 1 : place + 2]} & {*_ONES, *_TENS}:
            continue
        else:
            break
        taken = place + 1
    return str(total + part), taken


def _unit(tokens: Sequence[Token], place: int) -> tuple[str, int]:
    """Return the unit at a place, and how many tokens name it."""
    word, following = _at(tokens, place), _at(tokens, place + 1)
    unit = UNITS.get(word, "")
    if word == "per" and following == "cent":
        return "percent", 2
    if unit == "degree" and _WORTH.get(UNITS.get(following, ""), ("",))[0] == "degree":
        return UNITS[following], 2
    return unit, int(bool(unit))
