"""Two parts of a question that change places: "Did A beat B?", "Did B beat A?"."""

from collections.abc import Container, Mapping, Sequence
from typing import Final

from embeddings.verify.guards.rare_words import is_rare
from embeddings.verify.guards.reader import (
    FUNCTION,
    NUMBER_WORDS,
    Kind,
    Reading,
    stem,
    words_of,
)

_LONGEST: Final = 3
"""Words of a part."""
_ARTICLES: Final = words_of("a an the")
_DETERMINERS: Final = _ARTICLES | words_of("my our your his her its their this that these those")
_ENDS: Final = {"into": "to", "onto": "to", "then": "before"} | {
    x: x for x in words_of("to for from than before after with on in by over against")
}
"""What stands behind one of these is an end of something, or what it is compared with."""
_BE: Final = words_of("is are was were be been being get gets got")
_NOT_BEFORE_PARTICIPLES: Final = FUNCTION - _BE - {"not"}
_JOINING: Final = words_of("and or plus times by with vs versus + * x nor between")
_SYMMETRIC: Final = words_of(
    """
    between distance far apart difference differ different same equal similar alike compare compared
    comparison together related meet met meets marry married multiply multiplied multiplying product
    sum add added adding total combine combined mix mixed mixing average each other both common
    """
)
"""Words that say the same of both parts, whatever their order."""


def differ_in_order(a: Reading, b: Reading, common: Container[str]) -> str | None:
    """Return "order" if two parts of one text are exchanged in the other."""
    if len(a.words) > 60:
        return None
    if _passive_swapped(a, b) or _passive_swapped(b, a):
        return "order"
    if a.vocabulary & _SYMMETRIC:
        return None
    if _ends_exchanged(a, b, common):
        return "order"
    left, right = ([x for x in text.words if x not in _ARTICLES] for text in (a, b))
    if len(left) != len(right) or left == right or sorted(left) != sorted(right):
        return None
    start = next(place for place, word in enumerate(left) if word != right[place])
    end = next(place for place, word in enumerate(left[::-1]) if word != right[-1 - place])
    left, right = left[start : len(left) - end], right[start : len(right) - end]
    return "order" if _exchanged(left, right) else None


def _passive_swapped(passive: Reading, active: Reading) -> bool:
    """Tell whether doer and object are exchanged: "Is A seen by B?", "Does A see B?"."""
    words = passive.words
    if "by" not in words or "by" in active.words or _BE.isdisjoint(words):
        return False
    place = words.index("by")
    before = [word for word in words[: max(place - 1, 0)] if word not in FUNCTION]
    after = [word for word in words[place + 1 :] if word not in FUNCTION]
    # No participle stands behind a preposition, an article or a number.
    behind = words[place - 2] if place > 1 else ""
    if not before or not after or behind.isdigit() or behind in _NOT_BEFORE_PARTICIPLES:
        return False
    # Twice: "remembered", "remember".
    verb = stem(stem(words[place - 1]))
    verbs = [x for x, word in enumerate(active.words) if stem(stem(word)) == verb]
    if not verbs or words[place - 1] in FUNCTION:
        return False
    doers = active.words[: verbs[0]], active.words[verbs[0] + 1 :]
    return before[-1] in doers[0] and after[0] in doers[1]


def _ends_exchanged(a: Reading, b: Reading, common: Container[str]) -> bool:
    """Tell whether one thing goes to another, and the other to it: "X for Y", "Y to X".

    Of rare names the order is enough.
    """
    x, y = _ends(a), _ends(b)
    both = [word for word in x if word in y]
    if any({x[word], y[word]} == {"to", "from"} for word in both):
        return True
    joined = not _JOINING.isdisjoint(a.vocabulary | b.vocabulary)
    rare = frozenset() if joined else {word for word in both if is_rare(word, common)}
    place = {word: number for number, word in enumerate(y)}
    x, y = ({word: "to" if end == "for" else end for word, end in z.items()} for z in (x, y))
    return any(
        place[other] < place[one]
        and (
            x[other] == y[one] not in {"", x[one], y[other]}
            or ({one, other} <= rare and not x[one] == y[one] != x[other] == y[other])
        )
        for number, one in enumerate(both)
        for other in both[number + 1 :]
    )


def _ends(text: Reading) -> Mapping[str, str]:
    """Return the words of content in their order, and what makes each an end, if anything."""
    found: dict[str, str] = {}
    end = last = ""
    for token in text.tokens:
        word = token.text
        if token.starts or token.apart or (word in _DETERMINERS and last not in _ENDS):
            end = ""
        if word in _ENDS:
            end = _ENDS[word]
        elif word in FUNCTION and word not in _DETERMINERS and word not in {"and", "or"}:
            end = ""
        elif token.kind is Kind.WORD and word not in FUNCTION:
            found.setdefault(word, end)
        last = word
    return found


def _exchanged(left: Sequence[str], right: Sequence[str]) -> bool:
    """Tell whether `left` is one, middle, other and `right` other, middle, one."""
    parts = range(1, min(_LONGEST, len(left) - 1) + 1)
    for one in parts:
        for other in parts:
            middle = left[one : len(left) - other]
            if (
                middle
                and not set(middle) <= _JOINING
                and left[:one] == right[len(right) - one :]
                and left[len(left) - other :] == right[:other]
                and middle == right[other : len(right) - one]
                and _says_something(left[:one])
                and _says_something(right[:other])
            ):
                return True
    return False


def _says_something(words: Sequence[str]) -> bool:
    return any(word not in FUNCTION or word in NUMBER_WORDS for word in words)
