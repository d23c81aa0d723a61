"""Whether a summary says what the turns said, as far as numbers, names and denials tell.

Law: in doubt it does not. Every number, name and identifier of the turns stands in it and none that
they lack; a number keeps its unit and the name before it; two names of one sentence keep their
order; what is denied is denied there, and nothing else.
"""

import re
from collections.abc import Iterator, Sequence
from itertools import combinations, islice

from gateway.prompts.compress.facts import denials, facts_of
from gateway.prompts.compress.words import content_words, words_of
from gateway.semantic.compare.text_forms import named
from gateway.semantic.eligibility.rules import is_english
from gateway.semantic.eligibility.tokens import holds_code, sentences_of

_SPACE = re.compile(r"\s+")
_WORD = r"(?<!\w){}(?!\w)"
_NUMBER = r"(?<!\d)(?<!\d[.,:/]){}(?!\d)(?![.,:/]\d)"
_UNIT = re.compile(
    r"(?P<before>[$\u20ac\u00a3\u00a5])?\s?(?P<number>\d+(?:[.,:/]\d+)*)\s?"
    r"(?P<after>%|\u00b0[CF]?|[$\u20ac\u00a3\u00a5]"
    r"|(?:per ?cent|euros?|eur|dollars?|usd|cents?|pounds?|gbp|yen|francs?|chf"
    r"|[mkcnu\u00b5]?[gmls]|[mk]?[wh]h?|mi|ft|lbs?|oz|[kmgt]i?b|bits?|bytes?|hz|ml|cl|kg|mg|km|cm"
    r"|(?:milli|kilo|centi|micro|mega|giga|tera)?(?:gram|met(?:er|re)|lit(?:er|re)|watt|byte)s?"
    r"|miles?|feet|inch(?:es)?|ounces?|tons?|tonnes?|am|pm"
    r"|(?:milli|micro)?seconds?|secs?|ms|minutes?|mins?|hours?|hrs?|days?|weeks?|months?|years?)\b)?",
    re.IGNORECASE,
)
_LETTERS = re.compile(r"[^\W\d_]{2,}")
_FEWEST_WORDS = 4
_MOST_NAMES = 32
"""Of one sentence."""
_SYMBOL = 3
"""Letters of a unit up to which it has no plural: ms is not m."""


def can_be_told(texts: Sequence[str]) -> bool:
    """Tell whether names, denials and the rest can be found in what was said.

    Names are not without capital letters, nor is anything in code or in other languages.
    """
    return not any(
        holds_code(text)
        or any(not is_english(sentence) for sentence in sentences_of(text))
        or (len(_LETTERS.findall(text)) >= _FEWEST_WORDS and text == text.lower())
        for text in texts
    )


def says_the_same(texts: Sequence[str], summary: str) -> bool:
    """Tell whether a summary may stand in for what was said."""
    return (
        _keeps_facts(texts, summary)
        and _adds_no_facts(texts, summary)
        and _units(summary) <= {unit for text in texts for unit in _units(text)}
        and _keeps_order(texts, summary, _names(texts))
        and _keeps_denials(texts, summary)
    )


def _keeps_facts(texts: Sequence[str], summary: str) -> bool:
    told = _folded(summary)
    return all(
        re.search((_NUMBER if _is_number(fact) else _WORD).format(re.escape(fact)), told)
        for fact in {fact for text in texts for fact in _facts(text)}
    )


def _adds_no_facts(texts: Sequence[str], summary: str) -> bool:
    said = {fact for text in texts for fact in _facts(text)}
    words = {word for text in texts for word in words_of(text)}
    found = facts_of(summary)
    new = {_folded(each) for each in (*found.numbers, *found.ids)} - said
    return not new and all(word in words for name in found.names for word in words_of(name))


def _units(text: str) -> set[tuple[str, str]]:
    """Return the numbers of a text that have a unit, with it."""
    found = set()
    for match in _UNIT.finditer(text):
        unit = (match["after"] or match["before"] or "").casefold()
        if unit:
            found.add((match["number"], unit.rstrip("s") if len(unit) > _SYMBOL else unit))
    return found


def _keeps_order(texts: Sequence[str], summary: str, names: frozenset[str]) -> bool:
    """Tell whether no two facts have changed places: who owes whom, and who pays what."""
    ordered = {
        pair for text in texts for one in sentences_of(text) for pair in _in_order(one, names)
    }
    return all(
        pair in ordered or pair[::-1] not in ordered
        for sentence in sentences_of(summary)
        for pair in _in_order(sentence, names)
    ) and _keeps_owners(texts, summary, names)


def _keeps_owners(texts: Sequence[str], summary: str, names: frozenset[str]) -> bool:
    """Tell whether each number follows a name that it followed in the turns, if it did any."""
    owners: dict[str, set[str]] = {}
    for text in texts:
        for number, name in _owned(text, names):
            owners.setdefault(number, set()).add(name)
    return all(
        name in owners.get(number, {name})
        for sentence in sentences_of(summary)
        for number, name in _owned(sentence, names)
    )


def _owned(text: str, names: frozenset[str]) -> Iterator[tuple[str, str]]:
    """Yield each number of a sentence with the last name before it."""
    for sentence in sentences_of(text):
        last = ""
        for word in words_of(sentence):
            if word in names:
                last = word
            elif word.isdigit() and last:
                yield word, last


def _in_order(sentence: str, names: frozenset[str]) -> Iterator[tuple[str, str]]:
    met = dict.fromkeys(word for word in words_of(sentence) if word in names)
    return combinations(islice(met, _MOST_NAMES), 2)


def _names(texts: Sequence[str]) -> frozenset[str]:
    return frozenset(
        word for text in texts for name in named(text).names for word in words_of(name)
    )


def _keeps_denials(texts: Sequence[str], summary: str) -> bool:
    said = [denied for text in texts for denied in _denied(text)]
    told = _denied(summary)
    return _are_among(said, told) and _are_among(told, said)


def _are_among(some: Sequence[frozenset[str]], others: Sequence[frozenset[str]]) -> bool:
    return all(any(2 * len(one & other) >= len(one) for other in others) for one in some)


def _denied(text: str) -> list[frozenset[str]]:
    """Return what each denial of a text is about."""
    found = (content_words(words_of(after)) for after in denials(text))
    return [words for words in found if words]


def _facts(text: str) -> set[str]:
    found = facts_of(text)
    folded = {_folded(each) for each in (*found.numbers, *found.ids, *found.names)}
    return {fact for fact in folded if fact}


def _is_number(fact: str) -> bool:
    return fact[0].isdigit() and fact[-1].isdigit()


def _folded(text: str) -> str:
    return _SPACE.sub(" ", text).casefold().strip()
