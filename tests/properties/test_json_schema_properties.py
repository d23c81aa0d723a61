"""Whatever a grammar of a client's schema admits is valid under the schema as it was sent."""

import json

import jsonschema
from examples import some
from grammar_walks import Walks
from hypothesis import assume, event, given, settings
from hypothesis import strategies as st

from backend.grammar.json_schema import enforceable
from backend.grammar.matcher import GrammarError
from backend.grammar.schema_keywords import SchemaError
from backend.scheduler.request import Grammar, GrammarKind

WALKS = Walks()
NAMES = st.sampled_from(["a", "b", "c d", 'q"', "é", "", "\\", "a/b", "~"])
PATTERNS = ("^[a-c]+$", "^x?y{1,3}$", "z", '^[^"]{2}$', "^.$", "[!-~]", r"^\d\.\S$")
SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(-300, 300), st.sampled_from(["x", 'a"b', "é\n", ""])
)
NOTES = st.sampled_from([{}, {}, {"title": "T", "description": "D", "default": None}])


def ordered(low, high):
    return st.tuples(st.integers(-120, 120), st.integers(0, 150)).map(
        lambda pair: {low: pair[0], high: pair[0] + pair[1]}
    )


def counted(low, high, most):
    return st.tuples(st.integers(0, most), st.integers(0, most)).map(
        lambda pair: {low: min(pair), high: max(pair)}
    )


LEAVES = st.one_of(
    st.sampled_from([{"type": kind} for kind in ("string", "integer", "number", "boolean")]),
    st.sampled_from([{"type": "null"}, {"type": ["integer", "null"]}, {}, True]),
    st.sampled_from([{"type": "string", "pattern": p} for p in PATTERNS]),
    st.sampled_from([{"type": "string", "format": f} for f in ("date", "ipv4", "uuid", "other")]),
    counted("minLength", "maxLength", 5).map(lambda bounds: {"type": "string"} | bounds),
    ordered("minimum", "maximum").map(lambda bounds: {"type": "integer"} | bounds),
    ordered("minimum", "maximum").map(lambda bounds: {"type": "number"} | bounds),
    ordered("exclusiveMinimum", "maximum").map(lambda bounds: {"type": "integer"} | bounds),
    st.lists(SCALARS, min_size=1, max_size=3).map(lambda values: {"enum": values}),
    SCALARS.map(lambda value: {"const": value}),
    st.just({"$ref": "#/$defs/node"}),
    st.just({"$ref": "#/$defs/a~1b"}),
)


@st.composite
def objects(draw, inner):
    properties = draw(st.dictionaries(NAMES, inner, max_size=3))
    required = (
        draw(st.lists(st.sampled_from(sorted(properties)), unique=True)) if properties else []
    )
    return {
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": draw(st.booleans() | inner),
    }


def arrays(inner):
    bounds = st.just({}) | counted("minItems", "maxItems", 3)
    plain = st.tuples(inner, bounds).map(lambda pair: {"type": "array", "items": pair[0]} | pair[1])
    others = st.just({}) | inner.map(lambda items: {"items": items}) | st.just({"items": False})
    fixed = st.tuples(st.lists(inner, min_size=1, max_size=2), others, bounds).map(
        lambda each: {"type": "array", "prefixItems": each[0]} | each[1] | each[2]
    )
    return plain | fixed


PARTS = st.one_of(
    st.sampled_from([{"type": ["integer", "string", "object"]}, {"type": "number"}, {}]),
    st.just({"minLength": 2, "maximum": 50}),
    st.just({"maxItems": 2, "required": ["a"]}),
    st.just({"properties": {"a": {"type": ["boolean", "integer"]}, "b": {"maxLength": 3}}}),
    st.just({"additionalProperties": {"type": "integer"}, "minimum": 0}),
)


def beside(inner):
    """Keywords beside a reference or a choice."""
    several = st.lists(inner | PARTS, min_size=1, max_size=3)
    choice = st.tuples(st.sampled_from(["anyOf", "allOf"]), several).map(
        lambda pair: {pair[0]: pair[1]}
    )
    return st.tuples(PARTS, LEAVES.filter(lambda leaf: leaf is not True) | choice, choice).map(
        lambda parts: parts[0] | parts[1] | parts[2]
    )


SCHEMAS = st.recursive(
    st.tuples(LEAVES, NOTES).map(lambda pair: pair[0] if pair[0] is True else pair[0] | pair[1]),
    lambda inner: (
        objects(inner)
        | arrays(inner)
        | st.lists(inner, min_size=1, max_size=3).map(lambda branches: {"anyOf": branches})
        | beside(inner)
    ),
    max_leaves=6,
)
DEFINITIONS = {
    "node": {
        "type": "object",
        "properties": {"next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}},
        "required": ["next"],
        "additionalProperties": False,
    },
    "a/b": {"type": "boolean"},
}


@settings(max_examples=some(150))
@given(SCHEMAS.filter(lambda schema: schema is not True), st.integers(0, 2**32), st.booleans())
def test_all_that_is_admitted_is_valid(schema, seed, strict):
    schema = schema | {"$defs": DEFINITIONS}
    left_out = []
    try:
        source = json.dumps(enforceable(schema, strict=strict, left_out=left_out))
        text = WALKS.text(Grammar(GrammarKind.JSON_SCHEMA, source), seed)
    except (SchemaError, GrammarError) as error:
        # Some of these schemas admit nothing at all.
        event(f"refused: {error}")
        return
    assume(not left_out)
    # Keys written with escapes are told apart from those that are declared by JSON alone.
    assume(text is not None and "\\u" not in text)
    jsonschema.Draft202012Validator(schema).validate(json.loads(text))


KEYWORDS = (
    *("type", "properties", "required", "items", "anyOf", "allOf", "oneOf", "enum", "$ref"),
    *("const", "pattern", "minLength", "maxItems", "$defs", "not", "minimum", "x"),
)
JSON = st.recursive(
    SCALARS | st.sampled_from(["object", "string", "#/$defs/x", "#", "[a-", "^a{2,1}$"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(KEYWORDS),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@settings(max_examples=some(150))
@given(JSON, st.booleans())
def test_no_schema_does_more_than_be_refused(schema, strict):
    try:
        source = json.dumps(enforceable(schema, strict=strict))
        WALKS.matcher(Grammar(GrammarKind.JSON_SCHEMA, source))
    except (SchemaError, GrammarError) as error:
        event(type(error).__name__)
