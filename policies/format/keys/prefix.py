"""What ``prefix`` sets: how prompts are rewritten so that the upstream's prefix cache hits.

Law: what is left out is as in ``default``; unset there, only the keys of tool schemas are put in
order.
"""

from typing import Any

import re2

from policies.decision import (
    DocumentOrder,
    DocumentSettings,
    PrefixSettings,
    SchemaKeys,
    VolatileKind,
)
from policies.format.keys import Key, Table
from policies.format.shorthand import OFF, Listed, Short, on_or_off, only_off, unique
from policies.format.values import ON_OFF, REGEX, Value, choice, expected, is_off, members

MOST_PATTERNS = 32
LONGEST_PATTERN = 1000
LONGEST_MARKER = 200


def _volatile_pattern(value: object) -> str:
    pattern = str(REGEX.read(value))
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


PATTERN = Value(_volatile_pattern, {**REGEX.schema, "maxLength": LONGEST_PATTERN})
MARKER = Value(_marker, {"type": "string", "minLength": 1, "maxLength": LONGEST_MARKER})
KIND = members(VolatileKind)


def _detected(value: object) -> dict[str, Any]:
    if is_off(value):
        return {"detect": [], "patterns": []}
    if isinstance(value, list) or value in [*VolatileKind]:
        return {"detect": value}
    raise expected("off, a list or a mapping")


def _volatile_words(mapping: dict[str, Any]) -> Any:
    return mapping if mapping["patterns"] else mapping["detect"] or "off"


class _Documents(Table):
    """Markers and an order, or nothing at all."""

    def settings(self, spec: Any, _inherited: Any) -> DocumentSettings | None:
        order = spec.order or DocumentOrder.CONTENT
        return DocumentSettings(spec.begin, spec.end, order) if spec.enabled else None

    def words(self, settings: DocumentSettings | None) -> Any:
        if settings is None:
            return "off"
        return {"begin": settings.begin, "end": settings.end, "order": settings.order.value}


def two_markers(spec: Any) -> str | None:
    """Return what was expected where the markers of a mapping are not two that differ."""
    two = spec.begin is not None and spec.end is not None and spec.begin != spec.end
    return None if two else "the keys begin and end, two markers that differ"


PREFIX = Table(
    "PrefixSpec",
    "Prompts rewritten on their way to the upstream, in detail.",
    Key(
        "schema_keys",
        members(SchemaKeys),
        "Put the keys of tool schemas in one order. keywords: those of the schema language only, "
        "and not the names of properties. Unset: as in the default settings, and on where they do "
        "not say.",
        *("on", "keywords"),
    ),
    Key(
        "tools",
        choice({"sorted": True, "as_sent": False}),
        "sorted: tools go by name. Unset: likewise, and as_sent.",
        "sorted",
        sets="sorts_tools",
    ),
    Key(
        "whitespace",
        ON_OFF,
        "Line ends and white space at the end of lines and texts in one form, but in code. Unset: "
        "likewise, and off.",
        "on",
        hide="off",
    ),
    Key(
        "volatile",
        Table(
            "VolatileSpec",
            "What is another at every request, in detail.",
            Key(
                "detect",
                Listed(KIND, least=0, into=unique),
                "What the built-in detectors look for.",
                ["timestamps", "uuids"],
                sets="volatile",
            ),
            Key(
                "patterns",
                Listed(PATTERN, least=0, most=MOST_PATTERNS, into=unique),
                "RE2 patterns of yours. Where one has a group, that is what moves.",
                [r"build-[0-9a-f]{7,40}", r"(?i)ticket: ([A-Z]+-\d+)"],
            ),
            short=Short(
                _detected,
                (OFF, KIND.schema, {"type": "array", "items": KIND.schema}),
                "off, a list such as [timestamps, uuids] "
                "or a mapping such as {patterns: 'v[0-9]+'}",
                _volatile_words,
            ),
        ),
        "What is another at every request moves from the stable prefix to a block just before the "
        "last user turn; a placeholder stays behind. Unset: likewise, and off.",
        *(["timestamps", "uuids"], {"detect": "dates", "patterns": "build-[0-9]+"}),
        hide="off",
    ),
    Key(
        "documents",
        _Documents(
            "DocumentsSpec",
            "Retrieved documents, in detail.",
            Key("enabled", ON_OFF, "Put them in order.", "on", unset=True),
            Key("begin", MARKER, "With what each document begins, to the letter.", "<document>"),
            Key("end", MARKER, "With what it ends.", "</document>"),
            Key(
                "order",
                members(DocumentOrder),
                "content: by a digest of each, which is the order where nothing is said. shared: "
                "those that earlier requests of the same tenant had go first.",
                "content",
            ),
            short=on_or_off("{begin: <document>, end: </document>}"),
            refuse=lambda spec: two_markers(spec) if spec.enabled else None,
        ),
        "Put retrieved documents that stand one behind the other, each between these markers, in "
        "an order of their own. Unset: likewise, and off.",
        {"begin": "<document>", "end": "</document>"},
        sets="documents",
        hide="off",
    ),
    Key(
        "turns",
        choice({"system": False, "earlier": True}),
        "Which texts whitespace, volatile and documents look at. system: what system and "
        "developer say, and what stands before the first user turn. earlier: all turns before the "
        "last user turn. Unset: likewise, and system.",
        "earlier",
        sets="earlier_turns",
        hide="system",
    ),
    short=only_off(
        "{tools: sorted}",
        {
            **dict.fromkeys(("schema_keys", "whitespace", "volatile", "documents"), "off"),
            "tools": "as_sent",
        },
    ),
    off=PrefixSettings(SchemaKeys.OFF),
)
