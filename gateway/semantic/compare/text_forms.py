"""A text with one way of writing each letter, in which no figure joins another.

Law: NFKC, but for what stands higher, lower, in a circle or in a fraction: that is set apart from
the figures beside it (``10⁶`` is ``10^6``, not ``106``). Time is linear in the text.
"""

import re
import unicodedata
from itertools import groupby

_STRETCH = re.compile(r"\S{1,256}|\s+")
"""Marks above and below a letter are sorted, in time that grows with the square of their number."""
_HIGH, _LOW, _FRACTION, _OTHER = "<super>", "<sub>", "<fraction>", "<compat>"
_PLAIN = {"", "<wide>", "<narrow>", "<font>", "<noBreak>"}
_ONE_TERM = re.compile(r"[+\u2212-]?\w+")
_SLASH = str.maketrans("\u2044", "/")


def compatible(text: str) -> str:
    """Return the text as it is compared."""
    if text.isascii():
        return text
    written: list[str] = []
    before, former = "", ""
    for kind, letters in groupby(text, _kind):
        plain = _written("".join(letters), kind)
        written += _between(before, plain[:1], former, kind), plain
        before, former = plain[-1:], kind
    return "".join(written)


def _kind(letter: str) -> str:
    """Tell how a letter stands; empty where it is one like others."""
    tag = unicodedata.decomposition(letter).partition(">")[0]
    kind = f"{tag}>" if tag.startswith("<") else ""
    if kind in _PLAIN:
        return ""
    if kind in (_HIGH, _LOW, _FRACTION):
        return kind
    plain = unicodedata.normalize("NFKC", letter)
    return _OTHER if any(map(str.isdigit, plain)) else ""


def _written(letters: str, kind: str) -> str:
    if kind in (_FRACTION, _OTHER):
        parts = (unicodedata.normalize("NFKC", letter) for letter in letters)
        return "_".join(parts).translate(_SLASH)
    stretches = _STRETCH.findall(letters)
    plain = "".join(unicodedata.normalize("NFKC", stretch) for stretch in stretches)
    if kind != _HIGH:
        return plain
    return f"^{plain}" if _ONE_TERM.fullmatch(plain) else f"^({plain})"


def _between(before: str, after: str, former: str, kind: str) -> str:
    if former == _HIGH and after.isalnum():
        return " "
    if before.isdigit() and after.isdigit() and (former or kind):
        return " " if kind == _FRACTION else "_"
    return ""
