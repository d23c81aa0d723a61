"""Quotations, code, addresses, operators of formulas, other scripts: the same ones. Pure."""

import re
from collections import Counter
from typing import Final, NamedTuple

from embeddings.verify.guards.reader import Kind, Reading

# Texts less close than this may write out in words what the other has in signs.
_CLOSE: Final = 0.6
_POWERS: Final = re.compile("\u00b2|\u00b3| ?squared| ?cubed")
_SIGNS: Final = re.compile(r"[()\[\]{}+*/^=<>|\u00d7\u00f7\u221a-]")
_EQUAL: Final = 0.99
# What has more words is a sentence, and may be reworded.
_SHORT: Final = 4
_OPERATORS: Final = frozenset("+*^=<>|\u00d7\u00f7\u2264\u2265\u2260\u221a")


class Strings(NamedTuple):
    """The strings, operators and words of other scripts of a text, the signs of a formula."""

    strings: frozenset[str]
    operators: tuple[str, ...]
    foreign: tuple[str, ...]
    signs: tuple[str, ...]


def find_strings(text: Reading, written: str) -> Strings:
    """Return what has to be equal to the letter."""
    strings: list[str] = []
    operators: list[str] = []
    foreign: list[str] = []
    for token in text.tokens:
        if token.kind is Kind.STRING:
            strings.append(token.text)
        elif token.kind is Kind.SYMBOL:
            if token.text in _OPERATORS:
                operators.append(token.text)
            elif ord(token.text) > 0x2BFF:
                foreign.append(token.text)
        elif token.kind is Kind.WORD and not token.text.isascii() and ord(token.text[0]) > 0x36F:
            foreign.append(token.text)
    signs = tuple(_SIGNS.findall(_POWERS.sub("^", written))) if operators else ()
    return Strings(frozenset(strings), tuple(sorted(operators)), tuple(sorted(foreign)), signs)


def differ_in_strings(a: Reading, b: Reading, x: Strings, y: Strings, close: float) -> str | None:
    """Return "quoted", "symbol" or "words" if the texts differ in a string, sign or script."""
    if x.foreign != y.foreign:
        return "words"
    if Counter(x.operators) != Counter(y.operators):
        both = x.operators and y.operators
        if close >= (_CLOSE if both else _EQUAL) and (both or len(a.words) == len(b.words)):
            return "symbol"
    elif x.signs != y.signs and close >= _EQUAL:
        return "symbol"
    if x.strings == y.strings:
        return None
    if _differ_in_case(x, y):
        return "quoted"
    left, right = _alone(x, y, b), _alone(y, x, a)
    if close >= _CLOSE:
        return "quoted" if left or right else None
    return "quoted" if min(left, right) and max(left, right) <= _SHORT else None


def _differ_in_case(x: Strings, y: Strings) -> bool:
    """Tell whether code differs in case only, which the verifier cannot see: "-v", "-V"."""
    return any(
        one != other
        and one.casefold() == other.casefold()
        and not one.replace(" ", "").rstrip(".?!").isalpha()
        for one in x.strings - y.strings
        for other in y.strings - x.strings
    )


def _alone(mine: Strings, theirs: Strings, other: Reading) -> int:
    """Return how many words the longest string has that is not in the other text."""
    missing = mine.strings - theirs.strings
    if not missing:
        return 0
    joined = f" {_plain(' '.join(other.words))} "
    plain = [_plain(text) for text in missing]
    return max((1 + text.count(" ") for text in plain if f" {text} " not in joined), default=0)


def _plain(text: str) -> str:
    text = text.casefold().replace("&", " and ")
    return " ".join("".join(x if x.isalnum() else " " for x in text).split())
