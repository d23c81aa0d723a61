"""Personal data and secrets in text: one scan for prompts and answers.

Law: fail closed, in bounded time. The scan raises for no string, its time grows linearly with
the text, and disguises that cost a sender nothing (other digits, invisible characters, look-alike
letters, marks, encodings) do not pass: what is scanned is the text in normal form, and each other
reading of it. Names and addresses need a model and are not found.
"""

import hashlib
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain
from operator import itemgetter

from policies.allow_list import AllowList
from policies.detectors import Detector, detectors
from policies.detectors.digits import digits_in
from policies.detectors.disguises import Reading, other_readings
from policies.detectors.normal import normalise, normalise_with_offsets
from policies.detectors.secret import SecretDetector

DETECTOR_VERSION = 5
"""Part of every cache key: raise it whenever a detector finds more than it did."""
_SECRET = SecretDetector.kind


@dataclass(frozen=True, slots=True)
class Span:
    """One finding: ``text[start:end]`` of the text as given."""

    kind: str
    start: int
    end: int


class PiiScanner:
    """Finds the kinds email, secret, iban, card, ssn, ip and phone; immutable once made."""

    __slots__ = ("_allowed", "_detectors", "identity")

    def __init__(self, regions: Sequence[str], allowed: Sequence[str] = ()) -> None:
        """Take the ISO 3166 regions whose national phone numbers count, and what does not count.

        Numbers with a country code count wherever they are from. Raises ValueError for a region
        that has no phone numbers, and for an entry of ``allowed`` that allows nothing.
        """
        self._detectors: tuple[Detector, ...] = detectors(regions)
        self._allowed = AllowList.of(allowed, regions) if allowed else None
        self.identity = _identity(regions, allowed)
        """What decides which texts are clean: another one may find what this one did not."""

    def scan(self, text: str) -> str | None:
        """Return the kind of the first detector that finds anything, or None."""
        plain = normalise(text)
        for _, _, kind in self._findings(plain):
            return kind
        for other in other_readings(Reading(plain)):
            for _, _, kind in self._findings(other.text):
                if other.holds_secrets or kind != _SECRET:
                    return kind
        return None

    def spans(self, text: str) -> list[Span]:
        """Return the findings in order of start, without overlaps.

        Where detectors disagree about the same characters, the earlier in their order is right.
        """
        written, offsets = normalise_with_offsets(text)
        plain = Reading(written, [(offset, offset + 1) for offset in offsets])
        found: list[tuple[int, int, str]] = []
        for reading in chain((plain,), other_readings(plain)):
            places = reading.places or ()
            for first, last, kind in self._findings(reading.text):
                if kind == _SECRET and not reading.holds_secrets:
                    continue
                start, end = places[first][0], places[last - 1][1]
                at = bisect_left(found, (start,))
                if not _overlaps(found, at, start, end):
                    found.insert(at, (start, end, kind))
        return [Span(kind, start, end) for start, end, kind in found]

    def _findings(self, plain: str) -> Iterator[tuple[int, int, str]]:
        """Yield what counts, detector by detector; findings may overlap."""
        if self._allowed is None:
            yield from self._everything(plain)
            return
        public, others = _told_apart(self._allowed, plain, self._everything(plain))
        yield from others
        if public:
            # A number among public ones may have passed for a section of a longer one.
            rest = _without(plain, public)
            yield from _told_apart(self._allowed, rest, self._everything(rest))[1]

    def _everything(self, plain: str) -> Iterator[tuple[int, int, str]]:
        held = digits_in(plain)
        for detector in self._detectors:
            if detector.needs <= held:
                kind = detector.kind
                for start, end in detector.find(plain):
                    yield start, end, kind


def _told_apart(
    allowed: AllowList, plain: str, found: Iterator[tuple[int, int, str]]
) -> tuple[list[tuple[int, int]], list[tuple[int, int, str]]]:
    """Return the allowed numbers and strings, and what is neither allowed nor but a part of one.

    A part of an address is not left out: a pattern allows addresses nobody has looked at.
    """
    others: list[tuple[int, int, str]] = []
    public: list[tuple[int, int]] = []
    for start, end, kind in found:
        if kind == "email":
            if not allowed.holds_email(plain, start, end):
                others.append((start, end, kind))
        elif allowed.holds_value(kind, plain[start:end]):
            public.append((start, end))
        else:
            others.append((start, end, kind))
    public.sort()
    furthest = list(accumulate((end for _, end in public), max))

    def is_part(start: int, end: int) -> bool:
        before = bisect_right(public, start, key=itemgetter(0))
        return before > 0 and furthest[before - 1] >= end

    return public, [each for each in others if not is_part(each[0], each[1])]


def _without(plain: str, public: list[tuple[int, int]]) -> str:
    """Blank these spans with a character that is part of nothing."""
    blanked = list(plain)
    for start, end in public:
        blanked[start:end] = "\0" * (end - start)
    return "".join(blanked)


def _identity(regions: Sequence[str], allowed: Sequence[str]) -> str:
    identity = f"{DETECTOR_VERSION}/{','.join(sorted(regions))}"
    if not allowed:
        return identity
    listed = "\n".join(sorted(set(allowed)))
    return f"{identity}/{hashlib.sha256(listed.encode()).hexdigest()[:32]}"


def _overlaps(taken: list[tuple[int, int, str]], at: int, start: int, end: int) -> bool:
    """Tell whether a span that sorts to ``at`` overlaps one of ``taken``, sorted and apart."""
    before = at > 0 and taken[at - 1][1] > start
    return before or (at < len(taken) and taken[at][0] < end)
