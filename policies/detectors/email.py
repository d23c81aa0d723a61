"""Email addresses."""

from collections.abc import Iterator

import re2

from policies.detectors.digits import Digits

# Letters of any script: an address may be international, and a disguise may be a letter.
_EMAIL = re2.compile(
    r"[\pL\pN][\pL\pN._%+'-]*@"
    r"(?:[\pL\pN](?:[\pL\pN_-]*[\pL\pN])?\.)+(?:xn--[\pL\pN-]+|\pL{2,})"
)


class EmailDetector:
    """Finds ``local@domain.tld``."""

    kind = "email"
    needs = Digits.NONE

    def find(self, text: str) -> Iterator[tuple[int, int]]:
        """Yield (start, end) of each address."""
        if "@" in text:
            for match in _EMAIL.finditer(text):
                yield match.span()
