"""Identifiers that are known by their form: email and IP addresses, bank accounts, cards, US SSNs.

A number counts where its check digits, its country's or brand's length and the ranges in use agree.
"""

import ipaddress
import re
from collections.abc import Iterator

import re2
from stdnum import iban

from policies.pii.detector import Detector


def flat(text: str) -> bytes:
    """Return a text with a question mark for each character that is not ASCII.

    RE2 is much quicker on bytes, and places here count the text's characters. A pattern
    that reads it may neither mean a question mark nor such characters.
    """
    return text.encode("ascii", "replace")


_NAME = re.compile(
    r"(?i)(?:\b(?:order|invoice|ticket|case|tracking|shipment|parcel|serial|sku|isbn(?:-?1[03])?|issn"
    r"|ean|upc|gtin|asin|imei|pmid|lot|batch|part|item|article|product|po|ref|reference|id|routing"
    r"|account|acct|transaction|booking|confirmation|job|build|commit|version|port|pid"
    r"|customer(?=[ _-]?(?:no|nr|number|id)))"
    r"|(?-i:[a-z]Id)|_id)"
    r"(?:[ _-]?(?:no|nr|number|num|id|code))?[\"']?[ \t.:#=]{0,4}[\"'(\[]?$"
    r"|[?&][\w.-]{1,16}=$"  # a parameter: app.js?v=4155552671
)
_NAME_REACH = 32
DIGITS = r"[0-9](?:[ ().\-/\[\]]{0,4}[0-9])"
"""Digits with what may stand between the digits of one number; to be repeated."""
NUMBER = DIGITS + "{6}"
"""Seven digits make the shortest phone number; cards and social security numbers have more."""


def is_named_otherwise(text: str, start: int) -> bool:
    """Tell whether the word before ``start`` says that the number there is no person's.

    A bare run of digits is taken at its word (order number 4155552671, ISBN 0306406152): nothing
    else tells it from what it looks like.
    """
    return _NAME.search(text, max(0, start - _NAME_REACH), start) is not None


# noreply@ and the like name nobody. Only this much of such an address is read: what follows the @
# may be the beginning of another address.
_NOBODY = r"(?i:(?:no|do[-_]?not)[-_]?reply)(?:\+[\pL\pN._%+'-]*)?@"
# Letters of any script: an address may be international, and a disguise may be a letter.
_EMAIL = re2.compile(
    _NOBODY + r"|[\pL\pN][\pL\pN._%+'-]*@"
    r"(?:[\pL\pN](?:[\pL\pN_-]*[\pL\pN])?\.)+(?:xn--[\pL\pN-]+|\pL{2,})"
)


def find_emails(text: str) -> Iterator[tuple[int, int]]:
    """Yield (start, end) of each ``local@domain.tld`` that names a person."""
    if "@" in text:
        for match in _EMAIL.finditer(text):
            start, end = match.span()
            if text[end - 1] != "@":
                yield start, end


EMAILS = Detector("email", lambda _: find_emails, ("@",), None)

_V4 = re2.compile(r"[0-9]{1,3}(?:\.[0-9]{1,3}){3}")
_DIGIT = re.compile(b"[0-9]")
_V6 = re2.compile(r"[0-9A-Fa-f]{0,4}(?::[0-9A-Fa-f]{0,4}){2,8}(?:[.][0-9]{1,3}){0,3}")
# Times and ratios, most of what has colons, are none.
_V6_SIGN = "::|(?::[0-9A-Fa-f]{0,4}){6}"
# A whole run of what such an address consists of, where one may be.
_V6_RUN = re2.compile(f"[0-9A-Fa-f:.]*(?:{_V6_SIGN})[0-9A-Fa-f:.]*")
# What makes an address a part of something longer: Chrome/99.0.1.2, libfoo-1.2.3.4, 1.2.3.4.5,
# 1.2.3.4-beta. Of ASCII only: scripts without spaces write a number right beside their words.
_V4_BEFORE = re.compile(r"[A-Za-z0-9_][./-]?\Z")
_V4_AFTER = re.compile(r"[.-]?[A-Za-z0-9_]")
_V6_BEFORE = re.compile(r"(?:[A-Za-z0-9_]\.?|:)\Z")
_V6_AFTER = re.compile(r"[A-Za-z0-9_:]")
# What stands right before a number with dots when it counts versions or sections.
_VERSION_WORD = re2.compile(
    r"(?i)(?:\b(?:v|ver|vers|version|release|rel|build|firmware|driver|section|sec|chapter|clause)"
    r"[\s.:#=]*(?:is|to|from)?\s*|§\s*)$"
)
_VERSION_REACH = 24


def find_ips(text: str) -> Iterator[tuple[int, int]]:
    """Yield (start, end) of addresses that may name a person's machine: no versions, no own."""
    places = flat(text)
    for match in _V4.finditer(places):
        if _is_v4(text, *match.span()):
            yield match.span()
    for run in _V6_RUN.finditer(places):
        # C++ and Perl write a::b; an address somebody has holds digits.
        if _DIGIT.search(places, *run.span()) is not None:
            for match in _V6.finditer(places, *run.span()):
                if _is_v6(text, *match.span()):
                    yield match.span()


def _is_v4(text: str, start: int, end: int) -> bool:
    if _V4_BEFORE.search(text, max(0, start - 2), start) or _V4_AFTER.match(text, end):
        return False
    octets = [int(octet) for octet in text[start:end].split(".")]
    if max(octets) > 255 or octets[0] in (0, 127) or octets[:2] == [255, 255]:
        return False
    return _VERSION_WORD.search(text[max(0, start - _VERSION_REACH) : start]) is None


def _is_v6(text: str, start: int, end: int) -> bool:
    if _V6_BEFORE.search(text, max(0, start - 2), start) or _V6_AFTER.match(text, end):
        return False
    candidate = text[start:end]
    if not any(map(str.isdigit, candidate)):
        return False
    try:
        address = ipaddress.IPv6Address(candidate)
    except ValueError:
        return False
    return not (address.is_loopback or address.is_unspecified)


def _ip_form(text: str, _regions: object) -> tuple[str, ...]:
    try:
        return (ipaddress.ip_address(text).compressed,)
    except ValueError:
        return ()


_IP_SIGNS = (_V4.pattern, r"[0-9A-Fa-f]::|::[0-9A-Fa-f]|(?:[0-9A-Fa-f]{0,4}:){6}")
IPS = Detector("ip", lambda _: find_ips, _IP_SIGNS, _ip_form, (_V4.pattern, _V6_SIGN))

# Short, so that a head never swallows the next; without repetition, so linear in any engine.
_IBAN_HEAD = re.compile(r"\b[A-Za-z]{2}[ -]?[0-9]{2}[ -]?[A-Za-z0-9]", re.ASCII)
# From the SWIFT registry. A head says how much to read; the check digits decide.
_IBAN_LENGTHS = {
    entry[:2]: int(entry[2:])
    for entry in (  # noqa: SIM905 - a table reads better in columns
        "AD24 AE23 AL28 AT20 AZ28 BA20 BE16 BG22 BH22 BI27 BR29 BY28 CH21 CR22 CY28 CZ24 DE22 DJ27 "
        "DK18 DO28 EE20 EG29 ES24 FI18 FK18 FO18 FR27 GB22 GE22 GI23 GL18 GR27 GT28 HN28 HR21 HU28 "
        "IE22 IL23 IQ23 IS26 IT27 JO30 KW30 KZ20 LB28 LC32 LI21 LT20 LU20 LV21 LY25 MC27 MD24 ME22 "
        "MK19 MN20 MR27 MT31 MU30 NI28 NL18 NO15 OM23 PK24 PL28 PS29 PT25 QA29 RO24 RS22 RU33 SA24 "
        "SC31 SD18 SE24 SI19 SK24 SM27 SO23 ST25 SV28 TL23 TN24 TR26 UA29 VA22 VG24 XK20 YE30 "
        # In use without being registered.
        "AO25 BF28 BJ28 CF27 CG27 CI28 CM27 CV25 DZ26 GA27 GQ27 GW25 IR26 KM27 MA28 MG27 ML28 MZ25 "
        "NE28 SN28 TD27 TG28"
    ).split()
}

_IBAN_OF_LENGTH = {
    length: re.compile(f"[A-Za-z](?:[ -]?[A-Za-z0-9]){{{length - 1}}}(?![A-Za-z0-9])")
    for length in set(_IBAN_LENGTHS.values())
}
_IBAN_SIGN = rf"\b(?i:{'|'.join(_IBAN_LENGTHS)})[ -]?[0-9]{{2}}[ -]?[A-Za-z0-9]"
_IBAN_START = re2.compile(_IBAN_SIGN)


def find_ibans(text: str) -> Iterator[tuple[int, int]]:
    """Yield (start, end) of each IBAN (ISO 13616) in any case, in one piece or in groups."""
    behind = 0
    for sign in _IBAN_START.finditer(flat(text)):
        if sign.start() >= behind:
            # What looks like a head may hide the next, so the heads of a line are read in order.
            behind = text.find("\n", sign.end())
            behind = len(text) if behind < 0 else behind
            yield from _ibans_of_line(text, text.rfind("\n", 0, sign.start()) + 1, behind)


def _ibans_of_line(text: str, first: int, last: int) -> Iterator[tuple[int, int]]:
    behind = first
    for head in _IBAN_HEAD.finditer(text, first, last):
        if head.start() < behind:
            continue
        end = _iban_end(text, head.start())
        if end is not None:
            behind = end
            yield head.start(), end


def _iban_end(text: str, start: int) -> int | None:
    """Return the end of the IBAN that starts at ``start``, or None."""
    length = _IBAN_LENGTHS.get(text[start : start + 2].upper())
    written = None if length is None else _IBAN_OF_LENGTH[length].match(text, start)
    if written is None or not iban.is_valid(written.group(), check_country=False):
        return None
    return written.end()


IBANS = Detector("iban", lambda _: find_ibans, (_IBAN_SIGN,), lambda text, _: (iban.compact(text),))

_CARD_RUN = re2.compile(r"[0-9](?:[ .-]?[0-9]){11,}")
_CARD_GROUP = re.compile(r"[0-9]+")
# Behind one of these words any number with a right check digit is taken for a card's.
_CARD_LABEL = re2.compile(r"(?i)\b(?:card|credit|debit|visa|master ?card|amex|maestro|cc|pan)")
_CARD_LABEL_REACH = 32
_FRACTION = re.compile(r"[0-9]\.\Z")
_SHORTEST, _LONGEST = 12, 19
_USUAL = 15
"""Digits that distinguish a card from a section of a longer number in the same groups."""
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


def find_cards(text: str) -> Iterator[tuple[int, int]]:
    """Yield (start, end) of card numbers: an issued prefix, a length in use, a Luhn check digit.

    They stand in one piece, or in groups set off by one kind of separator.
    """
    for run in _CARD_RUN.finditer(flat(text)):
        groups = [group.span() for group in _CARD_GROUP.finditer(text, *run.span())]
        first = 0
        while first < len(groups):
            last = _card_from(text, groups, first)
            if last is not None:
                yield groups[first][0], groups[last][1]
            first = (first if last is None else last) + 1


def _card_from(text: str, groups: list[tuple[int, int]], first: int) -> int | None:
    """Return the index of the last group of a card number that begins with group ``first``."""
    start, end = groups[first]
    if end - start > _LONGEST or _FRACTION.search(text, max(0, start - 2), start) is not None:
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
            and (
                _CARD_LABEL.search(text[max(0, start - _CARD_LABEL_REACH) : start]) is not None
                or _is_likely(text, groups[first : last + 1], digits)
            )
        ):
            return last
    return None


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


_SEPARATORS = str.maketrans("", "", " .-")
CARDS = Detector(
    "card", lambda _: find_cards, (NUMBER,), lambda text, _: (text.translate(_SEPARATORS),)
)

_SSN_SEPARATED = re2.compile(r"[0-9]{3}(?:-[0-9]{2}-|\.[0-9]{2}\.| [0-9]{2} )[0-9]{4}")
_SSN_TOGETHER = re2.compile(
    r"(?i)(?:\b|_)(?:ssn(?:\b|_)|ss ?#|social(?:\b|_))[^0-9\n]{0,40}([0-9]{9})(?:[^0-9]|$)"
)
# A letter, a digit or a further group; or a country code, and the rest is a phone number.
_SSN_BEFORE = re.compile(r"(?:[A-Za-z0-9]|[0-9][.-]|(?:\+|\b00)[0-9]{1,3}[ .-])\Z")
_SSN_AFTER = re.compile(r"[A-Za-z0-9]|[.-][0-9]")
_SSN_REACH = 7
_SSN = re.compile(r"(?!000|666|9)[0-9]{3}[ .-]?(?!00)[0-9]{2}[ .-]?(?!0000)[0-9]{4}")
"""Area, group and serial number in issued ranges."""


def find_ssns(text: str) -> Iterator[tuple[int, int]]:
    """Yield (start, end) of ``AAA-GG-SSSS`` in issued ranges, and of nine digits behind a label.

    The numbers printed in advertisements (078-05-1120) count: the scan cannot know who sends them.
    """
    places = flat(text)
    for match in _SSN_SEPARATED.finditer(places):
        start, end = match.span()
        before = _SSN_BEFORE.search(text, max(0, start - _SSN_REACH), start)
        if before is None and _SSN_AFTER.match(text, end) is None and _SSN.match(text, start):
            yield start, end
    for match in _SSN_TOGETHER.finditer(places):
        if _SSN.match(text, match.start(1)):
            yield match.span(1)


_SSN_SIGNS = (_SSN_SEPARATED.pattern, _SSN_TOGETHER.pattern)
SSNS = Detector("ssn", lambda _: find_ssns, (NUMBER,), CARDS.form, _SSN_SIGNS)
