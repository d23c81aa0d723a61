"""What a text states, as far as the guards look: its meaningful words, numbers, strings, negations.

Nothing is judged here. Whatever does not belong to a word list stays what it is.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

from embeddings.verify.lexicon import UNITS
from embeddings.verify.lexing import Lexeme, Piece, lex
from embeddings.verify.lists.grammar import FUNCTION
from embeddings.verify.quantities import Quantity, quantity, symbol_unit
from embeddings.verify.vocabulary import PHRASES, Word, word


class Item(NamedTuple):
    """A meaningful word: `text` in lower case, `place` among all words, `named`: with a capital."""

    text: str
    word: Word
    place: int
    named: bool


class Statement(NamedTuple):
    """A text, read.

    `words`: all words in lower case; `joined`: the same between single spaces. `items`: the
    meaningful ones; `keys`: theirs. `strings`: code, quotations, addresses. `symbols`: what is
    neither word nor number, with all of a formula. `starts`: where sentences begin in `words`.
    """

    words: tuple[str, ...]
    joined: str
    items: tuple[Item, ...]
    keys: frozenset[str]
    numbers: tuple[Quantity, ...]
    strings: tuple[str, ...]
    symbols: tuple[str, ...]
    starts: tuple[int, ...]


_DECORATION: Final = frozenset("()[]{},;:-\u2013\u2014'\"\u2026\u201c\u201d\u2022*&/~")
_AFTER_NUMBER: Final = frozenset({"am", "pm"})


def state(text: str) -> Statement:
    """Read a text."""
    lexemes = lex(text)
    words: list[str] = []
    items: list[Item] = []
    numbers: list[Quantity] = []
    strings: list[str] = []
    symbols: list[str] = []
    starts: list[int] = []
    place, count = 0, len(lexemes)
    while place < count:
        lexeme = lexemes[place]
        text_, piece, begins, named = lexeme
        if begins:
            starts.append(len(words))
        if piece is Piece.WORD:
            lower = text_.casefold() if named else text_
            if not named and lower in FUNCTION and lower != "one":
                words.append(lower)
                place += 1
                continue
            found = quantity(lexemes, place)
            if found is not None:
                read, taken = found
                numbers.append(read._replace(place=len(words)))
                words.append("#")
                place += taken
                continue
            if lower in PHRASES:
                phrase = _phrase(lexemes, place)
                if phrase:
                    joined = "-".join(phrase)
                    items.append(Item(joined, word(joined), len(words), named))
                    words.append(joined)
                    place += len(phrase)
                    continue
            items.append(Item(lower, word(lower), len(words), named))
            words.append(lower)
        elif piece is Piece.NUMBER:
            found = quantity(lexemes, place)
            if found is not None:
                read, taken = found
                numbers.append(read._replace(place=len(words)))
                words.append("#")
                place += taken
                continue
            strings.append(text_)
        elif piece is Piece.SYMBOL:
            if symbol_unit(text_) is None and text_ not in _DECORATION:
                symbols.append(text_)
        else:
            strings.append(text_)
            words.append('"')
        place += 1
    return Statement(
        tuple(words),
        f" {' '.join(words)} ",
        tuple(items),
        frozenset([item.word.key for item in items]),
        tuple(numbers),
        tuple(strings),
        tuple(symbols),
        tuple(starts),
    )


def _phrase(lexemes: Sequence[Lexeme], place: int) -> tuple[str, ...] | None:
    ahead = tuple(
        x.text.casefold() for x in lexemes[place : place + 4] if x.piece is Piece.WORD
    )
    return next((x for x in PHRASES[ahead[0]] if x == ahead[: len(x)]), None)
