"""Numbers that the text itself calls something else: order number 4155552671, ISBN 0306406152.

A bare run of digits is taken at its word: nothing else tells it from what it looks like.
"""

import re

_NAME = re.compile(
    r"(?i)(?:\b(?:order|invoice|ticket|case|tracking|shipment|parcel|serial|sku|isbn(?:-?1[03])?|issn"
    r"|ean|upc|gtin|asin|imei|pmid|lot|batch|part|item|article|product|po|ref|reference|id|routing"
    r"|account|acct|transaction|booking|confirmation|job|build|commit|version|port|pid"
    r"|customer(?=[ _-]?(?:no|nr|number|id)))"
    r"|(?-i:[a-z]Id)|_id)"
    r"(?:[ _-]?(?:no|nr|number|num|id|code))?[\"']?[ \t.:#=]{0,4}[\"'(\[]?$"
)
_PARAMETER = re.compile(r"[?&][\w.-]{1,16}=$")
"""Of an address: app.js?v=4155552671."""
_REACH = 32


def is_named_otherwise(text: str, start: int) -> bool:
    """Tell whether the word before ``start`` says that the number there is no person's."""
    reach = max(0, start - _REACH)
    return any(name.search(text, reach, start) is not None for name in (_NAME, _PARAMETER))
