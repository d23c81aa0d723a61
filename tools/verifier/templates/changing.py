"""Edits that change the question though nearly all words stay. No fit, no edit."""

import re
from collections.abc import Mapping, Sequence
from functools import cache
from random import Random
from typing import Final

from tools.verifier.templates.inflection import ONES, with_right_articles
from tools.verifier.templates.keeping import any_of
from tools.verifier.templates.lexicon import words

_NUMBER: Final = re.compile(r"(?<![\w.])\d[\d,]*(?:\.\d+)?(?![\w.]*\d)")
_SMALL_WORDS: Final = tuple(ONES[2:])
_AUXILIARY: Final = re.compile(
    r"\b(is|are|was|were|do|does|did|can|could|should|would|will|must|has|have) "
    r"((?:i|you|we|they|he|she|it|(?-i:[A-Z][a-z]+)) )(?=[a-z]{2})",
    re.IGNORECASE,
)
_UNITS: Final = (
    "mm cm metres km miles feet inches yards",
    "grams kg pounds ounces tonnes",
    "ml litres gallons cups pints",
    "seconds minutes hours days weeks months years",
    "dollars euros pounds yen rupees",
    "celsius fahrenheit kelvin",
    "KB MB GB TB",
    "January March April June July August October December",
    "Monday Tuesday Wednesday Thursday Friday Saturday Sunday",
    "second minute hour day week month year",
)
_OPENERS: Final = (
    "how do i|when do i|why do i|where do i|should i|can i",
    "how can i|when can i|where can i|why can i",
    "how does|why does|when does|where does",
    "how do you|why do you|when do you|where do you",
    "how did|why did|when did|where did",
    "how to|when to|where to",
    "what is|who is|where is|when is|why is|how is",
    "how much|how many times|how often",
    "how long|how often|how soon|how far",
    "how old|how tall|how heavy|how rich",
    "when was|where was|why was|how was",
    "can i|should i|must i|do i have to",
    "is it legal to|is it safe to|is it possible to|is it expensive to|is it hard to",
    "why is|when is|since when is",
    "why are|where are|how are",
    "who was|where was|when was",
)
_QUANTIFIERS: Final = (
    "all|some|none of the|most|only some",
    "every|not every|almost every",
    "always|never|sometimes|rarely",
    "at least|at most|exactly|fewer than",
    "more than|less than|exactly",
    "first|last|second|third",
    "both|neither|only one of",
    "each|only one",
    "many|few",
    "before|after|during",
    "with|without",
    "and|or",
    "can|must|should",
    "is|was",
    "are|were",
    "old|new",
    "increase|decrease",
    "maximum|minimum",
    "since|until",
    "inside|outside",
    "above|below",
    "oldest|youngest",
    "cheapest|most expensive",
    "best|worst",
)


def _replace(text: str, found: re.Match[str], new: str, group: int = 0) -> str:
    old = found[group]
    if old[:1].isupper() and new[:1].islower():
        new = new[:1].upper() + new[1:]
    return text[: found.start(group)] + new + text[found.end(group) :]


def _exchanged(text: str, groups: Sequence[Sequence[str]], rng: Random) -> str:
    """Replace one occurrence of a group's member by another member."""
    members = _members(tuple(tuple(group) for group in groups))
    found = list(any_of(tuple(members)).finditer(text))
    if not found:
        return text
    match = rng.choice(found)
    there = {other[0].casefold() for other in found}
    others = [other for other in members[match[0].casefold()] if other.casefold() not in there]
    return _replace(text, match, rng.choice(others)) if others else text


@cache
def _members(groups: tuple[tuple[str, ...], ...]) -> Mapping[str, Sequence[str]]:
    members: dict[str, list[str]] = {}
    for group in groups:
        for member in group:
            members.setdefault(member.casefold(), []).extend(group)
    return members


@cache
def _groups(lines: tuple[str, ...], separator: str) -> Sequence[Sequence[str]]:
    return [line.split(separator) for line in lines]


def number(text: str, rng: Random) -> str:
    """Write another number in one's place."""
    found = list(_NUMBER.finditer(text))
    spelled = list(any_of(_SMALL_WORDS).finditer(text))
    if not found and not spelled:
        return text
    match = rng.choice(found + spelled)
    if not match[0][0].isdigit():
        others = [word for word in _SMALL_WORDS if word != match[0].lower()]
        return _replace(text, match, rng.choice(others))
    value = float(match[0].replace(",", ""))
    if value != int(value) or "." in match[0]:
        new = f"{value + rng.choice((-1, 1, 0.5, 2)) * rng.randint(1, 3):g}".lstrip("-")
    else:
        near = int(value) + rng.choice((-2, -1, 1, 2, 3, 5, 10))
        far = int(value) * rng.choice((2, 3, 10))
        chosen = rng.choice((near, near, far)) if value else rng.randint(1, 9)
        chosen = abs(chosen) if chosen not in {0, -int(value)} else int(value) + 4
        new = f"{chosen:,}" if "," in match[0] else str(chosen)
    return _replace(text, match, new)


def numbers_swapped(text: str, rng: Random) -> str:
    """Exchange two numbers that belong to different things."""
    found = list(_NUMBER.finditer(text))
    if len(found) < 2:
        return text
    one, two = sorted(rng.sample(found, 2), key=lambda match: match.start())
    if re.fullmatch(r" ?(?:and|or|\+|\*|x|times|plus|,|by) ?", text[one.end() : two.start()]):
        return text
    between = text[one.end() : two.start()]
    return text[: one.start()] + two[0] + between + one[0] + text[two.end() :]


def unit(text: str, rng: Random) -> str:
    """Name another unit, month or day."""
    return _exchanged(text, _groups(_UNITS, " "), rng)


def negation(text: str, rng: Random) -> str:
    """Put a "not" in, or take one out."""
    negated = list(re.finditer(r" not\b|(?<=[a-z])n't\b", text))
    if negated:
        present = rng.choice(negated)
        bare = text[: present.start()] + text[present.end() :]
        return re.sub(r"\b([Cc])a(?= )", r"\1an", re.sub(r"\b([Ww])o(?= )", r"\1ill", bare))
    how_to = re.search(r"\bhow to ", text, re.IGNORECASE)
    if how_to:
        return text[: how_to.end() - 3] + "not " + text[how_to.end() - 3 :]
    found = _AUXILIARY.search(text)
    if not found:
        return text
    return text[: found.end(2)] + "not " + text[found.end(2) :]


@cache
def _names() -> Mapping[str, tuple[str, str]]:
    """Every known proper name: its kind, and the word it is one writing of."""
    known = {}
    for kind in ("country", "city", "man", "woman", "lastname", "brand", "language"):
        for word in words(kind):
            for form in word.forms:
                known[form] = (kind, word.forms[0])
            for form in word.fields.get("dem", ()):
                known[form] = ("dem", form)
    del known["Will"]  # Far more often the first word of a question.
    return known


def name(text: str, rng: Random) -> str:
    """Replace a name, country, city, nationality, language or brand by another."""
    known = _names()
    found = [
        match
        for match in re.finditer(r"(?<![\w'-])[A-Z][\w.]*(?: (?:of |and )?[A-Z]\w*)*", text)
        if match[0] in known
    ]
    if not found:
        return text
    match = rng.choice(found)
    kind, main = known[match[0]]
    if kind == "dem":
        others = [form for form, (its, _) in known.items() if its == "dem" and form != match[0]]
    else:
        others = [word.forms[0] for word in words(kind) if word.forms[0] != main]
    return _replace(text, match, rng.choice(others))


@cache
def _opposites() -> Sequence[Sequence[str]]:
    return [word.forms for word in words("opposites")]


def opposite(text: str, rng: Random) -> str:
    """Write the opposite of a word."""
    return _exchanged(text, _opposites(), rng)


_ROLES: Final = (
    re.compile(r"\bfrom (\w+) (?:in)?to (\w+)"),
    re.compile(r"\b(?:convert|change|turn|translate) (\w+) (?:in)?to (\w+)", re.IGNORECASE),
    re.compile(
        r"\b(\w+) (?:better|worse|bigger|smaller|older|cheaper|faster|healthier) than (\w+)"
    ),
    re.compile(r"\b(?:replace|substitute) (\w+) (?:by|with|for) (\w+)", re.IGNORECASE),
    re.compile(
        r"\b(?:did|does|do|can|will|should) (?:the |an? )?((?!an? |the )\w+) \w+"
        r" (?:the |an? )?([A-Z]?\w{3,})\?"
    ),
    re.compile(r"\b(my \w+) \w+s (?:to )?(my \w+)"),
    re.compile(
        r"\b([A-Z]\w+) (?:\w+ed|gave|sold|told|owes|lent|beat|met before) (?:to )?([A-Z]\w+)"
    ),
)


def roles(text: str, rng: Random) -> str:
    """Exchange who and whom, from and to."""
    found = [match for pattern in _ROLES for match in pattern.finditer(text)]
    if not found:
        return text
    match = rng.choice(found)
    one, two = match[1], match[2]
    between = text[match.end(1) : match.start(2)]
    if _mutual() & set(between.split()):
        return text
    return with_right_articles(text[: match.start(1)] + two + between + one + text[match.end(2) :])


@cache
def _mutual() -> frozenset[str]:
    """Verbs of which it doesn't matter who does them with whom."""
    return frozenset(
        form for word in words("mutual") for field in ("", "s", "past") for form in word.get(field)
    )


def question_word(text: str, rng: Random) -> str:
    """Ask how for why, when for where, may for must."""
    lowered = text.casefold()
    for group in rng.sample(_OPENERS, len(_OPENERS)):
        members = group.split("|")
        for member in members:
            if lowered.startswith(member + " "):
                other = rng.choice([m for m in members if m != member])
                changed = other[:1].upper() + other[1:] + text[len(member) :]
                return changed.replace(" i ", " I ", 1) if " I " in text else changed
    return text


def qualifier(text: str, rng: Random) -> str:
    """Add a condition that narrows the question."""
    added = rng.choice(words("qualifiers")).forms[0]
    if added.casefold() in text.casefold() or len(text.split()) < 4:
        return text
    bare = text.rstrip("?.! ")
    return f"{bare} {added}{text[len(bare) :]}"


def qualifier_dropped(text: str, rng: Random) -> str:
    """Leave out a closing condition: "in Python", "without a card"."""
    del rng
    found = re.search(
        r" (?:in|for|with|without|on|during|after|before|under|until|since)"
        r" (?:(?:the|a|an|my|your|his|her) )?[\w-]+([?.!]?)$",
        text,
    )
    if not found or len(text[: found.start()].split()) < 5:
        return text
    return text[: found.start()] + found[1]


def quantifier(text: str, rng: Random) -> str:
    """Turn all into some, before into after, with into without."""
    return _exchanged(text, _groups(_QUANTIFIERS, "|"), rng)


@cache
def _modifiers() -> frozenset[str]:
    kinds = [word for kind in ("trait", "quality") for word in words(kind)]
    listed = {form for word in kinds for form in (*word.forms, *word.fields["ant"])}
    return frozenset(listed | {form for form, (kind, _) in _names().items() if kind == "dem"})


def modifier_dropped(text: str, rng: Random) -> str:
    """Leave out an adjective before its noun."""
    found = [
        match
        for match in re.finditer(r"(?<=[a-z] )([A-Za-z-]+) (?=[A-Za-z]{3,})", text)
        if match[1] in _modifiers()
        and not re.search(r"(?:more|less|very|be|is|are|years?) $", text[: match.start()])
    ]
    if not found:
        return text
    match = rng.choice(found)
    return text[: match.start()] + text[match.end() :]


_PERSONS: Final = ("my|your|his|her|our|their", "mother|father", "son|daughter")


def person(text: str, rng: Random) -> str:
    """Ask about somebody else's."""
    return _exchanged(text, _groups(_PERSONS, "|"), rng)
