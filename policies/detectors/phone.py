"""Phone numbers, as the phonenumbers library validates them, and as people write them.

Law: the library decides which national numbers exist; what is plainly meant as a phone number (a
country code, a label, the North American layout) need only be possible, since numbers out of
service, new ones and the invented 555 are told from real ones by nobody who reads them.
The library is slow, so it only sees the surroundings of runs of digits that are long enough.
"""

import re
from collections.abc import Iterator, Sequence
from itertools import chain

import phonenumbers
import re2
from phonenumbers import Leniency, PhoneMetadata, PhoneNumberMatcher

from policies.detectors.digits import Digits

# The standard library's engine is quicker to call, and these leave nothing to backtrack into.
_RUN = re.compile(r"[0-9](?:[ ().\-/\[\]]{0,4}[0-9]){6,}")
_NORTH_AMERICAN = re.compile(r"\(?[2-9][0-9]{2}\)?[ .-]{1,2}[0-9]{3}[ .-][0-9]{4}")
_GROUP = re.compile(r"[0-9]+")
_LABELS = r"(?i)(?:\b(?:(?:tele)?phone|cell|mobile|tel\b|call|fax|whats ?app|sms\b|text me))"
_LABEL = re.compile(_LABELS + "[^0-9]{0,16}$")
_ANY_LABEL = re2.compile(_LABELS)
# A day, perhaps with an hour (2025-11-10 12:30), and the four numbers of an address or a version.
_NO_PHONE = re.compile(
    r"[12][0-9]{3}[-/.][01]?[0-9][-/.][0-3]?[0-9](?: {1,2}[0-2]?[0-9])?"
    r"|[0-9]{1,3}(?:\.[0-9]{1,3}){3}"
)
_LABEL_REACH = 32
_LEAD = 4
"""Characters before a run that belong to it or change its meaning, such as ``+(``."""
_NORTH_AMERICA, _NORTH_AMERICAN_DIGITS = 1, 10
MOST_DIGITS = 8192
"""Characters that the library looks through in one text. What is beyond is taken for a phone
number: a text is not clean because it is long."""


class PhoneDetector:
    """Finds numbers with a country code, and national ones of the given regions."""

    kind = "phone"
    needs = Digits.RUN

    __slots__ = ("_north_american", "_regions")

    def __init__(self, regions: Sequence[str]) -> None:
        """Take ISO 3166 codes; raises ValueError for one that has no phone numbers."""
        unknown = [region for region in regions if not is_region(region)]
        if unknown:
            raise ValueError(f"no phone numbers are known for region {unknown[0]!r}")
        self._regions = tuple(map(_Region, regions))
        self._north_american = any(
            phonenumbers.country_code_for_region(region) == _NORTH_AMERICA for region in regions
        )

    def find(self, text: str) -> Iterator[tuple[int, int]]:
        """Yield (start, end) of each number, and of what is too much to look through."""
        behind = 0
        looked_through = 0
        announced = _ANY_LABEL.search(text) is not None
        for run in _RUN.finditer(text):
            start, end = run.span()
            if _NO_PHONE.fullmatch(run.group()) is not None or _is_glued(text, start, end):
                continue
            groups = _GROUP.findall(text, start, end)
            offset = max(behind, start - _LEAD)
            readings = (
                [(None, Leniency.POSSIBLE)]
                if "+" in text[offset:start]
                else self._readings(groups, announced=announced and _is_announced(text, start))
            )
            layouts = self._north_american and sum(map(len, groups)) >= _NORTH_AMERICAN_DIGITS
            if not readings and not layouts:
                continue
            if readings:
                looked_through += end - start
                if looked_through > MOST_DIGITS:
                    yield max(behind, start), end
                    return
            # What follows may speak against a number, but not when it is an extension (x33).
            window = text[offset : end if text[end : end + 1] in ("x", "X") else end + 1]
            found = [span for reading in readings for span in _matches(window, *reading)]
            if layouts:
                found += _north_american(window)
            for first, last in sorted(found):
                behind = max(behind, offset + last)
                yield offset + first, offset + last

    def _readings(self, groups: Sequence[str], *, announced: bool) -> list[tuple[str | None, int]]:
        """Return as numbers of which regions to read the digits, and how leniently."""
        if announced:
            return [(region.code, Leniency.POSSIBLE) for region in self._regions]
        return [
            (region.code, Leniency.VALID)
            for region in self._regions
            if region.may_hold_number(groups)
        ]


class _Region:
    """A region, and what digits must be for one of its numbers to be among them.

    The patterns may let pass what is no number, never the other way round: the library has the
    last word, and this keeps nearly all digits from it that are none.
    """

    __slots__ = ("_kinds", "_lengths", "_most_groups", "_roughly", "code")

    def __init__(self, code: str) -> None:
        self.code = code
        calling = phonenumbers.country_code_for_region(code)
        self._most_groups = 4 if calling == _NORTH_AMERICA else 6
        # Neighbours with the same country code (Canada) have numbers of the same form.
        sharing = phonenumbers.COUNTRY_CODE_TO_REGION_CODE[calling]
        metadata = [each for each in map(PhoneMetadata.metadata_for_region, sharing) if each]
        own = next(each for each in metadata if each.id == code)
        general = [each.general_desc for each in metadata if each.general_desc is not None]
        lengths = {length for each in general for length in each.possible_length}
        abroad = own.international_prefix or "00"
        self._lengths = range(max(_SHORTEST, min(lengths)), max(*lengths, 11) + _MOST_BEFORE + 1)
        if own.national_prefix_transform_rule is not None:
            # Dialled digits are rewritten (Argentina): they do not look like the number.
            self._roughly = self._kinds = re.compile("[0-9]+")
            return
        prefix = own.national_prefix_for_parsing or ""
        coded = f"(?:{abroad})?{calling}(?:{prefix})?|(?:{prefix})"
        main = PhoneMetadata.metadata_for_region(sharing[0]) or own
        before = f"(?:{coded}|{_bare(main)})"
        elsewhere = f"(?:{abroad})[1-9][0-9]{{6,14}}"
        roughly = "|".join({each.national_number_pattern or "" for each in general})
        kinds = "|".join(dict.fromkeys(chain.from_iterable(map(_patterns, metadata))))
        self._roughly = re.compile(f"{before}(?:{roughly})|{elsewhere}")
        self._kinds = re.compile(f"{before}(?:{kinds})|{elsewhere}")

    def may_hold_number(self, groups: Sequence[str]) -> bool:
        """Tell whether neighbouring groups of digits make a number of the region."""
        longest = self._lengths.stop
        for first in range(len(groups)):
            digits = ""
            for group in groups[first : first + self._most_groups]:
                digits += group
                if len(digits) >= longest:
                    break
                if (
                    len(digits) in self._lengths
                    and self._roughly.fullmatch(digits) is not None
                    and self._kinds.fullmatch(digits) is not None
                ):
                    return True
        return False


_SHORTEST = 7
_MOST_BEFORE = 6
"""Digits that may be dialled before a national number: prefixes, carriers, country code."""
_KINDS = (
    *("fixed_line", "mobile", "toll_free", "premium_rate", "shared_cost", "personal_number"),
    *("voip", "pager", "uan", "voicemail"),
)


def _patterns(metadata: PhoneMetadata) -> Iterator[str]:
    for kind in _KINDS:
        numbers = getattr(metadata, kind)
        if numbers is not None and numbers.national_number_pattern:
            yield numbers.national_number_pattern


def _bare(metadata: PhoneMetadata) -> str:
    """Return a pattern that looks ahead for a number that is written without national prefix."""
    with_prefix: list[str] = []
    without: list[str] = []
    for written in metadata.number_format:
        leading = (written.leading_digits_pattern or [""])[-1]
        layout = f"(?={leading})(?:{written.pattern})$"
        # \\1 and (\\1) are the number alone, 0\\1 and (0\\1) demand the prefix.
        rule = (written.national_prefix_formatting_rule or "").strip("()")
        optional = written.national_prefix_optional_when_formatting
        demanded = rule not in {"", r"\1"} and not optional
        (with_prefix if demanded else without).append(layout)
    if not with_prefix:
        return ""
    return f"(?:(?!{'|'.join(with_prefix)})" + "".join(f"|(?={each})" for each in without) + ")"


def _matches(window: str, region: str | None, leniency: int) -> Iterator[tuple[int, int]]:
    # The library gives up after a number of tries; a scan may not.
    for match in PhoneNumberMatcher(window, region, leniency, max_tries=len(window)):
        yield match.start, match.end


def _north_american(window: str) -> Iterator[tuple[int, int]]:
    for layout in _NORTH_AMERICAN.finditer(window):
        if _stands_alone(window, *layout.span()):
            yield layout.span()


def _is_announced(text: str, start: int) -> bool:
    return _LABEL.search(text, max(0, start - _LABEL_REACH), start) is not None


def _stands_alone(text: str, start: int, end: int) -> bool:
    return not any(
        near[:1].isdigit() or (near[:1] in ("-", ".") and near[1:].isdigit())
        for near in (text[max(0, start - 2) : start][::-1], text[end : end + 2])
    )


def _is_glued(text: str, start: int, end: int) -> bool:
    """Tell whether bare digits are part of a word, such as a hex digest; an x may follow."""
    near = text[max(0, start - 1) : start] + text[end : end + 1].strip("xX")
    return text[start:end].isdigit() and any(
        character.isascii() and character.isalpha() for character in near
    )


def is_region(code: str) -> bool:
    """Tell whether phone numbers of this region can be validated."""
    return code in phonenumbers.SUPPORTED_REGIONS
