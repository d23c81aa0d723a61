"""Pairs drawn from frames: same and different, families evenly, no pair twice."""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import Final

from tools.verifier.templates import transforms
from tools.verifier.templates.frames import (
    Filling,
    Frame,
    Meaning,
    another,
    filled,
    frames,
    render,
    slots_of,
)
from tools.verifier.templates.lexicon import Word, words

SHARE_SAME: Final = 0.45
_NOISY: Final = 0.3
"""How often a text is written carelessly or wrapped in politeness, in both labels alike."""
_TOGETHER: Final = 0.15
"""How often both texts begin with the same sentences that do not matter."""

Texts = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Pair:
    """Two questions, and whether one answer is fully right for both."""

    a: str
    b: str
    same: bool
    family: str


def _overlap(one: str, other: str) -> float:
    words, others = set(one.casefold().split()), set(other.casefold().split())
    return len(words & others) / len(words | others)


def _two(
    ones: Sequence[str], others: Sequence[str], rng: Random, *, close: bool, tries: int = 4
) -> Texts | None:
    """Choose two different phrasings, rather alike or rather unlike in their words."""
    drawn = [(rng.choice(ones), rng.choice(others)) for _ in range(tries)]
    different = [pair for pair in drawn if pair[0] != pair[1]]
    if not different:
        return None
    choose: Callable[..., Texts] = max if close else min
    return choose(different, key=lambda pair: _overlap(*pair))


def _same(frame: Frame, rng: Random) -> Texts | None:
    filling = filled(frame, rng)
    several = [meaning for meaning in frame.meanings if len(meaning) > 1]
    if not several or rng.random() < 0.12:
        meaning = rng.choice(frame.meanings)
        phrasing = rng.choice(meaning)
        other = _varied(frame, filling, rng, meaning)
        first = render(phrasing, filling, rng)
        second = render(phrasing, other, rng)
        return first, second if second != first else transforms.reworded(second, rng)
    meaning = rng.choice(several)
    chosen = _two(meaning, meaning, rng, close=rng.random() < 0.45)
    if chosen is None:
        return None
    other = _varied(frame, filling, rng, meaning)
    return render(chosen[0], filling, rng), render(chosen[1], other, rng)


def _varied(frame: Frame, filling: Filling, rng: Random, meaning: Meaning | None = None) -> Filling:
    """Change what does not matter; of a meaning, also what matters only to others."""
    other = dict(filling)
    for name in sorted(frame.free):
        if rng.random() < 0.7:
            other[name] = another(frame.kinds[name], filling.values(), rng)
    for one, two in frame.sym + (frame.swap if meaning in frame.symmetric else ()):
        if rng.random() < 0.5:
            other[one], other[two] = other[two], other[one]
    return other


def _different(frame: Frame, rng: Random) -> Texts | None:
    ways: list[Callable[[Frame, Random], Texts | None]] = []
    if len(frame.meanings) > 1:
        ways += [_other_meaning] * 5
    if frame.mutable:
        ways += [_other_word] * 2
    if frame.swap:
        ways += [_swapped] * 3
    return rng.choice(ways)(frame, rng) if ways else None


def _other_meaning(frame: Frame, rng: Random) -> Texts | None:
    first, second = rng.sample(frame.meanings, 2)
    chosen = _two(first, second, rng, close=rng.random() < 0.8, tries=6)
    if chosen is None:
        return None
    filling = filled(frame, rng)
    other = _varied(frame, filling, rng)
    return render(chosen[0], filling, rng), render(chosen[1], other, rng)


def _phrasings(meaning: Meaning, rng: Random) -> Texts:
    if rng.random() < 0.45:
        return (rng.choice(meaning),) * 2
    return rng.choice(meaning), rng.choice(meaning)


def _other_word(frame: Frame, rng: Random) -> Texts | None:
    one, two = _phrasings(rng.choice(frame.meanings), rng)
    told = sorted(slots_of(one) & slots_of(two) & frame.mutable)
    if not told:
        return None
    name = rng.choice(told)
    filling = filled(frame, rng)
    kind, word = frame.kinds[name], filling[name]
    drawn = [another(kind, filling.values(), rng, word) for _ in range(3)]
    nearest = max(drawn, key=lambda other: _likeness(other, word))
    other = {**_varied(frame, filling, rng), name: rng.choice((nearest, drawn[0]))}
    return render(one, filling, rng), render(two, other, rng)


def _likeness(word: Word, other: Word) -> int:
    parts, others = (set(re.findall(r"\w+", form.forms[0])) for form in (word, other))
    return len(parts & others)


def _swapped(frame: Frame, rng: Random) -> Texts | None:
    meaning = rng.choice(frame.meanings)
    if meaning in frame.symmetric:
        return None
    one, two = _phrasings(meaning, rng)
    names = rng.choice(frame.swap)
    if not all(set(names) <= slots_of(phrasing) for phrasing in (one, two)):
        return None
    filling = filled(frame, rng)
    first, second = names
    other = {**filling, first: filling[second], second: filling[first]}
    return render(one, filling, rng), render(two, other, rng)


def _any_text(rng: Random) -> str:
    frame = rng.choice(frames()[rng.choice(sorted(frames()))])
    return render(rng.choice(rng.choice(frame.meanings)), filled(frame, rng), rng)


def _phrasings_of(frame: Frame) -> set[str]:
    return {phrasing for meaning in frame.meanings for phrasing in meaning}


def _unrelated(rng: Random, *, same: bool) -> Texts | None:
    text = _any_text(rng)
    if same:
        return text, text if rng.random() < 0.1 else transforms.reworded(text, rng)
    family = frames()[rng.choice(sorted(frames()))]
    frame, other = rng.choice(family), rng.choice(family)
    if frame is other or _phrasings_of(frame) & _phrasings_of(other):
        return None
    filling = filled(frame, rng)
    by_kind = {kind: filling[name] for name, kind in frame.kinds.items()}
    shared = {
        name: by_kind.get(kind, word)
        for (name, word), kind in zip(filled(other, rng).items(), other.kinds.values(), strict=True)
    }
    one = render(rng.choice(rng.choice(frame.meanings)), filling, rng)
    two = render(rng.choice(rng.choice(other.meanings)), shared, rng)
    # A rewording is rarely much longer: a great difference of length would tell the label.
    far = abs(len(one.split()) - len(two.split())) > rng.choice((0, 0, 1, 3, 9))
    return None if far else (one, two)


def _edited(rng: Random, *, same: bool) -> Texts | None:
    text = _any_text(rng)
    if same:
        return text, transforms.reworded(text, rng)
    changed = transforms.altered(text, rng)
    return None if changed is None else (text, changed.text)


_WHOLE: Final = {"unrelated": _unrelated, "edited": _edited}
"""Families that no frames stand behind."""


def families() -> tuple[str, ...]:
    """Name all families."""
    return (*sorted(frames()), *sorted(_WHOLE))


def _draw(family: str, rng: Random, *, same: bool) -> Pair | None:
    if family in _WHOLE:
        texts = _WHOLE[family](rng, same=same)
    else:
        frame = rng.choice(frames()[family])
        texts = _same(frame, rng) if same else _different(frame, rng)
    if texts is None:
        return None
    a, b = texts
    if rng.random() < 0.5:
        a, b = b, a
    if rng.random() < _TOGETHER:
        told = " ".join(
            word.forms[0] for word in rng.sample(words("backgrounds"), rng.choice((1, 1, 2, 3)))
        )
        a, b = f"{told} {a}", f"{told} {b}"
    if rng.random() < _NOISY:
        a = transforms.reworded(a, rng)
    if rng.random() < _NOISY:
        b = transforms.reworded(b, rng)
    if not same and a.casefold() == b.casefold():
        return None
    return Pair(a, b, same, family)


def generate(rng: Random, count: int) -> Iterator[Pair]:
    """Yield so many pairs, as many of each family; lazily, none twice."""
    seen: set[int] = set()
    named = list(families())
    made = 0
    while made < count:
        rng.shuffle(named)
        for family in named[: count - made]:
            pair = _fresh(family, rng, seen)
            if pair is not None:
                made += 1
                yield pair


def _fresh(family: str, rng: Random, seen: set[int]) -> Pair | None:
    """Draw until a pair is new; a family that has hardly any left is passed by for this round."""
    same = rng.random() < SHARE_SAME
    for _ in range(50):
        pair = _draw(family, rng, same=same)
        if pair is None:
            continue
        key = hash(frozenset((pair.a.casefold(), pair.b.casefold())))
        if key not in seen:
            seen.add(key)
            return pair
    return None
