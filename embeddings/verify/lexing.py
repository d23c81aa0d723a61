"""Cuts a text into pieces: quoted strings, code, numbers, words, symbols. Pure.

Nothing but white space and sentence punctuation is thrown away. Whatever the pieces do not
understand (emoji, other scripts, control characters) stays as a symbol, so that it has to be equal.
"""

import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from enum import StrEnum
from functools import lru_cache
from typing import Final, NamedTuple

from embeddings.verify.letters import AMBIGUOUS, is_label
from embeddings.verify.lexicon import CONTRACTED, CONTRACTED_ENDS, IS_AFTER

# A question is compared with several others, so what was read last is kept. Long texts are not,
# for they would take megabytes.
RECENT: Final = 16
SHORT: Final = 500


class Piece(StrEnum):
    """What a lexeme is."""

    QUOTED = "quoted"
    CODE = "code"
    NUMBER = "number"
    WORD = "word"
    SYMBOL = "symbol"


class Lexeme(NamedTuple):
    """A piece of text. `text` of a word is lower case, unless `named`.

    `named`: capitalised where grammar does not ask for it, or a letter that is a label, so no
    function word even if it looks like one ("US", "Will", "gate a"). `starts`: first of its
    sentence.
    """

    text: str
    piece: Piece
    starts: bool
    named: bool


class _Cut(NamedTuple):
    """A piece before its place in the text is known.

    `lexemes` as they are inside a sentence and without a name, `word` as written ("" for all other
    pieces), `ends`: a sentence ends after it.
    """

    lexemes: tuple[Lexeme, ...]
    word: str
    ends: bool


_STRAIGHTENED: Final = str.maketrans(dict.fromkeys("\u2019\u2018\u02bc\u00b4", "'"))
_PATTERN: Final = re.compile(
    r"""
      (?P<code> ```.*?``` | `[^`\n]+`
              | https?://[^\s<>"]+ | [\w.+-]{1,64}@[\w-]+(?:\.[\w-]+)+
              | (?<!\S)--?[A-Za-z][\w-]* | (?<![\w.])~?(?:/[\w.-]+)+/? | [A-Za-z]:\\[^\s]+
              | \w+(?:_\w+)+ | \w+\(\) | (?<![\w.])\.[A-Za-z]\w* | \w+(?:(?:::|->)\w+)+ )
    | (?P<quoted> "[^"\n]+" | \u201c[^\u201c\u201d\n]+\u201d | \u00ab[^\u00ab\u00bb\n]+\u00bb
              | (?<![\w'])'[^'\n]+'(?![\w']) )
    | (?P<number> (?:(?<![\w.)\]])[-+])?(?:\d+(?:[.,:/-]\d+)*(?:(?:st|nd|rd|th)\b)?
              | (?<![\w.])\.\d+) )
    | (?P<word> [^\W\d_]\w*(?:'\w+)*(?:\.[^\W\d_]\w*)*(?:\+\+|\#)? )
    | (?P<end> [.?!]+(?=\s|$) | \n+ )
    | (?P<dropped> [\s,.;:?!()"'\u2026\u2013\u2014-] )
    | (?P<symbol> . )
    """,
    re.VERBOSE | re.DOTALL,
)
# In a text with any of these brackets and dashes mean something.
_FORMULA: Final = re.compile(
    r"[=<>*^+|{}\[\]\\~\u00b2\u00b3\u00b9\u2070-\u207f\u00d7\u00f7\u2212\u221a]"
    r"|\d\s*[-/\u2013]\s*\d|\([^()]*\d,\d|\b(?:squared|cubed|plus|minus|multiplied|divided)\b",
    re.IGNORECASE,
)
_OWNER: Final = re.compile(r"[^\W\d_]'s", re.IGNORECASE)
_OPENING, _CLOSING = frozenset("([{"), frozenset(")]}")
_FORMULA_PUNCTUATION: Final = frozenset("()-\u2013\u2014,;:")
_BEFORE_NUMBERS: Final = frozenset("$\u20ac\u00a3\u00a5\u20b9#~")
# What may reach beyond white space; a text without it is the sum of its chunks.
_SPANNING: Final = re.compile(r"""[`"\u201c\u00ab\n]|(?<![\w'])'""")
_INDISTINCT_CASE: Final = 0.6
# Chunks recur, and to cut one costs more than the rest. Longer ones would cost memory.
_REMEMBERED: Final = 4096
_LONGEST_REMEMBERED: Final = 24


def is_formula(text: str) -> bool:
    """Tell whether brackets and dashes mean something in a text."""
    return _FORMULA.search(text) is not None


def lex(text: str, *, formula: bool = False) -> list[Lexeme]:
    """Return the pieces of `text` in order, its brackets and dashes if it is or is said a formula.

    Nothing is rewritten: what has two ways of writing has two here, in code and names, too.
    """
    if not text.isascii():
        text = unicodedata.normalize("NFC", text).translate(_STRAIGHTENED)
    formula = formula or is_formula(text)
    if formula or _SPANNING.search(text):
        cuts: Iterable[_Cut] = _cut(text, formula=formula)
    else:
        cuts = [cut for chunk in text.split() for cut in _chunk(chunk)]
    if text.islower():
        return _labelled(_marked(cuts))
    cuts = list(cuts)
    words = [cut.word for cut in cuts if cut.word]
    return _labelled(_named(cuts, shouted=len(words) > 1 and "".join(words).isupper()))


def _chunk(chunk: str) -> Sequence[_Cut]:
    if len(chunk) <= _LONGEST_REMEMBERED:
        return _remembered(chunk)
    return _cut(chunk, formula=False)


@lru_cache(_REMEMBERED)
def _remembered(chunk: str) -> Sequence[_Cut]:
    return _cut(chunk, formula=False)


def _cut(text: str, *, formula: bool) -> Sequence[_Cut]:
    cuts: list[_Cut] = []
    for group, piece in _pieces(text, formula=formula):
        if group == "end":
            # Without a piece before it there is no sentence to end.
            if cuts:
                cuts[-1] = cuts[-1]._replace(ends=True)
            else:
                cuts.append(_Cut((), "", ends=True))
            continue
        parts = _parts(piece.casefold()) if group == "word" else (piece,)
        lexemes = tuple(Lexeme(part, Piece(group), starts=False, named=False) for part in parts)
        if group == "word" and _OWNER.fullmatch(piece):
            # "Team a's score": it owns something, so it is no article.
            lexemes = (Lexeme(piece[0].upper(), Piece.WORD, starts=False, named=True),)
        cuts.append(_Cut(lexemes, piece if group == "word" else "", ends=False))
    return tuple(cuts)


def _pieces(text: str, *, formula: bool) -> Iterator[tuple[str, str]]:
    depth = 0
    for found in _PATTERN.finditer(text):
        group, piece = found.lastgroup or "symbol", found[0]
        if formula:
            depth = max(depth + (piece in _OPENING) - (piece in _CLOSING), 0)
        if group == "dropped":
            if not formula or piece not in _FORMULA_PUNCTUATION:
                continue
            group = "symbol"
        elif group == "number" and depth:
            # "gcd(100,200)": no thousands.
            piece = piece.replace(",", ", ")
        elif group == "quoted":
            piece = " ".join(piece[1:-1].split())
        elif group == "code":
            piece = piece.strip("`").strip()
        yield group, piece


def _marked(cuts: Iterable[_Cut]) -> list[Lexeme]:
    """Mark where sentences start, in a text without capitals."""
    marked: list[Lexeme] = []
    starts = True
    for lexemes, _, ends in cuts:
        if starts and lexemes:
            marked.append(lexemes[0]._replace(starts=True))
            marked.extend(lexemes[1:])
            starts = ends
        else:
            marked.extend(lexemes)
            starts = starts or ends
    return marked


def _named(cuts: Sequence[_Cut], *, shouted: bool) -> list[Lexeme]:
    """Mark where sentences start, and the words whose capitals are no matter of grammar."""
    titled = not shouted and _is_titled(cuts)
    marked: list[Lexeme] = []
    starts, after_name = True, False
    for lexemes, word, ends in cuts:
        if not lexemes:
            starts = True
            continue
        first = lexemes[0]
        named = (
            not (shouted or word.islower())
            and word != ""
            and _is_named(word, starts=starts or titled, after_name=after_name)
        )
        if named:
            text = word[: len(first.text)]
            marked.append(Lexeme(text, Piece.WORD, starts, named=True))
        else:
            marked.append(first._replace(starts=True) if starts else first)
        if len(lexemes) > 1:
            marked.extend(lexemes[1:])
        after_name = named
        starts = ends
    return marked


def _labelled(lexemes: list[Lexeme]) -> list[Lexeme]:
    """Mark the letters that are labels, as if they were capitals."""
    before: list[str] = []
    for place, lexeme in enumerate(lexemes):
        if lexeme.starts:
            before = []
        text = lexeme.text
        if text in AMBIGUOUS and is_label(before, text, _after(lexemes, place)):
            lexemes[place] = lexeme._replace(text=text.upper(), named=True)
        before.append(text.casefold())
    return lexemes


def _after(lexemes: Sequence[Lexeme], place: int) -> str:
    """Return the next word of the same sentence, see `is_label`."""
    if place + 1 == len(lexemes) or lexemes[place + 1].starts:
        return ""
    text, piece, _, _ = lexemes[place + 1]
    if piece is Piece.SYMBOL and text not in _BEFORE_NUMBERS:
        return ""
    return text if piece is Piece.WORD else "#"


def _is_titled(cuts: Sequence[_Cut]) -> bool:
    """Tell whether most words have a capital, beside those that start a sentence."""
    if sum(not cut.word.islower() for cut in cuts if cut.word) < 4:
        return False
    inner, capitals, starts = 0, 0, True
    for lexemes, word, ends in cuts:
        if word and not starts and word != "I":
            inner += 1
            capitals += word[0].isupper()
        starts = ends or not lexemes
    return capitals > 3 and capitals > _INDISTINCT_CASE * inner


def _is_named(word: str, *, starts: bool, after_name: bool) -> bool:
    if word == "I":
        # "World War I": after a name it is a numeral.
        return after_name
    if len(word) > 1 and word.isupper():
        return True
    return word[:1].isupper() and not starts and not word.startswith("I'")


def _parts(word: str) -> tuple[str, ...]:
    if word in CONTRACTED:
        return CONTRACTED[word]
    for end, meaning in CONTRACTED_ENDS.items():
        if word.endswith(end) and len(word) > len(end):
            return (word[: -len(end)], meaning)
    if word.endswith("'s") and len(word) > 3:
        owner = word[:-2]
        return (owner, "is") if owner in IS_AFTER else (owner,)
    return (word,)
