"""The fields of a request: their types, which are part of the cache key, which bar a lookup.

Law: a field is neutral only if it cannot change the answer. A field that is not listed is part of
the key, in the order in which its objects were written. Every field that OpenAI publishes is
listed, so a new one is examined before it is cached. A neutral field that becomes keyed raises
``KEY_VERSION``.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from gateway.protocol.errors import ClientError
from gateway.protocol.http.cache_status import Reason

_JSON_NAMES = {
    dict: "an object",
    list: "an array",
    str: "a string",
    bool: "a boolean",
    int: "an integer",
    float: "a decimal",
}


class Type(NamedTuple):
    """The allowed values of a field besides null; ``expected`` is their name in errors."""

    expected: str
    types: tuple[type, ...]
    accepts: Callable[[Any], bool] = lambda _: False
    """Whether some servers read another value as one of the right type."""

    def check(self, where: str, value: Any) -> None:
        if type(value) not in self.types:  # not isinstance: True is no number
            raise self.error(where, value)

    def error(self, where: str, value: Any) -> ClientError:
        actual = "null" if value is None else _JSON_NAMES[type(value)]
        message = f"Invalid type for '{where}': expected {self.expected}, but got {actual} instead."
        return ClientError(400, message, param=where, code="invalid_type")


_NUMERAL = re.compile(r"\s*[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?\s*", re.ASCII)
"""A number as a string, which vLLM reads as the number."""
_SWITCHES = frozenset({"true", "false", "0", "1", 0, 1})
"""Values that vLLM reads as true or false."""


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


class Field(NamedTuple):
    """One top-level field of a request. Without a type, any value passes."""

    type: Type | None
    keyed: bool
    refusal: Refusal | None = None
    absent: Reason | None = None
    """Why a request without the field, or with null in it, is not looked up."""


Fields = Mapping[str, Field]


def keyed(kind: Type | None, *names: str) -> Fields:
    """Return fields that are part of the key."""
    return dict.fromkeys(names, Field(kind, keyed=True))


def neutral(kind: Type | None, *names: str) -> Fields:
    """Return fields that are left out of the key."""
    return dict.fromkeys(names, Field(kind, keyed=False))


def when_given(reason: Reason) -> Refusal:
    """Refuse any value."""
    return lambda _: reason


def when_true(reason: Reason) -> Refusal:
    """Refuse ``true``."""
    return lambda value: reason if value is True else None


def _searching_model(model: Any) -> Reason | None:
    """Recognise models that always search the web, by parts of their names."""
    if (
        isinstance(model, str)
        and "search" in model
        and ("-search-preview" in model or "-search-api" in model or "-deep-research" in model)
    ):
        return Reason.WEB_SEARCH
    return None


_PLAIN_TOOLS = frozenset({"function", "custom"})
"""Tools that the client runs. The actions of all other tools are known only upstream."""


def hosted_tools(tools: Any) -> Reason | None:
    """Refuse tools that the upstream runs."""
    for tool in tools if isinstance(tools, list) else ():
        kind = tool.get("type") if isinstance(tool, dict) else None
        if not isinstance(kind, str) or kind not in _PLAIN_TOOLS:
            searches = isinstance(kind, str) and kind.startswith("web_search")
            return Reason.WEB_SEARCH if searches else Reason.HOSTED_TOOLS
    return None


TOOLS = Field(OBJECTS, keyed=True, refusal=hosted_tools)

GENERATION: Fields = {
    "model": Field(STRING, keyed=True, refusal=_searching_model),
    "store": Field(BOOLEAN, keyed=False, refusal=when_true(Reason.STORE_TRUE)),
    **keyed(NUMBER, "temperature", "top_p"),
    **neutral(BOOLEAN, "stream"),
    **neutral(OBJECT, "stream_options", "metadata"),
    **neutral(USER, "user", "safety_identifier"),
    **neutral(None, "service_tier", "prompt_cache_key", "prompt_cache_retention"),
    **neutral(None, "prompt_cache_options"),
}
"""Fields that all generating endpoints share; servers take them where OpenAI does not, too."""

SAMPLING: Fields = {
    **GENERATION,
    **keyed(NUMBER, "frequency_penalty", "presence_penalty"),
    **keyed(INTEGER, "max_tokens", "n", "seed"),
    **keyed(BIAS, "logit_bias"),
    **keyed(STRINGS, "stop"),
}
