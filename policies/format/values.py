"""The kinds of value a policy file may hold: how each is read and refused, the JSON schema that an
editor checks it by, and how it is written again.
"""  # noqa: D205

import difflib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from types import MappingProxyType
from typing import Any

import phonenumbers

from policies.decision import DEFAULT_RULE, Endpoint
from policies.format.units import read_time, time_text
from policies.patterns import PatternError, check_syntax
from policies.pii.phone import is_region
from policies.pii.scan import AllowList
from policies.policy import ANONYMOUS

JsonSchema = dict[str, Any]

MAX_LIFETIME = 2**31
"""Seconds; HTTP caches know no longer ones (RFC 9111, 1.2.2)."""
MAX_GENERATION = 2**53 - 1
ANY = "any"
"""Lifts a bound that the default sets."""

_CREDENTIAL_HEADERS = frozenset(
    {"authorization", "api-key", "x-api-key", "cookie", "proxy-authorization"}
)
_FINISH_REASONS = ("stop", "tool_calls", "function_call", "length")
_USUAL = ", ".join(_FINISH_REASONS)
_UNCLEAN_FINISH_REASONS = ("content_filter", "abort", "aborted", "error", "cancelled")
_SWITCHES = {"on": (True, "yes"), "off": (False, "no")}


class UnexpectedValueError(ValueError):
    """A value does not fit its key; the text names the expected values."""


def _same(value: Any) -> Any:
    return value


@dataclass(frozen=True, slots=True, eq=False)
class Value:
    """A kind of value."""

    read: Callable[[object], Any]
    """Takes the plain data of ``yaml_document``. Raises UnexpectedValueError."""
    schema: JsonSchema
    words: Callable[[Any], Any] = _same
    """Returns the file's form of a value."""

    def load(self, value: object, _spot: object, /) -> Any:
        return self.read(value)

    def json_schema(self, _definitions: object, /) -> JsonSchema:
        return dict(self.schema)


def choice(meanings: Mapping[str, Any]) -> Value:
    """Return the kind of value that is one of these words; on and off may be switches, too."""
    words = sorted(meanings, key=lambda word: word not in _SWITCHES)
    listed = ", ".join(words[:-1]) + f" or {words[-1]}"
    written = {meaning: word for word, meaning in meanings.items()}

    def read(value: object) -> Any:
        word = _word(value)
        if word not in words:
            raise UnexpectedValueError(listed)
        return meanings[str(word)]

    switches = [other for word in words for other in _SWITCHES.get(word, ())]
    schema = {"enum": [*words, *switches], "examples": words}
    return Value(read, schema, written.__getitem__)


def members(of: Iterable[StrEnum], synonyms: Mapping[str, str] = MappingProxyType({})) -> Value:
    """Return the kind of value that names one of these members.

    Of other words, ``synonyms`` tell which member is meant.
    """
    kind = choice({each.value: each for each in of})

    def read(value: object) -> Any:
        try:
            return kind.read(value)
        except UnexpectedValueError as refused:
            meant = synonyms.get(str(_word(value)).lower())
            hint = f" (did you mean {meant}?)" if meant else ""
            raise UnexpectedValueError(f"{refused}{hint}") from None

    return replace(kind, read=read)


def is_off(value: object) -> bool:
    """Tell whether a value is a switch that is off."""
    return _word(value) == "off"


def _word(value: object) -> object:
    for word, (switch, other) in _SWITCHES.items():
        if value is switch or value == other:
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
        except UnexpectedValueError as refused:
            raise UnexpectedValueError(
                f"{word} or {refused}" if first else f"{refused}, or {word}"
            ) from None

    def words(value: Any) -> Any:
        return word if value == meaning else kind.words(value)

    return Value(read, {"anyOf": [alone, kind.schema] if first else [kind.schema, alone]}, words)


def matching(
    pattern: str,
    what: str,
    read: Callable[[str], Any] = _same,
    words: Callable[[Any], Any] = _same,
    *,
    never: Sequence[str] = (),
) -> Value:
    """Return the kind of value that is text like ``pattern`` as a whole.

    ``read`` may refuse more, such as texts that are ``never`` right.
    """
    compiled = re.compile(pattern, re.ASCII)

    def read_text(value: object) -> Any:
        if not isinstance(value, str) or compiled.fullmatch(value) is None:
            raise UnexpectedValueError(what)
        return read(value)

    schema: JsonSchema = {"type": "string", "pattern": f"^{pattern}$"}
    return Value(read_text, schema | ({"not": {"enum": [*never]}} if never else {}), words)


def whole(least: int, most: int, what: str | None = None) -> Value:
    """Return the kind of value that is a whole number from ``least`` to ``most``."""

    def read(value: object) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise UnexpectedValueError(what or f"a whole number from {least} to {most}")
        return value

    return Value(read, {"type": "integer", "minimum": least, "maximum": most})


def decimal(least: int, most: int) -> Value:
    """Return the kind of value that is a number from ``least`` to ``most``."""
    what = f"a number from {least} to {most}"

    def read(value: object) -> float:
        # Python counts True and False as numbers.
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise UnexpectedValueError(what)
        if not least <= value <= most:
            raise UnexpectedValueError(what)
        return float(value)

    return Value(read, {"type": "number", "minimum": least, "maximum": most})


def percent_text(share: float) -> str:
    """Write a share of 1 as a percentage."""
    return f"{share * 100:g}%"


def _share(value: str) -> float:
    return float(value.removesuffix("%")) / 100


def _seconds(value: str) -> float:
    seconds = read_time(value)
    if seconds > MAX_LIFETIME:
        raise UnexpectedValueError(f"a duration of at most {MAX_LIFETIME} seconds (24855d)")
    return seconds


def _text(value: object) -> str:
    if not isinstance(value, str):
        is_scalar = isinstance(value, bool | int | float)
        raise UnexpectedValueError("text; put it in quotes if it is meant" if is_scalar else "text")
    if not value.strip():
        raise UnexpectedValueError("text that is not empty")
    if any("\ud800" <= character <= "\udfff" for character in value):
        raise UnexpectedValueError("text without half characters")
    return value


def _name(reserved: str = "", whose: str = "") -> Value:
    def read(name: str) -> str:
        if name == reserved:
            raise UnexpectedValueError(f"a name other than {reserved}, which {whose} have")
        return name

    what = "a name of at most 63 lower-case letters, digits, - and _"
    never = [reserved] if reserved else []
    return matching("[a-z0-9][a-z0-9_-]{0,62}", what, read, never=never)


def _header_name(value: str) -> str:
    name = value.lower()
    if name in _CREDENTIAL_HEADERS:
        raise UnexpectedValueError("a header that holds no credential (match a tenant instead)")
    return name


def _regex(value: object) -> str:
    """Read a pattern; whether it is too large shows once all of a list are compiled."""
    pattern = _text(value)
    try:
        check_syntax(pattern)
    except PatternError as error:
        raise UnexpectedValueError(f"a regular expression that RE2 accepts ({error})") from error
    return pattern


def _region(value: object) -> str:
    if not isinstance(value, str) or not is_region(value):
        raise UnexpectedValueError("an ISO 3166 region code such as US or GB")
    return value


def _finish_reason(value: str) -> str:
    """Read a finish reason with which an answer may be stored; servers have more of them."""
    if value in _UNCLEAN_FINISH_REASONS:
        raise UnexpectedValueError(f"a finish reason of whole answers, such as {_USUAL}")
    near = difflib.get_close_matches(value, _FINISH_REASONS, n=1, cutoff=0.8)
    if near and value not in _FINISH_REASONS:
        raise UnexpectedValueError(f"the name of a finish reason (did you mean {near[0]}?)")
    return value


def _contact(value: object) -> str:
    """Read a public contact, which is no personal data, in a form of the allow-list."""
    contact = _text(value)
    try:
        AllowList([contact], ())
    except ValueError:
        raise UnexpectedValueError(
            "an address, number or other text of at least 6 characters, or an email address "
            "in which * stands for some of it, such as *@acme.example or *@*.acme.example"
        ) from None
    return contact


def _version(value: object) -> int:
    if isinstance(value, bool) or value != 1:
        raise UnexpectedValueError("1, the version of this format")
    return 1


ON_OFF = replace(choice({"on": True, "off": False}), words=lambda value: "on" if value else "off")
DURATION = matching(
    "[1-9][0-9]{0,9}[smhdw]", "a duration such as 10m, 24h or 7d", _seconds, time_text
)
DURATION_OR_OFF = or_word(DURATION, "off", 0.0, first=True)
PERCENT = matching(
    r"(?:100(?:\.0{1,9})?|[0-9]{1,2}(?:\.[0-9]{1,9})?)%",
    "a percentage from 0% to 100%, such as 10%",
    _share,
    percent_text,
)
# From 0.01% to 20%, in steps of 0.01%: the resolution of a calibration.
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
NAME = _name()
RULE_NAME = _name(DEFAULT_RULE, "the default settings")
TENANT_NAME = _name(ANONYMOUS, "requests without an API key")
HEADER_NAME = matching("[A-Za-z0-9!#$%&'*+.^_`|~-]+", "the name of a header", _header_name)
ENDPOINT = choice({each.value: each.value for each in Endpoint})
REGION = Value(_region, {"type": "string", "enum": sorted(phonenumbers.SUPPORTED_REGIONS)})
FINISH_REASON = matching(
    "[a-z][a-z0-9_]{0,62}",
    f"the name of a finish reason, such as {_USUAL}",
    _finish_reason,
    never=_UNCLEAN_FINISH_REASONS,
)
MODEL = matching("[!-~]{1,256}", "the name of a model, without white space")
TAG = matching("[A-Za-z0-9][A-Za-z0-9._:/-]{0,62}", "a tag of at most 63 letters, digits and ._:/-")
CONTACT = Value(_contact, {"type": "string", "minLength": 6})
VERSION = Value(_version, {"const": 1})
