"""What becomes of a client's JSON schema, and in which words it is refused."""

import pytest

from backend.grammar.json_schema import MOST_BYTES, enforceable
from backend.grammar.schema_keywords import MOST_DEPTH, SchemaError


@pytest.mark.parametrize(
    ("schema", "enforced"),
    [
        ({"type": "string", "title": "T", "default": "a", "x-note": 1}, {"type": "string"}),
        ({"properties": {"a": True}}, {"type": "object", "properties": {"a": {}}}),
        ({"minimum": 1}, {"type": "number", "minimum": 1}),
        ({"type": "string", "minimum": 1}, {"type": "string"}),
        ({"type": "string", "required": True, "minLength": None}, {"type": "string"}),
        ({"type": ["string", "null"]}, {"anyOf": [{"type": "string"}, {"type": "null"}]}),
        ({"type": "integer", "enum": [1, 2.0, "a", True]}, {"enum": [1, 2.0]}),
        ({"const": None}, {"enum": [None]}),
        (
            {"type": "string", "anyOf": [{"const": "a"}, {"const": 1, "type": "integer"}, False]},
            {"anyOf": [{"enum": ["a"]}]},
        ),
        ({"allOf": [{"type": "null"}]}, {"type": "null"}),
        (
            {"$ref": "#/definitions/a~1b", "definitions": {"a/b": {"type": "null"}}},
            {"$ref": "#/$defs/d0", "$defs": {"d0": {"type": "null"}}},
        ),
        ({"type": "string", "format": "unheard-of"}, {"type": "string"}),
        (
            {"type": "array", "prefixItems": [{"type": "null"}], "items": False},
            {"type": "array", "prefixItems": [{"type": "null"}], "items": False},
        ),
        ({"prefixItems": [{}]}, {"type": "array", "prefixItems": [{}]}),
        ({"type": "array", "minItems": 1}, {"type": "array", "minItems": 1, "items": {}}),
        (
            {"prefixItems": [{}], "minItems": 2, "maxItems": 3},
            {"type": "array", "prefixItems": [{}], "items": {}, "minItems": 2, "maxItems": 3},
        ),
        (
            {"prefixItems": [{}, {"type": "null"}], "items": {}, "maxItems": 1},
            {"type": "array", "prefixItems": [{}], "items": False, "maxItems": 1},
        ),
    ],
)
def test_what_is_enforced_says_the_same_in_fewer_ways(schema, enforced):
    assert enforceable(schema, strict=True) == enforced


NODE = {"type": "object", "properties": {"next": {"$ref": "#"}}}


def test_a_schema_may_refer_to_itself():
    enforced = enforceable(NODE, strict=True)
    assert enforced["properties"]["next"] == {"$ref": "#/$defs/d0"}
    assert enforced["$defs"]["d0"]["properties"]["next"] == {"$ref": "#/$defs/d0"}


def test_one_schema_that_is_referred_to_in_many_spellings_is_written_once():
    names = ("#/$defs/ab", "#/$defs/%61b", "#/$defs/a%62", "#/%24defs/ab")
    schema = {"$defs": {"ab": {"const": "x"}}, "anyOf": [{"$ref": name} for name in names]}
    assert list(enforceable(schema, strict=True)["$defs"]) == ["d0"]


def test_a_schema_that_grows_by_what_it_refers_to_is_refused():
    inner: dict = {"const": "x" * (MOST_BYTES // 2)}
    references = []
    for level in range(12):
        inner = {"properties": {"a": inner}}
        references.append({"$ref": "#/$defs/d" + "/properties/a" * level})
    with pytest.raises(SchemaError, match="with what it refers to the schema has"):
        enforceable({"$defs": {"d": inner}, "anyOf": references}, strict=True)


NESTED: dict = {"type": "null"}
for _ in range(MOST_DEPTH + 1):
    NESTED = {"type": "array", "items": NESTED}


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ([], "In context=(), [] is not of type 'object', 'boolean'."),
        ({"properties": {"a": 1}}, "In context=('properties', 'a'), 1 is not of type 'object'"),
        ({"type": "text"}, "In context=('type',), 'text' is not valid under any of the given"),
        ({"properties": []}, "In context=('properties',), [] is not of type 'object'"),
        ({"required": "a"}, "In context=('required',), 'a' is not of type 'array'"),
        ({"required": [1]}, "In context=('required',), 1 is not of type 'string'"),
        ({"properties": {}, "required": ["a"]}, "In context=(), Extra required key 'a' supplied"),
        ({"enum": []}, "'enum' must not be empty"),
        ({"type": "string", "enum": [1]}, "no value of 'enum' is valid by 'type'"),
        ({"anyOf": [{"not": {}}]}, "In context=('anyOf', 0), 'not' is not permitted"),
        ({"oneOf": [{}]}, "'oneOf' is not permitted"),
        ({"type": "null", "anyOf": [{"type": "string"}]}, "no branch of 'anyOf' admits a value"),
        ({"allOf": [{"type": "null"}, {"type": "string"}]}, "no value is valid under all"),
        ({"allOf": ["x", {}]}, "In context=('allOf', 0), 'x' is not of type 'object', 'boolean'"),
        ({"enum": ["b"], "pattern": "a"}, "'pattern' is not permitted beside 'enum'"),
        ({"pattern": "a", "format": "date"}, "'format' is not permitted beside 'pattern'"),
        ({"format": "email", "maxLength": 9}, "'maxLength' is not permitted beside 'format'"),
        ({"allOf": [{"pattern": "a"}, {"pattern": "b"}]}, "'pattern' is not permitted twice"),
        (
            {"items": {}, "allOf": [{"prefixItems": [{}]}]},
            "'items' is not permitted beside 'prefixItems' of another schema",
        ),
        ({"$ref": "#/$defs/a"}, "reference '#/$defs/a' points nowhere"),
        ({"$ref": "http://x"}, "reference 'http://x' must begin with '#'"),
        ({"type": "array", "minItems": 2, "maxItems": 1}, "'minItems' is greater than 'maxItems'"),
        ({"prefixItems": [{}], "items": False, "minItems": 2}, "'minItems' is 2, and only 1 items"),
        ({"minLength": -1}, "In context=('minLength',), -1 is less than the minimum of 0"),
        ({"minimum": 1e-7, "exclusiveMaximum": 1e-6}, "no number with 6 decimals lies within"),
        ({"minimum": "1"}, "In context=('minimum',), '1' is not of type 'number'"),
        ({"minimum": True}, "In context=('minimum',), True is not of type 'number'"),
        ({"format": ["date"]}, "In context=('format',), ['date'] is not of type 'string'"),
        (
            {"type": ["integer", "number"], "minimum": 1e-7, "maximum": 2e-7},
            "no number with 6 decimals lies within",
        ),
        ({"pattern": "(?=a)"}, "lookarounds and word boundaries are not permitted"),
        ({"pattern": 'a"'}, "quotes, backslashes"),
        ({"pattern": '\\[^"]'}, "quotes, backslashes"),
        ({"minLength": 1e30}, "In context=('minLength',), 1e+30 is more than the 2147483648 that"),
        ({"maxLength": 1e30}, "1e+30 is more than"),
        ({"minItems": 1e19}, "1e+19 is more than"),
        ({"maxItems": 2**31 + 1}, "2147483649 is more than"),
        ({"$ref": "#/x-a/" + "1" * 5_000, "x-a": []}, "points nowhere"),
        ({"pattern": "ab", "maxLength": 1}, "'maxLength' is not permitted beside 'pattern'"),
        (NESTED, f"larger than the {MOST_DEPTH} levels"),
        ({"properties": {str(i): {} for i in range(2_001)}}, "larger than the 2000 schemas"),
        ({"const": "x" * MOST_BYTES}, "bytes, of which 65536 are allowed"),
    ],
)
def test_a_schema_that_cannot_hold_is_refused_with_its_path(schema, words):
    with pytest.raises(SchemaError) as refused:
        enforceable(schema, strict=True)
    assert words in str(refused.value)


@pytest.mark.parametrize(
    ("schema", "enforced"),
    [
        ({"type": "array", "uniqueItems": True}, {"type": "array"}),
        ({"oneOf": [{"type": "null"}]}, {"anyOf": [{"type": "null"}]}),
        ({"type": "string", "pattern": "a\\n"}, {"type": "string"}),
        ({"not": {"type": "string"}}, {}),
        ({"minimum": 5.0000001, "maximum": 5.0000002}, {"type": "number"}),
        ({"minimum": 0.12345678, "maximum": 0.12345678}, {"type": "number"}),
        ({"required": ["a"]}, {"type": "object", "properties": {"a": {}}, "required": ["a"]}),
    ],
)
def test_without_strictness_what_cannot_be_enforced_is_left_out(schema, enforced):
    assert enforceable(schema, strict=False) == enforced


AB = {"a": {"type": "boolean"}, "b": {"type": "integer"}}
OBJECT_AB = {"type": "object", "properties": AB}


@pytest.mark.parametrize(
    ("schema", "enforced"),
    [
        (
            {**OBJECT_AB, "anyOf": [{"required": ["a"]}, {"required": ["b"]}]},
            {"anyOf": [{**OBJECT_AB, "required": ["a"]}, {**OBJECT_AB, "required": ["b"]}]},
        ),
        (
            {"properties": AB, "required": ["a"], "oneOf": [{"required": ["b"]}, True]},
            {
                "anyOf": [
                    {**OBJECT_AB, "required": ["a", "b"]},
                    {**OBJECT_AB, "required": ["a"]},
                ]
            },
        ),
        (
            {
                "properties": AB,
                "additionalProperties": False,
                "anyOf": [{"properties": {"b": {"minimum": 1}, "c": {}}}],
            },
            {
                "anyOf": [
                    {
                        "type": "object",
                        "properties": {
                            "a": {"type": "boolean"},
                            "b": {"type": "integer", "minimum": 1},
                        },
                        "additionalProperties": False,
                    }
                ]
            },
        ),
        (
            {"minLength": 2, "anyOf": [{"maxLength": 3}, {"minLength": 5}]},
            {
                "anyOf": [
                    {"type": "string", "minLength": 2, "maxLength": 3},
                    {"type": "string", "minLength": 5},
                ]
            },
        ),
        (
            {"$defs": {"s": {"type": "string"}}, "$ref": "#/$defs/s", "minLength": 3},
            {"type": "string", "minLength": 3},
        ),
        (
            {"$defs": {"o": OBJECT_AB}, "$ref": "#/$defs/o", "properties": {"c": {"const": 1}}},
            {"type": "object", "properties": {"c": {"enum": [1]}, **AB}},
        ),
        (
            {"$defs": {"o": OBJECT_AB}, "required": ["b"], "anyOf": [{"$ref": "#/$defs/o"}]},
            {"anyOf": [{**OBJECT_AB, "required": ["b"]}]},
        ),
        (
            {"allOf": [OBJECT_AB, {"properties": {"c": {"type": "null"}}, "required": ["a"]}]},
            {"type": "object", "properties": {**AB, "c": {"type": "null"}}, "required": ["a"]},
        ),
        (
            {"anyOf": [{"required": ["a"]}], "allOf": [OBJECT_AB]},
            {"anyOf": [{**OBJECT_AB, "required": ["a"]}]},
        ),
        ({"enum": ["a", "bb", 3], "minLength": 2, "maximum": 2}, {"enum": ["bb"]}),
        ({"const": 2, "anyOf": [{"minimum": 3}, {"type": "integer"}]}, {"enum": [2]}),
        (
            {"$defs": {"e": {"enum": ["x", 2, True]}}, "$ref": "#/$defs/e", "enum": [1, 2, "x"]},
            {"enum": ["x", 2]},
        ),
        (
            {
                "$defs": {"t": {"type": ["string", "number"]}},
                "$ref": "#/$defs/t",
                "type": "integer",
            },
            {"type": "integer"},
        ),
        (
            {"allOf": [{"anyOf": [{"minimum": 1}]}, {"anyOf": [{"maximum": 3}, False]}]},
            {"anyOf": [{"anyOf": [{"type": "number", "minimum": 1, "maximum": 3}]}]},
        ),
        (
            {
                "additionalProperties": {"type": "integer"},
                "allOf": [{"properties": {"a": {"minimum": 3}}}],
            },
            {
                "type": "object",
                "properties": {"a": {"type": "integer", "minimum": 3}},
                "additionalProperties": {"type": "integer"},
            },
        ),
        ({"pattern": "^[a-z]+$", "maxLength": 3}, {"type": "string", "pattern": "^[a-z]{1,3}$"}),
        ({"pattern": r"\d*", "minLength": 2}, {"type": "string", "pattern": r"^\d{2,}$"}),
        ({"pattern": "[ab]{2,9}", "maxLength": 4}, {"type": "string", "pattern": "^[ab]{2,4}$"}),
    ],
)
def test_keywords_beside_a_choice_or_a_reference_hold_too(schema, enforced):
    oneof = "oneOf" in schema  # which no strict client may use
    assert enforceable(schema, strict=not oneof) == enforced


@pytest.mark.parametrize(
    "schema",
    [
        {"$defs": {"a": {"$ref": "#/$defs/a", "minLength": 1}}, "$ref": "#/$defs/a"},
        {"properties": {"x": {}}, "anyOf": [{"$ref": "#"}]},
        # Each level asks the next twice.
        {"const": 1, "anyOf": [{"$ref": "#"}, {"$ref": "#"}]},
        {"minLength": 1, "allOf": [{"$ref": "#"}, {"$ref": "#"}]},
    ],
)
def test_a_reference_that_leads_to_itself_is_refused(schema):
    with pytest.raises(SchemaError, match=r"itself|larger than"):
        enforceable(schema, strict=False)


def test_what_is_not_enforced_is_told_with_its_path():
    left_out = []
    schema = {"properties": {"a": {"format": "email", "maxLength": 9}}, "anyOf": [{"not": {}}]}
    enforceable(schema, strict=False, left_out=left_out)
    assert left_out == [
        "anyOf.0: 'not' is not permitted",
        "anyOf.0.properties.a: 'maxLength' is not permitted beside 'format'",
    ]


def test_a_text_that_cannot_be_so_short_is_refused():
    with pytest.raises(SchemaError, match="no text of these lengths"):
        enforceable({"pattern": "[ab]{4}", "maxLength": 3}, strict=False)


@pytest.mark.parametrize("pattern", ["[" * 60_000, "[\\" * 20_000, "[^" * 30_000])
def test_a_pattern_of_brackets_that_are_not_closed_is_read_once(pattern):
    # In time quadratic in its length this would not end while anybody waits.
    schema = {"type": "string", "pattern": pattern}
    assert enforceable(schema, strict=True) == schema


@pytest.mark.parametrize(
    "content",
    ['"', r"\\", r"\"", r"\x22", r"\x5C", r"\u0022\u005c", r"\u{22}", r"\x00-\x1f", r"\n"],
)
def test_a_class_of_nothing_but_what_json_escapes_is_refused(content):
    schema = {"type": "string", "pattern": f"a[{content}]"}
    with pytest.raises(SchemaError, match="quotes, backslashes"):
        enforceable(schema, strict=True)
    assert enforceable(schema, strict=False) == {"type": "string"}


@pytest.mark.parametrize(
    "pattern",
    ['["a]', r"[\x00-\x7f]", r"[\u4e00-\u9fff]", r"[\x41]", '[^"]', '[^\\]"]', r"\[a\]", "a[bc]d"],
)
def test_a_pattern_whose_characters_need_no_escape_is_enforced(pattern):
    schema = {"type": "string", "pattern": pattern}
    assert enforceable(schema, strict=True) == schema


@pytest.mark.parametrize(
    "limits",
    [
        {"minimum": 5.0000001, "maximum": 5.0000011},
        {"exclusiveMinimum": 0.123456, "exclusiveMaximum": 0.1234571},
        {"minimum": 0.1, "maximum": 0.1},
        {"minimum": 1e-7},
        {"minimum": 2, "maximum": 1},
    ],
)
def test_bounds_that_a_number_of_six_decimals_can_keep_are_enforced(limits):
    assert enforceable({"type": "number"} | limits, strict=False) == {"type": "number"} | limits
