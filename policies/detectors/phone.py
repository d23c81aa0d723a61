"""Phone numbers, as the phonenumbers library validates them.

The library is slow, so it only sees the surroundings of runs of digits that are long enough.
"""

from collections.abc import Iterator, Sequence

import phonenumbers
import re2
from phonenumbers import Leniency, PhoneNumberMatcher

_RUN = re2.compile(r"[0-9](?:[ ().\-/\[\]]{0,4}[0-9]){6,}")
_LEAD, _TAIL = 4, 16
"""Characters around a run that belong to it or change its meaning: ``+(``, ``ext. 123``."""


class PhoneDetector:
    """Finds valid numbers with a country code, and national ones of the given regions."""

    kind = "phone"

    __slots__ = ("_regions",)

    def __init__(self, regions: Sequence[str]) -> None:
        """Take ISO 3166 codes; raises ValueError for one that has no phone numbers."""
        unknown = [region for region in regions if not is_region(region)]
        if unknown:
            raise ValueError(f"no phone numbers are known for region {unknown[0]!r}")
        self._regions: tuple[str | None, ...] = tuple(regions) or (None,)

    def find(self, text: str) -> Iterator[tuple[int, int]]:
        """Yield (start, end) of each number."""
        behind = 0
        for run in _RUN.finditer(text):
            start, end = max(behind, run.start() - _LEAD), run.end() + _TAIL
            for found_start, found_end in self._in(text[start:end]):
                behind = start + found_end
                yield start + found_start, behind

    def _in(self, window: str) -> list[tuple[int, int]]:
        """Return what any region finds, of overlapping findings the first."""
        found = sorted(
            (match.start, match.end)
            for region in self._regions
            # The library gives up after a number of tries; a scan may not.
            for match in PhoneNumberMatcher(
                window, region, leniency=Leniency.VALID, max_tries=len(window)
            )
        )
        apart: list[tuple[int, int]] = []
        for start, end in found:
            if not apart or start >= apart[-1][1]:
                apart.append((start, end))
        return apart


def is_region(code: str) -> bool:
    """Tell whether phone numbers of this region can be validated."""
    return code in phonenumbers.SUPPORTED_REGIONS
