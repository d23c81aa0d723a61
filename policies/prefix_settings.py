"""What ``prefix`` sets: how prompts are rewritten so that the upstream's prefix cache hits.

Law: what is left out is as in ``default``; unset there, only the keys of tool schemas are put in
order.
"""

from dataclasses import replace
from typing import Annotated, Any

from pydantic import Field, PlainValidator, WithJsonSchema

from policies.decide import PrefixSettings, SchemaKeys
from policies.fields import one_of
from policies.mappings import FilledSpec
from policies.shapes import OFF, ON_OFF, Described, OrShort, expected, is_off, on_off


def _schema_keys(value: object) -> SchemaKeys:
    if value == SchemaKeys.KEYWORDS.value:
        return SchemaKeys.KEYWORDS
    try:
        return SchemaKeys.ON if on_off(value) else SchemaKeys.OFF
    except ValueError:
        raise expected("on, off or keywords") from None


_AS_SENT, _SORTED = "as_sent", "sorted"

SchemaKeysName = Annotated[
    SchemaKeys,
    PlainValidator(_schema_keys),
    WithJsonSchema({"anyOf": [ON_OFF, {"const": SchemaKeys.KEYWORDS.value}]}),
]
ToolOrder = Annotated[
    str,
    PlainValidator(one_of([_SORTED, _AS_SENT])),
    WithJsonSchema({"enum": [_SORTED, _AS_SENT]}),
]


class PrefixSpec(FilledSpec):
    """Prompts rewritten on their way to the upstream, in detail."""

    schema_keys: SchemaKeysName | None = Field(
        default=None,
        description=(
            "Put the keys of tool schemas in one order. keywords: those of the schema language "
            "only, and not the names of properties. Unset: that of the default settings, and on "
            "where they do not say."
        ),
        examples=["on", "keywords"],
    )
    tools: ToolOrder | None = Field(
        default=None,
        description="sorted: tools go by name. Unset: likewise, and as_sent.",
        examples=["sorted"],
    )


def _all_off(value: object) -> dict[str, Any]:
    if not is_off(value):
        raise expected("off")
    return {"schema_keys": "off", "tools": _AS_SENT}


Prefix = Annotated[
    PrefixSpec,
    OrShort(_all_off, (OFF,), "off or a mapping such as {tools: sorted}"),
    Described(
        description=(
            "How prompts are rewritten on their way to the upstream, so that its prefix cache "
            "hits. Keys of the cache, the scan and the last user turn are left alone. off: not "
            "at all."
        ),
        examples=({"tools": "sorted"}, "off"),
    ),
]


def prefix_settings(spec: PrefixSpec, inherited: PrefixSettings) -> PrefixSettings:
    """Return what a rule's ``prefix`` makes of what it inherits."""
    given: dict[str, Any] = {
        "schema_keys": spec.schema_keys,
        "sorts_tools": None if spec.tools is None else spec.tools == _SORTED,
    }
    return replace(inherited, **{name: value for name, value in given.items() if value is not None})


def prefix_words(settings: PrefixSettings) -> dict[str, Any]:
    """Return the settings in the words of the file."""
    return {
        "schema_keys": settings.schema_keys.value,
        "tools": _SORTED if settings.sorts_tools else _AS_SENT,
    }
