"""What ``hints`` sets: what the upstream is told of a prompt's stable prefix.

Law: what is left out is as in ``default``; unset there, nothing is told.
"""

from dataclasses import replace
from typing import Annotated, Any

from pydantic import Field, PlainValidator, WithJsonSchema
from pydantic_core import PydanticCustomError

from policies.fields import OnOff, one_of, whole_number
from policies.hints import (
    NO_HINTS,
    BreakpointField,
    BreakpointLifetime,
    Breakpoints,
    HintSettings,
    KeyRetention,
)
from policies.mappings import FilledSpec
from policies.shapes import OFF, Described, OrShort, expected, is_off

MOST_TOKENS = 2**20
MOST_KEYS = 64
_AUTO = "auto"
_ANYWHERE = [place.value for place in Breakpoints if place is not Breakpoints.OFF]
_FIELDS = [field.value for field in BreakpointField]
_LIFETIMES = [lifetime.value for lifetime in BreakpointLifetime]
_DAY = KeyRetention.DAY.value

_least_tokens = whole_number(1, MOST_TOKENS)


def _places(value: object) -> str:
    if is_off(value):
        return Breakpoints.OFF.value
    if value in _ANYWHERE:
        return str(value)
    raise expected("off, system or earlier")


def _retention(value: object) -> str:
    if is_off(value):
        return KeyRetention.UNSET.value
    if value == _DAY:
        return _DAY
    raise expected(f"off or {_DAY}")


def _min_tokens(value: object) -> int | None:
    if value == _AUTO:
        return None
    try:
        return _least_tokens(value)
    except PydanticCustomError as error:
        raise expected(f"{_AUTO} or {error.message()}") from None


Places = Annotated[
    str,
    PlainValidator(_places),
    WithJsonSchema({"anyOf": [OFF, {"enum": _ANYWHERE}]}),
]
FieldName = Annotated[
    str,
    PlainValidator(one_of(_FIELDS)),
    WithJsonSchema({"enum": _FIELDS}),
]
Lifetime = Annotated[
    str,
    PlainValidator(one_of(_LIFETIMES)),
    WithJsonSchema({"enum": _LIFETIMES}),
]
Tokens = Annotated[
    int | None,
    PlainValidator(_min_tokens),
    WithJsonSchema(
        {"anyOf": [{"const": _AUTO}, {"type": "integer", "minimum": 1, "maximum": MOST_TOKENS}]}
    ),
]
Keys = Annotated[
    int,
    PlainValidator(whole_number(1, MOST_KEYS)),
    WithJsonSchema({"type": "integer", "minimum": 1, "maximum": MOST_KEYS}),
]
Retention = Annotated[
    str,
    PlainValidator(_retention),
    WithJsonSchema({"anyOf": [OFF, {"const": _DAY}]}),
]


class HintsSpec(FilledSpec):
    """What the upstream is told of a prompt's stable prefix, in detail."""

    breakpoints: Places | None = Field(
        default=None,
        description=(
            "Mark where the stable prefix ends, for providers that cache up to a mark. system: "
            "the ends of the system messages that come first. earlier: that of the turns before "
            "the last user turn, too. Unset: as in the default settings, and off where they do "
            "not say."
        ),
        examples=["system", "earlier"],
    )
    field: FieldName | None = Field(
        default=None,
        description=(
            "How a mark is written. auto: by the name of the model. Unset: likewise, and auto."
        ),
        examples=["cache_control"],
    )
    lifetime: Lifetime | None = Field(
        default=None,
        description=(
            "How long what stands before a mark of cache_control is kept. Unset: likewise, and 5m."
        ),
        examples=["1h"],
    )
    min_tokens: Tokens | None = Field(
        default=None,
        description=(
            "Shorter prefixes get no mark, because the provider would not cache them. auto: by "
            "the name of the model. Unset: likewise, and auto."
        ),
        examples=[1024, "auto"],
    )
    cache_key: OnOff | None = Field(
        default=None,
        description=(
            "Send a prompt_cache_key that requests of one rule, tenant and beginning share, where "
            "the client sends none. Unset: likewise, and off."
        ),
        examples=["on"],
    )
    keys: Keys | None = Field(
        default=None,
        description=(
            "Over how many keys the conversations of one beginning are spread: one for each 15 "
            "requests a minute. Unset: likewise, and 1."
        ),
        examples=[4],
    )
    retention: Retention | None = Field(
        default=None,
        description=(
            "Send prompt_cache_retention where the client says nothing of it. Unset: likewise, "
            "and off."
        ),
        examples=["24h"],
    )


def _all_off(value: object) -> dict[str, Any]:
    if not is_off(value):
        raise expected("off")
    return dict.fromkeys(("breakpoints", "cache_key", "retention"), "off")


Hints = Annotated[
    HintsSpec,
    OrShort(_all_off, (OFF,), "off or a mapping such as {cache_key: on}"),
    Described(
        description=(
            "What the upstream is told of a prompt's stable prefix, so that a provider's prefix "
            "cache hits. What the client says of it stays. off: nothing."
        ),
        examples=({"breakpoints": "system"}, {"cache_key": "on", "keys": 4}, "off"),
    ),
]


def hint_settings(spec: HintsSpec, inherited: HintSettings) -> HintSettings:
    """Return what a rule's ``hints`` makes of what it inherits."""
    given: dict[str, Any] = {
        "breakpoints": spec.breakpoints and Breakpoints(spec.breakpoints),
        "field": spec.field and BreakpointField(spec.field),
        "lifetime": spec.lifetime and BreakpointLifetime(spec.lifetime),
        "cache_key": spec.cache_key,
        "keys": spec.keys,
        "retention": spec.retention and KeyRetention(spec.retention),
    }
    written = {name: value for name, value in given.items() if value is not None}
    if "min_tokens" in spec.model_fields_set:
        written["min_tokens"] = spec.min_tokens
    return replace(inherited, **written)


def hint_words(settings: HintSettings) -> Any:
    """Return the settings in the words of the file."""
    if settings == NO_HINTS:
        return "off"
    return {
        "breakpoints": settings.breakpoints.value,
        "field": settings.field.value,
        "lifetime": settings.lifetime.value,
        "min_tokens": _AUTO if settings.min_tokens is None else settings.min_tokens,
        "cache_key": "on" if settings.cache_key else "off",
        "keys": settings.keys,
        "retention": settings.retention.value,
    }
