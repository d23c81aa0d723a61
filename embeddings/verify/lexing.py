"""Cuts a text into pieces: quoted strings, code, numbers, words, symbols. Pure.

Nothing but white space and sentence punctuation is thrown away. Whatever the pieces do not
understand (emoji, other scripts, control characters) stays as a symbol, so that it has to be equal.
"""

import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from embeddings.verify.lexicon import CONTRACTED, CONTRACTED_ENDS, IS_AFTER


class Piece(StrEnum):
    """What a lexeme is."""

    QUOTED = "quoted"
    CODE = "code"
    NUMBER = "number"
    WORD = "word"
    SYMBOL = "symbol"


@dataclass(frozen=True, slots=True)
class Lexeme:
    """A piece of text. `text` of a word is lower case, unless `named`.

    `named`: capitalised where grammar does not ask for it, so no function word even if it looks
    like one ("US", "Will"). `starts`: first of its sentence.
    """

    text: str
    piece: Piece
    starts: bool
    named: bool


_STRAIGHTENED: Final = str.maketrans(dict.fromkeys("\u2019\u2018\u02bc\u00b4", "'"))
_PATTERN: Final = re.compile(
    r"""
      (?P<code> ```.*?``` | `[^`\n]+`
              | https?://[^\s<>"]+ | [\w.+-]+@[\w-]+(?:\.[\w-]+)+
              | (?<!\S)--?[A-Za-z][\w-]* | (?<![\w.])~?(?:/[\w.-]+)+/? | [A-Za-z]:\\[^\s]+
              | \w+(?:_\w+)+ | \w+\(\) | (?<![\w.])\.[A-Za-z]\w* | \w+(?:(?:::|->)\w+)+ )
    | (?P<quoted> "[^"\n]+" | \u201c[^\u201d\n]+\u201d | \u00ab[^\u00bb\n]+\u00bb
              | (?<![\w'])'[^'\n]+'(?![\w']) )
    | (?P<number> (?:(?<![\w.)\]])[-+])?\d+(?:[.,:/-]\d+)*(?:(?:st|nd|rd|th)\b)? )
    | (?P<word> [^\W\d_]\w*(?:'\w+)*(?:\.[^\W\d_]\w*)*(?:\+\+|\#)? )
    | (?P<end> [.?!]+(?=\s|$) | \n+ )
    | (?P<dropped> [\s,.;:?!()"'\u2026\u2013\u2014-] )
    | (?P<symbol> . )
    """,
    re.VERBOSE | re.DOTALL,
)
# In a text with any of these brackets and dashes mean something.
_FORMULA: Final = re.compile(r"[=<>*^+|{}\[\]\\~]|\d\s*[-/\u2013]\s*\d")
_FORMULA_PUNCTUATION: Final = frozenset("()-\u2013\u2014,;:")
_INDISTINCT_CASE: Final = 0.6


def lex(text: str) -> list[Lexeme]:
    """Return the pieces of `text` in order."""
    normal = unicodedata.normalize("NFC", text).translate(_STRAIGHTENED)
    return _expanded(_with_names(list(_pieces(normal))))


def _pieces(text: str) -> Iterator[Lexeme]:
    formula = _FORMULA.search(text) is not None
    starts = True
    for found in _PATTERN.finditer(text):
        group, piece = found.lastgroup or "symbol", found[0]
        if group == "end":
            starts = True
            continue
        if group == "dropped":
            if not formula or piece not in _FORMULA_PUNCTUATION:
                continue
            group = "symbol"
        if group == "quoted":
            piece = " ".join(piece[1:-1].split())
        elif group == "code":
            piece = piece.strip("`").strip()
        yield Lexeme(piece, Piece(group), starts, named=False)
        starts = False


def _with_names(lexemes: list[Lexeme]) -> list[Lexeme]:
    """Lower the words, and mark those whose capitals are no matter of grammar."""
    words = [lexeme.text for lexeme in lexemes if lexeme.piece is Piece.WORD]
    inner = [x.text for x in lexemes if x.piece is Piece.WORD and not x.starts and x.text != "I"]
    capitals = sum(word[0].isupper() for word in inner)
    shouted = len(words) > 1 and not any(char.islower() for word in words for char in word)
    titled = capitals > 3 and capitals > _INDISTINCT_CASE * len(inner)
    marked = []
    for lexeme in lexemes:
        if lexeme.piece is not Piece.WORD:
            marked.append(lexeme)
            continue
        word = lexeme.text
        acronym = len(word) > 1 and word.isupper()
        capital = word[0].isupper() and word != "I" and not word.startswith("I'")
        named = not shouted and (acronym or (capital and not titled and not lexeme.starts))
        # "World War I": after a name it is a numeral.
        if word == "I" and marked and marked[-1].named:
            named = True
        text = word if named else word.casefold()
        marked.append(Lexeme(text, lexeme.piece, lexeme.starts, named))
    return marked


def _expanded(lexemes: list[Lexeme]) -> list[Lexeme]:
    expanded: list[Lexeme] = []
    for lexeme in lexemes:
        parts = _parts(lexeme.text) if lexeme.piece is Piece.WORD else (lexeme.text,)
        for place, part in enumerate(parts):
            named = lexeme.named and place == 0
            expanded.append(Lexeme(part, lexeme.piece, lexeme.starts and place == 0, named))
    return expanded


def _parts(word: str) -> tuple[str, ...]:
    if word in CONTRACTED:
        return CONTRACTED[word]
    for end, meaning in CONTRACTED_ENDS.items():
        if word.endswith(end) and len(word) > len(end):
            return (word[: -len(end)], meaning)
    if word.endswith("'s"):
        owner = word[:-2]
        return (owner, "is") if owner in IS_AFTER else (owner,)
    return (word,)
