"""The patterns that find volatile values: built-in detectors, and an operator's own.

A search takes time linear in the text, by RE2. In doubt a detector takes a value, because the model
still reads what is moved. But names of things are no ids, and what the model is to copy stays.
"""

from functools import lru_cache
from typing import Any

from policies.decision import VolatileKind
from policies.patterns import compile_pattern, compile_set

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
    VolatileKind.COMMITS: (rf"(?i:{_BUILT_FROM})(\b[0-9a-f]{{7,40}}\b)", r"\b[0-9a-f]{40}\b"),
    VolatileKind.USER_NAMES: (
        rf"(?i:\b(?:{_NAMED})(?:['\x{{2019}}]s)?[ _-]?name\b[\"']?(?: is|:|=) ?){_QUOTE}({_NAME})",
        rf"(?i:\b(?:{_MET}) ){_QUOTE}({_NAME})",
        rf"\b(?:{_GREETED}),? ({_NAME})",
    ),
}
LABELS = {kind: kind.value.rstrip("s").replace("_", "-") for kind in VolatileKind}
OWN_LABEL = "value"
"""Of values that the operator's patterns find."""


class Detectors:
    """The patterns of some detectors and of an operator, compiled. Raises PatternError."""

    def __init__(self, kinds: tuple[VolatileKind, ...], patterns: tuple[str, ...]) -> None:
        known = [(LABELS[kind], pattern) for kind in kinds for pattern in _PATTERNS[kind]]
        known += [(OWN_LABEL, pattern) for pattern in patterns]
        # Matching without groups runs on an automaton; groups are read from its matches only.
        any_of_them = "|".join(f"(?:{pattern})" for _, pattern in known)
        self.all = compile_pattern(any_of_them)
        """Finds the values."""
        self.which = compile_set([pattern for _, pattern in known])
        """Tells the numbers of the patterns that match a value."""
        compiled = [compile_pattern(pattern, captures=True) for _, pattern in known]
        self.programs = (self.all, *compiled)
        """All that is compiled, but for ``which``."""
        self.each: list[tuple[str, Any]] = [
            (label, each if each.groups else None)
            for (label, _), each in zip(known, compiled, strict=True)
        ]
        """Labels, and the patterns that have a group."""


@lru_cache(maxsize=64)
def detectors(kinds: tuple[VolatileKind, ...], patterns: tuple[str, ...]) -> Detectors:
    """Return the detectors of a rule; a policy has few, and each takes milliseconds to compile."""
    return Detectors(kinds, patterns)
