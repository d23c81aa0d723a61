"""The values a policy file may hold: how each is read, what is said when it is something else,
and the JSON schema an editor checks it by.

Each reader takes the plain data of ``policies.document`` and returns the value, or refuses with
the words that follow "expected" in a problem.
"""  # noqa: D205

import difflib
import re
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import phonenumbers
import re2
from pydantic import PlainValidator, WithJsonSchema
from pydantic_core import PydanticCustomError

from policies.allow_list import AllowList
from policies.decide import PiiAction, Priority, Scope
from policies.detectors.phone import is_region
from policies.shapes import OFF, ON_OFF, expected, is_off, on_off

MAX_LIFETIME = 2**31
"""Seconds; HTTP caches know no longer ones (RFC 9111, 1.2.2)."""
MAX_GENERATION = 2**53 - 1
ENDPOINTS = ("/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses")
ANONYMOUS = "anonymous"
"""The tenant of a request without credential, organization and project."""
DEFAULT_RULE = "default"

_DURATION = re.compile(r"([1-9][0-9]{0,9})(s|m|h|d|w)", re.ASCII)
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}", re.ASCII)
_DIGEST = re.compile(r"[0-9a-f]{64}", re.ASCII)
_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+", re.ASCII)
_CREDENTIAL_HEADERS = frozenset(
    {"authorization", "api-key", "x-api-key", "cookie", "proxy-authorization"}
)
_PERCENT = re.compile(r"(100(?:\.0{1,9})?|[0-9]{1,2}(?:\.[0-9]{1,9})?)%", re.ASCII)
# From 0.01% to 20%, in steps of 0.01%: what a calibration can tell apart.
_BUDGET = re.compile(
    r"(20(?:\.00?)?|1[0-9](?:\.[0-9]{1,2})?|[1-9](?:\.[0-9]{1,2})?|0\.(?:0[1-9]|[1-9][0-9]?))%",
    re.ASCII,
)
_FINISH_REASON = re.compile(r"[a-z][a-z0-9_]{0,62}", re.ASCII)
_TAG = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/-]{0,62}", re.ASCII)
_MODEL_SCHEMA = "^[!-~]{1,256}$"
_MODEL = re.compile(_MODEL_SCHEMA)
_USUAL_FINISH_REASONS = ("stop", "tool_calls", "function_call", "length")
_UNCLEAN_FINISH_REASONS = ("content_filter", "abort", "aborted", "error", "cancelled")
ANY = "any"
"""Lifts a bound that the default sets."""
MOST_TEMPERATURE = 2
MOST_FOLLOWERS = 1_000_000
MOST_PROMPT_TOKENS = 2**31
_QUOTE_IT = "; put it in quotes if it is meant"


def duration(value: object) -> int:
    """Read a duration; returns seconds."""
    written = _DURATION.fullmatch(value) if isinstance(value, str) else None
    if written is None:
        raise expected("a duration such as 10m, 24h or 7d")
    seconds = int(written[1]) * _UNITS[written[2]]
    if seconds > MAX_LIFETIME:
        raise expected(f"a duration of at most {MAX_LIFETIME} seconds (24855d)")
    return seconds


def duration_or_off(value: object) -> int:
    """Read a duration; off is none, 0 seconds."""
    if is_off(value):
        return 0
    try:
        return duration(value)
    except PydanticCustomError as error:
        raise expected(f"off or {error.message()}") from None


def percent(value: object) -> float:
    """Read a percentage; returns a share of 1."""
    written = _PERCENT.fullmatch(value) if isinstance(value, str) else None
    if written is None:
        raise expected("a percentage from 0% to 100%, such as 10%")
    return float(written[1]) / 100


def error_budget(value: object) -> float:
    """Read the share of semantic hits that may be wrong; returns a share of 1."""
    written = _BUDGET.fullmatch(value) if isinstance(value, str) else None
    if written is None:
        raise expected("a percentage from 0.01% to 20%, such as 1%")
    return float(written[1]) / 100


def text(value: object) -> str:
    """Read text that is not empty."""
    if not isinstance(value, str):
        raise expected("text" + (_QUOTE_IT if isinstance(value, bool | int | float) else ""))
    if not value.strip():
        raise expected("text that is not empty")
    return value


def one_of(choices: Sequence[str]) -> Callable[[object], str]:
    """Return a reader of one of these words."""
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


def whole_number(least: int, most: int) -> Callable[[object], int]:
    """Return a reader of whole numbers from ``least`` to ``most``."""

    def read(value: object) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise expected(f"a whole number from {least} to {most}")
        return value

    return read


def temperature(value: object) -> float | None:
    """Read a temperature; ``any`` is None."""
    match value:
        case "any":
            return None
        case bool():
            pass
        case int() | float() if 0 <= value <= MOST_TEMPERATURE:
            return float(value)
    raise expected(f"a number from 0 to {MOST_TEMPERATURE}, or any")


def prompt_tokens(value: object) -> int | None:
    """Read a number of tokens; ``any`` is None."""
    if value == ANY:
        return None
    try:
        return whole_number(1, MOST_PROMPT_TOKENS)(value)
    except PydanticCustomError as error:
        raise expected(f"{error.message()}, or any") from None


def model_or_off(value: object) -> str | None:
    """Read the name of a model; ``off`` is None."""
    if is_off(value):
        return None
    if not isinstance(value, str) or _MODEL.fullmatch(value) is None:
        raise expected("the name of a model, without white space, or off")
    return value


def finish_reason(value: object) -> str:
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


def public_contact(value: object) -> str:
    """Read what is public and no personal data; whose it is, the allow-list understands."""
    contact = text(value)
    try:
        AllowList.of([contact], ())
    except ValueError:
        raise expected(
            "an address, number or other text of at least 6 characters, or an email address "
            "in which * stands for some of it, such as *@acme.example or *@*.acme.example"
        ) from None
    return contact


def version_one(value: object) -> int:
    """Read the version of the format."""
    if isinstance(value, bool) or value != 1:
        raise expected("1, the version of this format")
    return 1


def _schema(**schema: Any) -> WithJsonSchema:
    return WithJsonSchema({"type": "string", **schema})


_DURATION_SCHEMA = r"^[1-9][0-9]{0,9}[smhdw]$"
_NAME_SCHEMA = f"^{_NAME.pattern}$"

OnOff = Annotated[bool, PlainValidator(on_off), WithJsonSchema(ON_OFF)]
Duration = Annotated[int, PlainValidator(duration), _schema(pattern=_DURATION_SCHEMA)]
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
EndpointPath = Annotated[str, PlainValidator(one_of(ENDPOINTS)), _schema(enum=list(ENDPOINTS))]
Region = Annotated[
    str, PlainValidator(region), _schema(enum=sorted(phonenumbers.SUPPORTED_REGIONS))
]
ScopeName = Annotated[
    str, PlainValidator(one_of([*Scope])), _schema(enum=[scope.value for scope in Scope])
]
PiiActionName = Annotated[
    str, PlainValidator(one_of([*PiiAction])), _schema(enum=[action.value for action in PiiAction])
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
DurationOrOff = Annotated[
    int,
    PlainValidator(duration_or_off),
    WithJsonSchema({"anyOf": [OFF, {"type": "string", "pattern": _DURATION_SCHEMA}]}),
]
Percent = Annotated[float, PlainValidator(percent), _schema(pattern=f"^(?:{_PERCENT.pattern})$")]
ErrorBudget = Annotated[
    float, PlainValidator(error_budget), _schema(pattern=f"^(?:{_BUDGET.pattern})$")
]
Followers = Annotated[
    int,
    PlainValidator(whole_number(1, MOST_FOLLOWERS)),
    WithJsonSchema({"type": "integer", "minimum": 1, "maximum": MOST_FOLLOWERS}),
]
FinishReason = Annotated[
    str,
    PlainValidator(finish_reason),
    _schema(
        pattern=f"^{_FINISH_REASON.pattern}$",
        **{"not": {"enum": list(_UNCLEAN_FINISH_REASONS)}},
    ),
]
Temperature = Annotated[
    float | None,
    PlainValidator(temperature),
    WithJsonSchema(
        {"anyOf": [{"type": "number", "minimum": 0, "maximum": MOST_TEMPERATURE}, {"const": ANY}]}
    ),
]
ModelOrOff = Annotated[
    str | None,
    PlainValidator(model_or_off),
    WithJsonSchema({"anyOf": [{"type": "string", "pattern": _MODEL_SCHEMA}, OFF]}),
]
PromptTokens = Annotated[
    int | None,
    PlainValidator(prompt_tokens),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "integer", "minimum": 1, "maximum": MOST_PROMPT_TOKENS},
                {"const": ANY},
            ]
        }
    ),
]
PriorityName = Annotated[
    str, PlainValidator(one_of([*Priority])), _schema(enum=[each.value for each in Priority])
]
Tag = Annotated[
    str,
    PlainValidator(_shaped(_TAG, "a tag of at most 63 letters, digits and ._:/-")),
    _schema(pattern=f"^{_TAG.pattern}$"),
]
Contact = Annotated[str, PlainValidator(public_contact), _schema(minLength=6)]
VersionOne = Annotated[int, PlainValidator(version_one), WithJsonSchema({"const": 1})]
