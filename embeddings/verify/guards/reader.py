"""Reads a text once, for all guards: words, numbers, strings, symbols, and which words are names.

Only white space and punctuation are dropped. Compatible characters become one (NFKC), contractions
are written out, and "e-mail" is "email".
"""

import re
import unicodedata
from collections.abc import Iterator, Sequence
from enum import Enum, auto
from functools import lru_cache
from typing import Final, NamedTuple


class Kind(Enum):
    """What a token is. A string is a quotation, code, an address or an option."""

    WORD = auto()
    NUMBER = auto()
    STRING = auto()
    SYMBOL = auto()


class Token(NamedTuple):
    """A piece of text.

    `text`: lower case if it is a word, else as written. `name`: a capital that grammar does not ask
    for; `acronym`: in capitals only. `starts`: first of its sentence. `apart`: a
    comma, bracket or the like stands before it; `glued`: no space is between word and number, as
    in "BRCA2" and "4j".
    """

    text: str
    kind: Kind
    name: bool = False
    starts: bool = False
    acronym: bool = False
    apart: bool = False
    glued: bool = False


class Reading(NamedTuple):
    """A text as the guards see it.

    `words`: the texts of all tokens, in order. `content`: stems of its words without the words of
    grammar.
    """

    tokens: tuple[Token, ...]
    words: tuple[str, ...]
    vocabulary: frozenset[str]
    content: frozenset[str]


def words_of(text: str) -> frozenset[str]:
    """Return the words of a list."""
    return frozenset(text.split())


NUMBER_WORDS: Final = words_of(
    """
    zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen
    sixteen seventeen eighteen nineteen twenty thirty forty fifty sixty seventy eighty ninety
    hundred thousand million billion trillion first second third fourth fifth half halves quarter
    thirds quarters both pair couple double twice triple dozen
    """
)
FUNCTION: Final = NUMBER_WORDS | words_of(
    """
    a an the this that these those there here it its i me my mine myself we us our you your yours he
    him his she her hers they them their who whom whose which what when where why how to of in on at
    by for from with within into onto upon about as between but during if like off out over per
    since so than then through till toward towards under until up and or because although before
    after above below am is are was were be been being do does did done doing have has had having
    will would shall should can could may might must ought let get got also too any some such please
    just really actually not no never nor without nobody nothing none neither cannot s t
    """
)
"""Words of grammar, of numbers, and those that carry nothing."""

_STRAIGHT: Final = str.maketrans(
    {
        **dict.fromkeys("\u2019\u2018\u02bc\u00b4", "'"),
        **dict.fromkeys("\u2212\u2010\u2011", "-"),
        **{x: f" {x}" for x in "\u00bd\u00bc\u00be\u2153\u2154\u215b"},
        "\u00b2": "^2",
        "\u00b3": "^3",
    }
)
_TOKEN: Final = re.compile(
    r"""
      (?P<code> ```.*?``` | `[^`\n]+`
              | https?://[^\s<>"]+ | [\w.+-]{1,64}@[\w-]+(?:\.[\w-]+)+
              | (?<!\S)--?[A-Za-z][\w-]* | (?<![\w.])~?(?:/[\w.-]+)+/? | [A-Za-z]:\\[^\s]+
              | \w+(?:_\w+)+ | \w+\(\) | (?<![\w.])\.[A-Za-z]\w* | \w+(?:(?:::|->)\w+)+ )
    | (?P<quoted> "[^"\n]+" | \u201c[^\u201c\u201d\n]+\u201d | \u00ab[^\u00ab\u00bb\n]+\u00bb
              | (?<![\w'])'[^'\n]+'(?![\w']) )
    | (?P<short> (?<!\S)(?:w/o?|y/o|[Kk]8s|[Nn]o\.(?=\s?(?:\#?\d|for\b|of\b)))(?![\w/]) )
    | (?P<number> (?:(?<![\w.)\]])[-+])?(?:\d+(?:-\d+){2,}|\d{3,}-\d{3,}|\d{1,3}(?:\ 000)+(?!\d)
              | \d+(?:[.,:/]\d+|\ :\ \d+)*(?:(?:st|nd|rd|th)\b)? | (?<![\w.])\.\d+) )
    | (?P<power> \b(?:[Ss]quared|[Cc]ubed)\b )
    | (?P<word> [^\W\d_]-[^\W\d_]{2,}(?!\w)
              | [^\W\d_]+(?:'[^\W\d_]+)*(?:\.[^\W\d_]+)*(?:\+\+|\#)? )
    | (?P<end> [.?!:]++(?=\s|$) | \n+ )
    | (?P<mark> [,;:()\u2013\u2014] )
    | (?P<dropped> (?<!\S)(?:->|=>|\u2192)(?!\S) | [\s.?!"'\u2026-] )
    | (?P<symbol> . )
    """,
    re.VERBOSE | re.DOTALL,
)
# "1,000" is one number, "1,2" are two.
_THOUSANDS: Final = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")
_WRITTEN_OUT: Final = {
    "w/": "with",
    "w/o": "without",
    "y/o": "years",
    "no.": "number",
    "k8s": "kubernetes",
}
_SHORT_FORMS: Final = {
    "can't": ("can", "not"), "cannot": ("can", "not"), "cant": ("can", "not"),
    "won't": ("will", "not"), "wont": ("will", "not"), "shan't": ("shall", "not"),
    "ain't": ("is", "not"), "im": ("i", "am"), "unable": ("not", "able"),
    "o'clock": ("oclock",), "percentage": ("percent",),
    **{f"{verb}nt": (verb, "not") for verb in (
        "do", "does", "did", "is", "are", "was", "could", "should", "would", "has", "have", "were"
    )},
}  # fmt: skip
_ENDINGS: Final = words_of("s m re ve ll d t em")
# A single "V" or "X" is a letter.
_ROMAN: Final = {
    "II": "2", "III": "3", "IV": "4", "VI": "6", "VII": "7", "VIII": "8", "IX": "9", "XI": "11",
    "XII": "12", "XIII": "13", "XIV": "14", "XV": "15", "XVI": "16", "XVII": "17", "XVIII": "18",
    "XIX": "19",
}  # fmt: skip
CASED: Final = words_of("MW mW Mb Gb MBps")
"""Units that are others in another case."""
# Whom a text greets is no part of its question.
_GREETING: Final = re.compile(
    r"\s*(?:hi|hello|hey|dear)(?:[ ][^\W\d_]+){0,2}[ ]?[,!\n](?=.)", re.IGNORECASE | re.DOTALL
)
# Where more words than this have a capital, capitals mark no names.
_TITLED: Final = 0.6
LONGEST: Final = 32
"""So many letters of a word are looked at where that is remembered."""


def read(text: str) -> Reading:
    """Read a text, in time that grows with its length."""
    if not text.isascii():
        text = unicodedata.normalize("NFKC", text.translate(_STRAIGHT)).replace("\u2044", "/")
    if greeting := _GREETING.match(text):
        text = text[greeting.end() :]
    pieces = [(found.lastgroup or "", found[0]) for found in _TOKEN.finditer(text)]
    tokens = tuple(_tokens(pieces, by_case=_tells_names(pieces)))
    words = tuple([token.text for token in tokens])
    content = frozenset(
        [stem(x.text[:LONGEST]) for x in tokens if x.kind is Kind.WORD and x.text not in FUNCTION]
    )
    return Reading(tokens, words, frozenset(words), content)


@lru_cache(4096)
def stem(word: str) -> str:
    """Return a word without a usual ending: crude, for comparing only."""
    for end in ("ing", "ies", "ers", "er", "ed", "es", "ly", "s", "e", "y"):
        if word.endswith(end) and len(word) - len(end) >= 3:
            return word[: -len(end)]
    return word


def closeness(a: Reading, b: Reading) -> float:
    """Return which share of the words of two texts is in both, 0 to 1."""
    total = len(a.content) + len(b.content)
    return 2 * len(a.content & b.content) / total if total else 1.0


def _tokens(pieces: Sequence[tuple[str, str]], *, by_case: bool) -> Iterator[Token]:
    starts, after_name, apart, last = True, False, False, ""
    for group, piece in pieces:
        glued, last = {group, last} == {"number", "word"}, group
        if group == "dropped":
            continue
        if group in {"end", "mark"}:
            starts, after_name, apart = starts or group == "end", False, True
            continue
        numeral = group == "word" and (piece in _ROMAN or (piece == "I" and after_name))
        first, *rest = _read_piece("numeral" if numeral else group, piece)
        named = by_case and first.kind is Kind.WORD and _is_name(piece.strip("'\""), starts=starts)
        acronym = named and _in_capitals(piece)
        yield first._replace(name=named, starts=starts, acronym=acronym, apart=apart, glued=glued)
        yield from rest
        starts, after_name, apart = False, named, False


def _read_piece(group: str, piece: str) -> list[Token]:
    match group:
        case "word":
            return [Token(part, Kind.WORD) for part in _parts(piece)]
        case "quoted" if len(piece) == 3 and piece[1].isalpha():
            return [Token(piece[1].casefold(), Kind.WORD)]  # a letter that stands alone
        case "short":
            return [Token(_WRITTEN_OUT[piece.casefold()], Kind.WORD)]
        case "numeral":
            return [Token(_ROMAN.get(piece, "1"), Kind.NUMBER)]
        case "power":  # "X squared" is x^2
            power = "2" if piece.casefold() == "squared" else "3"
            return [Token("^", Kind.SYMBOL), Token(power, Kind.NUMBER)]
        case "number":
            parts = _THOUSANDS.sub("", piece.replace(" ", "")).split(",")
            return [Token(part, Kind.NUMBER) for part in parts]
        case "symbol":
            return [Token(piece, Kind.SYMBOL)]
    inner = piece.strip("`") if group == "code" else piece[1:-1]
    return [Token(" ".join(inner.split()), Kind.STRING)]


def _is_name(word: str, *, starts: bool) -> bool:
    if _in_capitals(word):
        return True
    return word[0].isupper() and not starts and word != "I" and not word.startswith("I'")


def _in_capitals(word: str) -> bool:
    """Tell whether a word is like "US" or "PCs"; "Is" and "As" are not."""
    return len(word.rstrip("s")) > 1 and word.rstrip("s").isupper()


def _tells_names(pieces: Sequence[tuple[str, str]]) -> bool:
    """Tell whether capitals mark names: they do not where all or most words have one."""
    inner, capitals, starts = 0, 0, True
    shouted = all(piece.isupper() for group, piece in pieces if group == "word")
    for group, piece in pieces:
        if group == "word" and not starts and piece != "I":
            inner += 1
            capitals += piece[0].isupper()
        starts = group == "end" or (starts and group in {"mark", "dropped"})
    return capitals <= _TITLED * inner if shouted or capitals > 3 else capitals > 0


def _parts(word: str) -> Sequence[str]:
    """Return a word in lower case, contractions written out."""
    if word in CASED:
        return (word,)
    word = word.casefold()
    if word in _SHORT_FORMS:
        return _SHORT_FORMS[word]
    if word.endswith("n't"):
        return (word[:-3], "not")
    before, mark, after = word.rpartition("'")
    if mark and before:
        return (before if after in _ENDINGS else before + after,)
    return (word.replace("-", ""),)
