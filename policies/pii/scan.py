"""Personal data and secrets in text: one scan for prompts and answers.

Law: fail closed, in bounded time. The scan raises for no string, and its time grows linearly with
the text. Cheap disguises (other digits, invisible characters, look-alike letters, marks, encodings)
do not pass: the scan reads the text in normal form, and each other reading of it. Names and
addresses need a model and are not found.
"""

import hashlib
import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain
from operator import itemgetter
from typing import Any

import re2

from policies.patterns import compile_pattern
from policies.pii.identifiers import CARDS, EMAILS, IBANS, IPS, SSNS
from policies.pii.phone import PHONES
from policies.pii.readings import (
    Reading,
    may_be_disguised,
    normalise,
    normalise_with_offsets,
    other_readings,
)
from policies.pii.secret import SECRETS

DETECTOR_VERSION = 6
"""Part of every cache key: raise it whenever a detector finds more than it did, or one is added."""

# The more telling ones first: a URL with a password in it reads like an email address.
DETECTORS = (SECRETS, EMAILS, IBANS, CARDS, SSNS, IPS, PHONES)

_EMAIL = re.compile(r"[^@\s]+@(?:\*\.)?[^@\s*.]+(?:\.[^@\s*.]+)+")
_GOES_ON = re.compile(r"[\w@%+-]|\.[^\W_]")
"""The continuation of an address of which only a part was found."""
_SHORTEST = 6
_FORMS = {each.kind: each.form for each in DETECTORS if each.form is not None}


def _search_for(signs: Iterable[str | None]) -> Callable[[bytes], object]:
    options = re2.Options()
    options.never_capture = True
    given = "|".join(f"(?:{sign})" for sign in dict.fromkeys(signs) if sign is not None)
    compiled: Any = re2.compile(given, options)
    search: Callable[[bytes], object] = compiled.search
    return search


# Most texts hold none of these; one pattern of all would make RE2 slow.
_sign_apart = _search_for(each.sign_apart for each in DETECTORS)
_sign = _search_for(sign for each in DETECTORS for sign in each.signs)
_rare_sign = _search_for(sign for each in DETECTORS for sign in each.rare)
_RARE = frozenset(each.kind for each in DETECTORS if each.rare)
"""Kinds that one search tells to be absent, in place of four."""


def _holds_signs(plain: bytes) -> bool:
    """Tell whether a detector may find anything in a text in normal form."""
    return _sign(plain) is not None or _sign_apart(plain) is not None


@dataclass(frozen=True, slots=True)
class Span:
    """One finding: ``text[start:end]`` of the text as given."""

    kind: str
    start: int
    end: int


class AllowList:
    """The operator's own public contacts, which are no personal data: ``pii: {allow: [...]}``.

    Law: an entry allows the whole finding that is equal to it, and nothing beside it. Equal means
    the same address, number or string however it is written; what is not surely the same is not
    allowed. Immutable once made.
    """

    __slots__ = ("_emails", "_regions", "_values")

    def __init__(self, entries: Iterable[str], regions: Sequence[str]) -> None:
        """Take entries as the operator wrote them. Raises ValueError for one of no use."""
        self._regions = regions
        self._values: set[tuple[str, str]] = set()
        """Kind and canonical form of the values that are allowed exactly."""
        emails: list[str] = []
        for entry in entries:
            plain = normalise(entry).strip()
            if len(plain) < _SHORTEST:
                raise ValueError(f"{entry!r} is too short to be a contact")
            if _EMAIL.fullmatch(plain) is not None:
                emails.append(r"[^@]*".join(map(re2.escape, plain.casefold().split("*"))))
            elif "*" in plain:
                raise ValueError(
                    f"{entry!r}: * stands for part of an email address, as in *@acme.example"
                    " or *@*.acme.example"
                )
            else:
                for kind, forms in _FORMS.items():
                    self._values |= {(kind, form) for form in forms(plain, regions)}
        self._emails = compile_pattern("|".join(emails)) if emails else None

    def holds(self, kind: str, text: str, start: int, end: int) -> bool:
        """Tell whether ``text[start:end]`` is an entry in any writing, and a whole address."""
        found = text[start:end]
        if kind != "email":
            forms = _FORMS[kind](found, self._regions)
            return any((kind, form) in self._values for form in forms)
        return (
            self._emails is not None
            and self._emails.fullmatch(found.casefold()) is not None
            and _GOES_ON.match(text, end) is None
        )


class PiiScanner:
    """Finds the kinds of ``DETECTORS``; immutable once made."""

    __slots__ = ("_allowed", "_detectors", "identity")

    def __init__(self, regions: Sequence[str], allowed: Sequence[str] = ()) -> None:
        """Take the ISO 3166 regions whose national phone numbers count, and what does not count.

        Numbers with a country code count wherever they are from. Raises ValueError for a region
        that has no phone numbers, and for an entry of ``allowed`` that allows nothing.
        """
        self._detectors = [(each.kind, each.find(regions)) for each in DETECTORS]
        self._allowed = AllowList(allowed, regions) if allowed else None
        self.identity = _identity(regions, allowed)
        """The identity of the scan: a text clean for one scan may not be clean for another."""

    def is_clean(self, text: str) -> bool:
        """Tell by three searches that a text holds nothing; most texts do not.

        A text that is not clean in this sense may still be one where ``scan`` finds nothing.
        """
        encoded = normalise(text).encode()
        return not (_holds_signs(encoded) or may_be_disguised(encoded))

    def scan(self, text: str) -> str | None:
        """Return the kind of the first detector that finds anything, or None."""
        plain = text if text.isascii() else normalise(text)
        for reading in chain((first := Reading(plain),), other_readings(first)):
            for _, _, kind in self._findings(reading):
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
            for first, last, kind in self._findings(reading):
                start, end = places[first][0], places[last - 1][1]
                at = bisect_left(found, (start,))
                behind = at == 0 or found[at - 1][1] <= start
                if behind and (at == len(found) or end <= found[at][0]):
                    found.insert(at, (start, end, kind))
        return [Span(kind, start, end) for start, end, kind in found]

    def _findings(self, reading: Reading) -> Iterator[tuple[int, int, str]]:
        """Yield the findings, detector by detector; they may overlap."""
        text, allowed = reading.text, self._allowed
        found = self._find_all(text) if allowed is None else self._find_private(text, allowed)
        return (each for each in found if reading.holds_secrets or each[2] != "secret")

    def _find_private(self, plain: str, allowed: AllowList) -> Iterator[tuple[int, int, str]]:
        public, others = _separate(allowed, plain, self._find_all(plain))
        yield from others
        if public:
            # A number among public ones may have passed for a section of a longer one.
            rest = list(plain)
            for start, end in public:
                rest[start:end] = "\0" * (end - start)  # which is part of nothing
            blanked = "".join(rest)
            yield from _separate(allowed, blanked, self._find_all(blanked))[1]

    def _find_all(self, plain: str) -> Iterator[tuple[int, int, str]]:
        encoded = plain.encode()
        if not _holds_signs(encoded):
            return
        absent = _RARE if _rare_sign(encoded) is None else ()
        for kind, find in self._detectors:
            if kind not in absent:
                for start, end in find(plain):
                    yield start, end, kind


def _separate(
    allowed: AllowList, plain: str, found: Iterator[tuple[int, int, str]]
) -> tuple[list[tuple[int, int]], list[tuple[int, int, str]]]:
    """Return the allowed numbers and strings, and the findings that are not part of one.

    A part of an address is not left out: a pattern also allows addresses that were not checked.
    """
    others: list[tuple[int, int, str]] = []
    public: list[tuple[int, int]] = []
    for start, end, kind in found:
        if not allowed.holds(kind, plain, start, end):
            others.append((start, end, kind))
        elif kind != "email":
            public.append((start, end))
    public.sort()
    furthest = list(accumulate((end for _, end in public), max))

    def is_part(start: int, end: int) -> bool:
        before = bisect_right(public, start, key=itemgetter(0))
        return before > 0 and furthest[before - 1] >= end

    return public, [each for each in others if not is_part(each[0], each[1])]


def _identity(regions: Sequence[str], allowed: Sequence[str]) -> str:
    identity = f"{DETECTOR_VERSION}/{','.join(sorted(regions))}"
    if not allowed:
        return identity
    listed = "\n".join(sorted(set(allowed)))
    return f"{identity}/{hashlib.sha256(listed.encode()).hexdigest()[:32]}"
