"""Who does what to whom, from where to where, what before what. Pure.

Nothing is parsed. Where all words around a shared word changed sides ("did the dog bite John", "did
John bite the dog"), roles were exchanged, unless something else turned the sentence round as well:
passive for active, an opposed word ("before", "after"), or a relation that holds both ways.
"""

from collections.abc import Sequence
from typing import Final

from embeddings.verify.differences import Difference, reverses
from embeddings.verify.lists import words
from embeddings.verify.lists.grammar import FUNCTION
from embeddings.verify.lists.inflections import IRREGULAR
from embeddings.verify.polarity import flips
from embeddings.verify.statement import Item, Statement

_CLOSE: Final = 0.75
_EQUAL: Final = 0.99
_BE: Final = words("is are was were be been being am get gets got getting")
# Relations that hold both ways, and pivots that say nothing of who is who.
MUTUAL: Final = words(
    """
    and or versus vs between same equal similar different difference differ distance marry
    married friend related relate relation compare comparison both together near twin sibling
    neighbor neighbour cousin partner spouse meet met plus times equal equivalent synonym border
    """
)
_AWAY: Final = words("from off out")
_TOWARDS: Final = words("to into onto toward towards")
_BEFORE: Final = words("before until till")
_AFTER: Final = words("after since")
_SIDES: Final = ((_AWAY, _TOWARDS), (_BEFORE, _AFTER))
_SIDED: Final = _AWAY | _TOWARDS | _BEFORE | _AFTER
_OWNERS: Final = words("my your his her our their")
_SKIPPED: Final = words("the a an my your his her their our its this that any some")
_FREE: Final = _SKIPPED | words("i me we us you it is are was were do does did")
_PERSON: Final = {"i": "i", "me": "i", "we": "i", "us": "i", "you": "you"}
_PEOPLE: Final = frozenset(_PERSON.values())
_PIVOTS: Final = words(
    "than to from by for with without of in on after before over into at about against"
)


def check_roles(a: Statement, b: Statement, apart: Difference) -> str | None:
    """Refuse exchanged roles."""
    if apart.closeness < _CLOSE:
        return None
    turned = _turned(a, b)
    if turned % 2:
        passes = flips(apart) % 2 or (turned == 1 and reverses(a, b, apart))
        return None if passes else "relation"
    if turned and flips(apart) % 2 == 0 and not _both_far(a, b):
        return "roles"
    if _owners_exchanged(a, b):
        return "roles"
    if not (_exchanged(a, b, apart) or _people_exchanged(a, b, apart)):
        return None
    return None if flips(apart) % 2 or mutual(a) or mutual(b) else "roles"


def _owners_exchanged(a: Statement, b: Statement) -> bool:
    """Tell whether "my" and "my neighbour's" changed places: "my tree, my neighbour's fence"."""
    if a.vocabulary.isdisjoint(_OWNERS) or b.vocabulary.isdisjoint(_OWNERS):
        return False
    left, right = _owners(a), _owners(b)
    exchanged = {(left[x], right[x]) for x in left.keys() & right.keys() if left[x] != right[x]}
    return any((y, x) in exchanged and x in _OWNERS and y in a.keys for x, y in exchanged)


def _owners(text: Statement) -> dict[str, str]:
    """Return what stands before each meaningful word: a pronoun, or another such word."""
    keys = {item.place: item.word.key for item in text.items}
    return {
        key: before
        for place, key in keys.items()
        if place and (before := keys.get(place - 1, text.words[place - 1]))
    }


def mutual(text: Statement) -> bool:
    """Tell whether a relation that holds both ways is spoken of."""
    return any(item.word.key in MUTUAL or item.text in MUTUAL for item in text.items) or (
        not MUTUAL.isdisjoint(text.vocabulary)
    )


def _both_far(a: Statement, b: Statement) -> bool:
    """Tell whether both ask for a distance, which is the same both ways."""
    return "distance" in a.vocabulary and "distance" in b.vocabulary


def _turned(a: Statement, b: Statement) -> int:
    """Count the things that one text goes from and the other goes to."""
    if a.vocabulary.isdisjoint(_SIDED) or b.vocabulary.isdisjoint(_SIDED):
        return 0
    left, right = _directions(a), _directions(b)
    return sum(
        any(
            (left[key] in x and right[key] in y) or (left[key] in y and right[key] in x)
            for x, y in _SIDES
        )
        for key in left.keys() & right.keys()
    )


def _directions(text: Statement) -> dict[str, str]:
    """Return the preposition before each meaningful word."""
    found = {}
    for item in text.items:
        place = item.place - 1
        while place >= 0 and text.words[place] in _SKIPPED:
            place -= 1
        if place >= 0:
            found[item.word.key] = text.words[place]
    return found


def _exchanged(a: Statement, b: Statement, apart: Difference) -> bool:
    """Tell whether around some shared word all that stood left now stands right."""
    order_a = [item for item in a.items if item.word.key in apart.shared]
    order_b = [item for item in b.items if item.word.key in apart.shared]
    if not 2 <= len(order_a) == len(order_b) <= 12:
        return False
    keys_a, keys_b = [x.word.key for x in order_a], [x.word.key for x in order_b]
    if apart.closeness < _EQUAL:
        return False
    if keys_a == keys_b:
        return _other_voice(a, b, order_a, order_b)
    if _frame(a) != _frame(b):
        return False
    apart_at = [place for place, (x, y) in enumerate(zip(keys_a, keys_b, strict=True)) if x != y]
    if len(apart_at) == 2 and sorted(keys_a) == sorted(keys_b):
        return not _listed(a, order_a[apart_at[0]], order_a[apart_at[1]])
    if len(set(keys_a)) < len(keys_a) or len(set(keys_b)) < len(keys_b):
        return False
    for x in order_a[1:-1]:
        y = order_b[keys_b.index(x.word.key)]
        if _sides(keys_a, x.word.key) == _sides(keys_b, y.word.key)[::-1]:
            return passive(a, x) == passive(b, y)
    if len(keys_a) == 2 and keys_a == keys_b[::-1]:
        return _linked(a, order_a) is not None and _linked(a, order_a) == _linked(b, order_b)
    return False


def _other_voice(
    a: Statement, b: Statement, order_a: Sequence[Item], order_b: Sequence[Item]
) -> bool:
    """Tell whether what one text does is done to it in the other, in the same order of words."""
    turned = [passive(a, x) != passive(b, y) for x, y in zip(order_a, order_b, strict=True)]
    if "by" in a.vocabulary or "by" in b.vocabulary:
        return any(turned[1:-1])
    people = [[_PERSON[word] for word in text.words if word in _PERSON] for text in (a, b)]
    return people[0] == people[1] != [] and any(turned)


def _people_exchanged(a: Statement, b: Statement, apart: Difference) -> bool:
    """Tell whether "I" or "you" changed places with another: "can my ex stop me"."""
    if apart.closeness < _EQUAL or "by" in a.vocabulary or "by" in b.vocabulary:
        return False
    left, right = _with_people(a, apart), _with_people(b, apart)
    if len(left) != len(right) or sorted(left) != sorted(right):
        return False
    other = [(x, y) for x, y in zip(left, right, strict=True) if x != y]
    return len(other) == 2 and not _PEOPLE.isdisjoint(other[0]) and _frame(a) == _frame(b)


def _with_people(text: Statement, apart: Difference) -> list[str]:
    at = {item.place: item.word.key for item in text.items if item.word.key in apart.shared}
    people = ((place, _PERSON.get(word)) for place, word in enumerate(text.words))
    return [key for place, person in people if (key := person or at.get(place))]


def _listed(text: Statement, first: Item, second: Item) -> bool:
    """Tell whether the two stand in a list, where order says nothing."""
    between = text.words[first.place + 1 : second.place]
    return len(between) < 4 and not {"and", "or", "vs", "versus"}.isdisjoint(between)


def _frame(text: Statement) -> list[str]:
    """Return the words that hold the sentence together: the same where only roles differ."""
    return sorted(word for word in text.words if word in FUNCTION and word not in _FREE)


def _sides(keys: Sequence[str], pivot: str) -> tuple[frozenset[str], frozenset[str]]:
    place = keys.index(pivot)
    return frozenset(keys[:place]), frozenset(keys[place + 1 :])


def _linked(text: Statement, order: Sequence[Item]) -> str | None:
    """Return the one word between two meaningful words that says how they hang together."""
    between = text.words[order[0].place + 1 : order[-1].place]
    links = [word for word in between if word in _PIVOTS]
    return links[0] if len(links) == 1 else None


def passive(text: Statement, item: Item) -> bool:
    """Tell whether the word is a participle: "by" behind it, or a form of to be before it."""
    before = text.words[max(item.place - 2, 0) : item.place]
    if "by" in text.words[item.place + 1 : item.place + 3]:
        return True
    return not _BE.isdisjoint(before) and _is_participle(item)


def _is_participle(item: Item) -> bool:
    return item.text.endswith(("ed", "en")) or (
        item.text in IRREGULAR and item.text != IRREGULAR[item.text]
    )
