"""Volatile values: how they are found, and how they move into one block near the prompt's end.

Laws: nothing is lost. A placeholder with a name and a number replaces a value, and the block gives
the value of each placeholder. Text with placeholders of its own is refused. Each occurrence has its
own number, so placeholders depend on the places of values and never on the values.

A search takes time linear in the text, by RE2. A detector rather moves too much, because the model
still reads it; but names of things are not ids, and what the model is to copy stays in place.
"""

import re
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import orjson
import re2

from gateway.prompts.outcome import NotRewritten, NotRewrittenError
from gateway.prompts.rewrite.text_rules import BLOCK
from gateway.semantic.code import code_blocks, has_fences
from policies.decision import VolatileKind

MAX_VALUES = 64
MAX_BYTES = 4096
"""Of all values together."""
_SHARE = 2
"""One part in ``_SHARE`` of the texts may move: the rest would not be worth a cache."""

_BETWEEN = "\0"
"""No built-in detector matches it, or across it."""

_ENGINE_BYTES = 16 << 20

_DAY = r"(?:Mon|Tues?|Wed(?:nes)?|Thu(?:rs)?|Fri|Sat(?:ur)?|Sun)(?:day)?"
_MONTH = (
    r"(?:Jan(?:uary)?|Feb(?:ruary)?|Mar(?:ch)?|Apr(?:il)?|May|June?|July?|Aug(?:ust)?"
    r"|Sep(?:t(?:ember)?)?|Oct(?:ober)?|Nov(?:ember)?|Dec(?:ember)?)\.?"
)
_OTHER_DAY = (
    r"(?:(?:Mon|Diens|Donners|Frei|Sams|Sonn)tag|Mittwoch|Sonnabend"
    r"|(?:lun|mar|mercre|jeu|vendre|same)di|dimanche"
    r"|lunes|martes|miércoles|jueves|viernes|sábado|domingo)"
)
_OTHER_MONTH = (
    r"(?:Januar|Februar|März|April|Mai|Juni|Juli|August|September|Oktober|November|Dezember"
    r"|janvier|février|mars|avril|mai|juin|juillet|août|septembre|octobre|novembre|décembre"
    r"|enero|febrero|marzo|abril|mayo|junio|julio|agosto|sep?tiembre|octubre|noviembre|diciembre)"
)
_YEAR = r"(?:19|20)[0-9]{2}"
_ZONE = (
    r"(?: ?(?:Z\b|(?:UTC|GMT)(?:[+-][0-9]{1,2}(?::?[0-9]{2})?)?\b|[A-Z]{2,4}T\b"
    r"|[+-][0-9]{2}:?[0-9]{2}\b))?"
)
_SECONDS = r":[0-9]{2}(?:[.,][0-9]{1,9})?"
_TIME = rf"[0-2]?[0-9]:[0-5][0-9](?:{_SECONDS})?(?: ?[AaPp]\.?[Mm]\b\.?)?{_ZONE}"
_CLOCK = r"[0-9]{2}:[0-9]{2}:[0-9]{2}"
_ISO = r"[0-9]{4}[-/][0-9]{2}[-/][0-9]{2}"
_COMPACT = r"(?:19|20)[0-9]{2}[01][0-9][0-3][0-9][T_-]?[0-2][0-9][0-5][0-9][0-5][0-9]"
_TODAY = r"\btoday(?:['\x{2019}]s)?(?: is|:)? |\bday(?: of the week)?(?: is|:) ?|\bweekday: ?"
_BUILT_FROM = r"\b(?:commit|revision|HEAD|sha|build)[\"']?(?: ?[:=@]| is| at)? ?[\"'`(]?"
_ORDINAL = r"[0-3]?[0-9](?:st|nd|rd|th)?"
_WRITTEN = (
    rf"(?:{_DAY}\.?,? )?(?:{_MONTH} {_ORDINAL},? {_YEAR}"
    rf"|[0-3]?[0-9](?:st|nd|rd|th|\.)?[ -](?:of )?{_MONTH},?[ -]{_YEAR})"
)
_OTHERS_WRITTEN = (
    rf"(?i:(?:{_OTHER_DAY},? (?:(?:den|le) )?)?[0-3]?[0-9](?:\.|er)? (?:de )?{_OTHER_MONTH}"
    rf" (?:de )?{_YEAR})"
)
_NUMERIC = rf"[0-3]?[0-9][./-][0-3]?[0-9][./-]{_YEAR}"
_CHINESE = (
    rf"{_YEAR}(?:年[0-9]{{1,2}}月[0-9]{{1,2}}日|년 ?[0-9]{{1,2}}월 ?[0-9]{{1,2}}일)"
    r"(?: ?(?:[(\x{FF08}][月火水木金土日월화수목금토일][)\x{FF09}]|(?:星期|周)[一二三四五六日天]))?"
)
_DATE = rf"(?:\b{_ISO}|\b{_WRITTEN}|\b{_OTHERS_WRITTEN}|\b{_NUMERIC}|{_CHINESE})"
_IDENTIFIED = (
    "request|req|trace|span|session|conversation|thread|correlation|run|transaction|message"
    "|invocation|task"
)
_IDENTIFIER = r"[A-Za-z0-9._:-]*[0-9](?:[A-Za-z0-9._:-]*[A-Za-z0-9])?"
_PREFIXES = "req|run|thread|msg|sess|trace|chatcmpl|resp|call|toolu|conv|asst|evt"
# With a digit among them: run_migrations is the name of something.
_RANDOM = r"(?:[A-Za-z0-9]{0,12}[0-9][A-Za-z0-9]{7,63}|[A-Za-z0-9]{7,63}[0-9])"
_HEX = r"[0-9a-fA-F]{8}[0-9a-fA-F-]{0,56}"
_NAME = r"\p{Lu}[\p{L}\p{M}'\x{2019}-]+(?: \p{Lu}[\p{L}\p{M}'\x{2019}-]+){0,2}"
_QUOTE = r"[\"'\x{201C}\x{2018}]?"
_NAMED = "user|full|first|last|display|customer"
_MET = "talking to|speaking with|chatting with|assisting|logged in as"
_GREETED = "Hello|Hi|Hey|Dear|Welcome|Welcome back|Hallo|Bonjour|Hola|Ciao|Olá"

_PATTERNS: dict[VolatileKind, tuple[str, ...]] = {
    VolatileKind.TIMESTAMPS: (
        rf"\b{_ISO}[T ]{_TIME}",
        rf"{_DATE}(?:,| at|T)? {_TIME}",
        rf"\b{_DAY} {_MONTH} +[0-9]{{1,2}} {_CLOCK}(?: [A-Z]{{3,4}})? [0-9]{{4}}\b",
        rf"(?i:\btime(?:stamp)?(?: now)?(?: is|:|=) ?{_QUOTE})(\b{_TIME})",
        rf"\b[0-2]?[0-9]:[0-5][0-9]{_SECONDS}(?: ?[AaPp]\.?[Mm]\b\.?)?{_ZONE}",
        rf"\b{_COMPACT}(?:[.,][0-9]{{1,9}})?Z?\b",
        r"\b1[5-9][0-9]{8}(?:[0-9]{3}|[0-9]{6})?(?:\.[0-9]{1,9})?\b",
    ),
    VolatileKind.DATES: (
        rf"{_DATE}\b",
        _CHINESE,
        rf"\b{_DAY}\.?,? (?:{_MONTH} {_ORDINAL}|{_ORDINAL} (?:of )?{_MONTH})\b",
        rf"\b{_YEAR}-?W[0-5][0-9](?:-[1-7])?\b",
        rf"(?i:\bweek [0-5]?[0-9](?:,| of)? {_YEAR}\b)",
        rf"(?i:{_TODAY})({_DAY}\b)",
    ),
    VolatileKind.UUIDS: (r"\b[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}\b",),
    VolatileKind.REQUEST_IDS: (
        rf"(?i:\b(?:{_IDENTIFIED})[ _-]?id\b[\"']?(?: is|:|=|#)? ?[\"'`]?)({_IDENTIFIER})",
        rf"(?i:\b(?:request|trace|span|session|correlation)[\"']? ?[:=] ?[\"'`]?)({_HEX})\b",
        r"\b00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}\b",
        rf"\b(?:{_PREFIXES})[_-]{_RANDOM}\b",
        r"\b[0-9a-f]{32}\b",
        r"\b[0-7][0-9A-HJKMNP-TV-Z]{25}\b",
    ),
    VolatileKind.COMMITS: (
        rf"(?i:{_BUILT_FROM})(\b[0-9a-f]{{7,40}}\b)",
        r"\b[0-9a-f]{40}\b",
    ),
    VolatileKind.USER_NAMES: (
        rf"(?i:\b(?:{_NAMED})(?:['\x{{2019}}]s)?[ _-]?name\b[\"']?(?: is|:|=) ?){_QUOTE}({_NAME})",
        rf"(?i:\b(?:{_MET}) ){_QUOTE}({_NAME})",
        rf"\b(?:{_GREETED}),? ({_NAME})",
    ),
}
_LABELS = {kind: kind.value.rstrip("s").replace("_", "-") for kind in VolatileKind}
OWN_LABEL = "value"
"""Of values that the operator's patterns find."""

_PLACEHOLDER = re.compile(
    rb"\[(?:" + "|".join((*_LABELS.values(), OWN_LABEL)).encode() + rb")-[0-9]+\]"
)


class Finder:
    """Finds the values of these detectors and patterns."""

    def __init__(self, kinds: tuple[VolatileKind, ...], patterns: tuple[str, ...]) -> None:
        self.is_ours = not patterns
        """Whether all patterns are built in: an operator's may depend on a text's ends."""
        known = [(_LABELS[kind], pattern) for kind in kinds for pattern in _PATTERNS[kind]]
        known += [(OWN_LABEL, pattern) for pattern in patterns]
        # Matching without groups runs on an automaton; groups are read from its matches only.
        any_of_them = "|".join(f"(?:{pattern})" for _, pattern in known)
        self._all = re2.compile(any_of_them, _options(captures=False))
        self._which = re2.Set.FullMatchSet(_options(captures=False))
        self._each: list[tuple[str, Any]] = []
        """Labels, and the patterns that have a group."""
        for label, pattern in known:
            self._which.Add(pattern)
            compiled = re2.compile(pattern, _options(captures=True))
            self._each.append((label, compiled if compiled.groups else None))
        self._which.Compile()

    def find(self, text: bytes) -> Iterator[tuple[int, int, str]]:
        """Yield where in a text's UTF-8 volatile values begin and end, in order, and their labels.

        Built-in detectors pass over what is there to be copied: code and the middle of paths.
        """
        # With a character for each byte, places are those of the bytes.
        blocks = deque(b for b in code_blocks(text.decode("latin-1")) if b.closed)
        for match in self._all.finditer(text):
            start, end = match.span()
            if start == end:
                continue
            start, end, label = self._value(text, start, end)
            while blocks and blocks[0].end <= start:
                blocks.popleft()
            in_code = blocks and blocks[0].start <= start
            # A slash before it belongs to a path, unless it belongs to a date.
            in_path = text[start - 1 : start] == b"/" and not text[start - 2 : start - 1].isdigit()
            if label == OWN_LABEL or not (in_code or in_path):
                yield start, end, label

    def _value(self, text: bytes, start: int, end: int) -> tuple[int, int, str]:
        piece = text[start:end]
        for index in sorted(self._which.Match(piece)):
            label, pattern = self._each[index]
            if pattern is not None and (match := pattern.fullmatch(piece)) is not None:
                first, last = match.span(1)
                if 0 <= first < last:
                    return start + first, start + last, label
            return start, end, label
        return start, end, OWN_LABEL  # it matched by its surroundings


@lru_cache(maxsize=64)
def finder(kinds: tuple[VolatileKind, ...], patterns: tuple[str, ...]) -> Finder:
    """Return the finder of a rule; a policy has few, and each takes milliseconds to compile."""
    return Finder(kinds, patterns)


def _options(*, captures: bool) -> Any:
    options = re2.Options()
    options.never_capture = not captures
    options.log_errors = False
    options.max_mem = _ENGINE_BYTES
    return options


def refuse_placeholders(turns: Any) -> None:
    """Raise NotRewrittenError where a turn contains something like a placeholder.

    Else a page that a tool fetched could say what the operator's placeholders stand for.
    """
    try:
        written = orjson.dumps(turns)
    except TypeError:  # an integer of more than 64 bits
        raise NotRewrittenError(NotRewritten.UNREADABLE) from None
    if _PLACEHOLDER.search(written) is not None:
        raise NotRewrittenError(NotRewritten.PLACEHOLDERS)


def move_values(pieces: Sequence[str], finder: Finder) -> tuple[list[str], str | None]:
    """Return the pieces with placeholders, and the block's text, None where nothing moved.

    Raises NotRewrittenError.
    """
    joined = _BETWEEN.join(pieces)
    written = joined.encode()
    if _PLACEHOLDER.search(written) is not None:
        raise NotRewrittenError(NotRewritten.PLACEHOLDERS)
    moving = _Moving(finder)
    if finder.is_ours and joined.count(_BETWEEN) == len(pieces) - 1 and not has_fences(joined):
        # A search costs microseconds, however short the text is.
        stable = moving.without_values(written).decode().split(_BETWEEN)
    else:
        stable = [moving.without_values(piece.encode()).decode() for piece in pieces]
    if not moving.values:
        return list(pieces), None
    if moving.size * _SHARE > len(written):
        raise NotRewrittenError(NotRewritten.TOO_MUCH)
    return stable, "\n".join((BLOCK, *(f"{name} = {value}" for name, value in moving.values)))


@dataclass(slots=True)
class _Moving:
    """The values of one request that move."""

    finder: Finder
    size: int = 0
    """Bytes of all values."""
    counts: Counter[str] = field(default_factory=Counter)
    """Values by label."""
    values: list[tuple[str, str]] = field(default_factory=list)
    """Placeholders and their values."""

    def without_values(self, text: bytes) -> bytes:
        """Return a text with placeholders for values. Raises NotRewrittenError."""
        if not text or text.isspace():
            return text
        pieces: list[bytes] = []
        at = 0
        for start, end, label in self.finder.find(text):
            self.size += end - start
            if len(self.values) >= MAX_VALUES:
                raise NotRewrittenError(NotRewritten.TOO_MANY)
            if self.size > MAX_BYTES:
                raise NotRewrittenError(NotRewritten.TOO_MUCH)
            self.counts[label] += 1
            placeholder = f"[{label}-{self.counts[label]}]"
            try:
                self.values.append((placeholder, text[start:end].decode()))
            except UnicodeDecodeError:  # the operator's pattern cut a character in two
                raise NotRewrittenError(NotRewritten.UNREADABLE) from None
            pieces += (text[at:start], placeholder.encode())
            at = end
        return b"".join((*pieces, text[at:]))
