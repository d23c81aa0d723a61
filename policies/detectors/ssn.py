"""US social security numbers.

The numbers printed in advertisements (078-05-1120) count: the scan cannot know who sends them.
"""

import re
from collections.abc import Iterator

import re2

from policies.detectors.digits import Digits

_SEPARATED = re2.compile(r"[0-9]{3}(?:-[0-9]{2}-|\.[0-9]{2}\.| [0-9]{2} )[0-9]{4}")
_TOGETHER = re2.compile(
    r"(?i)(?:\b|_)(?:ssn(?:\b|_)|ss ?#|social(?:\b|_))[^0-9\n]{0,40}([0-9]{9})(?:[^0-9]|$)"
)
# A country code: what follows is the rest of a phone number.
_ABROAD = re.compile(r"(?:\+|\b00)[0-9]{1,3}[ .-]$")
_ABROAD_REACH = 7
_ANY_LABEL = re2.compile(r"(?i)ssn|ss ?#|social")


class SsnDetector:
    """Finds ``AAA-GG-SSSS`` in issued ranges, and nine digits behind a label."""

    kind = "ssn"
    needs = Digits.RUN

    def find(self, text: str) -> Iterator[tuple[int, int]]:
        """Yield (start, end) of each number."""
        for match in _SEPARATED.finditer(text):
            start, end = match.span()
            abroad = _ABROAD.search(text, max(0, start - _ABROAD_REACH), start) is not None
            if not abroad and _stands_alone(text, start, end) and _is_issued(match.group()):
                yield start, end
        if _ANY_LABEL.search(text) is not None:
            for match in _TOGETHER.finditer(text):
                if _is_issued(match.group(1)):
                    yield match.span(1)


def _stands_alone(text: str, start: int, end: int) -> bool:
    """Tell whether no letter, digit or further group touches the number."""
    around = (text[max(0, start - 2) : start][::-1], text[end : end + 2])
    return not any(
        (near[:1].isascii() and near[:1].isalnum())
        or (near[:1] in ("-", ".") and near[1:].isdigit())
        for near in around
    )


def _is_issued(number: str) -> bool:
    digits = "".join(filter(str.isdigit, number))
    area, group, serial = digits[:3], digits[3:5], digits[5:]
    return area not in ("000", "666") and area < "900" and group != "00" and serial != "0000"
