"""Names, single letters that are labels, days and months: the same ones. Pure.

A name is a word with a capital that grammar does not ask for; of words in lower case only days and
months are known to be names. A name is accounted for by the same word in any case, its adjective
("Italy", "Italian"), its initials, or as a part of a name that both texts have.
"""

import re
import unicodedata
from functools import lru_cache
from typing import Final, NamedTuple

from embeddings.verify.guards.numbers import UNITS
from embeddings.verify.guards.reader import FUNCTION, LONGEST, NUMBER_WORDS, Kind, Reading, Token
from embeddings.verify.guards.reader import words_of as _words


class Names(NamedTuple):
    """Names of a text, in lower case.

    `acronyms`: those in capitals only. `keys`: of all words, see `_keys`. `initials`: of all words.
    `days`: days of the week and months. `letters`: those that stand alone. `labels`: those of them
    that are no words. `of`: what these are labels of, "gate" and the like.
    """

    names: frozenset[str]
    acronyms: frozenset[str]
    keys: frozenset[str]
    initials: str
    days: frozenset[str]
    letters: tuple[str, ...]
    labels: frozenset[str]
    of: frozenset[str]


_DAYS: Final = {
    form: day
    for day in _words(
        "monday tuesday wednesday thursday friday saturday sunday january february march april may "
        "june july august september october november december"
    )
    for form in (day, day + "s", day[:3])
    if form not in {"sat", "sun", "wed", "mar"}
}
# Words as well as days and months: names only with a capital.
_PLAIN: Final = _words("march may mays marches mon fri dec jan jun jul")
# Each line: what is another word for the first.
ALIASES: Final = {
    name: entry.split()[0]
    for entry in """
    usa us america american states; uk britain british brit brits briton kingdom england english gb;
    eu europe european; uae emirates; nyc york; la angeles; sf francisco; dc washington;
    germany german deutschland; france french; spain spanish spaniards; islam muslim;
    netherlands dutch holland;
    greece greek; denmark danish danes; turkey turkish; poland polish; sweden swedish; ireland
    irish; wales welsh; switzerland swiss; ussr soviet russia russian; js javascript;
    postgres postgresql; tv television; war wwi wwii ww1 ww2; norway norwegian; mum mom;
    scotland scottish; czechia czech; py python; facebook fb; whatsapp wa; instagram ig insta;
    youtube yt; mount mt; saint st; windows win; google gmail; thailand thai; iceland
    icelandic; finland finn finnish; mongodb mongo; niger nigerien; nigeria nigerian; alexandra;
    andrea; carla; daniela; danielle; erica; gabriela; georgia; julia; louisa; michelle; nicola;
    paula; roberta; simona; victoria
    """.split(";")  # noqa: SIM905
    for name in entry.split()
}
# The longest first.
_ENDINGS: Final = re.compile(
    "(?<=...)(?:ians|ian|ani|eans|ean|enes|ans|an|ese|ish|isms|ism|ias|ia|ea|as|ic|ium|um|land|db"
    "|ers|er|es|n|s|e|(?<!ian)a|y|i|o)$"
)
_TITLES: Final = _words(
    "mr mrs ms dr sir captain president professor lady lord king queen princess"
)
_NO_NAMES: Final = FUNCTION | UNITS.keys() | _DAYS.keys() | _TITLES
# Behind these another name begins: "York", "New York".
_OTHERS: Final = _words("new north south east west northern southern eastern western saint san")
_LABELLED: Final = _words(
    """
    gate class type vitamin hepatitis influenza flu section appendix kiosk terminal team serie bus
    room zone platform visa option pressing exhibit hall variant category tier model version
    division league
    """
)
# Also what is done with a thing: "plan a trip".
_LABELLED_VERBS: Final = _words("plan form seat group grade level exit size")
_LABELS: Final = _LABELLED | _LABELLED_VERBS
_DETERMINERS: Final = _words("the a an my your his our their its")
_BEHIND: Final = frozenset({"", "#", "of", "in", "at", "to", "for", "on"})
_CONTRACTED: Final = {
    "m": _words("i"),
    "d": _words("i you he she we they"),
    "s": _words("what how where who when it he she there let that"),
    "u": _words("can could would will do did are should have r if thank"),
}
_UNIT_BESIDE: Final = NUMBER_WORDS | _words("/ \u00b0 ^ degree degrees")
BEHIND_A_NUMBER: Final = UNITS.keys() | _words("a i x k b d p y n t e u am pm")
# Letters of a formula may be others.
_SIGNS: Final = frozenset("=+*^")
_CLOSE: Final = 0.8
_NEAR: Final = 0.7
_HALF: Final = 0.5
_SHORT: Final = 50


def find_names(text: Reading) -> Names:
    """Return the names, days and letters of a text."""
    named = [x for x in text.tokens if x.name and len(x.text) > 1 and x.text not in _NO_NAMES]
    days = [
        _DAYS[x.text] for x in text.tokens if x.text in _DAYS and (x.name or x.text not in _PLAIN)
    ]
    letters = [
        (place, x)
        for place, x in enumerate(text.tokens)
        if len(x.text) == 1 and x.kind is Kind.WORD
    ]
    labels = {place: x.text for place, x in letters if _is_label(text.tokens, place)}
    return Names(
        frozenset([x.text for x in named]),
        frozenset([x.text for x in text.tokens if x.acronym]),
        frozenset([each for word in text.words for x in word.lower().split() for each in _keys(x)]),
        "".join([word[:1] for word in text.words if word not in {"of", "the"}]),
        frozenset(days),
        tuple([x.text for _, x in letters]),
        frozenset(labels.values()),
        frozenset([text.words[place - 1] for place in labels if place]) & _LABELS,
    )


def differ_in_names(a: Reading, b: Reading, x: Names, y: Names, close: float) -> str | None:
    """Return "name" if the texts have different names, days or letters."""
    short = len(a.words) + len(b.words) < _SHORT
    if x.days - y.days and y.days - x.days and (short or close >= _HALF):
        return "name"
    if x.letters != y.letters and _differ_in_letters(a, b, x, y, close):
        return "name"
    left, right = _unaccounted(x, y, b), _unaccounted(y, x, a)
    if left and right:
        # Texts that share a name may have others by the way; acronyms stand for common words.
        least = _HALF if x.names & y.names else 0.0
        least = _NEAR if left <= x.acronyms or right <= y.acronyms else least
        return "name" if close >= least else None
    if close >= _CLOSE or a.content < b.content or b.content < a.content:
        left, right = left - x.acronyms, right - y.acronyms
        if (left and not _is_part(left, a, y)) or (right and not _is_part(right, b, x)):
            return "name"
    return None


def _unaccounted(mine: Names, theirs: Names, other: Reading) -> frozenset[str]:
    """Return the names that have no counterpart in the other text."""
    missing = mine.names - other.vocabulary
    if not missing:
        return missing
    short = [word for word in theirs.acronyms if len(word) < 6 and word in mine.initials]
    return frozenset(
        name
        for name in missing
        if theirs.keys.isdisjoint(_keys(name))
        and not (1 < len(name) < 6 and name in theirs.initials)
        and not any(name[0] in word for word in short)
    )


def _keys(word: str) -> tuple[str, str]:
    """Return a word and what it shares with its adjective, its people and its spellings."""
    return word, _key(word[:LONGEST])


@lru_cache(4096)
def _key(word: str) -> str:
    if not word.isascii():
        word = "".join(
            x for x in unicodedata.normalize("NFKD", word) if not unicodedata.combining(x)
        )
    before, _, _ = word.partition(".")
    word = before if len(before) > 2 else word
    if known := ALIASES.get(word) or ALIASES.get(word.removesuffix("s")):
        return known
    word = word.removesuffix("s") if len(word) > 3 else word
    ending = _ENDINGS.search(word)
    return word[: ending.start()] if ending else word


def _is_part(names: frozenset[str], text: Reading, theirs: Names) -> bool:
    """Tell whether the names stand beside one that both texts have: "Ernest Hemingway"."""
    tokens = text.tokens
    return names.isdisjoint(_OTHERS) and all(
        any(
            near.name and not theirs.keys.isdisjoint(_keys(near.text))
            for near in (*tokens[max(place - 2, 0) : place], *tokens[place + 1 : place + 3])
        )
        for place, token in enumerate(tokens)
        if token.text in names
    )


def _differ_in_letters(a: Reading, b: Reading, x: Names, y: Names, close: float) -> bool:
    if len(x.letters) == len(y.letters) and _frame(a) == _frame(b):
        return True
    if not _SIGNS.isdisjoint(a.vocabulary | b.vocabulary) and close < _HALF:
        return False
    left, right = x.labels - y.labels, y.labels - x.labels
    # "Gate b" and "gate": there are several.
    several = (x.of & b.vocabulary if left else y.of & a.vocabulary) or close >= _CLOSE
    return bool((left and right) or ((left or right) and several))


def _frame(text: Reading) -> list[str]:
    return [word for word in text.words if len(word) > 1 or not word.isalpha()]


def _is_label(tokens: tuple[Token, ...], place: int) -> bool:
    """Tell whether a letter is a label, as in "gate d"; in doubt an "a" or "i" is none."""
    token = tokens[place]
    last = "" if token.starts else _shown(tokens, place - 1)
    ends = place + 1 == len(tokens) or tokens[place + 1].starts
    after = "" if ends else _shown(tokens, place + 1)
    # "Version 4b" and "gpt-4o", but no unit, factor or article.
    if (
        (last == "#" and token.text in BEHIND_A_NUMBER)
        or last in _UNIT_BESIDE
        or after == "^"
        or last in _CONTRACTED.get(token.text, ())
    ):
        return False
    if token.text == "a":
        return token.name or not after or last in _DETERMINERS | _LABELLED
    if token.text == "i":
        if last in _DETERMINERS or last == "does" or after in {"is", "does", "has"}:
            return True
        return last in _LABELS and (token.name or after in _BEHIND)
    return token.text != "x" or after != "#"


def _shown(tokens: tuple[Token, ...], place: int) -> str:
    """Return the word or sign at a place, "#" for a number or string, "" before the first."""
    if place < 0:
        return ""
    return tokens[place].text if tokens[place].kind in {Kind.WORD, Kind.SYMBOL} else "#"
