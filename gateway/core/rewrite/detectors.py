"""What is volatile in a prompt: built-in detectors and the operator's patterns, on RE2.

Law: no text costs more than its length. A detector errs towards moving too much, because what is
moved is still read.
"""

from collections.abc import Iterator
from functools import lru_cache
from typing import Any, NamedTuple

import re2

from policies.decide import VolatileKind

_ENGINE_BYTES = 16 << 20

_DAY = r"(?:Mon|Tues?|Wed(?:nes)?|Thu(?:rs)?|Fri|Sat(?:ur)?|Sun)(?:day)?"
_MONTH = (
    r"(?:Jan(?:uary)?|Feb(?:ruary)?|Mar(?:ch)?|Apr(?:il)?|May|June?|July?|Aug(?:ust)?"
    r"|Sep(?:t(?:ember)?)?|Oct(?:ober)?|Nov(?:ember)?|Dec(?:ember)?)\.?"
)
_ZONE = r"(?: ?(?:Z\b|UTC\b|GMT\b|[+-][0-9]{2}:?[0-9]{2}\b))?"
_SECONDS = r":[0-9]{2}(?:[.,][0-9]{1,9})?"
_TIME = rf"[0-2]?[0-9]:[0-5][0-9](?:{_SECONDS})?(?: ?[AaPp]\.?[Mm]\b\.?)?{_ZONE}"
_CLOCK = r"[0-9]{2}:[0-9]{2}:[0-9]{2}"
_ISO = r"[0-9]{4}[-/][0-9]{2}[-/][0-9]{2}"
_WRITTEN = (
    rf"(?:{_DAY}\.?,? )?(?:{_MONTH} [0-3]?[0-9](?:st|nd|rd|th)?,? (?:19|20)[0-9]{{2}}"
    rf"|[0-3]?[0-9](?:st|nd|rd|th|\.)?[ -](?:of )?{_MONTH},?[ -](?:19|20)[0-9]{{2}})"
)
_NUMERIC = r"[0-3]?[0-9][./-][0-3]?[0-9][./-](?:19|20)[0-9]{2}"
_CHINESE = r"(?:19|20)[0-9]{2}年[0-9]{1,2}月[0-9]{1,2}日"
_DATE = rf"(?:\b{_ISO}|\b{_WRITTEN}|\b{_NUMERIC}|{_CHINESE})"
_IDENTIFIED = (
    "request|req|trace|span|session|conversation|thread|correlation|run|transaction|message"
    "|invocation|task"
)
_IDENTIFIER = r"[A-Za-z0-9._:-]*[0-9](?:[A-Za-z0-9._:-]*[A-Za-z0-9])?"
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
        r"\b1[5-9][0-9]{8}(?:[0-9]{3}|[0-9]{6})?(?:\.[0-9]{1,9})?\b",
    ),
    VolatileKind.DATES: (
        rf"{_DATE}\b",
        _CHINESE,
        rf"(?i:\btoday is |\bday(?: of the week)?(?: is|:) ?)({_DAY}\b)",
    ),
    VolatileKind.UUIDS: (r"\b[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}\b",),
    VolatileKind.REQUEST_IDS: (
        rf"(?i:\b(?:{_IDENTIFIED})[ _-]?id\b[\"']?(?: is|:|=|#)? ?[\"'`]?)({_IDENTIFIER})",
        r"\b(?:req|run|thread|msg|sess|trace|chatcmpl|resp|call)[_-][A-Za-z0-9]{8,64}\b",
        r"\b[0-9a-f]{32}\b",
        r"\b[0-7][0-9A-HJKMNP-TV-Z]{25}\b",
    ),
    VolatileKind.USER_NAMES: (
        rf"(?i:\b(?:{_NAMED})(?:['\x{{2019}}]s)?[ _-]?name\b[\"']?(?: is|:|=) ?){_QUOTE}({_NAME})",
        rf"(?i:\b(?:{_MET}) ){_QUOTE}({_NAME})",
        rf"\b(?:{_GREETED}),? ({_NAME})",
    ),
}
_LABELS = {
    VolatileKind.TIMESTAMPS: "timestamp",
    VolatileKind.DATES: "date",
    VolatileKind.UUIDS: "uuid",
    VolatileKind.REQUEST_IDS: "request-id",
    VolatileKind.USER_NAMES: "user-name",
}
OWN_LABEL = "value"
"""What the operator's patterns find."""

PLACEHOLDER = r"\[(?:" + "|".join((*_LABELS.values(), OWN_LABEL)) + r")-[0-9]+\]"


class Found(NamedTuple):
    """A volatile value: its place in the text's UTF-8, and what it is called."""

    start: int
    end: int
    label: str


class Finder:
    """Finds what these detectors and patterns know."""

    def __init__(self, kinds: tuple[VolatileKind, ...], patterns: tuple[str, ...]) -> None:
        known = [(_LABELS[kind], pattern) for kind in kinds for pattern in _PATTERNS[kind]]
        known += [(OWN_LABEL, pattern) for pattern in patterns]
        # Matching without groups runs on an automaton; groups are asked for in what it found.
        self._all = _compiled("|".join(f"(?:{pattern})" for _, pattern in known), captures=False)
        self._which = re2.Set.FullMatchSet(_options(captures=False))
        for _, pattern in known:
            self._which.Add(pattern)
        self._which.Compile()
        self._each = [(label, _with_a_group(pattern)) for label, pattern in known]

    def find(self, text: bytes) -> Iterator[Found]:
        """Yield what is volatile in a text, from its beginning on, nothing twice."""
        for match in self._all.finditer(text):
            start, end = match.span()
            if start < end:
                yield self._value(text, start, end)

    def _value(self, text: bytes, start: int, end: int) -> Found:
        piece = text[start:end]
        for index in sorted(self._which.Match(piece)):
            label, pattern = self._each[index]
            if pattern is not None and (match := pattern.fullmatch(piece)) is not None:
                first, last = match.span(1)
                if 0 <= first < last:
                    return Found(start + first, start + last, label)
            return Found(start, end, label)
        return Found(start, end, OWN_LABEL)  # it matched by what stands around it


@lru_cache(maxsize=64)
def finder(kinds: tuple[VolatileKind, ...], patterns: tuple[str, ...]) -> Finder:
    """Return the finder of a rule; a policy has few, and each takes milliseconds to make."""
    return Finder(kinds, patterns)


def _with_a_group(pattern: str) -> Any:
    """Return the pattern compiled where it has a group, else None."""
    compiled = _compiled(pattern, captures=True)
    return compiled if compiled.groups else None


def _compiled(pattern: str, *, captures: bool) -> Any:
    return re2.compile(pattern, _options(captures=captures))


def _options(*, captures: bool) -> Any:
    options = re2.Options()
    options.never_capture = not captures
    options.log_errors = False
    options.max_mem = _ENGINE_BYTES
    return options
