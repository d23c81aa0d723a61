"""``prefix``, ``compress`` and ``hints``: how prompts change on their way to the upstream.

Law: what is left out is as in ``default``. Unset there, only the keys of tool schemas are put in
order, nothing is compressed and the upstream gets no hints.
"""

from typing import Any

from policies.decision import (
    NO_HINTS,
    BreakpointField,
    BreakpointLifetime,
    Breakpoints,
    CompressSettings,
    DocumentOrder,
    DocumentSettings,
    KeyRetention,
    PrefixSettings,
    Protected,
    SchemaKeys,
    VolatileKind,
)
from policies.format.table import OFF, Key, ListOf, Short, Table, on_or_off, only_off, unique
from policies.format.values import (
    ON_OFF,
    PERCENT,
    REGEX,
    UnexpectedValueError,
    Value,
    choice,
    is_off,
    members,
    or_word,
    whole,
)
from policies.patterns import PatternError, compile_pattern

MOST_PATTERNS = 32
LONGEST_PATTERN = 1000
LONGEST_MARKER = 200
MOST_TURNS = 1000
MOST_TOKENS = 2**20
MOST_KEYS = 64


def _volatile_pattern(value: object) -> str:
    pattern = str(REGEX.read(value))
    if len(pattern) > LONGEST_PATTERN:
        raise UnexpectedValueError(f"a pattern of at most {LONGEST_PATTERN} characters")
    try:
        compiled = compile_pattern(pattern, captures=True)
    except PatternError as error:
        raise UnexpectedValueError(f"a smaller pattern ({error})") from None
    if compiled.groups > 1:
        raise UnexpectedValueError("a pattern with at most one group, which is what moves")
    if compiled.search("") is not None:
        raise UnexpectedValueError("a pattern that does not match the empty text")
    return pattern


def _marker(value: object) -> str:
    if (
        not isinstance(value, str)
        or not 0 < len(value) <= LONGEST_MARKER
        or value != value.strip()
        or not value.isprintable()
    ):
        most = f"at most {LONGEST_MARKER} characters"
        raise UnexpectedValueError(f"a marker of one line and {most}, such as <document>")
    return value


PATTERN = Value(_volatile_pattern, {**REGEX.schema, "maxLength": LONGEST_PATTERN})
MARKER = Value(_marker, {"type": "string", "minLength": 1, "maxLength": LONGEST_MARKER})
KIND = members(VolatileKind)
MARKERS = (
    Key(
        "begin",
        MARKER,
        "The exact text at the beginning of each, at most 200 characters on one line. `<document`"
        ' without its bracket also finds `<document id="7">`.',
        ("<document>",),
    ),
    Key("end", MARKER, "The exact text at the end of each.", ("</document>",)),
)


def _read_volatile(value: object) -> dict[str, Any]:
    if is_off(value):
        return {"detect": [], "patterns": []}
    if isinstance(value, list) or value in [*VolatileKind]:
        return {"detect": value}
    raise UnexpectedValueError("off, a list or a mapping")


def _volatile_words(mapping: dict[str, Any]) -> Any:
    return mapping if mapping["patterns"] else mapping["detect"] or "off"


class _Documents(Table):
    """Markers and an order, or nothing at all."""

    def settings(self, mapping: dict[str, Any], _inherited: Any) -> DocumentSettings | None:
        if not mapping["enabled"]:
            return None
        order = mapping.get("order", DocumentOrder.CONTENT)
        return DocumentSettings(mapping["begin"], mapping["end"], order)

    def words(self, settings: DocumentSettings | None, /) -> Any:
        if settings is None:
            return "off"
        return {"begin": settings.begin, "end": settings.end, "order": settings.order.value}


class _Context(Table):
    """Own markers, the markers of ``prefix.documents``, or none."""

    def fields(self, mapping: dict[str, Any], _inherited: Any) -> dict[str, Any]:
        own = DocumentSettings(mapping["begin"], mapping["end"]) if "begin" in mapping else None
        return {"documents": own, "markers": mapping["enabled"]}

    def words(self, settings: CompressSettings, /) -> Any:
        if not settings.markers or settings.documents is None:
            return ON_OFF.words(settings.markers)
        return {"begin": settings.documents.begin, "end": settings.documents.end}


def _two_markers(mapping: dict[str, Any]) -> str | None:
    begin, end = mapping.get("begin"), mapping.get("end")
    two = begin is not None and end is not None and begin != end
    return None if two else "the keys begin and end, two markers that differ"


PREFIX = Table(
    "PrefixSpec",
    "How prompts are rewritten before they are forwarded, in detail.",
    Key(
        "schema_keys",
        members(SchemaKeys),
        "`keywords`: in tool schemas, the keys of the schema language (`type`, `properties` …) are "
        "sorted, and the properties keep their order. `on`: properties are sorted by name, too. "
        "Arrays keep their order.",
    ),
    Key(
        "tools",
        choice({"sorted": True, "as_sent": False}),
        "`sorted`: tools are sorted by name. If the client marked some tools for the provider's "
        "cache, the order stays.",
        sets="sorts_tools",
    ),
    Key(
        "whitespace",
        ON_OFF,
        "Line ends become one line feed; spaces and tabs at the end of lines and texts are "
        "removed. These stay: fenced code, the ends of indented lines, the two spaces of a line "
        "break in Markdown.",
        hide="off",
    ),
    Key(
        "volatile",
        Table(
            "VolatileSpec",
            "Values that differ in every request, in detail.",
            Key(
                "detect",
                ListOf(KIND, least=0, into=unique),
                "Built-in detectors of such values.",
                (["timestamps", "uuids"],),
                sets="volatile",
            ),
            Key(
                "patterns",
                ListOf(PATTERN, least=0, most=MOST_PATTERNS, into=unique),
                "Your own RE2 patterns, at most 32 of 1,000 characters each. If a pattern has a "
                "group, only the group moves, and the rest says where it is.",
                ([r"build-[0-9a-f]{7,40}", r"(?i)ticket: ([A-Z]+-\d+)"],),
            ),
            short=Short(
                _read_volatile,
                (OFF, KIND.schema, {"type": "array", "items": KIND.schema}),
                "off, a list such as [timestamps, uuids] "
                "or a mapping such as {patterns: 'v[0-9]+'}",
                _volatile_words,
            ),
        ),
        "Values that differ in every request move to a block just before the last user turn. A "
        "placeholder stays in their place.",
        (["timestamps", "uuids"], {"detect": "dates", "patterns": "build-[0-9]+"}),
        hide="off",
    ),
    Key(
        "documents",
        _Documents(
            "DocumentsSpec",
            "Retrieved documents, in detail.",
            Key(
                "enabled",
                ON_OFF,
                "Sort documents. `off` switches off what `default` switches on.",
                unset=True,
            ),
            *MARKERS,
            Key(
                "order",
                members(DocumentOrder),
                "`content`: by a digest of each document. `shared`: documents of earlier requests"
                " of the same tenant come first, in the order in which they were seen again. "
                "Unset: `content`.",
            ),
            short=on_or_off("{begin: <document>, end: </document>}"),
            refuse=lambda mapping: _two_markers(mapping) if mapping["enabled"] else None,
        ),
        "Retrieved documents get one order, if they follow each other with only white space "
        "between them.",
        ({"begin": "<document>", "end": "</document>"},),
        sets="documents",
        hide="off",
    ),
    Key(
        "turns",
        choice({"system": False, "earlier": True}),
        "Which texts `whitespace`, `volatile` and `documents` apply to. `system`: system and "
        "developer messages, `instructions`, and everything before the first user turn. "
        "`earlier`: every turn before the last user turn.",
        sets="earlier_turns",
        hide="system",
    ),
    short=only_off("{tools: sorted}"),
    neutral=PrefixSettings(),
    off=PrefixSettings(SchemaKeys.OFF),
)

COMPRESS = Table(
    "CompressSpec",
    "How declared context is shortened, in detail.",
    Key("enabled", ON_OFF, "Compress.", unset=True),
    Key(
        "documents",
        _Context(
            "ContextSpec",
            "The markers of context, in detail.",
            Key("enabled", ON_OFF, "Context has markers.", unset=True),
            *MARKERS,
            short=on_or_off("{begin: <document>, end: </document>}"),
            refuse=lambda mapping: _two_markers(mapping) if len(mapping) > 1 else None,
        ),
        "The text between these markers in a user turn is context. `on`: the markers of "
        "`prefix.documents`, if there are any. `off`: no text between markers is context.",
        ({"begin": "<document>", "end": "</document>"},),
    ),
    Key("tool_results", ON_OFF, "Everything that tools returned is context, too."),
    Key(
        "minify",
        ON_OFF,
        "Remove white space without meaning: in JSON outside of strings, and in prose runs of "
        "spaces and blank lines.",
    ),
    Key(
        "duplicates",
        ON_OFF,
        "Remove passages that repeat an earlier passage nearly word by word, with the same "
        "numbers, names, identifiers and negations.",
    ),
    Key(
        "keep",
        PERCENT,
        "Passages that do not concern the question are removed, until about this share of its "
        "context remains. `100%`: none is removed.",
        ("50%",),
    ),
    Key(
        "protect",
        ListOf(members(Protected), least=0, into=frozenset),
        "Sentences with these stay if their passage is removed, unless they are about something "
        "else. `[]`: none of them.",
        (["numbers", "negation", "ids"],),
    ),
    Key(
        "history",
        or_word(whole(2, MOST_TURNS), "off", 0),
        "A summary replaces the earlier turns of longer conversations, and at least this many "
        "user turns stay.",
        (8, "off"),
    ),
    Key(
        "min_gain",
        PERCENT,
        "If less than this would be saved, the question's context is sent unchanged.",
        ("5%",),
    ),
    short=on_or_off("{keep: 50%}"),
    neutral=CompressSettings(),
)

HINTS = Table(
    "HintsSpec",
    "Marks and keys that tell the upstream about a prompt's stable prefix, in detail.",
    Key(
        "breakpoints",
        members(Breakpoints),
        "`system`: marks at the ends of the first system and developer messages; tools come "
        "before them and are covered. `earlier`: also a mark at the end of the turns before the "
        "last user turn, so that the cache covers a conversation up to its last exchange.",
    ),
    Key(
        "field",
        members(BreakpointField),
        "The form of a mark. `cache_control`: Anthropic's form, which OpenRouter, LiteLLM and "
        "others accept in parts of a message. `prompt_cache_breakpoint`: OpenAI's form. `auto`: "
        "by the name of the model; an unknown model gets no mark.",
    ),
    Key(
        "lifetime",
        members(BreakpointLifetime),
        "Of `cache_control`: how long the provider keeps the prefix. `1h` costs more to write.",
    ),
    Key(
        "min_tokens",
        or_word(whole(1, MOST_TOKENS), "auto", None, first=True),
        "A shorter prefix gets no mark, because the provider would ignore it. Tokens are "
        "estimated, four bytes each. `auto`: by the name of the model.",
        (1024, "auto"),
    ),
    Key(
        "cache_key",
        ON_OFF,
        "Send a `prompt_cache_key` if the client sends none. Requests of one rule, tenant and "
        "beginning share it.",
    ),
    Key(
        "keys",
        whole(1, MOST_KEYS),
        "Number of keys for conversations with one beginning. Each conversation stays with one "
        "key. OpenAI advises about 15 requests a minute for each key; above that, requests "
        "overflow to machines with an empty cache.",
        (4,),
    ),
    Key(
        "retention",
        members(KeyRetention),
        "`24h`: `prompt_cache_retention` is sent if the client says nothing about it, and OpenAI "
        "stores prefixes longer. Models that do not know the field refuse it.",
    ),
    short=only_off("{cache_key: on}"),
    neutral=NO_HINTS,
    off=NO_HINTS,
)
