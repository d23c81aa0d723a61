"""Payment card numbers: an issued prefix, a length the brand uses, and the Luhn check digit."""

import re
from collections.abc import Iterator

import re2

from policies.detectors.digits import Digits
from policies.detectors.named import is_named_otherwise

_RUN = re2.compile(r"[0-9](?:[ .-]?[0-9]){11,}")
_GROUP = re.compile(r"[0-9]+")
# Behind one of these words any number with a right check digit is taken for a card's.
_LABEL = re2.compile(r"(?i)\b(?:card|credit|debit|visa|master ?card|amex|maestro|cc|pan)")
_LABEL_REACH = 32
_SHORTEST, _LONGEST = 12, 19
_USUAL = 15
"""Digits from which a card is told from a section of a longer number in the same groups."""
_LONGEST_PHONE = 13
"""Digits behind a plus that are taken for a phone number."""
_GROUP_SIZES = frozenset({1, 2, 3, 4, 5, 6, 8})

_ISSUED = (
    # First four digits from, to; lengths in use.
    (1800, 1800, (15,)),  # JCB
    (2131, 2131, (15,)),  # JCB
    (2200, 2204, (16, 17, 18, 19)),  # Mir
    (2221, 2720, (16,)),  # Mastercard
    (3000, 3059, (14, 16, 17, 18, 19)),  # Diners Club
    (3095, 3095, (14, 16, 17, 18, 19)),  # Diners Club
    (3400, 3499, (15,)),  # American Express
    (3500, 3599, (16, 17, 18, 19)),  # JCB (3528 to 3589), and what test data takes for it
    (3600, 3699, (14, 15, 16, 17, 18, 19)),  # Diners Club
    (3700, 3799, (15,)),  # American Express
    (3800, 3999, (14, 16, 17, 18, 19)),  # Diners Club
    (4000, 4999, (13, 16, 19)),  # Visa
    (5000, 5099, (12, 13, 14, 15, 16, 17, 18, 19)),  # Maestro, Verve, Elo
    (5100, 5599, (16,)),  # Mastercard
    (5600, 5899, (12, 13, 14, 15, 16, 17, 18, 19)),  # Maestro
    (6000, 6999, (12, 13, 14, 15, 16, 17, 18, 19)),  # Discover, UnionPay, RuPay, Maestro
    (8100, 8299, (16, 17, 18, 19)),  # UnionPay, RuPay
    (9792, 9792, (16,)),  # Troy
)

_DOUBLED = bytes.maketrans(b"0123456789", bytes((0, 2, 4, 6, 8, 1, 3, 5, 7, 9)))
_SINGLE = bytes.maketrans(b"0123456789", bytes(range(10)))


class CardDetector:
    """Finds card numbers, in one piece or in groups set off by one kind of separator."""

    kind = "card"
    needs = Digits.RUN

    def find(self, text: str) -> Iterator[tuple[int, int]]:
        """Yield (start, end) of each card number."""
        for run in _RUN.finditer(text):
            yield from _cards(text, *run.span())


def _cards(text: str, start: int, end: int) -> Iterator[tuple[int, int]]:
    groups = [group.span() for group in _GROUP.finditer(text, start, end)]
    first = 0
    while first < len(groups):
        last = _card_from(text, groups, first)
        if last is None:
            first += 1
        else:
            yield groups[first][0], groups[last][1]
            first = last + 1


def _card_from(text: str, groups: list[tuple[int, int]], first: int) -> int | None:
    """Return the index of the last group of a card number that begins with group ``first``."""
    start, end = groups[first]
    if end - start > _LONGEST or _is_fraction(text, start):
        return None
    digits = ""
    for last in range(first, len(groups)):
        group_start, group_end = groups[last]
        if last > first and text[group_start - 1] != text[end]:
            return None
        if len(digits) + group_end - group_start > _LONGEST:
            return None
        digits += text[group_start:group_end]
        if (
            len(digits) >= _SHORTEST
            and _luhn(digits)
            and not (text[start - 1 : start] == "+" and len(digits) <= _LONGEST_PHONE)
            and _grouped_like_card(groups[first : last + 1])
            and not _is_section(groups, first, last)
            and (_is_labelled(text, start) or _is_likely(text, groups[first : last + 1], digits))
        ):
            return last
    return None


def _is_fraction(text: str, start: int) -> bool:
    """Tell whether the digits at ``start`` are a decimal fraction."""
    before = text[max(0, start - 2) : start]
    return before[-1:] == "." and before[:1].isdigit()


def _is_section(groups: list[tuple[int, int]], first: int, last: int) -> bool:
    """Tell whether the groups go on in the size of the first.

    Fewer digits on either side, as many as a card has on both or, before, at an uneven end: four
    behind may be the month in which it ends.
    """
    size = groups[first][1] - groups[first][0]
    before, after = groups[max(0, first - 1) : first], groups[last + 1 : last + 2]
    digits = sum(end - start for start, end in groups[first : last + 1])
    if digits >= _USUAL and not (before and (after or groups[last][1] - groups[last][0] < size)):
        return False
    return any(end - start == size for start, end in before + after)


def _is_labelled(text: str, start: int) -> bool:
    return _LABEL.search(text[max(0, start - _LABEL_REACH) : start]) is not None


def _grouped_like_card(groups: list[tuple[int, int]]) -> bool:
    """Accept equal groups with a shorter last one (4-4-4-4, 4-4-4-1, 8-8), or 4-6-n."""
    sizes = [end - start for start, end in groups]
    size = sizes[0]
    if sizes[:-1] == [4, 6] or len(sizes) == 1:
        return True
    return size in _GROUP_SIZES and all(other == size for other in sizes[:-1]) and sizes[-1] <= size


def _is_likely(text: str, groups: list[tuple[int, int]], digits: str) -> bool:
    """Tell whether a brand issues such numbers, and nothing speaks against it being one."""
    start, end = groups[0]
    before = text[start - 1 : start]
    if before.isascii() and before.isalpha():  # the tail of an id (U6292...)
        return False
    if len(digits) < _USUAL and (
        is_named_otherwise(text, start) if len(groups) == 1 else end - start < 4
    ):
        return False
    prefix = int(digits[:4])
    return any(low <= prefix <= high and len(digits) in lengths for low, high, lengths in _ISSUED)


def _luhn(digits: str) -> bool:
    reverse = digits[::-1].encode()
    return (sum(reverse[::2].translate(_SINGLE)) + sum(reverse[1::2].translate(_DOUBLED))) % 10 == 0
