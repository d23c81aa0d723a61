"""The kinds of value a policy file may hold: how each is read and refused, the JSON schema that an
editor checks it by, and how it is written again.

A reader takes the plain data of ``yaml_document`` and returns the value, or refuses with the words
that follow "expected" in a problem.
"""  # noqa: D205

import difflib
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

import phonenumbers
import re2
from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError
from pydantic_core.core_schema import no_info_plain_validator_function

from policies.decision import DEFAULT_RULE, Endpoint
from policies.pii.phone import is_region
from policies.pii.scan import AllowList
from policies.policy import ANONYMOUS

MAX_LIFETIME = 2**31
"""Seconds; HTTP caches know no longer ones (RFC 9111, 1.2.2)."""
MAX_GENERATION = 2**53 - 1
ANY = "any"
"""Lifts a bound that the default sets."""

_DURATION = re.compile(r"([1-9][0-9]{0,9})(s|m|h|d|w)", re.ASCII)
_UNITS = {"w": 604_800, "d": 86_400, "h": 3600, "m": 60, "s": 1}
_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+", re.ASCII)
_CREDENTIAL_HEADERS = frozenset(
    {"authorization", "api-key", "x-api-key", "cookie", "proxy-authorization"}
)
_FINISH_REASON = re.compile(r"[a-z][a-z0-9_]{0,62}", re.ASCII)
_USUAL_FINISH_REASONS = ("stop", "tool_calls", "function_call", "length")
_UNCLEAN_FINISH_REASONS = ("content_filter", "abort", "aborted", "error", "cancelled")
_SWITCHES = {"on": (True, "yes"), "off": (False, "no")}
_QUOTE_IT = "; put it in quotes if it is meant"


def expected(what: str) -> PydanticCustomError:
    """Return the error of a value that is not ``what``."""
    # The text goes in as context: a template would trip over the braces of a pattern.
    return PydanticCustomError("expected", "{what}", {"what": what})


def _same(value: Any) -> Any:
    return value


@dataclass(frozen=True, slots=True, eq=False)
class Value:
    """A kind of value. As the annotation of a type, pydantic reads and documents it so."""

    read: Callable[[object], Any]
    schema: JsonSchemaValue
    words: Callable[[Any], Any] = _same
    """What a file says for a value that was read."""

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        return no_info_plain_validator_function(self.read)

    def __get_pydantic_json_schema__(
        self, core: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        return dict(self.schema)


def choice(meanings: Mapping[str, Any]) -> Value:
    """Return the kind of value that is one of these words; on and off may be switches, too."""
    words = sorted(meanings, key=lambda word: word not in _SWITCHES)
    listed = ", ".join(words[:-1]) + f" or {words[-1]}"
    written = {meaning: word for word, meaning in meanings.items()}

    def read(value: object) -> Any:
        word = _word(value)
        if word not in words:
            raise expected(listed)
        return meanings[str(word)]

    switches = [other for word in words for other in _SWITCHES.get(word, ())]
    return Value(read, {"enum": [*words, *switches]}, written.__getitem__)


def members(of: Iterable[StrEnum]) -> Value:
    """Return the kind of value that names one of these members."""
    return choice({each.value: each for each in of})


def is_off(value: object) -> bool:
    """Tell whether a value is a switch that is off."""
    return _word(value) == "off"


def _word(value: object) -> object:
    """Return a switch as its word, anything else as it is."""
    for word, others in _SWITCHES.items():
        if any(value is other or (value == other and isinstance(value, str)) for other in others):
            return word
    return value


def or_word(kind: Value, word: str, meaning: Any, *, first: bool = False) -> Value:
    """Return the kind of value that may be a word, too; ``first`` says so in messages."""
    alone = {"enum": [word, *_SWITCHES[word]]} if word in _SWITCHES else {"const": word}

    def read(value: object) -> Any:
        if _word(value) == word:
            return meaning
        try:
            return kind.read(value)
        except PydanticCustomError as error:
            told = error.message()
            raise expected(f"{word} or {told}" if first else f"{told}, or {word}") from None

    def words(value: Any) -> Any:
        return word if value == meaning else kind.words(value)

    return Value(read, {"anyOf": [alone, kind.schema] if first else [kind.schema, alone]}, words)


def matching(
    pattern: str, what: str, read: Callable[[str], Any] = _same, words: Callable[[Any], Any] = _same
) -> Value:
    """Return the kind of value that is text like ``pattern`` as a whole."""
    compiled = re.compile(pattern, re.ASCII)

    def matched(value: object) -> Any:
        if not isinstance(value, str) or compiled.fullmatch(value) is None:
            raise expected(what)
        return read(value)

    return Value(matched, {"type": "string", "pattern": f"^{pattern}$"}, words)


def whole(least: int, most: int, what: str | None = None) -> Value:
    """Return the kind of value that is a whole number from ``least`` to ``most``."""

    def read(value: object) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise expected(what or f"a whole number from {least} to {most}")
        return value

    return Value(read, {"type": "integer", "minimum": least, "maximum": most})


def decimal(least: int, most: int) -> Value:
    """Return the kind of value that is a number from ``least`` to ``most``."""

    def read(value: object) -> float:
        if isinstance(value, bool):  # which Python counts as 0 or 1
            raise expected(f"a number from {least} to {most}")
        if isinstance(value, int | float) and least <= value <= most:
            return float(value)
        raise expected(f"a number from {least} to {most}")

    return Value(read, {"type": "number", "minimum": least, "maximum": most})


def percent_text(share: float) -> str:
    """Write a share of 1 as a percentage."""
    return f"{share * 100:g}%"


def duration_text(seconds: float) -> str:
    """Write a duration with the largest unit that leaves nothing over."""
    unit, size = next(each for each in _UNITS.items() if int(seconds) % each[1] == 0)
    return f"{int(seconds) // size}{unit}"


def _share(value: str) -> float:
    return float(value.removesuffix("%")) / 100


def _duration(value: object) -> float:
    written = _DURATION.fullmatch(value) if isinstance(value, str) else None
    if written is None:
        raise expected("a duration such as 10m, 24h or 7d")
    seconds = int(written[1]) * _UNITS[written[2]]
    if seconds > MAX_LIFETIME:
        raise expected(f"a duration of at most {MAX_LIFETIME} seconds (24855d)")
    return float(seconds)


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise expected("text" + (_QUOTE_IT if isinstance(value, bool | int | float) else ""))
    if not value.strip():
        raise expected("text that is not empty")
    return value


def _name_but(reserved: str, whose: str) -> Value:
    def read(value: object) -> str:
        name = NAME.read(value)
        if name == reserved:
            raise expected(f"a name other than {reserved}, which {whose} have")
        return str(name)

    return Value(read, {**NAME.schema, "not": {"const": reserved}})


def _header_name(value: object) -> str:
    """Read a header's name; returns it in lower case."""
    if not isinstance(value, str) or _HEADER_NAME.fullmatch(value) is None:
        raise expected("the name of a header")
    name = value.lower()
    if name in _CREDENTIAL_HEADERS:
        raise expected("a header that holds no credential (match a tenant instead)")
    return name


def _regex(value: object) -> str:
    """Read a pattern that RE2 compiles."""
    pattern = _text(value)
    options = re2.Options()
    options.log_errors = False
    try:
        re2.compile(pattern, options)
    except re2.error as error:
        reason = error.args[0]
        detail = reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)
        raise expected(f"a regular expression that RE2 accepts ({detail})") from error
    return pattern


def _region(value: object) -> str:
    if not isinstance(value, str) or not is_region(value):
        raise expected("an ISO 3166 region code such as US or GB")
    return value


def _finish_reason(value: object) -> str:
    """Read a finish reason with which an answer may be stored; servers have some of their own."""
    usual = ", ".join(_USUAL_FINISH_REASONS)
    if not isinstance(value, str) or _FINISH_REASON.fullmatch(value) is None:
        raise expected(f"the name of a finish reason, such as {usual}")
    if value in _UNCLEAN_FINISH_REASONS:
        raise expected(f"a finish reason of whole answers, such as {usual}")
    near = difflib.get_close_matches(value, _USUAL_FINISH_REASONS, n=1, cutoff=0.8)
    if near and value not in _USUAL_FINISH_REASONS:
        raise expected(f"the name of a finish reason (did you mean {near[0]}?)")
    return value


def _contact(value: object) -> str:
    """Read what is public and no personal data; whose it is, the allow-list understands."""
    contact = _text(value)
    try:
        AllowList.of([contact], ())
    except ValueError:
        raise expected(
            "an address, number or other text of at least 6 characters, or an email address "
            "in which * stands for some of it, such as *@acme.example or *@*.acme.example"
        ) from None
    return contact


def _version(value: object) -> int:
    if isinstance(value, bool) or value != 1:
        raise expected("1, the version of this format")
    return 1


ON_OFF = replace(choice({"on": True, "off": False}), words=lambda value: "on" if value else "off")
DURATION = Value(
    _duration, {"type": "string", "pattern": r"^[1-9][0-9]{0,9}[smhdw]$"}, duration_text
)
DURATION_OR_OFF = or_word(DURATION, "off", 0.0, first=True)
PERCENT = matching(
    r"(?:100(?:\.0{1,9})?|[0-9]{1,2}(?:\.[0-9]{1,9})?)%",
    "a percentage from 0% to 100%, such as 10%",
    _share,
    percent_text,
)
# From 0.01% to 20%, in steps of 0.01%: what a calibration can tell apart.
ERROR_BUDGET = matching(
    r"(?:20(?:\.00?)?|1[0-9](?:\.[0-9]{1,2})?|[1-9](?:\.[0-9]{1,2})?|0\.(?:0[1-9]|[1-9][0-9]?))%",
    "a percentage from 0.01% to 20%, such as 1%",
    _share,
    percent_text,
)
SIMILARITY = decimal(0, 1)
GENERATION = whole(0, MAX_GENERATION, "a whole number from 0")
TEXT = Value(_text, {"type": "string", "pattern": r"\S"})
REGEX = Value(_regex, TEXT.schema)
DIGEST = matching("[0-9a-f]{64}", "a SHA-256 in 64 lower-case hex digits")
NAME = matching(
    "[a-z0-9][a-z0-9_-]{0,62}", "a name of at most 63 lower-case letters, digits, - and _"
)
RULE_NAME = _name_but(DEFAULT_RULE, "the default settings")
TENANT_NAME = _name_but(ANONYMOUS, "requests without an API key")
HEADER_NAME = Value(_header_name, {"type": "string", "pattern": f"^{_HEADER_NAME.pattern}$"})
ENDPOINT = choice({each.value: each.value for each in Endpoint})
REGION = Value(_region, {"type": "string", "enum": sorted(phonenumbers.SUPPORTED_REGIONS)})
FINISH_REASON = Value(
    _finish_reason,
    {
        "type": "string",
        "pattern": f"^{_FINISH_REASON.pattern}$",
        "not": {"enum": list(_UNCLEAN_FINISH_REASONS)},
    },
)
MODEL = matching("[!-~]{1,256}", "the name of a model, without white space")
TAG = matching("[A-Za-z0-9][A-Za-z0-9._:/-]{0,62}", "a tag of at most 63 letters, digits and ._:/-")
CONTACT = Value(_contact, {"type": "string", "minLength": 6})
VERSION = Value(_version, {"const": 1})
