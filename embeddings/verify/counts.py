"""Do two texts speak of the same numbers, of the same units? Pure."""

import re
from collections import Counter
from collections.abc import Iterable
from typing import Final

from embeddings.verify.differences import Difference
from embeddings.verify.lexicon import UNITS
from embeddings.verify.quantities import Quantity, measured
from embeddings.verify.statement import Statement

# Texts less close than this may mention a number by the way.
_CLOSE: Final = 0.6
_LONG: Final = 25
_A_UNIT: Final = re.compile(
    r" (?:an?|per|each|every|this|that) ((?:kilo|centi|milli)?(?:second|minute|hour|day|week|month|year|met(?:re|er)"
    r"|gram|lit(?:re|er)|kilo)) "
)


def check_numbers(a: Statement, b: Statement, apart: Difference) -> str | None:
    """Refuse a number or a unit that the other text has not."""
    if not a.numbers and not b.numbers:
        return None
    left, right = _alone(a.numbers, b), _alone(b.numbers, a)
    if left or right:
        # Stories reworded at length have numbers worked out; a short question has not.
        conflict = left and right and len(a.words) + len(b.words) < 2 * _LONG
        return "number" if conflict or apart.closeness >= _CLOSE else None
    if _recounted(a.numbers, b.numbers, short=len(a.words) + len(b.words) < 2 * _LONG):
        return "number"
    if any(
        _other_unit(x, b.numbers) or _other_unit(y, a.numbers) for x in a.numbers for y in b.numbers
    ):
        return "unit"
    return None


def _alone(numbers: Iterable[Quantity], other: Statement) -> bool:
    values = {x.value for x in other.numbers}
    missing = [x for x in numbers if not x.weak and x.value not in values]
    if not missing:
        return False
    measures = {x.measure for x in other.numbers}
    measures.update(measured("1", UNITS.get(unit, unit)) for unit in _A_UNIT.findall(other.joined))
    years = {x.value[2:] for x in other.numbers if len(x.value) == 4}
    return any(
        not (x.measure and x.measure in measures)
        and x.value not in years
        and x.value[2:] not in values
        for x in missing
    )


def _recounted(a: Iterable[Quantity], b: Iterable[Quantity], *, short: bool) -> bool:
    """Tell whether the same numbers occur another number of times, without a "both" for it."""
    left = Counter(x.value for x in a if not x.weak)
    right = Counter(x.value for x in b if not x.weak)
    if left == right or not short:
        return False
    return left.total() == right.total() and left.keys() == right.keys()


def _other_unit(x: Quantity, others: Iterable[Quantity]) -> bool:
    units = {y.unit for y in others if y.value == x.value}
    return bool(x.unit and units) and x.unit not in units and None not in units
