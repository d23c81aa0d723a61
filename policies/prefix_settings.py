"""What ``prefix`` sets: how prompts are rewritten so that the upstream's prefix cache hits.

Law: what is left out is as in ``default``; unset there, only the keys of tool schemas are put in
order.
"""

from dataclasses import replace
from typing import Annotated, Any, Self

import re2
from pydantic import Field, PlainValidator, WithJsonSchema, model_validator

from policies.decide import (
    DocumentOrder,
    DocumentSettings,
    PrefixSettings,
    SchemaKeys,
    VolatileKind,
)
from policies.fields import OnOff, one_of, regex
from policies.mappings import FilledSpec
from policies.shapes import (
    OFF,
    ON_OFF,
    AnyNumber,
    Described,
    OrShort,
    expected,
    is_off,
    on_off,
    or_on_off,
)

MOST_PATTERNS = 32
LONGEST_PATTERN = 1000
LONGEST_MARKER = 200
_AS_SENT, _SORTED = "as_sent", "sorted"
_SYSTEM, _EARLIER = "system", "earlier"


def _schema_keys(value: object) -> SchemaKeys:
    if value == SchemaKeys.KEYWORDS.value:
        return SchemaKeys.KEYWORDS
    try:
        return SchemaKeys.ON if on_off(value) else SchemaKeys.OFF
    except ValueError:
        raise expected("on, off or keywords") from None


def _volatile_pattern(value: object) -> str:
    pattern = regex(value)
    if len(pattern) > LONGEST_PATTERN:
        raise expected(f"a pattern of at most {LONGEST_PATTERN} characters")
    compiled: Any = re2.compile(pattern)
    if compiled.groups > 1:
        raise expected("a pattern with at most one group, which is what moves")
    if compiled.search("") is not None:
        raise expected("a pattern that does not match the empty text")
    return pattern


def _marker(value: object) -> str:
    if (
        not isinstance(value, str)
        or not value
        or value != value.strip()
        or not value.isprintable()
        or len(value) > LONGEST_MARKER
    ):
        raise expected(
            f"a marker of one line and at most {LONGEST_MARKER} characters, such as <document>"
        )
    return value


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
Turns = Annotated[
    str,
    PlainValidator(one_of([_SYSTEM, _EARLIER])),
    WithJsonSchema({"enum": [_SYSTEM, _EARLIER]}),
]
_KIND_SCHEMA = {"enum": [kind.value for kind in VolatileKind]}
Kind = Annotated[str, PlainValidator(one_of([*VolatileKind])), WithJsonSchema(_KIND_SCHEMA)]
Pattern = Annotated[
    str,
    PlainValidator(_volatile_pattern),
    WithJsonSchema({"type": "string", "pattern": r"\S", "maxLength": LONGEST_PATTERN}),
]
Marker = Annotated[
    str,
    PlainValidator(_marker),
    WithJsonSchema({"type": "string", "minLength": 1, "maxLength": LONGEST_MARKER}),
]
Order = Annotated[
    str,
    PlainValidator(one_of([*DocumentOrder])),
    WithJsonSchema({"enum": [order.value for order in DocumentOrder]}),
]


class VolatileSpec(FilledSpec):
    """What is another at every request, in detail."""

    detect: AnyNumber[Kind] | None = Field(
        default=None,
        description="What the built-in detectors look for.",
        examples=[["timestamps", "uuids"]],
    )
    patterns: AnyNumber[Pattern] | None = Field(
        default=None,
        max_length=MOST_PATTERNS,
        description="RE2 patterns of yours. Where one has a group, that is what moves.",
        examples=[[r"build-[0-9a-f]{7,40}", r"(?i)ticket: ([A-Z]+-\d+)"]],
    )


def _detected(value: object) -> dict[str, Any]:
    if is_off(value):
        return {"detect": [], "patterns": []}
    if isinstance(value, list) or value in [*VolatileKind]:
        return {"detect": value}
    raise expected("off, a list or a mapping")


class DocumentsSpec(FilledSpec):
    """Retrieved documents, in detail."""

    enabled: OnOff = Field(default=True, description="Put them in order.", examples=["on"])
    begin: Marker | None = Field(
        default=None,
        description="With what each document begins, to the letter.",
        examples=["<document>"],
    )
    end: Marker | None = Field(
        default=None, description="With what it ends.", examples=["</document>"]
    )
    order: Order | None = Field(
        default=None,
        description=(
            "content: by a digest of each, which is the order where nothing is said. shared: "
            "those that earlier requests of the same tenant had go first."
        ),
        examples=["content"],
    )

    @model_validator(mode="after")
    def _has_two_markers(self) -> Self:
        if self.enabled and (self.begin is None or self.end is None or self.begin == self.end):
            raise expected("the keys begin and end, two markers that differ")
        return self


Documents = Annotated[DocumentsSpec, or_on_off("{begin: <document>, end: </document>}")]
Volatile = Annotated[
    VolatileSpec,
    OrShort(
        _detected,
        (OFF, _KIND_SCHEMA, {"type": "array", "items": _KIND_SCHEMA}),
        "off, a list such as [timestamps, uuids] or a mapping such as {patterns: 'v[0-9]+'}",
    ),
]


class PrefixSpec(FilledSpec):
    """Prompts rewritten on their way to the upstream, in detail."""

    schema_keys: SchemaKeysName | None = Field(
        default=None,
        description=(
            "Put the keys of tool schemas in one order. keywords: those of the schema language "
            "only, and not the names of properties. Unset: as in the default settings, and on "
            "where they do not say."
        ),
        examples=["on", "keywords"],
    )
    tools: ToolOrder | None = Field(
        default=None,
        description="sorted: tools go by name. Unset: likewise, and as_sent.",
        examples=["sorted"],
    )
    whitespace: OnOff | None = Field(
        default=None,
        description=(
            "Line ends and white space at the end of lines and texts in one form, but in code. "
            "Unset: likewise, and off."
        ),
        examples=["on"],
    )
    volatile: Volatile | None = Field(
        default=None,
        description=(
            "What is another at every request moves from the stable prefix to a block just before "
            "the last user turn; a placeholder stays behind. Unset: likewise, and off."
        ),
        examples=[["timestamps", "uuids"], {"detect": "dates", "patterns": "build-[0-9]+"}],
    )
    documents: Documents | None = Field(
        default=None,
        description=(
            "Put retrieved documents that stand one behind the other, each between these markers, "
            "in an order of their own. Unset: likewise, and off."
        ),
        examples=[{"begin": "<document>", "end": "</document>"}],
    )
    turns: Turns | None = Field(
        default=None,
        description=(
            "Which texts whitespace, volatile and documents look at. system: what system and "
            "developer say, and what stands before the first user turn. earlier: all turns before "
            "the last user turn. Unset: likewise, and system."
        ),
        examples=["earlier"],
    )


def _all_off(value: object) -> dict[str, Any]:
    if not is_off(value):
        raise expected("off")
    off = dict.fromkeys(("schema_keys", "whitespace", "volatile", "documents"), "off")
    return {**off, "tools": _AS_SENT}


Prefix = Annotated[
    PrefixSpec,
    OrShort(_all_off, (OFF,), "off or a mapping such as {tools: sorted}"),
    Described(
        description=(
            "How prompts are rewritten on their way to the upstream, so that its prefix cache "
            "hits. Keys of the cache, the scan and the last user turn are left alone. off: not "
            "at all."
        ),
        examples=({"tools": "sorted", "volatile": ["timestamps"]}, "off"),
    ),
]


def prefix_settings(spec: PrefixSpec, inherited: PrefixSettings) -> PrefixSettings:
    """Return what a rule's ``prefix`` makes of what it inherits."""
    given: dict[str, Any] = {
        "schema_keys": spec.schema_keys,
        "sorts_tools": None if spec.tools is None else spec.tools == _SORTED,
        "whitespace": spec.whitespace,
        "earlier_turns": None if spec.turns is None else spec.turns == _EARLIER,
    }
    if spec.volatile is not None:
        kinds, patterns = spec.volatile.detect, spec.volatile.patterns
        given["volatile"] = (
            None if kinds is None else tuple(map(VolatileKind, dict.fromkeys(kinds)))
        )
        given["patterns"] = None if patterns is None else tuple(dict.fromkeys(patterns))
    settings = replace(
        inherited, **{name: value for name, value in given.items() if value is not None}
    )
    return settings if spec.documents is None else replace(settings, documents=_documents(spec))


def _documents(spec: PrefixSpec) -> DocumentSettings | None:
    written = spec.documents
    if written is None or not written.enabled or written.begin is None or written.end is None:
        return None
    order = DocumentOrder(written.order or DocumentOrder.CONTENT)
    return DocumentSettings(written.begin, written.end, order)


def prefix_words(settings: PrefixSettings) -> Any:
    """Return the settings in the words of the file; of the rules on texts those that are on."""
    if settings == replace(_ALL_OFF, earlier_turns=settings.earlier_turns):
        return "off"
    words: dict[str, Any] = {
        "schema_keys": settings.schema_keys.value,
        "tools": _SORTED if settings.sorts_tools else _AS_SENT,
    }
    if settings.whitespace:
        words["whitespace"] = "on"
    kinds, patterns = [kind.value for kind in settings.volatile], list(settings.patterns)
    if kinds or patterns:
        words["volatile"] = {"detect": kinds, "patterns": patterns} if patterns else kinds
    if (documents := settings.documents) is not None:
        words["documents"] = {
            "begin": documents.begin,
            "end": documents.end,
            "order": documents.order.value,
        }
    if settings.earlier_turns:
        words["turns"] = _EARLIER
    return words


_ALL_OFF = PrefixSettings(SchemaKeys.OFF)
