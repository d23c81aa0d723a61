r"""The forms of text that are scanned: its normal form, and its other readings.

In normal form, what a reader takes for a character is that character: compatibility forms (NFKC:
full-width, circled, superscript), digits of any script, dashes and spaces of any width; invisible
characters and combining marks vanish; Cyrillic and Greek letters that look Latin become Latin.

A reader, a browser or a model takes ``4111**1111**1111 1111``, ``ada&#64;example.com`` and
``YWRhQGV4YW1wbGUuY29t`` for what they mean. Law: text without such forms has no other reading and
costs one look; the others are few, and are made in time linear in the text.
"""

import binascii
import re
import sys
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from html import unescape

import re2

_LOOK_ALIKES = zip(
    "АВЕЅІЈКМНОРСТХУаеѕіјорсухԁԛԝ" + "ΑΒΕΖΗΙΚΜΝΟΡΤΥΧο",  # noqa: RUF001
    "ABESIJKMHOPCTXYaesijopcyxdqw" + "ABEZHIKMNOPTYXo",
    strict=True,
)
_DOTS = {"。": ".", "−": "-", "∶": ":"}  # noqa: RUF001
# Letters and signs that show nothing: Hangul fillers, braille without a dot, and their kin.
_BLANKS = "\u115f\u1160\u3164\uffa0\u2800\u2065\ufffc\U0001d159"
_PLAIN = {**dict(_LOOK_ALIKES), **_DOTS, **dict.fromkeys(_BLANKS, "")}
# A lone surrogate (Cs) has no UTF-8 form, which RE2 needs.
_OF_CATEGORY = dict.fromkeys(("Cf", "Mn", "Me"), "") | dict.fromkeys(("Zl", "Zp"), "\n")
_OF_CATEGORY |= {"Cs": "\N{REPLACEMENT CHARACTER}", "Pd": "-", "Zs": " "}
_MEMO_LIMIT = 8192


def _plain(character: str) -> str:
    category = unicodedata.category(character)
    replaced = _PLAIN.get(character, _OF_CATEGORY.get(category))
    if replaced is not None:
        return replaced
    if category == "Nd":
        return str(unicodedata.decimal(character))
    compatible = unicodedata.normalize("NFKC", character)
    return character if compatible == character else "".join(map(_plain, compatible))


class _PlainTable(dict[int, str]):
    """A table for ``str.translate`` that fills itself, up to a bound."""

    def __missing__(self, codepoint: int) -> str:
        plain = _plain(chr(codepoint))
        if len(self) < _MEMO_LIMIT:
            self[codepoint] = plain
        return plain


_TABLE = _PlainTable()


def normalise(text: str) -> str:
    """Return the text in normal form; ASCII text unchanged. Never raises."""
    return text if text.isascii() else text.translate(_TABLE)


def normalise_with_offsets(text: str) -> tuple[str, Sequence[int]]:
    """Return the normal form and, for each of its characters, the index of its origin."""
    if text.isascii():
        return text, range(len(text))
    pieces = [_TABLE[ord(character)] for character in text]
    offsets = [index for index, piece in enumerate(pieces) for _ in piece]
    return "".join(pieces), offsets


_ROUNDS = 2
"""How deep one form may stand in another of its kind: base64 of base64, percent forms of them."""

_MOST_TABS = 4
"""As many as there are in a card number of nineteen digits."""
_BYTES = r"(?:%[0-9A-Fa-f]{2}|\\x[0-9A-Fa-f]{2})+"
_CODE_POINT = r"%u[0-9A-Fa-f]{4}|\\u\{[0-9A-Fa-f]{1,6}\}|\\[01][0-7]{2}"
_ENTITY = r"&(?:#[0-9]{1,8}|#[xX][0-9A-Fa-f]{1,6}|[A-Za-z][A-Za-z0-9]{1,31});?"
# Four characters of base64 that stand for three of printable ASCII. Neither words nor images often
# have three of them in a row, so what is decoded becomes text.
_QUARTET = "[I-Za-f][C-HS-Xi-nyz0-3][ABEFIJMNQRUVYZcdghklopstwx014589][A-Za-z0-9+/_-]"
_BASE64 = f"(?:{_QUARTET}(?:\r?\n)?){{3,}}"
_HEX = "(?:[2-7][0-9A-Fa-f]){8,}"

_INLINE = (
    "(?i:<(?:/?(?:a|abbr|b|bdi|bdo|big|cite|code|data|del|dfn|em|font|i|ins|kbd|mark|q|s|samp|small"
    r"|span|strike|strong|sub|sup|tt|u|var|wbr)(?:[\s/][^<>]*)?|!--[^<>]*)>)"
)
"""Tags between which a browser puts no space, and comments."""
_MARK = rf"(?:[*`~\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]|{_INLINE})"
"""A mark of Markdown or HTML, or an invisible character."""
_CELLS = r"(?i:</t[dh]\s*>\s*<t[dh](?:\s[^<>]*)?>)"
_AT = r" ?[\[({<] ?(?i:at|@) ?[\])}>] ?"
_DOT = r" ?[\[({<] ?(?i:dot|\.) ?[\])}>] ?"
_BETWEEN_MARKS = rf"{_MARK}{{1,4}} ?@ ?{_MARK}{{1,4}}"
_AROUND_AT = r"[_\t]{0,4}@[_\t]{0,4}"
_BEFORE_DOT = r"[_\t]{1,4}\.[_\t]{0,4}"
_SPELLED = "|".join(
    (
        *(rf"[^\n{mark}](?:{mark}[^\n{mark}]){{7,}}" for mark in ("_", r"\t")),
        *(rf"[^\s{mark}](?:{mark}[^\s{mark}]){{7,}}" for mark in " -"),
    )
)
_GROUP = "[0-9A-Z]"
_BETWEEN = rf"[\])}}]?(?: ?(?:[_/\\·•‧∙]|{_MARK}))+ ?[\[({{]?|[\])}}]+ ?[\[({{]+|[\"'] [\"']"
"""Separators of the groups of a number."""
_NO_FRACTION = r"(?:(?<=\+[0-9]\.)|(?<=\+[0-9]{2}\.)|(?<=\+[0-9]{3}\.)|(?<![0-9][.,]))"
_ROW = rf"(?<![0-9A-Z(\t]){_NO_FRACTION}[0-9A-Z(]+(?:\)?\t{_GROUP}+){{1,8}}(?![0-9A-Z\t]|[.,][0-9])"
"""Groups in the cells of a row. A row neither begins nor ends within a decimal fraction, but behind
the country code of a phone number."""
_FOURS = (
    r"(?<![0-9][:#=])(?<![0-9A-Za-z])[0-9]{4}(?:[:#=][0-9]{4}){2}(?:[:#=][0-9]{1,4}){1,2}"
    "(?![0-9A-Za-z:#=])"
)
"""A card's number: fewer groups may be hours or an address."""
_OF_FORM = r"(?<=[=&?+])[0-9A-Z]{0,7}[0-9](?:\+[0-9A-Z]{1,8}){2,8}(?![0-9A-Za-z+])"
"""Groups as forms send them, where a plus stands for a space."""

_UNESCAPABLE = f"{_BYTES}|{_CODE_POINT}|{_ENTITY}"
_MARKED = (
    rf"[\pL\pN@.:+-]{_MARK}+[.:+-]?[\pL\pN@]|{_AT}|{_DOT}|[_\t]@|@[_\t]|{_BEFORE_DOT}"
    rf"|\\[@.+*_-]|{_MARK} ?@ ?{_MARK}|{_SPELLED}"
)
_GROUPED = (
    rf"[0-9]\)?\t{_GROUP}|[A-Z]\t[0-9]|[0-9](?:{_BETWEEN}){_GROUP}|[A-Z](?:{_BETWEEN})[0-9]"
    rf"|[0-9A-Z)](?:{_MARK})*{_CELLS}(?:{_MARK})*[0-9A-Z(]"
    r"|[0-9]{4}[:#=][0-9]{4}[:#=][0-9]{4}[:#=][0-9]|[0-9]\+[0-9A-Z]{1,8}\+[0-9A-Z]"
)
_ANY = re2.compile(f"{_UNESCAPABLE}|{_BASE64}|{_HEX}|{_MARKED}|{_GROUPED}")


def _bytes(match: re.Match[str]) -> str:
    digits = match.group().replace("%", "").replace("\\x", "")
    return bytes.fromhex(digits).decode("utf-8", "replace")


def _code_point(match: re.Match[str]) -> str:
    written = match.group()
    octal = written[1].isdigit()
    number = int(written[1:], 8) if octal else int(written.strip("%\\u{}"), 16)
    return chr(number) if number <= sys.maxunicode else written


def _base64(match: re.Match[str]) -> str:
    written = match.group().replace("-", "+").replace("_", "/")
    rest = len(written.replace("\r", "").replace("\n", "")) % 4
    padded = written[:-1] if rest == 1 else written + "=" * (-rest % 4)
    return binascii.a2b_base64(padded).decode("utf-8", "replace")


def _squeeze(match: re.Match[str]) -> str:
    """Return text spelled letter by letter; digits separated like this are numbers already."""
    letters = match.group()[::2]
    return match.group() if letters.isdigit() and match.group()[1] in " -" else letters


def _set_apart(match: re.Match[str]) -> str:
    return re.sub("[:#=]", "-", match.group()).replace("+", " ")


def _row(match: re.Match[str]) -> str:
    """Return the cells of a row as the groups of one number; many numbers are a table's."""
    row = match.group()
    is_table = row.count("\t") > _MOST_TABS and row.replace("\t", "").isdigit()
    return row if is_table else row.replace("\t", "-")


# RE2 is much quicker to tell whether there is anything to replace, but does not look around.
_LOOKS_AROUND = re.compile(r"\(\?<?=")
_LOOKS_FOR_NONE = re.compile(r"\(\?<?![^)]*\)")

Meant = str | Callable[[re.Match[str]], str]


class _Form:
    """An encoding: its pattern, and the meaning of each piece."""

    def __init__(self, looks: str, *steps: tuple[str, Meant]) -> None:
        self.seen_in = re2.compile(looks).search
        self.steps = [
            (
                re2.compile(_LOOKS_AROUND.sub("(?:", _LOOKS_FOR_NONE.sub("", pattern))),
                re.compile(pattern),
                (lambda _, meant=meant: meant) if isinstance(meant, str) else meant,
            )
            for pattern, meant in steps
        ]


_ESCAPED = _Form(
    _UNESCAPABLE,
    (_BYTES, _bytes),
    (_ENTITY, lambda match: unescape(match.group())),
    (_CODE_POINT, _code_point),
)
_ENCODED = _Form(
    f"{_BASE64}|{_HEX}",
    (_BASE64 + "(?:[A-Za-z0-9+/_-]{2,3}={0,2})?", _base64),
    (_HEX, lambda match: bytes.fromhex(match.group()).decode("ascii", "replace")),
)
_BARE = (
    (_SPELLED, _squeeze),
    (_AT, "@"),
    (_DOT, "."),
    (_BETWEEN_MARKS, "@"),
    (f"{_MARK}+", ""),
    (r"\\(?=[@.+*_-])", ""),
    (_AROUND_AT, "@"),
    (_BEFORE_DOT, "."),
)
_WITHOUT_MARKS = _Form(_MARKED, *_BARE)
_NUMBERS_APART = _Form(
    _GROUPED,
    (f"{_FOURS}|{_OF_FORM}", _set_apart),
    (f"(?<={_GROUP})(?:{_BETWEEN})(?={_GROUP})", "-"),
    (_CELLS, "\t"),
    (f"{_MARK}+", ""),
    (_ROW, _row),
    ("(?<=[0-9]) (?=[0-9])", "-"),
    *_BARE,
)


@dataclass(slots=True)
class Reading:
    """A text, and for each of its characters from where to where it stands in the text given."""

    text: str
    places: Sequence[tuple[int, int]] | None = None
    """None if they were not requested."""
    holds_secrets: bool = True
    """Not where groups were joined that are no number: what becomes of them looks random."""

    def after(self, form: _Form) -> "Reading":
        """Return this text decoded, in normal form; the text itself if it is not encoded."""
        if form.seen_in(self.text) is None:
            return self
        read = self
        for sign, pattern, meant in form.steps:
            if sign.search(read.text) is not None:
                read = _replace(read, pattern, meant)
        return self if read.text == self.text else _normal(read)

    def encoded(self) -> "Reading":
        """Return what is encoded in this, and nothing else: the rest would not be itself any more.

        An image of which some letters are gone looks like a password.
        """
        if _ENCODED.seen_in(self.text) is None:
            return Reading("")
        found = sorted(
            (*match.span(), meant(match))
            for pattern, _, meant in _ENCODED.steps  # which do not look around
            for match in pattern.finditer(self.text)
        )
        text = "\n".join(piece for _, _, piece in found)
        if self.places is None:
            return _normal(Reading(text))
        places: list[tuple[int, int]] = []
        for start, end, piece in found:
            place = (self.places[start][0], self.places[end - 1][1])
            places += [place] * (len(piece) + 1)
        return _normal(Reading(text, places[: len(text)]))


def _normal(read: Reading) -> Reading:
    if read.places is None:
        return Reading(normalise(read.text))
    text, offsets = normalise_with_offsets(read.text)
    return Reading(text, [read.places[offset] for offset in offsets])


def _replace(
    read: Reading, pattern: re.Pattern[str], meant: Callable[[re.Match[str]], str]
) -> Reading:
    if read.places is None:
        return Reading(pattern.sub(meant, read.text))
    pieces: list[str] = []
    places: list[tuple[int, int]] = []
    behind = 0
    for match in pattern.finditer(read.text):
        start, end = match.span()
        piece = meant(match)
        pieces += (read.text[behind:start], piece)
        places += read.places[behind:start]
        if start < end:
            places += [(read.places[start][0], read.places[end - 1][1])] * len(piece)
        behind = end
    rest = read.text[behind:]
    return Reading("".join((*pieces, rest)), [*places, *read.places[behind:]])


def may_be_disguised(plain: bytes) -> bool:
    """Tell whether a text in normal form, in UTF-8, may have another reading: one look."""
    return _ANY.search(plain) is not None


def other_readings(plain: Reading) -> Iterator[Reading]:
    """Yield the other readings of a text in normal form, if any."""
    if not may_be_disguised(plain.text.encode()):
        return
    read = plain
    for depth in range(_ROUNDS + 1):
        yield from _without_marks(read)
        for _ in range(_ROUNDS):
            if (unescaped := read.after(_ESCAPED)) is read:
                break
            read = unescaped
            yield read
            yield from _without_marks(read)
        if depth == _ROUNDS or not (read := read.encoded()).text:
            return
        yield read


def _without_marks(read: Reading) -> Iterator[Reading]:
    if (bare := read.after(_WITHOUT_MARKS)) is not read:
        yield bare
    if (apart := read.after(_NUMBERS_APART)) is not read:
        apart.holds_secrets = False
        yield apart
