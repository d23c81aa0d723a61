"""The values a policy file may hold: how each is read, what is said when it is something else,
and the JSON schema an editor checks it by.

Each reader takes the plain data of ``policies.document`` and returns the value, or refuses with
the words that follow "expected" in a problem.
"""  # noqa: D205

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

import phonenumbers
import re2
from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler, PlainValidator, WithJsonSchema
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError
from pydantic_core.core_schema import no_info_before_validator_function

from policies.decide import PiiAction, Scope
from policies.detectors.phone import is_region

MAX_LIFETIME = 2**31
"""Seconds; HTTP caches know no longer ones (RFC 9111, 1.2.2)."""
MAX_GENERATION = 2**53 - 1
ENDPOINTS = ("/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses")
ANONYMOUS = "anonymous"
"""The tenant of a request without credential, organization and project."""
DEFAULT_RULE = "default"

_ON, _OFF = ("on", "yes"), ("off", "no")
_ON_OFF: JsonSchemaValue = {"enum": ["on", "off", True, False, "yes", "no"]}
_DURATION = re.compile(r"([1-9][0-9]{0,9})(s|m|h|d|w)", re.ASCII)
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}", re.ASCII)
_DIGEST = re.compile(r"[0-9a-f]{64}", re.ASCII)
_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+", re.ASCII)
_CREDENTIAL_HEADERS = frozenset(
    {"authorization", "api-key", "x-api-key", "cookie", "proxy-authorization"}
)
_QUOTE_IT = "; put it in quotes if it is meant"


def expected(what: str) -> PydanticCustomError:
    """Return the error of a value that is not ``what``."""
    # The text goes in as context: a template would trip over the braces of a pattern.
    return PydanticCustomError("expected", "{what}", {"what": what})


def on_off(value: object) -> bool:
    """Read a switch."""
    if isinstance(value, bool):
        return value
    if value in _ON:
        return True
    if value in _OFF:
        return False
    raise expected("on or off")


def duration(value: object) -> int:
    """Read a duration; returns seconds."""
    written = _DURATION.fullmatch(value) if isinstance(value, str) else None
    if written is None:
        raise expected("a duration such as 10m, 24h or 7d")
    seconds = int(written[1]) * _UNITS[written[2]]
    if seconds > MAX_LIFETIME:
        raise expected(f"a duration of at most {MAX_LIFETIME} seconds (24855d)")
    return seconds


def text(value: object) -> str:
    """Read text that is not empty."""
    if not isinstance(value, str):
        raise expected("text" + (_QUOTE_IT if isinstance(value, bool | int | float) else ""))
    if not value.strip():
        raise expected("text that is not empty")
    return value


def _one_of(choices: Sequence[str]) -> Callable[[object], str]:
    listed = ", ".join(choices[:-1]) + f" or {choices[-1]}"

    def read(value: object) -> str:
        if value not in choices:
            raise expected(listed)
        return str(value)

    return read


def _shaped(pattern: re.Pattern[str], what: str) -> Callable[[object], str]:
    def read(value: object) -> str:
        if not isinstance(value, str) or pattern.fullmatch(value) is None:
            raise expected(what)
        return value

    return read


_name = _shaped(_NAME, "a name of at most 63 lower-case letters, digits, - and _")


def rule_name(value: object) -> str:
    """Read a rule's name."""
    name = _name(value)
    if name == DEFAULT_RULE:
        raise expected(f"a name other than {DEFAULT_RULE}, which the default settings have")
    return name


def tenant_name(value: object) -> str:
    """Read the name of a tenant that is being defined."""
    name = _name(value)
    if name == ANONYMOUS:
        raise expected(f"a name other than {ANONYMOUS}, which requests without an API key have")
    return name


def header_name(value: object) -> str:
    """Read a header's name; returns it in lower case."""
    if not isinstance(value, str) or _HEADER_NAME.fullmatch(value) is None:
        raise expected("the name of a header")
    name = value.lower()
    if name in _CREDENTIAL_HEADERS:
        raise expected("a header that holds no credential (match a tenant instead)")
    return name


def regex(value: object) -> str:
    """Read a pattern that RE2 compiles."""
    pattern = text(value)
    options = re2.Options()
    options.log_errors = False
    try:
        re2.compile(pattern, options)
    except re2.error as error:
        reason = error.args[0]
        detail = reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)
        raise expected(f"a regular expression that RE2 accepts ({detail})") from error
    return pattern


def region(value: object) -> str:
    """Read a region code."""
    if not isinstance(value, str) or not is_region(value):
        raise expected("an ISO 3166 region code such as US or GB")
    return value


def similarity(value: object) -> float:
    """Read a cosine similarity."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise expected("a number from 0 to 1")
    return float(value)


def generation(value: object) -> int:
    """Read a generation."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MAX_GENERATION:
        raise expected("a whole number from 0")
    return value


def version_one(value: object) -> int:
    """Read the version of the format."""
    if isinstance(value, bool) or value != 1:
        raise expected("1, the version of this format")
    return 1


class _OneOrMany:
    """Reads a single value as a list of one; refuses an empty list."""

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        return no_info_before_validator_function(self._listed, handler(source))

    def __get_pydantic_json_schema__(
        self, core: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        many = {**handler(core), "minItems": 1}
        return {"anyOf": [many["items"], many]}

    @staticmethod
    def _listed(value: object) -> object:
        if value == []:
            raise expected("at least one value")
        return value if isinstance(value, list) else [value]


class _Filled:
    """Refuses an empty mapping."""

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        return no_info_before_validator_function(self._filled, handler(source))

    def __get_pydantic_json_schema__(
        self, core: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        return {**handler(core), "minProperties": 1}

    @staticmethod
    def _filled(value: object) -> object:
        if value == {}:
            raise expected("at least one key")
        return value


class _OrOnOff:
    """Reads on and off as a mapping that sets only ``enabled``."""

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        return no_info_before_validator_function(self._mapping, handler(source))

    def __get_pydantic_json_schema__(
        self, core: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        return {"anyOf": [_ON_OFF, handler(core)]}

    @staticmethod
    def _mapping(value: object) -> object:
        if isinstance(value, dict):
            return value
        try:
            return {"enabled": on_off(value)}
        except PydanticCustomError:
            raise expected("on, off or a mapping such as {min_similarity: 0.97}") from None


@dataclass(frozen=True, slots=True, eq=False)
class Described:
    """Documents a key wherever it may stand, optional or not."""

    description: str
    examples: tuple[Any, ...]

    def __get_pydantic_json_schema__(
        self, core: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        return {
            **handler(core),
            "description": self.description,
            "examples": list(self.examples),
        }


T = TypeVar("T")
OneOrMany = Annotated[list[T], _OneOrMany()]
Filled = Annotated[T, _Filled()]
OrOnOff = Annotated[T, _OrOnOff()]


def _schema(**schema: Any) -> WithJsonSchema:
    return WithJsonSchema({"type": "string", **schema})


_NAME_SCHEMA = f"^{_NAME.pattern}$"

OnOff = Annotated[bool, PlainValidator(on_off), WithJsonSchema(_ON_OFF)]
Duration = Annotated[int, PlainValidator(duration), _schema(pattern=r"^[1-9][0-9]{0,9}[smhdw]$")]
Text = Annotated[str, PlainValidator(text), _schema(pattern=r"\S")]
Glob = Text
Keyword = Text
Regex = Annotated[str, PlainValidator(regex), _schema(pattern=r"\S")]
Digest = Annotated[
    str,
    PlainValidator(_shaped(_DIGEST, "a SHA-256 in 64 lower-case hex digits")),
    _schema(pattern=f"^{_DIGEST.pattern}$"),
]
RuleName = Annotated[
    str,
    PlainValidator(rule_name),
    _schema(pattern=_NAME_SCHEMA, **{"not": {"const": DEFAULT_RULE}}),
]
TenantName = Annotated[
    str,
    PlainValidator(tenant_name),
    _schema(pattern=_NAME_SCHEMA, **{"not": {"const": ANONYMOUS}}),
]
HeaderName = Annotated[
    str, PlainValidator(header_name), _schema(pattern=f"^{_HEADER_NAME.pattern}$")
]
TenantReference = Annotated[str, PlainValidator(_name), _schema(pattern=_NAME_SCHEMA)]
EndpointPath = Annotated[str, PlainValidator(_one_of(ENDPOINTS)), _schema(enum=list(ENDPOINTS))]
Region = Annotated[
    str, PlainValidator(region), _schema(enum=sorted(phonenumbers.SUPPORTED_REGIONS))
]
ScopeName = Annotated[
    str, PlainValidator(_one_of([*Scope])), _schema(enum=[scope.value for scope in Scope])
]
PiiActionName = Annotated[
    str, PlainValidator(_one_of([*PiiAction])), _schema(enum=[action.value for action in PiiAction])
]
Similarity = Annotated[
    float,
    PlainValidator(similarity),
    WithJsonSchema({"type": "number", "minimum": 0, "maximum": 1}),
]
Generation = Annotated[
    int,
    PlainValidator(generation),
    WithJsonSchema({"type": "integer", "minimum": 0, "maximum": MAX_GENERATION}),
]
VersionOne = Annotated[int, PlainValidator(version_one), WithJsonSchema({"const": 1})]
