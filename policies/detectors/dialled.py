"""The digits of the numbers that exist in a region, with whatever is dialled before them.

Law: this may let pass what is no number, but not the other way round, whether by length, by
numbering plan or by national prefix. The phone library has the last word; this keeps nearly all
digits from it that are none, at a hundredth of the time. Only for North America, whose numbers
look like any ten digits, must the digits also be grouped as a number's are.
"""

import re
from collections.abc import Iterator, Sequence
from itertools import chain

import phonenumbers
from phonenumbers import PhoneMetadata

NORTH_AMERICA = 1
"""Country code."""
_NORTH_AMERICAN = frozenset(
    {
        *((10,), (3, 7), (6, 4), (3, 3, 4)),
        *((11,), (1, 10), (1, 3, 7), (1, 6, 4), (1, 3, 3, 4)),
    }
)
_SHORTEST = 7
"""Digits below which nothing is taken for a phone number."""
_MOST_BEFORE = 6
"""Digits that may be dialled before a national number: prefixes, carriers, country code."""
_KINDS = (
    *("fixed_line", "mobile", "toll_free", "premium_rate", "shared_cost", "personal_number"),
    *("voip", "pager", "uan", "voicemail"),
)


class DialledNumbers:
    """What digits must be for a number of a region to be among them; immutable once made."""

    __slots__ = ("_groupings", "_kinds", "_lengths", "_most_groups", "_prefix", "_roughly", "code")

    def __init__(self, code: str) -> None:
        self.code = code
        calling = phonenumbers.country_code_for_region(code)
        self._groupings = _NORTH_AMERICAN if calling == NORTH_AMERICA else None
        self._most_groups = 6
        # Neighbours with the same country code (Canada) have numbers of the same form.
        sharing = phonenumbers.COUNTRY_CODE_TO_REGION_CODE[calling]
        metadata = [each for each in map(PhoneMetadata.metadata_for_region, sharing) if each]
        own = next(each for each in metadata if each.id == code)
        general = [each.general_desc for each in metadata if each.general_desc is not None]
        lengths = {length for each in general for length in each.possible_length}
        abroad = own.international_prefix or "00"
        self._lengths = range(_shortest(code), max(*lengths, 11) + _MOST_BEFORE + 1)
        prefix = own.national_prefix or ""
        self._prefix = "" if _begins_numbers(prefix, code) else prefix
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

    def may_be_among(self, groups: Sequence[str]) -> bool:
        """Tell whether neighbouring groups of digits may be a number of the region."""
        longest = self._lengths.stop
        for first, leading in enumerate(groups):
            prefixed = bool(self._prefix) and leading.startswith(self._prefix)
            shortest = self._lengths.start + prefixed
            digits, following = "", first
            for group in groups[first : first + self._most_groups]:
                digits += group
                if len(digits) >= longest:
                    break
                following += 1
                if (
                    len(digits) >= shortest
                    and self.are_grouped(groups[first:following])
                    and self._roughly.fullmatch(digits) is not None
                    and self._kinds.fullmatch(digits) is not None
                ):
                    return True
        return False

    @property
    def shortest(self) -> int:
        """Digits that its ordinary numbers have at the least."""
        return self._lengths.start

    def are_grouped(self, groups: Sequence[str]) -> bool:
        """Tell whether people of the region group a number's digits like this."""
        return (
            self._groupings is None
            or tuple(map(len, groups)) in self._groupings
            or groups[0].startswith("011")  # to another country
        )


def _begins_numbers(prefix: str, region: str) -> bool:
    """Tell whether numbers begin with the prefix themselves, as Russia's 800 ... do with 8."""
    examples = (
        phonenumbers.example_number_for_type(region, kind)
        for kind in phonenumbers.PhoneNumberType.values()
    )
    return any(
        phonenumbers.national_significant_number(example).startswith(prefix)
        for example in examples
        if example
    )


def _shortest(region: str) -> int:
    """Return how many digits its ordinary numbers have at the least."""
    examples = (
        phonenumbers.example_number_for_type(region, kind)
        for kind in (phonenumbers.PhoneNumberType.FIXED_LINE, phonenumbers.PhoneNumberType.MOBILE)
    )
    sizes = [
        len(phonenumbers.national_significant_number(example)) for example in examples if example
    ]
    return max(_SHORTEST, min(sizes, default=_SHORTEST))


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
