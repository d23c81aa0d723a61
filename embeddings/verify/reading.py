"""What a text says, as far as the agreement check looks: its frames and meaningful words, in order.

Two texts that read the same ask the same. Articles, the present tense of "to be" and polite words
are left out; spelling variants, plural endings and a few equal words are brought to one form.
Everything else stays, so that it has to be matched.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from itertools import pairwise, takewhile
from typing import Final, assert_never

from embeddings.verify.frames import frame
from embeddings.verify.lexicon import (
    COMPARISONS,
    DROPPED,
    EQUALS,
    IRREGULAR_PLURALS,
    NEGATIONS,
    NO_PLURALS,
    PAST,
    PERSONS,
    PHRASES,
    RELATIONS,
    UNITS,
)
from embeddings.verify.lexing import RECENT, SHORT, Lexeme, Piece, lex
from embeddings.verify.lists import words
from embeddings.verify.numbers import NUMBER_WORDS, digits, number_words, ordinal_word


class Kind(StrEnum):
    """What a token is; the value is the reason given when the other text lacks it."""

    CODE = "code"
    QUOTED = "quoted"
    NUMBER = "number"
    UNIT = "unit"
    NEGATION = "negation"
    QUESTION = "question"
    TENSE = "tense"
    COMPARISON = "comparison"
    PERSON = "person"
    RELATION = "relation"
    NAME = "name"
    SYMBOL = "symbol"
    WORD = "words"


@dataclass(frozen=True, slots=True)
class Token:
    """A meaningful word in its one form. `gerund`: may be the -ing form of what it stands for.

    `before`: "a", "the" or "my" if that was left out before it. `cased`: its text has capitals.
    """

    form: str
    kind: Kind
    gerund: bool = False
    before: str = ""
    cased: bool = False


_LONGEST_PHRASE: Final = max(map(len, PHRASES))
_LOOK_AHEAD: Final = 12
# Words that may open a phrase or a number; all others stand for themselves.
_OPENERS: Final = NUMBER_WORDS | {phrase[0] for phrase in PHRASES}
_TIMES_OF_DAY: Final = frozenset({"am", "pm"})
_KINDS: Final = (
    (Kind.NEGATION, NEGATIONS),
    (Kind.TENSE, PAST),
    (Kind.COMPARISON, COMPARISONS),
    (Kind.RELATION, RELATIONS),
    (Kind.PERSON, PERSONS.keys()),
    (Kind.QUESTION, frozenset({"how", "what", "which", "who", "whose", "where", "why"})),
)
_BEFORE: Final = {"a": "a", "an": "a", "the": "the", "my": "my", "our": "my"}
# What "to" belongs with the word before it for, if it stands in front of it: "talk to about".
_AFTER_TO: Final = RELATIONS | words(
    "today now tomorrow yesterday here there first directly anymore again instead tonight"
)
_FUNCTION_WORDS: Final = (
    DROPPED | NEGATIONS | RELATIONS | COMPARISONS | PAST | PERSONS.keys() | {"will", "can", "may"}
)


def read(text: str) -> tuple[Token, ...]:
    """Return the tokens of a text in order."""
    return _read_recent(text) if len(text) <= SHORT else _read_text(text)


def _read_text(text: str) -> tuple[Token, ...]:
    cased = text != text.lower()
    sentences = _sentences(lex(text))
    return tuple([token for sentence in sentences for token in _read(sentence, cased=cased)])


_read_recent = lru_cache(RECENT)(_read_text)


def _sentences(lexemes: Sequence[Lexeme]) -> Iterator[Sequence[Lexeme]]:
    starts = [place for place, lexeme in enumerate(lexemes) if lexeme.starts]
    for start, end in pairwise([*starts, len(lexemes)]):
        yield lexemes[start:end]


def _read(sentence: Sequence[Lexeme], *, cased: bool) -> Iterator[Token]:
    asked = frame(" ".join(x.text if x.piece is Piece.WORD else "#" for x in sentence))
    if asked.question is not None:
        yield Token(f"{asked.question}?", Kind.QUESTION, cased=cased)
    place, after_number, gerund, before = asked.words, False, asked.gerund, ""
    while place < len(sentence):
        lexeme = sentence[place]
        token, taken = _next(sentence, place, after_number=after_number)
        place += taken
        after_number = token is not None and token.kind is Kind.NUMBER
        if _is_left_out(lexeme, token, mine=asked.mine and place < len(sentence)):
            before = _BEFORE[lexeme.text]
        elif token is not None:
            yield Token(token.form, token.kind, gerund, before, cased)
            gerund, before = False, ""


def _is_left_out(lexeme: Lexeme, token: Token | None, *, mine: bool) -> bool:
    """Tell whether a word only says which one the next word means."""
    if lexeme.piece is not Piece.WORD or lexeme.named or lexeme.text not in _BEFORE:
        return False
    return token is None or (mine and token.kind is Kind.PERSON)


def _next(
    sentence: Sequence[Lexeme], place: int, *, after_number: bool
) -> tuple[Token | None, int]:
    """Return the next token, None for a word without meaning, and how many lexemes it took."""
    lexeme = sentence[place]
    match lexeme.piece:
        case Piece.CODE:
            return Token(f"`{lexeme.text}`", Kind.CODE), 1
        case Piece.QUOTED:
            return Token(f'"{lexeme.text}"', Kind.QUOTED), 1
        case Piece.NUMBER:
            return Token(digits(lexeme.text), Kind.NUMBER), 1
        case Piece.SYMBOL:
            form = UNITS.get(lexeme.text)
            return (Token(form, Kind.UNIT) if form else Token(lexeme.text, Kind.SYMBOL)), 1
        case Piece.WORD if lexeme.named:
            return _name(lexeme.text), 1
        case Piece.WORD if lexeme.text == "to" and _ends_verb(sentence, place):
            return Token("to", Kind.RELATION), 1
        case Piece.WORD if lexeme.text not in _OPENERS and not after_number:
            return _word(lexeme.text), 1
        case Piece.WORD:
            ahead = takewhile(_is_plain, sentence[place : place + _LOOK_AHEAD])
            return _words([x.text for x in ahead], after_number=after_number)
        case _:
            assert_never(lexeme.piece)


def _ends_verb(sentence: Sequence[Lexeme], place: int) -> bool:
    """Tell whether nothing follows that "to" could go with: "who do I report to at work"."""
    if place + 1 == len(sentence):
        return True
    following = sentence[place + 1]
    return _is_plain(following) and following.text in _AFTER_TO


def _is_plain(lexeme: Lexeme) -> bool:
    return lexeme.piece is Piece.WORD and not lexeme.named


def _name(written: str) -> Token:
    folded = written.casefold()
    # "US", "WHO", "Will": as names they are not the words they look like.
    form = written if folded in _FUNCTION_WORDS else _one_form(folded)
    return Token(form, Kind.NAME)


def _words(ahead: Sequence[str], *, after_number: bool) -> tuple[Token | None, int]:
    for length in range(min(_LONGEST_PHRASE, len(ahead)), 1, -1):
        phrase = PHRASES.get(tuple(ahead[:length]))
        if phrase is not None:
            return _word(phrase), length
    word = ahead[0]
    if after_number and (word in UNITS or word in _TIMES_OF_DAY):
        return Token(UNITS.get(word, word), Kind.UNIT), 1
    number = number_words(ahead)
    if number is not None:
        return Token(number[0], Kind.NUMBER), number[1]
    return _word(word), 1


def _word(word: str) -> Token | None:
    if word in DROPPED:
        return None
    ordinal = ordinal_word(word)
    if ordinal is not None:
        return Token(ordinal, Kind.NUMBER)
    for kind, listed in _KINDS:
        if word in listed:
            return Token(PERSONS.get(word, word), kind)
    return Token(_one_form(word), Kind.WORD)


def _one_form(word: str) -> str:
    if word in EQUALS:
        return EQUALS[word]
    singular = _singular(word)
    return EQUALS.get(singular, singular)


def _singular(word: str) -> str:
    if word in IRREGULAR_PLURALS:
        return IRREGULAR_PLURALS[word]
    if word in NO_PLURALS or len(word) < 4 or word.endswith(("ss", "us", "is", "ics")):
        return word
    if word.endswith("ies") and len(word) > 4:
        return word[:-3] + "y"
    if word.endswith(("ches", "shes", "sses", "xes", "zzes")):
        return word[:-2]
    return word.removesuffix("s")
