"""IP addresses, v4 and v6; not version numbers, not addresses that are everybody's."""

import ipaddress
from collections.abc import Iterator

import re2

from policies.detectors.digits import Digits

_V4 = re2.compile(r"[0-9]{1,3}(?:\.[0-9]{1,3}){3}")
_V6 = re2.compile(r"[0-9A-Fa-f]{0,4}(?::[0-9A-Fa-f]{0,4}){2,8}(?:[.][0-9]{1,3}){0,3}")
# What stands right before a number with dots when it counts versions or sections.
_VERSION = re2.compile(
    r"(?i)(?:\b(?:v|ver|vers|version|release|rel|build|firmware|driver|section|sec|chapter|clause)"
    r"[\s.:#=]*(?:is|to|from)?\s*|§\s*)$"
)
_CONTEXT = 24


class IpDetector:
    """Finds addresses that may name a person's machine."""

    kind = "ip"
    needs = Digits.SOME

    def find(self, text: str) -> Iterator[tuple[int, int]]:
        """Yield (start, end) of each address."""
        if "." in text:
            for match in _V4.finditer(text):
                start, end = match.span()
                if _is_v4(text, start, end):
                    yield start, end
        if ":" in text:
            for match in _V6.finditer(text):
                start, end = match.span()
                if _is_v6(text, start, end):
                    yield start, end


def _is_v4(text: str, start: int, end: int) -> bool:
    before, after = text[max(0, start - 2) : start], text[end : end + 2]
    if _is_word(before[-1:]) or _is_word(after[:1]):
        return False
    if before[-1:] == "." and _is_word(before[:-1]):
        return False
    # Chrome/99.0.1.2, libfoo-1.2.3.4, 1.2.3.4.5, 1.2.3.4-beta
    if before[-1:] in ("/", "-") and _is_word(before[:-1]):
        return False
    if after[:1] in (".", "-") and _is_word(after[1:]):
        return False
    octets = [int(octet) for octet in text[start:end].split(".")]
    if max(octets) > 255 or octets[0] in (0, 127) or octets[:2] == [255, 255]:
        return False
    return _VERSION.search(text[max(0, start - _CONTEXT) : start]) is None


def _is_word(character: str) -> bool:
    """Tell whether a number next to this is part of something longer.

    ASCII only: scripts without spaces write a number right beside their words.
    """
    return character == "_" or (character.isascii() and character.isalnum())


def _is_v6(text: str, start: int, end: int) -> bool:
    before, after = text[max(0, start - 2) : start], text[end : end + 1]
    if _is_word(before[-1:]) or before[-1:] == ":" or _is_word(after) or after == ":":
        return False
    if before[-1:] == "." and _is_word(before[:-1]):
        return False
    candidate = text[start:end]
    # C++ and Perl write a::b; an address somebody has holds digits.
    if not any(map(str.isdigit, candidate)):
        return False
    # Times and ratios, most of what has colons, cost no parsing.
    if "::" not in candidate and candidate.count(":") < 6:
        return False
    try:
        address = ipaddress.IPv6Address(candidate)
    except ValueError:
        return False
    return not (address.is_loopback or address.is_unspecified)
