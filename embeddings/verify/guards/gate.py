"""Stands before the trained verifier: refuses what a small network cannot be trusted to see. Pure.

Law: a guard refuses only for a difference that it can name: another number or unit, name, string,
rare word, or order. Everything else is the verifier's. Every guard is symmetric, and
takes time in proportion to the texts. How much a difference proves depends on how close two texts
are otherwise.
"""

from collections.abc import Container
from functools import lru_cache
from typing import Final, NamedTuple

from embeddings.verify.guards.counterparts import differ_in_counterparts
from embeddings.verify.guards.names import Names, differ_in_names, find_names
from embeddings.verify.guards.numbers import Numbers, differ_in_numbers, find_numbers
from embeddings.verify.guards.order import differ_in_order
from embeddings.verify.guards.rare_words import differ_in_rare_words
from embeddings.verify.guards.reader import Kind, Reading, closeness, read
from embeddings.verify.guards.strings import Strings, differ_in_strings, find_strings

VERSION: Final = 14
"""Raise it when pairs pass that did not: a calibration is made of those that do. It stays valid
where more pairs are refused, if a larger share of the wrong ones is than of the right ones."""
REASONS: Final = frozenset({"number", "unit", "name", "quoted", "symbol", "order", "words"})
"""All that `guard` may say; embeddings/README.md tells what each means."""

# A question is compared with several others, so what was read last is kept. Long texts are not,
# for they would take megabytes.
_RECENT: Final = 16
_SHORT: Final = 500


class _Text(NamedTuple):
    reading: Reading
    strings: Strings
    numbers: Numbers
    names: Names


def guard(asked: str, stored: str, common: Container[str]) -> str | None:
    """Return why an answer to `stored` may not be served to `asked`, None to leave it open.

    `common` are the words that the network knows. Symmetric: the reason is the same the other way
    round.
    """
    if asked.strip() == stored.strip():
        return None
    x, y = (_recent(text) if len(text) <= _SHORT else _find(text) for text in (asked, stored))
    a, b = x.reading, y.reading
    if not (_says_something(a) and _says_something(b)):
        return "words"
    close = closeness(a, b)
    return (
        differ_in_strings(a, b, x.strings, y.strings, close)
        or differ_in_numbers(a, b, x.numbers, y.numbers, close)
        or differ_in_names(a, b, x.names, y.names, close)
        or differ_in_rare_words(a, b, common)
        or differ_in_counterparts(a, b)
        or differ_in_order(a, b, common)
    )


def _find(text: str) -> _Text:
    reading = read(text)
    numbers, names = find_numbers(reading), find_names(reading)
    return _Text(reading, find_strings(reading, text), numbers, names)


def _says_something(text: Reading) -> bool:
    return any(token.kind is not Kind.SYMBOL for token in text.tokens)


_recent = lru_cache(_RECENT)(_find)
