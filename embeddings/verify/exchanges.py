"""What exchanged places in two texts of the same words, told by the word that leads it. Pure.

Nothing is parsed. Read are the objects of small words ("after the meal"), the subject of a
question, the two sides of "is", and the unit or share asked for against the one given. Passive for
active with the roles kept is no exchange; what cannot be told is left open.
"""

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from embeddings.verify.differences import Difference
from embeddings.verify.lists import words
from embeddings.verify.lists.grammar import FUNCTION
from embeddings.verify.polarity import flips
from embeddings.verify.roles import MUTUAL, mutual, passive
from embeddings.verify.statement import NUMBER, Item, Statement

_CLOSE: Final = 0.9
_EQUAL: Final = 0.99
# The sides of longer questions are not compared: it costs the square of their length.
_MOST: Final = 12
_LEADS: Final = {
    "to": "to", "into": "to", "onto": "to", "from": "from", "off": "from", "after": "after",
    "before": "before", "for": "for", "on": "on", "of": "of", "by": "by", "base": "base",
    "instead": "instead",
}  # fmt: skip
# At the end of a sentence these may belong to its verb: "turn the light on".
_PARTICLES: Final = frozenset({"from", "on", "by", "base"})
# Holds both ways: what joins two things, how far one is from the other.
_JOINS: Final = words("connect pair link attach sync join hook plug")
# What says in a clause of its own what may be said plainly: "is it safe to", "the one that".
_CLAUSES: Final = words("it that something so")
_WH: Final = words("what which who whom whose where how when why")
_ARTICLES: Final = words("the a an my your his her our their its this that these those any some")
_PREPOSITIONS: Final = words(
    "to into onto from off after before for on of by in at with without over under per as than "
    "during since until till near through up out and or"
)
_BE: Final = words("is are was were")
_DO: Final = words("do does did can could will would")
_ASKS: Final = _DO | words("should must may")
_OWNED: Final = words("my the a an")
_PERCENT: Final = words("percent percentage")


class _Led(NamedTuple):
    """What a small word leads: `head` and the words joined to it; "" where it is stranded."""

    head: str
    run: frozenset[str]


_STRANDED: Final = _Led("", frozenset())


def check_exchanges(a: Statement, b: Statement, apart: Difference) -> str | None:
    """Refuse exchanged objects, subjects, sides of "is", units, and a share asked or given."""
    if _either(_asks_share, a, b):
        return "question"
    if _either(_unit_exchanged, a, b):
        return "roles"
    if apart.closeness < _CLOSE or flips(apart) % 2:
        return None
    if apart.closeness >= _EQUAL and _either(lambda x, y: _subject_exchanged(x, y, apart), a, b):
        return "roles"
    if mutual(a) or mutual(b):
        return None
    if _objects_exchanged(a, b) or _sides_exchanged(a, b, apart):
        return "roles"
    if _either(lambda x, y: _wh_exchanged(x, y, apart), a, b):
        return "roles"
    return None


def _either(test: Callable[[Statement, Statement], bool], a: Statement, b: Statement) -> bool:
    return test(a, b) or test(b, a)


def _asks_share(asking: Statement, giving: Statement) -> bool:
    """Tell whether one text asks for a percentage and the other for that percentage of a number."""
    return (
        _asks_percent(asking)
        and not _asks_percent(giving)
        and any(
            number.unit == "percent"
            and giving.words[number.place + 1 : number.place + 3] == ("of", NUMBER)
            for number in giving.numbers
        )
    )


def _asks_percent(text: Statement) -> bool:
    return any(
        word in _PERCENT and not {"what", "which"}.isdisjoint(text.words[max(place - 2, 0) : place])
        for place, word in enumerate(text.words)
    )


def _unit_exchanged(a: Statement, b: Statement) -> bool:
    """Tell whether the unit that `a` asks for is the one that `b` gives, the number the same."""
    wanted = _wanted(a)
    if not wanted or not (other := _wanted(b)) or wanted == other:
        return False
    (number,) = b.numbers
    unit = number.unit
    return number.value == a.numbers[0].value and (
        wanted in b.words[number.place + 1 :] or (unit is not None and wanted.startswith(unit))
    )


def _wanted(text: Statement) -> str | None:
    """Return the unit of "how many euros is 100 dollars"."""
    if text.words[:2] != ("how", "many") or len(text.numbers) != 1:
        return None
    verb = next((place for place, word in enumerate(text.words) if word in _BE), 0)
    return text.words[verb - 1] if 2 < verb < text.numbers[0].place else None


def _objects_exchanged(a: Statement, b: Statement) -> bool:
    if len(a.starts) > 1 or len(b.starts) > 1 or _joins(a) or _joins(b):
        return False
    left, right = _led(a), _led(b)
    stranding = _CLAUSES.isdisjoint(a.vocabulary | b.vocabulary)
    framed = _same_prepositions(a, b)
    return any(
        _apart(left[lead], right[lead])
        and ((left[lead].head and right[lead].head) or (stranding and lead not in _PARTICLES))
        and (framed or lead != "of")
        and _occurs(left[lead].head, b)
        and _occurs(right[lead].head, a)
        for lead in left.keys() & right.keys()
    )


def _same_prepositions(a: Statement, b: Statement) -> bool:
    return _PREPOSITIONS & a.vocabulary == _PREPOSITIONS & b.vocabulary


def _joins(text: Statement) -> bool:
    return "far" in text.vocabulary or any(item.word.key in _JOINS for item in text.items)


def _apart(x: _Led, y: _Led) -> bool:
    return x.head != y.head and x.run.isdisjoint(y.run)


def _occurs(head: str, text: Statement) -> bool:
    return not head or head in text.keys or any(head == number.value for number in text.numbers)


def _led(text: Statement) -> dict[str, _Led]:
    """Return what each small word leads that stands once and whose object can be told."""
    found: dict[str, list[_Led | None]] = {}
    keys = {item.place: item.word.key for item in text.items}
    keys |= {number.place: number.value for number in text.numbers}
    for place, word in enumerate(text.words):
        if lead := _LEADS.get(word):
            if lead == "to" and text.words[place - 1 : place] == ("how",):
                continue
            after = 2 if lead == "instead" and text.words[place + 1 : place + 2] == ("of",) else 1
            found.setdefault(lead, []).append(_object(text, keys, place + after))
    return {lead: led[0] for lead, led in found.items() if len(led) == 1 and led[0]}


def _object(text: Statement, keys: dict[int, str], place: int) -> _Led | None:
    """Return what stands from `place`, None where that cannot be told."""
    behind_of = text.words[place - 1] == "of"
    if place == len(text.words) or text.words[place] in _WH:
        return _STRANDED
    if behind_of and text.words[place] in _PREPOSITIONS:
        return _STRANDED
    while place < len(text.words) and place not in keys:
        if text.words[place] in _PREPOSITIONS or text.words[place] in _WH:
            return None
        place += 1
    if place == len(text.words):
        return None
    end = place
    while end in keys or (place < end < len(text.words) and text.words[end] in _ARTICLES):
        end += 1
    run = frozenset(keys[at] for at in range(place, end) if at in keys)
    return _Led(keys[place], run)


def _wh_exchanged(subject: Statement, other: Statement, apart: Difference) -> bool:
    """Tell "what causes insomnia" from "what can insomnia cause"."""
    first, second = _shared(subject, apart), _shared(other, apart)
    if len(first) < 2 or len(second) < 2 or len(subject.words) < 2:
        return False
    if subject.words[0] not in {"what", "which", "who"} or subject.words[1] in _BE | _DO:
        return False
    if other.words[0] not in {"what", "which", "who", "whom"} or _DO.isdisjoint(other.words[1:3]):
        return False
    verb = first[0]
    done = [item for item in second[1:] if item.word.key == verb.word.key]
    return (
        verb.place <= 2
        and second[0].word.key != verb.word.key
        and bool(done)
        and not any(passive(other, item) for item in done)
    )


def _subject_exchanged(mine: Statement, theirs: Statement, apart: Difference) -> bool:
    """Tell "do I have to fix it for my landlord" from "does my landlord have to fix it"."""
    if len(mine.words) < 3 or mine.words[0] not in _ASKS or mine.words[1] != "i":
        return False
    if len(theirs.words) < 3 or theirs.words[0] not in _ASKS or theirs.words[1] not in _OWNED:
        return False
    subject = theirs.items[0].word.key if theirs.items else ""
    both = (mine, theirs)
    others = (item for text in both for item in text.items if item.word.key != subject)
    return (
        subject in apart.shared
        and MUTUAL.isdisjoint(word for item in others for word in (item.text, item.word.key))
        and MUTUAL.isdisjoint(word for word in mine.vocabulary if word in FUNCTION)
        and not {"i", "me", "my"}.isdisjoint(theirs.words[1:])
        and not any(passive(text, item) for text in both for item in text.items)
        and mine.words[2] not in {"be", "get"}
    )


def _sides_exchanged(a: Statement, b: Statement, apart: Difference) -> bool:
    """Tell "is every integer a number" from "is every number an integer"."""
    if a.words[0] not in _BE or b.words[0] not in _BE:
        return False
    if not _CLAUSES.isdisjoint(a.vocabulary | b.vocabulary):
        return False
    if not _same_prepositions(a, b):
        return False
    if len({any(passive(text, item) for item in text.items) for text in (a, b)}) > 1:
        return False
    left, right = ([x.word.key for x in _shared(text, apart)] for text in (a, b))
    if len(left) > _MOST or left == right or sorted(left) != sorted(right):
        return False
    while left[0] == right[0]:
        left, right = left[1:], right[1:]
    while left[-1] == right[-1]:
        left, right = left[:-1], right[:-1]
    return _swapped(left, right)


def _swapped(left: Sequence[str], right: Sequence[str]) -> bool:
    """Tell whether two blocks changed places around what stayed: x Q y, y Q x."""
    size = len(left)
    return any(
        left[:first] == right[size - first :]
        and left[size - last :] == right[:last]
        and left[first : size - last] == right[last : size - first]
        for first in range(1, size)
        for last in range(1, size - first + 1)
    )


def _shared(text: Statement, apart: Difference) -> list[Item]:
    return [item for item in text.items if item.word.key in apart.shared]
