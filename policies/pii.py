"""Personal data and secrets in text: one scan for prompts and answers.

Law: fail closed, in bounded time. The scan raises for no string, its time grows linearly with
the text, and disguises that cost a sender nothing (other digits, invisible characters, look-alike
letters) do not pass: what is scanned is the text in normal form. Names and addresses need a
model and are not found.
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

from policies.detectors import Detector, detectors
from policies.detectors.digits import digits_in
from policies.detectors.normal import normalise, normalise_with_offsets

DETECTOR_VERSION = 1
"""Part of every cache key: raise it whenever a detector finds more than it did."""


@dataclass(frozen=True, slots=True)
class Span:
    """One finding: ``text[start:end]`` of the text as given."""

    kind: str
    start: int
    end: int


class PiiScanner:
    """Finds the kinds email, secret, iban, card, ssn, ip and phone; immutable once made."""

    __slots__ = ("_detectors",)

    def __init__(self, regions: Sequence[str]) -> None:
        """Take the ISO 3166 regions whose national phone numbers count.

        Numbers with a country code count wherever they are from. Raises ValueError for a region
        that has no phone numbers.
        """
        self._detectors: tuple[Detector, ...] = detectors(regions)

    def scan(self, text: str) -> str | None:
        """Return the kind of the first detector that finds anything, or None."""
        plain = normalise(text)
        held = digits_in(plain)
        for detector in self._detectors:
            if detector.needs <= held and next(detector.find(plain), None) is not None:
                return detector.kind
        return None

    def spans(self, text: str) -> list[Span]:
        """Return the findings in order of start, without overlaps.

        Where detectors disagree about the same characters, the earlier in their order is right.
        """
        plain, offsets = normalise_with_offsets(text)
        held = digits_in(plain)
        found: list[tuple[int, int, str]] = []
        for detector in self._detectors:
            if detector.needs > held:
                continue
            taken = sorted(found)
            found += [
                (start, end, detector.kind)
                for start, end in detector.find(plain)
                if not _overlaps(taken, start, end)
            ]
        return [
            Span(kind, offsets[start], offsets[end - 1] + 1) for start, end, kind in sorted(found)
        ]


def _overlaps(taken: list[tuple[int, int, str]], start: int, end: int) -> bool:
    """Tell whether a span overlaps one of ``taken``, which are sorted and apart."""
    after = bisect_left(taken, (end,))
    return after > 0 and taken[after - 1][1] > start
