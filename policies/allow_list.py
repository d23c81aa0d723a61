"""The operator's own public contacts, which are no personal data: ``pii: {allow: [...]}``.

Law: an entry allows the whole finding that is equal to it, and nothing beside it. Equal means the
same address, number or string however it is written; what is not surely the same is not allowed.
"""

import ipaddress
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import phonenumbers
import re2
from phonenumbers import PhoneNumberFormat
from stdnum import iban

from policies.detectors.normal import normalise

_EMAIL = re.compile(r"[^@\s]+@(?:\*\.)?[^@\s*.]+(?:\.[^@\s*.]+)+")
_GOES_ON = re.compile(r"[\w@%+-]|\.[^\W_]")
"""What follows an address of which only a part was found."""


@dataclass(frozen=True, slots=True)
class AllowList:
    """Tells which findings are public; immutable once made."""

    _values: frozenset[tuple[str, str]]
    """Kind and canonical form of what is allowed letter by letter."""
    _emails: re2._Regexp | None
    _regions: tuple[str, ...]

    @classmethod
    def of(cls, entries: Iterable[str], regions: Sequence[str]) -> "AllowList":
        """Take entries as the operator wrote them. Raises ValueError for one of no use."""
        values: set[tuple[str, str]] = set()
        emails: list[str] = []
        for entry in entries:
            plain = normalise(entry).strip()
            if len(plain) < _SHORTEST:
                raise ValueError(f"{entry!r} is too short to be a contact")
            if _EMAIL.fullmatch(plain) is not None:
                emails.append(_glob(plain.casefold()))
            elif "*" in plain:
                raise ValueError(
                    f"{entry!r}: * stands for part of an email address, as in *@acme.example"
                    " or *@*.acme.example"
                )
            else:
                values |= {
                    (kind, form) for kind in _CANONICAL for form in _forms(kind, plain, regions)
                }
        pattern = re2.compile("|".join(emails)) if emails else None
        return cls(frozenset(values), pattern, tuple(regions))

    def holds_value(self, kind: str, text: str) -> bool:
        """Tell whether ``text`` is an entry in any writing: its parts are public, too."""
        return any((kind, form) in self._values for form in _forms(kind, text, self._regions))

    def holds_email(self, text: str, start: int, end: int) -> bool:
        """Tell whether the address ``text[start:end]`` is allowed, and is the whole address."""
        return (
            self._emails is not None
            and self._emails.fullmatch(text[start:end].casefold()) is not None
            and _GOES_ON.match(text, end) is None
        )


_SHORTEST = 6
_SEPARATORS = str.maketrans("", "", " .-")
_CANONICAL = ("secret", "iban", "card", "ssn", "ip", "phone")


def _glob(plain: str) -> str:
    return r"[^@]*".join(map(re2.escape, plain.split("*")))


def _forms(kind: str, text: str, regions: Sequence[str]) -> Iterator[str]:
    """Yield the canonical forms of what ``text`` may stand for, if it were of this kind."""
    match kind:
        case "secret":
            yield text
        case "iban":
            yield iban.compact(text)
        case "card" | "ssn":
            yield text.translate(_SEPARATORS)
        case "ip":
            try:
                yield ipaddress.ip_address(text).compressed
            except ValueError:
                return
        case "phone":
            yield from _numbers(text, regions)


def _numbers(text: str, regions: Sequence[str]) -> Iterator[str]:
    """Yield the number in international form, an extension included, as each region reads it."""
    for region in regions or (None,):
        try:
            number = phonenumbers.parse(text, region)
        except phonenumbers.NumberParseException:
            continue
        yield phonenumbers.format_number(number, PhoneNumberFormat.RFC3966)
