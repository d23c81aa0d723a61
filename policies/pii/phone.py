"""Phone numbers, as the phonenumbers library validates them, and as people write them.

Law: the library decides which national numbers exist. A number that is clearly a phone number (by
a country code, a label, the North American layout) need only be possible: readers cannot
distinguish numbers out of service, new numbers and the invented 555 from real ones. The library is
slow, so it only sees the surroundings of runs of digits that are long enough.
"""

import re
from collections.abc import Iterator, Sequence
from functools import cache, partial
from itertools import accumulate, chain

import phonenumbers
import re2
from phonenumbers import (
    COUNTRY_CODE_TO_REGION_CODE,
    Leniency,
    PhoneMetadata,
    PhoneNumberMatcher,
    PhoneNumberType,
)

from policies.pii.detector import Detector, Find
from policies.pii.identifiers import DIGITS, NUMBER, flat, is_named_otherwise

# The standard library's engine is quicker to call, and these leave nothing to backtrack into.
_NORTH_AMERICAN = re.compile(
    r"(?<![0-9])(?<![0-9][.-])(?:\(|(?<!\())[2-9][0-9]{2}\)?[ .-]{1,2}[0-9]{3}[ .-][0-9]{4}"
    r"(?![.-]?[0-9])"
)
_GROUP = re.compile(r"[0-9]+")
_WORD = re.compile("[A-Za-z]")
_GOES_ON = re.compile("[A-WYZa-wyz]")
"""A word, and no extension (x33)."""
_NAME = re.compile(r"[A-Za-z]-\Z")
"""A word that goes on with digits: INV-2025669778."""
_LABELS = r"(?i)(?:\b(?:(?:tele)?phone|cell|mobile|tel\b|call|fax|whats ?app|sms\b|text me))"
_LABEL = re.compile(_LABELS + "[^0-9]{0,16}$")
_ANY_LABEL = re2.compile(_LABELS)
_LABEL_BEGUN = _LABELS.replace(r"\b|", "|")
"""Any label, though its last letter be followed by a digit."""
_ANNOUNCED = re2.compile(rf"(?:\+(?s:.){{0,3}}?|{_LABEL_BEGUN}[^0-9]{{0,16}})({DIGITS}{{6,}})")
"""What a plus or a label may announce."""
_ITEM = re.compile(r"[1-9][0-9]?[.)\]] +(?=[0-9(]+)")
"""The numbering of list items."""
# Runs that are something else, unless a plus or a label says that they are phone numbers.
_NO_PHONE = re.compile(
    # a day, perhaps with an hour: 2025-11-10 12:30
    r"[12][0-9]{3}[-/.][01]?[0-9][-/.][0-3]?[0-9](?: {1,2}[0-2]?[0-9])?"
    # the numbers of an address, a version, a section
    r"|(?!0)[0-9]{1,3}(?:\.[0-9]{1,3}){3,}"
    # fractions, coordinates; thousands
    r"|[0-9]{1,3}\.[0-9]{3,}(?:[ -]{1,2}[0-9]{1,3}\.[0-9]{3,})*|[0-9]{1,2}(?:\.[0-9]{3}){2}"
    # a book's number, its last digit an X or not; another person's number
    r"|[0-9](?:-[0-9]{1,7}){2}-[0-9]|(?=[0-9-]{11}$)[0-9](?:-[0-9]{1,7}){2}"
    r"|[0-9]{3}-[0-9]{2}-[0-9]{4}"
    # a customs tariff's number
    r"|[0-9]{4}\.[0-9]{2}\.[0-9]{4}"
    # seconds since 1970, and whatever is longer than a number that nothing announces
    r"|1(?![38]00)[0-9]{9}(?:[0-9]{3}|\.[0-9]+)?|(?!0)[0-9]{14,}|[0-9]{15,}"
)
_LABEL_REACH = 32
_LEAD = 4
"""Characters before a run that belong to it or change its meaning, such as ``+(``."""

MOST_DIGITS = 8192
"""Characters that the library looks through in one text. What is beyond is taken for a phone
number: a text is not clean because it is long."""

NORTH_AMERICA = 1
"""Country code."""
_NORTH_AMERICAN_GROUPS = frozenset(
    {
        *((10,), (3, 7), (6, 4), (3, 3, 4)),
        *((11,), (1, 10), (1, 3, 7), (1, 6, 4), (1, 3, 3, 4)),
    }
)
_SHORTEST = 7
"""Digits below which nothing is taken for a phone number."""
_MOST_GROUPS = 6
_MOST_BEFORE = 6
"""Digits that may be dialled before a national number: prefixes, carriers, country code."""
_KINDS = (
    *("fixed_line", "mobile", "toll_free", "premium_rate", "shared_cost", "personal_number"),
    *("voip", "pager", "uan", "voicemail"),
)


class DialledNumbers:
    """The digits of the numbers that exist in a region, with whatever is dialled before them.

    Law: this may let pass a text without a number, but not the other way round, whether by
    length, by numbering plan or by national prefix. The phone library has the last word. This
    keeps nearly all digits that are none from it, at a hundredth of the time. Only for North
    America, whose numbers look like any ten digits, must the digits also be grouped as a number's
    are.
    """

    __slots__ = ("_groupings", "_kinds", "_lengths", "_prefix", "code", "shortest")

    def __init__(self, code: str) -> None:
        self.code = code
        calling = phonenumbers.country_code_for_region(code)
        self._groupings = _NORTH_AMERICAN_GROUPS if calling == NORTH_AMERICA else None
        # Neighbours with the same country code (Canada) have numbers of the same form.
        sharing = COUNTRY_CODE_TO_REGION_CODE[calling]
        metadata = [each for each in map(PhoneMetadata.metadata_for_region, sharing) if each]
        own = next(each for each in metadata if each.id == code)
        general = [each.general_desc for each in metadata if each.general_desc is not None]
        lengths = {length for each in general for length in each.possible_length}
        ordinary = _examples(code, PhoneNumberType.FIXED_LINE, PhoneNumberType.MOBILE)
        self.shortest = max(_SHORTEST, min(map(len, ordinary), default=_SHORTEST))
        """Digits that its ordinary numbers have at the least."""
        self._lengths = range(self.shortest, max(*lengths, 11) + _MOST_BEFORE + 1)
        abroad = own.international_prefix or "00"
        prefix = own.national_prefix or ""
        # Russia's numbers 800 ... begin with its national prefix, 8, themselves.
        begins = any(each.startswith(prefix) for each in _examples(code, *PhoneNumberType.values()))
        self._prefix = "" if begins else prefix
        if own.national_prefix_transform_rule is not None:
            # Dialled digits are rewritten (Argentina): they do not look like the number.
            self._kinds = re.compile("[0-9]+")
            return
        prefix = own.national_prefix_for_parsing or ""
        coded = f"(?:{abroad})?{calling}(?:{prefix})?|(?:{prefix})"
        main = PhoneMetadata.metadata_for_region(sharing[0]) or own
        before = f"(?:{coded}|{_bare(main)})"
        elsewhere = f"(?:{abroad})[1-9][0-9]{{6,14}}"
        kinds = "|".join(dict.fromkeys(chain.from_iterable(map(_patterns, metadata))))
        self._kinds = re.compile(f"{before}(?:{kinds})|{elsewhere}")

    def may_be_among(self, groups: Sequence[str]) -> bool:
        """Tell whether neighbouring groups of digits may be a number of the region."""
        longest = self._lengths.stop
        for first, leading in enumerate(groups):
            prefixed = bool(self._prefix) and leading.startswith(self._prefix)
            shortest = self._lengths.start + prefixed
            digits, following = "", first
            for group in groups[first : first + _MOST_GROUPS]:
                digits += group
                if len(digits) >= longest:
                    break
                following += 1
                if (
                    len(digits) >= shortest
                    and self.are_grouped(groups[first:following])
                    and self._kinds.fullmatch(digits) is not None
                ):
                    return True
        return False

    def are_grouped(self, groups: Sequence[str]) -> bool:
        """Tell whether people of the region group a number's digits like this."""
        return (
            self._groupings is None
            or tuple(map(len, groups)) in self._groupings
            or groups[0].startswith("011")  # to another country
        )


class PhoneDetector:
    """Finds numbers with a country code, and national ones of the given regions."""

    __slots__ = ("_alone", "_north_american", "_possible", "_valid")

    def __init__(self, regions: Sequence[str]) -> None:
        """Take ISO 3166 codes; raises ValueError for one that has no phone numbers."""
        unknown = [region for region in regions if not is_region(region)]
        if unknown:
            raise ValueError(f"no phone numbers are known for region {unknown[0]!r}")
        read = [DialledNumbers(region) for region in regions]
        self._possible = [partial(_matches, each.code, Leniency.POSSIBLE) for each in read]
        self._valid = [(each, partial(_valid, each)) for each in read]
        self._north_american = any(
            phonenumbers.country_code_for_region(region) == NORTH_AMERICA for region in regions
        )
        fewest = min((each.shortest for each in read), default=None)
        self._alone = None if fewest is None else re2.compile(f"{DIGITS}{{{fewest - 1},}}")
        """What may be a number though nothing announces it."""

    def _runs(self, text: str) -> Iterator[tuple[int, int, bool]]:
        """Yield (start, end, announced) of each run of digits that may be a number, in order.

        A run is as long as can be. A shorter one is no number, unless something announces it.
        """
        digits = flat(text)
        announced = {match.span(1) for match in _ANNOUNCED.finditer(digits)}
        alone = () if self._alone is None else self._alone.finditer(digits)
        for run in sorted(announced.union(match.span() for match in alone)):
            yield *run, run in announced

    def find(self, text: str) -> Iterator[tuple[int, int]]:
        """Yield (start, end) of each number, and of text that is too long to search."""
        behind = 0
        looked_through = 0
        labels: bool | None = None
        for run_start, end, announced in self._runs(text):
            start = run_start
            if not announced and _NO_PHONE.fullmatch(text, start, end):
                continue
            item = _ITEM.match(text, start, end)
            if item is not None and text[start - 1 : start] not in {"(", "+"}:
                start = behind = item.end()
            if text[start:end].isdigit() and (
                _WORD.search(text, max(0, start - 1), start) or _GOES_ON.match(text, end)
            ):
                continue  # a hex digest
            offset = max(behind, start - _LEAD)
            if announced and labels is None:
                labels = _ANY_LABEL.search(flat(text)) is not None
            labelled = announced and labels is True
            searches = self._searches(text, offset, start, end, announced=labelled)
            if searches:
                looked_through += end - start
                if looked_through > MOST_DIGITS:
                    yield max(behind, start), end
                    return
            # What follows may speak against a number, but not when it is an extension (x33).
            window = text[offset : end if text[end : end + 1] in ("x", "X") else end + 1]
            found = [span for find in searches for span in find(window)]
            if self._north_american:
                found += [layout.span() for layout in _NORTH_AMERICAN.finditer(window)]
            for first, last in sorted(found):
                behind = max(behind, offset + last)
                yield offset + first, offset + last

    def _searches(
        self, text: str, offset: int, start: int, end: int, *, announced: bool
    ) -> Sequence[Find]:
        """Return the ways in which the library is to read a run, if any."""
        plus = text.rfind("+", offset, start)
        if plus >= 0:
            groups = _GROUP.findall(text, plus, end)
            return (_POSSIBLE_ABROAD if _may_be_abroad(groups) else _nowhere,)
        if announced and _LABEL.search(text, max(0, start - _LABEL_REACH), start) is not None:
            return self._possible
        if _NO_PHONE.fullmatch(text, start, end) or _NAME.search(text, max(0, start - 2), start):
            return ()
        groups = _GROUP.findall(text, start, end)
        searches = [valid for numbers, valid in self._valid if numbers.may_be_among(groups)]
        if searches and len(groups) == 1 and is_named_otherwise(text, start):
            return ()
        return searches


def _may_be_abroad(groups: Sequence[str]) -> bool:
    """Tell whether groups of digits behind a plus may begin with a possible number.

    Law: as for ``DialledNumbers``.
    """
    digits = "".join(groups)
    codes = (int(digits[:length]) for length in (1, 2, 3))
    code = next((code for code in codes if code in COUNTRY_CODE_TO_REGION_CODE), None)
    if code is None or digits[0] == "0":
        return False
    lengths = _lengths_abroad(code)
    return lengths is None or not lengths.isdisjoint(accumulate(map(len, groups)))


@cache
def _lengths_abroad(code: int) -> frozenset[int] | None:
    """Return how many digits may follow a plus with this country code; None if that is not sure."""
    region = phonenumbers.region_code_for_country_code(code)
    metadata = PhoneMetadata.metadata_for_region_or_calling_code(code, region)
    prefix = "" if metadata is None else metadata.national_prefix_for_parsing or ""
    if metadata is None or metadata.general_desc is None or (prefix and not prefix.isdigit()):
        return None
    described = metadata.general_desc
    national = {*described.possible_length, *described.possible_length_local_only}
    before = len(str(code))
    return frozenset(
        length for each in national for length in (before + each, before + len(prefix) + each)
    )


def _valid(numbers: DialledNumbers, window: str) -> Iterator[tuple[int, int]]:
    for start, end in _matches(numbers.code, Leniency.VALID, window):
        if numbers.are_grouped(_GROUP.findall(window, start, end)):
            yield start, end


def _matches(region: str | None, leniency: int, window: str) -> Iterator[tuple[int, int]]:
    # The library gives up after a number of tries; a scan may not.
    for match in PhoneNumberMatcher(window, region, leniency, max_tries=len(window)):
        yield match.start, match.end


_POSSIBLE_ABROAD: Find = partial(_matches, None, Leniency.POSSIBLE)


def _nowhere(_window: str) -> Iterator[tuple[int, int]]:
    return iter(())


def _forms(text: str, regions: Sequence[str]) -> Iterator[str]:
    """Yield the number in international form, an extension included, as each region reads it."""
    for region in regions or (None,):
        try:
            number = phonenumbers.parse(text, region)
        except phonenumbers.NumberParseException:
            continue
        yield phonenumbers.format_number(number, phonenumbers.PhoneNumberFormat.RFC3966)


PHONES = Detector("phone", lambda regions: PhoneDetector(regions).find, (NUMBER,), _forms)


def is_region(code: str) -> bool:
    """Tell whether phone numbers of this region can be validated."""
    return code in phonenumbers.SUPPORTED_REGIONS


def _examples(region: str, *kinds: int) -> list[str]:
    """Return a number of the region of each of these kinds, without national prefix."""
    numbers = (phonenumbers.example_number_for_type(region, kind) for kind in kinds)
    return [phonenumbers.national_significant_number(number) for number in numbers if number]


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
