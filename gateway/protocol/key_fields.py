"""The type of each field of a request, its role in the key, and the checks of a body against them.

Law: a field is neutral only if it cannot change the answer, and a field that is not listed is part
of the key. Every field that OpenAI publishes is listed, so a new one is examined before it is
cached. If the value of a bypass field is not refused, the field is key or neutral like any other.

Only types, and the few values that the gateway itself reads, are checked. The upstream judges
ranges, models and context lengths, and unknown fields pass. A shape that OpenAI refuses and other
servers take is returned as an error, not raised: such a request is forwarded unchanged, and not
looked up.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple

from gateway.protocol.cache_status import Reason
from gateway.protocol.errors import ClientError


class Role(StrEnum):
    """What a field is for the cache."""

    KEY = "key"
    NEUTRAL = "neutral"
    BYPASS = "bypass"


def _never(_: Any) -> bool:
    return False


class Type(NamedTuple):
    """What a field may hold besides null: ``expected`` is the word for it in an error."""

    expected: str
    types: tuple[type, ...]
    taken: Callable[[Any], bool] = _never
    """Whether some servers read another value as one of the right type."""


_NUMERAL = re.compile(r"\s*[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?\s*", re.ASCII)
"""A number as a string, which vLLM reads as the number."""
_SWITCHES = frozenset({"true", "false", "0", "1", 0, 1})
"""What vLLM reads as true or false."""


def _is_numeral(value: Any) -> bool:
    return isinstance(value, str) and _NUMERAL.fullmatch(value) is not None


NUMBER = Type("a decimal", (int, float), _is_numeral)
INTEGER = Type("an integer", (int,), _is_numeral)
COUNT = Type(*INTEGER[:2], lambda value: isinstance(value, bool) or _is_numeral(value))
"""How many there are to be, or whether there are any."""
BOOLEAN = Type(
    "a boolean", (bool,), lambda value: isinstance(value, str | int) and value in _SWITCHES
)
STRING = Type("a string", (str,))
USER = Type(*STRING[:2], lambda value: isinstance(value, int | float))
OBJECT = Type("an object", (dict,))
BIAS = Type(*OBJECT[:2], lambda value: isinstance(value, list))  # pairs, as llama.cpp takes them
ARRAY = Type("an array", (list,))
OBJECTS = Type("an array of objects", (list,))
STRINGS = Type("one of a string or array of strings", (str, list))


Refusal = Callable[[Any], Reason | None]
"""Says why a value, which is not null, keeps a request from being looked up."""


@dataclass(frozen=True, slots=True)
class Field:
    """One top-level field of a request. Without a type, any value passes."""

    type: Type | None
    keyed: bool
    refusal: Refusal | None = None
    absent: Reason | None = None
    """Why a request without the field, or with null in it, is not looked up."""

    @property
    def role(self) -> Role:
        """The class by which the field is documented."""
        if self.refusal is not None:
            return Role.BYPASS
        return Role.KEY if self.keyed else Role.NEUTRAL


Fields = Mapping[str, Field]


def keyed(kind: Type | None = None, refusal: Refusal | None = None) -> Field:
    """Return a field that is part of the key."""
    return Field(kind, keyed=True, refusal=refusal)


def neutral(
    kind: Type | None = None, refusal: Refusal | None = None, absent: Reason | None = None
) -> Field:
    """Return a field that is left out of the key."""
    return Field(kind, keyed=False, refusal=refusal, absent=absent)


def when_given(reason: Reason) -> Refusal:
    """Refuse any value."""
    return lambda _: reason


def when_true(reason: Reason) -> Refusal:
    """Refuse ``true``."""
    return lambda value: reason if value is True else None


def _searching_model(model: Any) -> Reason | None:
    """Know models that search the web without being asked to by what is part of their names."""
    if (
        isinstance(model, str)
        and "search" in model
        and ("-search-preview" in model or "-search-api" in model or "-deep-research" in model)
    ):
        return Reason.WEB_SEARCH
    return None


_PLAIN_TOOLS = frozenset({"function", "custom"})
"""Tools that the client runs; what any other does, or reads, is known upstream only."""


def hosted_tools(tools: Any) -> Reason | None:
    """Refuse tools that the upstream runs."""
    for tool in tools if isinstance(tools, list) else ():
        kind = tool.get("type") if isinstance(tool, dict) else None
        if not isinstance(kind, str) or kind not in _PLAIN_TOOLS:
            searches = isinstance(kind, str) and kind.startswith("web_search")
            return Reason.WEB_SEARCH if searches else Reason.HOSTED_TOOLS
    return None


TOOLS = keyed(OBJECTS, hosted_tools)

GENERATION: Fields = {
    "model": keyed(STRING, _searching_model),
    "temperature": keyed(NUMBER),
    "top_p": keyed(NUMBER),
    "stream": neutral(BOOLEAN),
    "stream_options": neutral(OBJECT),
    "user": neutral(USER),
    "safety_identifier": neutral(USER),
    "metadata": neutral(OBJECT),
    "service_tier": neutral(),
    "prompt_cache_key": neutral(),
    "prompt_cache_retention": neutral(),
    "prompt_cache_options": neutral(),
    "store": neutral(BOOLEAN, when_true(Reason.STORE_TRUE)),
}
"""Fields that all generating endpoints share; servers take them where OpenAI does not, too."""

SAMPLING: Fields = {
    **GENERATION,
    "frequency_penalty": keyed(NUMBER),
    "presence_penalty": keyed(NUMBER),
    "logit_bias": keyed(BIAS),
    "max_tokens": keyed(INTEGER),
    "n": keyed(INTEGER),
    "seed": keyed(INTEGER),
    "stop": keyed(STRINGS),
}

_JSON_NAMES = {
    dict: "an object",
    list: "an array",
    str: "a string",
    bool: "a boolean",
    int: "an integer",
    float: "a decimal",
}


def check_fields(
    body: dict[str, Any], fields: Fields, *, names_model: bool = True
) -> list[ClientError]:
    """Return why a request is forwarded only. Raises ClientError for what no server takes.

    A request without a model is one of these: servers of one model take it.
    """
    odd = []
    for name, value in body.items():
        known = fields.get(name)
        if known is None or value is None or (kind := known.type) is None:
            continue
        if type(value) not in kind.types:  # not isinstance: True is no number
            if not kind.taken(value):
                raise wrong_type(name, value, kind)
            odd.append(wrong_type(name, value, kind))
    if names_model and body.get("model") is None:
        odd.append(missing("model"))
    return odd


def check_type(where: str, value: Any, kind: Type) -> None:
    """Raise ClientError for a value of another type."""
    if type(value) not in kind.types:
        raise wrong_type(where, value, kind)


def require(holder: dict[str, Any], name: str, where: str = "") -> None:
    """Raise ClientError where a field is absent or null."""
    if holder.get(name) is None:
        raise missing(f"{where}.{name}" if where else name)


def wrong_type(where: str, value: Any, kind: Type) -> ClientError:
    """Return the error of a value of another type."""
    got = "null" if value is None else _JSON_NAMES[type(value)]
    message = f"Invalid type for '{where}': expected {kind.expected}, but got {got} instead."
    return ClientError(400, message, param=where, code="invalid_type")


def missing(param: str) -> ClientError:
    """Return the error of a field that is absent."""
    message = f"Missing required parameter: '{param}'."
    return ClientError(400, message, param=param, code="missing_required_parameter")


def empty_array(where: str) -> ClientError:
    """Return the error of an array that holds nothing."""
    got = "minimum length 1, but got an empty array"
    return _wrong_length(where, "empty_array", "empty array", got)


def long_array(where: str, most: int, length: int) -> ClientError:
    """Return the error of an array that holds too much."""
    got = f"maximum length {most}, but got an array with length {length}"
    return _wrong_length(where, "array_above_max_length", "array too long", got)


def _wrong_length(where: str, code: str, what: str, got: str) -> ClientError:
    message = f"Invalid '{where}': {what}. Expected an array with {got} instead."
    return ClientError(400, message, param=where, code=code)
