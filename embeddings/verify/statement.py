"""What a text states, as far as the guards look: its meaningful words, numbers and strings. Pure.

Nothing is judged here. Whatever does not belong to a word list stays what it is.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Final, NamedTuple

from embeddings.verify.lexing import RECENT, SHORT, Lexeme, Piece, is_formula, lex
from embeddings.verify.lists.grammar import FUNCTION, MEASURES
from embeddings.verify.notation import plain
from embeddings.verify.quantities import OPENERS, Quantity, quantity, symbol_unit
from embeddings.verify.vocabulary import PHRASES, Word, word


class Item(NamedTuple):
    """A meaningful word: `text` in lower case, `place` among all words.

    `named`: with a capital that is no matter of grammar; `acronym`: in capitals only.
    """

    text: str
    word: Word
    place: int
    named: bool
    acronym: bool


class Statement(NamedTuple):
    """A text, read.

    `words`: all words in lower case, `#` for a number and `"` for a string; `vocabulary`: the same
    as a set; `joined`: between single spaces. `items`: the meaningful ones; `keys`: theirs.
    `strings`: code, quotations, addresses. `symbols`: what is neither word nor number. `signs`: a
    minus or a slash is among them. `formula`: if it is one, its brackets, signs and powers.
    `starts`: where sentences begin in `words`. `payload`: the text
    that is given to be worked on, quoted or behind a colon; "" for none. `lexemes`: its pieces.
    """

    words: tuple[str, ...]
    vocabulary: frozenset[str]
    joined: str
    items: tuple[Item, ...]
    keys: frozenset[str]
    numbers: tuple[Quantity, ...]
    strings: tuple[str, ...]
    symbols: tuple[str, ...]
    signs: bool
    formula: tuple[str, ...]
    starts: tuple[int, ...]
    payload: str
    lexemes: tuple[Lexeme, ...]


_DECORATION: Final = frozenset("()[]{},;:-'*&/~\"\u2013\u2014\u2026\u201c\u201d\u2022")
_SIGNS: Final = frozenset("-\u2013\u2212/\u00f7^")
_SHAPES: Final = frozenset("()[]{}-\u2013\u2212/\u00f7^")
_POWERS: Final = frozenset({"squared", "cubed"})
_NOTHING: Final[frozenset[str]] = frozenset()
_LONGEST_PHRASE: Final = max(len(phrase) for phrases in PHRASES.values() for phrase in phrases)
NUMBER: Final = "#"
STRING: Final = '"'


def state(text: str) -> Statement:
    """Read a text."""
    return _state_recent(text) if len(text) <= SHORT else _state(text)


def _state(text: str) -> Statement:
    formula = is_formula(text)
    lexemes = lex(plain(text), formula=formula)
    words: list[str] = []
    items: list[Item] = []
    numbers: list[Quantity] = []
    others: list[Lexeme] = []
    starts: list[int] = []
    place = 0
    while place < len(lexemes):
        lexeme = lexemes[place]
        written, piece, begins, named = lexeme
        if begins:
            starts.append(len(words))
        place += 1
        if piece is Piece.WORD:
            lower = written.casefold() if named else written
            if (lower in FUNCTION and not named) or (
                lower == "the" or (words and lower in MEASURES.get(words[-1], _NOTHING))
            ):
                words.append(lower)
                continue
        elif piece is not Piece.NUMBER:
            others.append(lexeme)
            if piece is not Piece.SYMBOL:
                words.append(STRING)
            continue
        counts = piece is Piece.NUMBER or lower in OPENERS or named
        if counts and (found := quantity(lexemes, place - 1)):
            numbers.append(found[0]._replace(place=len(words)))
            words.append(NUMBER)
            place += found[1] - 1
            continue
        if lower in PHRASES and (phrase := _phrase(lexemes, place - 1)):
            lower = "-".join(phrase)
            place += len(phrase) - 1
        elif named and lower == "us":
            lower = "usa"
        acronym = named and len(lower) > 1 and written.isupper()
        items.append(Item(lower, word(lower), len(words), named, acronym))
        words.append(lower)
    return Statement(
        tuple(words),
        frozenset(words),
        f" {' '.join(words)} ",
        tuple(items),
        frozenset([item.word.key for item in items]),
        tuple(numbers),
        tuple([x.text for x in others if x.piece is not Piece.SYMBOL]),
        tuple([x.text for x in others if x.piece is Piece.SYMBOL and _tells(x.text)]),
        any(x.text in _SIGNS for x in others),
        tuple([_shape(x) for x in lexemes if _shape(x)]) if formula else (),
        tuple(starts),
        _payload(text, others),
        tuple(lexemes),
    )


_state_recent = lru_cache(RECENT)(_state)


def _phrase(lexemes: Sequence[Lexeme], place: int) -> tuple[str, ...] | None:
    near = lexemes[place : place + _LONGEST_PHRASE]
    ahead = tuple([x.text.casefold() for x in near if x.piece is Piece.WORD])
    return next((x for x in PHRASES[ahead[0]] if x == ahead[: len(x)]), None)


def _payload(text: str, others: Sequence[Lexeme]) -> str:
    if not others and ": " not in text:
        return ""
    quoted = [x.text for x in others if x.piece is Piece.QUOTED]
    given = " ".join(quoted) if quoted else text.partition(": ")[2]
    return " ".join("".join(x if x.isalnum() else " " for x in given.casefold()).split())


def _tells(symbol: str) -> bool:
    return symbol not in _DECORATION and symbol_unit(symbol) is None


def _shape(lexeme: Lexeme) -> str:
    """Return a bracket, a sign, a letter, a power, or that there is a number; "" for a word."""
    text, piece = lexeme.text, lexeme.piece
    if piece is Piece.NUMBER:
        return NUMBER
    if piece is Piece.WORD:
        return text if text in _POWERS or (len(text) == 1 and text not in FUNCTION) else ""
    return text if text in _SHAPES else ""
