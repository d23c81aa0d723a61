"""The form of text that is scanned: what a reader takes for a character becomes that character.

Per character, so that every finding maps back to the text as given: compatibility forms (NFKC:
full-width, circled, superscript), digits of any script, dashes and spaces of any width; invisible
characters and combining marks vanish; Cyrillic and Greek letters that look Latin become Latin.
"""

import unicodedata
from collections.abc import Sequence

_LOOK_ALIKES = dict(
    zip(
        "АВЕЅІЈКМНОРСТХУаеѕіјорсухԁԛԝ" + "ΑΒΕΖΗΙΚΜΝΟΡΤΥΧο",  # noqa: RUF001
        "ABESIJKMHOPCTXYaesijopcyxdqw" + "ABEZHIKMNOPTYXo",
        strict=True,
    )
)
_DOTS = {"。": ".", "−": "-", "∶": ":"}  # noqa: RUF001
_BLANKS = frozenset("\u115f\u1160\u3164\uffa0\u2800\u2065\ufffc\U0001d159")
"""Letters and signs that show nothing: Hangul fillers, braille without a dot, and their kin."""
_MEMO_LIMIT = 8192


def _plain(character: str) -> str:
    replaced = _LOOK_ALIKES.get(character) or _DOTS.get(character)
    if replaced is not None:
        return replaced
    if character in _BLANKS:
        return ""
    match unicodedata.category(character):
        case "Cf" | "Mn" | "Me":
            return ""
        case "Cs":  # a lone surrogate has no UTF-8 form, which RE2 needs
            return "\N{REPLACEMENT CHARACTER}"
        case "Nd":
            return str(unicodedata.decimal(character))
        case "Pd":
            return "-"
        case "Zs":
            return " "
        case "Zl" | "Zp":
            return "\n"
    compatible = unicodedata.normalize("NFKC", character)
    if compatible == character:
        return character
    return "".join(map(_plain, compatible)) if len(compatible) > 1 else _plain(compatible)


class _PlainTable(dict[int, str]):
    """A table for ``str.translate`` that fills itself, up to a bound."""

    def __missing__(self, codepoint: int) -> str:
        plain = _plain(chr(codepoint))
        if len(self) < _MEMO_LIMIT:
            self[codepoint] = plain
        return plain


_TABLE = _PlainTable()


def normalise(text: str) -> str:
    """Return the text in normal form; ASCII text as it is. Never raises."""
    return text if text.isascii() else text.translate(_TABLE)


def normalise_with_offsets(text: str) -> tuple[str, Sequence[int]]:
    """Return the normal form and, for each of its characters, the index of its origin."""
    if text.isascii():
        return text, range(len(text))
    pieces = [_TABLE[ord(character)] for character in text]
    offsets = [index for index, piece in enumerate(pieces) for _ in piece]
    return "".join(pieces), offsets
