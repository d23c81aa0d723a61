"""Do two texts speak of the same numbers, of the same units? Pure."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final

from embeddings.verify.differences import Difference
from embeddings.verify.entities import is_name
from embeddings.verify.lexicon import UNITS
from embeddings.verify.quantities import Quantity, measured
from embeddings.verify.statement import Statement

# Texts less close than this may mention a number by the way.
_CLOSE: Final = 0.6
_ALMOST: Final = 0.85
_EQUAL: Final = 0.99
_LONG: Final = 25
_MOST_NAMES: Final = 20
# Written alike, or one for the other.
_ALIKE: Final[Mapping[str, str | None]] = {"pound": "sterling", "mph": "mile", "degree": None}
# "A second card" is "another card".
_ONE_MORE: Final = frozenset({"another", "additional", "extra", "other"})
_A_UNIT: Final = re.compile(
    r" (?:an?|per|each|every|this|that) "
    r"((?:kilo|centi|milli)?(?:met(?:re|er)|gram|lit(?:re|er))|kilo"
    r"|second|minute|hour|day|week|month|year) "
)


_DIGITS: Final = re.compile(r"\d+")
_SUM: Final = re.compile(
    r" # (?:minus|divided by|subtracted from|to the power of|over|mod|of|less) # "
)


def check_numbers(a: Statement, b: Statement, apart: Difference) -> str | None:
    """Refuse a number or a unit that the other text has not, and one code for another."""
    if _other_codes(a, b):
        return "number"
    if not a.numbers and not b.numbers:
        return None
    left, right = _alone(a.numbers, b), _alone(b.numbers, a)
    if left or right:
        # Stories reworded at length have numbers worked out, or more of them than are needed; a
        # short question has not.
        short = len(a.words) + len(b.words) < 2 * _LONG
        if left and right:
            return "number" if short or apart.closeness >= _CLOSE else None
        return "number" if apart.closeness >= (_CLOSE if short else _ALMOST) else None
    if _exchanged(a, b) or (apart.closeness >= _EQUAL and _weakly_apart(a.numbers, b.numbers)):
        return "number"
    if _recounted(a.numbers, b.numbers, short=len(a.words) + len(b.words) < 2 * _LONG):
        return "number"
    if _otherwise_measured(a.numbers, b.numbers):
        return "unit"
    return None


def _other_codes(a: Statement, b: Statement) -> bool:
    """Tell whether each text has a word with digits that the other has not: "q79" and "q97".

    "iPhone13" is in "iPhone 13".
    """
    return _has_code_alone(a, b) and _has_code_alone(b, a)


def _has_code_alone(text: Statement, other: Statement) -> bool:
    values = {x.value for x in other.numbers}
    return any(
        item.text not in other.vocabulary and not values.issuperset(digits)
        for item in text.items
        if (digits := _DIGITS.findall(item.text))
    )


def _alone(numbers: Iterable[Quantity], other: Statement) -> bool:
    values = {x.value for x in other.numbers}
    if not other.vocabulary.isdisjoint(_ONE_MORE):
        values.add("2")
    missing = [x for x in numbers if not x.weak and x.value not in values]
    if not missing:
        return False
    measures = {x.measure for x in other.numbers}
    measures.update(measured("1", UNITS.get(unit, unit)) for unit in _A_UNIT.findall(other.joined))
    return any(not (x.measure and x.measure in measures) for x in missing)


def _recounted(a: Iterable[Quantity], b: Iterable[Quantity], *, short: bool) -> bool:
    """Tell whether the same numbers occur another number of times, without a "both" for it."""
    left = Counter(x.value for x in a if not x.weak)
    right = Counter(x.value for x in b if not x.weak)
    if left == right or not short:
        return False
    return left.total() == right.total() and left.keys() == right.keys()


def _otherwise_measured(a: Iterable[Quantity], b: Iterable[Quantity]) -> bool:
    """Tell whether a number has a unit in both texts, and not the same."""
    left, right = _units(a), _units(b)
    return any(
        None not in left[value] | right[value] and left[value] != right[value]
        for value in left.keys() & right.keys()
    )


def _units(numbers: Iterable[Quantity]) -> dict[str, set[str | None]]:
    units: dict[str, set[str | None]] = {}
    for x in numbers:
        units.setdefault(x.value, set()).add(_ALIKE.get(x.unit or "", x.unit))
    return units


def _exchanged(a: Statement, b: Statement) -> bool:
    """Tell whether two numbers changed places: in a sum, or between what they count."""
    if a.words == b.words and _reordered(a.numbers, b.numbers):
        return True
    # "Squared" may stand on either side of what is squared.
    left, right = (
        [x.value for x in text.numbers if not x.weak or x.value == "1"] for text in (a, b)
    )
    if left == right and len(left) < 2:
        return False
    if left != right and sorted(left) == sorted(right):
        signed = a.signs or b.signs or _SUM.search(a.joined) or _SUM.search(b.joined)
        if signed and len(left) == 2:
            return True
    return any(_contradict(read(a), read(b)) for read in (_counted, _owned) if len(set(left)) > 1)


def _reordered(a: Iterable[Quantity], b: Iterable[Quantity]) -> bool:
    """Tell whether all the numbers, weak ones too, are the same in another order."""
    left, right = [x.value for x in a], [x.value for x in b]
    return left != right and sorted(left) == sorted(right)


def _weakly_apart(a: Iterable[Quantity], b: Iterable[Quantity]) -> bool:
    """Tell whether "squared" stands against "cubed"."""
    left, right = ({x.value for x in numbers if x.weak and x.value != "1"} for numbers in (a, b))
    return bool(left - {y.value for y in b} and right - {x.value for x in a})


def _contradict(left: dict[str, str], right: dict[str, str]) -> bool:
    """Tell whether two things have each other's number."""
    numbers = {(left[x], right[x]) for x in left.keys() & right.keys() if left[x] != right[x]}
    return any((y, x) in numbers for x, y in numbers)


def _counted(text: Statement) -> dict[str, str]:
    """Return the number before each meaningful word that has one."""
    at = {item.place: item.word.key for item in text.items}
    return {at[x.place + 1]: x.value for x in text.numbers if x.place + 1 in at}


def _owned(text: Statement) -> dict[str, str]:
    """Return the number after each name."""
    found: dict[str, str] = {}
    names = [item for item in text.items if is_name(item)][:_MOST_NAMES]
    for name, following in zip(names, [*names[1:], None], strict=False):
        end = following.place if following else len(text.words)
        own = [x.value for x in text.numbers if name.place < x.place < end]
        if len(own) == 1:
            found[name.word.key] = own[0]
    return found
