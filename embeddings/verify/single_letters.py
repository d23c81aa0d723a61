"""Do two texts name the same single letters? Pure.

Law: letters that stand alone are the same in both, or the texts ask two things. Articles, the
pronoun "I", contractions and the "u" of "can u" are no such letters. Where "a" or "i" may be one
("serie a standings") another text that has the word before it has the letter, too: as a label, or
beside the same word.
"""

from collections import Counter
from collections.abc import Container, Iterator, Sequence
from enum import Enum, auto
from itertools import takewhile
from typing import Final, NamedTuple

from embeddings.verify.letters import AMBIGUOUS, is_doubtful, is_you
from embeddings.verify.lexing import Lexeme, Piece
from embeddings.verify.lists.grammar import FUNCTION
from embeddings.verify.quantities import quantity
from embeddings.verify.statement import Statement
from embeddings.verify.stems import stem

_CONFUSED: Final = frozenset("ai")


class _Role(Enum):
    LABEL = auto()
    DOUBTFUL = auto()
    GRAMMAR = auto()


class _Letter(NamedTuple):
    """A letter, and the words beside it in its sentence."""

    text: str
    role: _Role
    before: str
    after: str


def check_letters(a: Statement, b: Statement, _: object) -> str | None:
    """Refuse a letter that only one text has."""
    return "name" if letters_differ(a.lexemes, b.lexemes) else None


def letters_differ(a: Sequence[Lexeme], b: Sequence[Lexeme]) -> bool:
    """Tell whether a letter that stands alone in one text has no counterpart in the other."""
    left, right = list(_letters(a)), list(_letters(b))
    if not left and not right:
        return False
    words_left, words_right = ({stem(_word(x)) for x in each} for each in (a, b))
    left, right = _apart(left, words_right), _apart(right, words_left)
    return any(
        _is_alone(mine, theirs, words) or _is_confused(mine, theirs)
        for mine, theirs, words in ((left, right, words_right), (right, left, words_left))
    )


def _is_alone(mine: Sequence[_Letter], theirs: Sequence[_Letter], words: Container[str]) -> bool:
    labels = Counter(x.text for x in theirs if x.role is _Role.LABEL)
    doubtful = {x.text for x in theirs if x.role is _Role.DOUBTFUL}
    surplus = Counter(x.text for x in mine if x.role is _Role.LABEL) - labels
    if not doubtful.issuperset(surplus):
        return True
    after, before = {(x.text, x.after) for x in theirs}, {(x.text, x.before) for x in theirs}
    return any(
        x.text not in labels
        and x.text not in doubtful
        and (x.text, x.after) not in after
        and (x.text, x.before) not in before
        for x in mine
        if x.role is _Role.DOUBTFUL and (not x.before or stem(x.before) in words)
    )


def _is_confused(mine: Sequence[_Letter], theirs: Sequence[_Letter]) -> bool:
    """Tell whether one has "a" where the other has "i": beside the same word."""
    left, right = set(_beside(mine)), set(_beside(theirs))
    return any(
        (other, *beside) in right and (letter, *beside) not in right
        for letter, *beside in left
        for other in _CONFUSED - {letter}
    )


def _beside(letters: Sequence[_Letter]) -> Iterator[tuple[str, str, str]]:
    for letter in letters:
        if letter.text in _CONFUSED:
            for side, word in (("before", letter.before), ("after", letter.after)):
                if word and word not in FUNCTION:
                    yield letter.text, side, word


def _apart(letters: Sequence[_Letter], words: Container[str]) -> list[_Letter]:
    """Leave out what the other text writes in one word: "e mail", "email"."""
    return [x for x in letters if not x.after or stem(x.text + x.after) not in words]


def _letters(lexemes: Sequence[Lexeme]) -> Iterator[_Letter]:
    for place, (text, piece, starts, named) in enumerate(lexemes):
        if len(text) != 1 or piece is not Piece.WORD:
            continue
        before = [] if starts else _words_before(lexemes, place)
        after = _word(lexemes[place + 1]) if _goes_on(lexemes, place) else ""
        letter, last = text.casefold(), before[-1] if before else ""
        if _is_unit(lexemes, place) or is_you(last, letter) or (letter == "x" and after == "#"):
            continue
        if named or letter not in AMBIGUOUS:
            role = _Role.LABEL
        elif is_doubtful(before, letter, after) and not _is_said_of_a_name(lexemes, place):
            role = _Role.DOUBTFUL
        else:
            role = _Role.GRAMMAR
        yield _Letter(letter, role, last, after)


def _is_said_of_a_name(lexemes: Sequence[Lexeme], place: int) -> bool:
    """Tell whether the text asks what somebody is: "Is Ann Lee a teacher"."""
    names = list(takewhile(lambda x: x.named and len(x.text) > 1, reversed(lexemes[:place])))
    asked = place - len(names) - 1
    return bool(names) and asked >= 0 and lexemes[asked].text in {"is", "was"}


def _is_unit(lexemes: Sequence[Lexeme], place: int) -> bool:
    """Tell whether it goes with the number before it, as in "1 k"; numbers are compared apart."""
    if place == 0 or lexemes[place - 1].piece is not Piece.NUMBER:
        return False
    found = quantity(lexemes, place - 1)
    return found is not None and found[1] > 1


def _words_before(lexemes: Sequence[Lexeme], place: int) -> list[str]:
    start = place - 1 if place < 2 or lexemes[place - 1].starts else place - 2
    return [_word(x) for x in lexemes[start:place]]


def _goes_on(lexemes: Sequence[Lexeme], place: int) -> bool:
    return place + 1 < len(lexemes) and not lexemes[place + 1].starts


def _word(lexeme: Lexeme) -> str:
    if lexeme.piece is Piece.WORD:
        return lexeme.text.casefold()
    return "#" if lexeme.piece is Piece.NUMBER else lexeme.text
