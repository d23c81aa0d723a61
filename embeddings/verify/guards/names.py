"""Names, single letters that are labels, days and months, near-words: the same ones. Pure.

A name is a word with a capital that grammar does not ask for; of words in lower case only days and
months are known to be names. A name is accounted for by the same word in any case, its adjective
("Italy", "Italian"), its initials, or as a part of a name that both texts have.
"""

import re
import unicodedata
from collections.abc import Mapping
from functools import lru_cache
from typing import Final, NamedTuple

from embeddings.verify.guards.numbers import UNITS
from embeddings.verify.guards.reader import FUNCTION, LONGEST, NUMBER_WORDS, Kind, Reading, Token
from embeddings.verify.guards.reader import words_of as _words


class Names(NamedTuple):
    """Names of a text, in lower case.

    `acronyms`: those in capitals only. `keys`: of all words, see `_key`. `initials`: of all words.
    `days`: days of the week and months. `labels`: letters that stand alone and are no words, with
    the next word. `of`: what they are labels of, "gate" and the like. `beside`: the letters, labels
    or not, that stand beside such a word.
    """

    names: frozenset[str]
    acronyms: frozenset[str]
    keys: frozenset[str]
    initials: str
    days: frozenset[str]
    labels: frozenset[tuple[str, str]]
    of: frozenset[str]
    beside: Mapping[str, set[str]]


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
_ALIASES: Final = {
    name: entry.split()[0]
    for entry in """
    usa us america american states; uk britain british brit brits kingdom england english gb; eu
    europe european; uae emirates; nyc york; la angeles; sf francisco; dc washington; germany german
    deutschland; france french; spain spanish spaniards; islam muslim; netherlands dutch holland;
    greece greek; denmark danish danes; turkey turkish; poland polish; sweden swedish; ireland
    irish; wales welsh; switzerland swiss; ussr soviet russia russian; js javascript; k8s
    kubernetes; postgres postgresql; tv television; war wwi wwii ww1 ww2; norway norwegian; mum mom;
    scotland scottish; czechia czech; py python; facebook fb; whatsapp wa; instagram ig insta;
    youtube yt; windows win; google gmail
    """.split(";")  # noqa: SIM905
    for name in entry.split()
}
# The longest first.
_ENDINGS: Final = re.compile(
    "(?<=...)(?:ians|ian|eans|ean|enes|ans|an|ese|ish|isms|ism|ias|ia|as|ic|um|land|db|ers"
    "|er|es|n|s|e|a|y|i|o)$"
)
_TITLES: Final = _words(
    "mr mrs ms dr sir captain president professor lady lord king queen princess"
)
_NO_NAMES: Final = FUNCTION | UNITS.keys() | _DAYS.keys() | _TITLES
# Of two words that differ in this alone each is another substance, part or person.
_AFFIXES: Final = tuple(
    re.compile(affixes)
    for affixes in (
        "(?:ate|ite|ide)$", "(?:ase|ose)$", "(?:or|ee)$", "(?:phagia|phasia)$",
        "^(?:hyper|hypo)", "^(?:inter|intra)", "^(?:macro|micro)", "^(?:perin|peron)",
    )
)  # fmt: skip
_LABELLED: Final = _words(
    """
    gate plan class type vitamin hepatitis influenza flu section appendix form seat kiosk terminal
    team group serie grade level bus room zone exit platform visa option pressing
    exhibit hall variant category tier model version size division league
    """
)
_DETERMINERS: Final = _words("the a an my your his our their its")
_MUSICAL: Final = frozenset({"major", "minor", "flat", "sharp"})
_VERBS: Final = _words("plan form seat group grade level exit size")
_BEFORE_VERBS: Final = _words("to please not i you we they") | {""}
_BEHIND: Final = frozenset({"", "#", "of", "in", "at", "to", "for", "on"})
_CONTRACTED: Final = {
    "m": _words("i"),
    "d": _words("i you he she we they"),
    "s": _words("what how where who when it he she there let that"),
    "u": _words("can could would will do did are should have r if thank"),
}
_UNIT_BESIDE: Final = NUMBER_WORDS | _words("# / \u00b0 ^ degree degrees")
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
    labels: list[tuple[str, str]] = []
    of: set[str] = set()
    beside: dict[str, set[str]] = {}
    for place, token in enumerate(text.tokens):
        if len(token.text) == 1 and token.kind is Kind.WORD:
            doer, last, after = _beside(text.tokens, place)
            if _is_label(token, doer, last, after):
                labels.append((token.text, after))
                of |= {last} & _LABELLED
            for word in ({last} & _LABELLED) | ({after} & _MUSICAL):
                beside.setdefault(word, set()).add(token.text)
    return Names(
        frozenset([x.text for x in named]),
        frozenset([x.text for x in text.tokens if x.acronym]),
        frozenset([_key(x[:LONGEST]) for word in text.words for x in word.lower().split()]),
        "".join([word[:1] for word in text.words if word not in {"of", "the"}]),
        frozenset(days),
        frozenset(labels),
        frozenset(of),
        beside,
    )


def differ_in_names(a: Reading, b: Reading, x: Names, y: Names, close: float) -> str | None:
    """Return "name" if the texts have different names, days or letters, "words" for near-words."""
    short = len(a.words) + len(b.words) < _SHORT
    if x.days - y.days and y.days - x.days and (short or close >= _HALF):
        return "name"
    if (x.labels or y.labels or x.beside or y.beside) and _differ_in_letters(a, b, x, y, close):
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
    return (
        "words"
        if _has_near_words(a.vocabulary - b.vocabulary, b.vocabulary - a.vocabulary)
        else None
    )


def _unaccounted(mine: Names, theirs: Names, other: Reading) -> frozenset[str]:
    """Return the names that have no counterpart in the other text."""
    missing = mine.names - other.vocabulary
    if not missing:
        return missing
    short = [word for word in theirs.acronyms if len(word) < 6 and word in mine.initials]
    return frozenset(
        name
        for name in missing
        if _key(name[:LONGEST]) not in theirs.keys
        and not (len(name) < 6 and name in theirs.initials)
        and not any(name[0] in word for word in short)
    )


@lru_cache(4096)
def _key(word: str) -> str:
    """Return what a name, its adjective, its people and its spellings have in common."""
    if not word.isascii():
        word = "".join(
            x for x in unicodedata.normalize("NFKD", word) if not unicodedata.combining(x)
        )
    before, _, _ = word.partition(".")
    word = before if len(before) > 2 else word
    if known := _ALIASES.get(word) or _ALIASES.get(word.removesuffix("s")):
        return known
    if ending := _ENDINGS.search(word):
        return _key(word[: ending.start()])
    # Long names are spelled in many ways.
    return word if len(word) < 7 else re.sub("[aeiouy]|(.)(?=\\1)", "", word)


def _is_part(names: frozenset[str], text: Reading, theirs: Names) -> bool:
    """Tell whether the names stand beside one that both texts have: "Ernest Hemingway"."""
    tokens = text.tokens
    return all(
        any(
            near.name and _key(near.text[:LONGEST]) in theirs.keys
            for near in (*tokens[max(place - 2, 0) : place], *tokens[place + 1 : place + 3])
        )
        for place, token in enumerate(tokens)
        if token.text in names
    )


def _has_near_words(left: frozenset[str], right: frozenset[str]) -> bool:
    """Tell whether each has one of "chlorate" and "chlorite"."""
    mine, theirs = ({x.removesuffix("s") for x in words if len(x) > 5} for words in (left, right))
    if not mine or not theirs:
        return False
    return any(
        not {f.sub("#", x) for x in mine - theirs if f.search(x)}.isdisjoint(
            f.sub("#", x) for x in theirs - mine if f.search(x)
        )
        for f in _AFFIXES
    )


def _beside(tokens: tuple[Token, ...], place: int) -> tuple[str, str, str]:
    """Return the two words before a token in its sentence and the next, "#" for no word."""
    start = place
    while start > 0 and place - start < 2 and not tokens[start].starts:
        start -= 1
    last = ["", "", *(_shown(x) for x in tokens[start:place])][-2:]
    ends = place + 1 == len(tokens) or tokens[place + 1].starts
    return last[0], last[1], "" if ends else _shown(tokens[place + 1])


def _shown(token: Token) -> str:
    return token.text if token.kind in {Kind.WORD, Kind.SYMBOL} else "#"


def _is_label(token: Token, doer: str, last: str, after: str) -> bool:
    """Tell whether a letter is a label, as in "gate d"; in doubt an "a" or "i" is none."""
    letter = token.text
    if (
        last in _UNIT_BESIDE
        or after == "^"
        or last in _CONTRACTED.get(letter, ())
        or (letter == "x" and after == "#")
    ):
        return False
    if letter == "a":
        labelled = last in _LABELLED - (_VERBS if doer in _BEFORE_VERBS else frozenset())
        return token.name or last in _DETERMINERS or not after or labelled
    if letter == "i":
        if last in _DETERMINERS or last == "does" or after in {"is", "does", "has"}:
            return True
        return last in _LABELLED and (token.name or after in _BEHIND)
    return True


def _differ_in_letters(a: Reading, b: Reading, x: Names, y: Names, close: float) -> bool:
    if not _SIGNS.isdisjoint(a.vocabulary | b.vocabulary) and close < _HALF:
        return False
    left, right = _letters_alone(x, y, b), _letters_alone(y, x, a)
    if left and right:
        return True
    # "Gate b" and "gate": there are several.
    several = x.of & b.vocabulary if left else y.of & a.vocabulary
    if (left or right) and (close >= _CLOSE or several):
        return True
    # "Serie a", "serie i".
    return any(
        x.beside[word].isdisjoint(y.beside[word]) for word in x.beside.keys() & y.beside.keys()
    )


def _letters_alone(mine: Names, theirs: Names, other: Reading) -> bool:
    """Tell whether a label is not in the other text; "e scooter" may be "escooter" there."""
    letters = {letter for letter, _ in theirs.labels}
    return any(
        letter not in letters and f"{letter}{after}" not in other.vocabulary
        for letter, after in mine.labels
    )
