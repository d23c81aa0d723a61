"""Which bounds of numbers can be enforced: xgrammar writes at most six decimals."""

from collections.abc import Mapping
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal

DECIMALS = 6


def between_decimals(limits: Mapping[str, int | float]) -> bool:
    """Say whether there are numbers within ``limits``, by JSON schema's names, but none to write.

    For such limits xgrammar would take the empty text.
    """
    exact = {keyword: Decimal(repr(limit)) for keyword, limit in limits.items()}
    lows = [(exact[key], key == "exclusiveMinimum") for key in exact if key.endswith("inimum")]
    highs = [(exact[key], key == "exclusiveMaximum") for key in exact if key.endswith("aximum")]
    if not lows or not highs:
        return False
    lowest, above = max(lows)
    highest, below = min(highs, key=lambda high: (high[0], not high[1]))
    if lowest > highest or (lowest == highest and (above or below)):
        return False  # there are none
    first = _scaled(lowest, ROUND_FLOOR) + 1 if above else _scaled(lowest, ROUND_CEILING)
    last = _scaled(highest, ROUND_CEILING) - 1 if below else _scaled(highest, ROUND_FLOOR)
    return first > last


def _scaled(limit: Decimal, rounding: str) -> Decimal:
    return limit.scaleb(DECIMALS).to_integral_value(rounding)
