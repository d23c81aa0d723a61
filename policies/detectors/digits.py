"""The prefilter that most detectors share: how many digits a text holds.

Most text has few. One look at it tells which detectors can find anything at all.
"""

import re
from enum import IntEnum

import re2

_ANY = re.compile(r"[0-9]")
# Seven digits make the shortest phone number; cards and social security numbers have more.
_RUN = re2.compile(r"[0-9](?:[ ().\-/\[\]]{0,4}[0-9]){6}")


class Digits(IntEnum):
    """What a text holds, and what a detector needs; more includes less."""

    NONE = 0
    SOME = 1
    RUN = 2
    """Seven or more, with nothing but separators in between."""


def digits_in(text: str) -> Digits:
    """Tell what normalised text holds."""
    if _ANY.search(text) is None:
        return Digits.NONE
    return Digits.SOME if _RUN.search(text) is None else Digits.RUN
