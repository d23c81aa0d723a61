"""International bank account numbers (ISO 13616): country's length, structure, check digits."""

import re
from collections.abc import Iterator

from stdnum import iban

from policies.detectors.digits import Digits

# Short, so that a head never swallows the next; without repetition, so linear in any engine.
_HEAD = re.compile(r"\b[A-Za-z]{2}[ -]?[0-9]{2}[ -]?[A-Za-z0-9]", re.ASCII)
_REACH = 34 * 2

# From the SWIFT registry. A head says how much to read; the check digits decide.
_LENGTHS = {
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


class IbanDetector:
    """Finds IBANs in any case, in one piece or in groups."""

    kind = "iban"
    needs = Digits.SOME

    def find(self, text: str) -> Iterator[tuple[int, int]]:
        """Yield (start, end) of each IBAN."""
        behind = 0
        for head in _HEAD.finditer(text):
            if head.start() < behind:
                continue
            end = _iban_end(text, head.start())
            if end is not None:
                behind = end
                yield head.start(), end


def _iban_end(text: str, start: int) -> int | None:
    """Return where the IBAN that starts at ``start`` ends, None if there is none."""
    length = _LENGTHS.get(text[start : start + 2].upper())
    if length is None:
        return None
    compact = ""
    for index in range(start, min(len(text), start + _REACH)):
        character = text[index]
        if character.isascii() and character.isalnum():
            compact += character
            if len(compact) == length:
                follows = text[index + 1 : index + 2]
                if (follows.isascii() and follows.isalnum()) or not iban.is_valid(
                    compact, check_country=False
                ):
                    return None
                return index + 1
        elif character not in " -" or text[index - 1] in " -":
            return None
    return None
