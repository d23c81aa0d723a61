"""Tools of a request as they are sent: keys of their schemas in order, and they themselves."""

import json

import orjson
import pytest

from gateway.prompts.outcome import Declined, NotRewritten, Rewrite, format_rewrites
from gateway.prompts.rewrite.rules import rewrite
from gateway.protocol.exact_json import parse_body
from policies.decision import Endpoint, PrefixSettings, SchemaKeys

KEYS = PrefixSettings(SchemaKeys.ON)
KEYWORDS = PrefixSettings()
SORTED = PrefixSettings(sorts_tools=True)
ORDER_ONLY = PrefixSettings(SchemaKeys.OFF, sorts_tools=True)
OFF = PrefixSettings(SchemaKeys.OFF)

SCHEMA = {
    "type": "object",
    "required": ["query", "limit"],
    "properties": {
        "query": {"type": "string", "enum": ["b", "a"], "default": {"z": 1, "a": [2, 1]}},
        "limit": {"minimum": 1, "type": "integer"},
    },
}
IN_ORDER = {
    "properties": {
        "limit": {"minimum": 1, "type": "integer"},
        "query": {"default": {"a": [2, 1], "z": 1}, "enum": ["b", "a"], "type": "string"},
    },
    "required": ["query", "limit"],
    "type": "object",
}


def function(name="find", schema=SCHEMA, **fields):
    return {"type": "function", "function": {"name": name, "parameters": schema, **fields}}


def chat(*tools, **fields):
    return {"model": "m", "messages": [{"role": "user", "content": "Hi"}], "tools": tools, **fields}


def rewritten(raw, settings=KEYS, endpoint=Endpoint.CHAT):
    if not isinstance(raw, bytes):
        raw = orjson.dumps(raw)
    body = parse_body(raw)
    before = json.dumps(body)
    result = rewrite(endpoint, body, raw, settings)
    assert json.dumps(body) == before
    assert parse_body(result.raw) == result.body
    assert json.loads(result.raw) == json.loads(json.dumps(result.body))
    return result


def test_the_keys_of_a_schema_go_by_name_at_every_depth_and_arrays_keep_their_order():
    result = rewritten(chat(function(), temperature=0.5))
    assert result.raw == orjson.dumps(chat(function(schema=IN_ORDER), temperature=0.5))
    assert result.changes == (Rewrite.SCHEMA_KEYS,)


@pytest.mark.parametrize("indent", [None, 1], ids=["one line", "indented"])
def test_only_what_moves_is_printed_anew(indent):
    given = chat(function("é"), function("left", IN_ORDER), user="\x7f")
    raw = json.dumps(given, indent=indent).encode()
    schema = json.dumps(SCHEMA).encode()
    result = rewritten(raw)
    places = [raw.index(b'"parameters": ') + len(b'"parameters": ')]
    places.append(raw.index(b"\n" if indent else b"}", raw.index(b'"integer"')))
    ordered = orjson.dumps(IN_ORDER)
    assert result.raw.startswith(raw[: places[0]] + ordered)
    behind = raw.index(b'"left"')
    assert result.raw.endswith(raw[behind:])
    if indent is None:
        assert result.raw == raw.replace(schema, ordered)


def test_numbers_stay_as_they_are_written():
    schema = b'{"type":"number","minimum":1.0,"maximum":1e3,"multipleOf":0.10,"a":%d}' % 2**63
    raw = orjson.dumps(chat(function(schema={"!": 0}))).replace(b'{"!":0}', schema)
    ordered = b'{"a":%d,"maximum":1e3,"minimum":1.0,"multipleOf":0.10,"type":"number"}' % 2**63
    assert rewritten(raw).raw == raw.replace(schema, ordered)


def test_an_integer_that_cannot_be_printed_leaves_the_tools_as_they_came():
    raw = orjson.dumps(chat(function(schema={"!": 0}))).replace(b'"!":0', b'"b":1,"a":%d' % 2**70)
    result = rewritten(raw, SORTED)
    assert result.raw is raw
    assert result.declined == (
        Declined(Rewrite.SCHEMA_KEYS, NotRewritten.UNREADABLE),
        Declined(Rewrite.TOOLS, NotRewritten.UNREADABLE),
    )


@pytest.mark.parametrize(
    ("settings", "given"), [(KEYWORDS, function()), (KEYS, function(strict=True))]
)
def test_properties_keep_the_order_in_which_a_model_has_to_write_them(settings, given):
    (tool,) = rewritten(chat(given), settings).body["tools"]
    schema = tool["function"]["parameters"]
    assert list(schema) == ["properties", "required", "type"]
    assert list(schema["properties"]) == ["query", "limit"]
    assert list(schema["properties"]["query"]) == ["default", "enum", "type"]
    assert list(schema["properties"]["query"]["default"]) == ["z", "a"]


def test_tools_go_by_name_and_nothing_else_moves():
    given = [function(name, IN_ORDER) for name in ("b", "a", "c", "a")]
    raw = json.dumps(chat(*given, tool_choice={"type": "function", "function": {"name": "b"}}))
    result = rewritten(raw.encode(), ORDER_ONLY)
    assert result.changes == (Rewrite.TOOLS,)
    places = [1, 3, 0, 2]
    assert result.raw.decode() == raw.replace(
        json.dumps(given), json.dumps([given[place] for place in places])
    )


def test_all_orders_of_the_same_tools_are_sent_as_the_same_bytes():
    b, a = function("b"), function("a", {"type": "object", "properties": {}})
    other = {"function": dict(reversed(b["function"].items())), "type": "function"}
    assert rewritten(chat(a, b), SORTED).raw == rewritten(chat(b, a), SORTED).raw
    assert rewritten(chat(a, other), SORTED).raw == rewritten(chat(other, a), SORTED).raw


def test_functions_of_old_and_tools_of_responses_are_tools():
    old = {"name": "find", "parameters": SCHEMA}
    result = rewritten({**chat(), "functions": [old]})
    assert list(result.body["functions"][0]["parameters"]) == sorted(SCHEMA)
    flat = {"type": "function", **old}
    search = {"type": "web_search"}
    given = {"model": "m", "input": "Hi", "tools": [flat, search]}
    result = rewritten(given, SORTED, Endpoint.RESPONSES)
    assert [tool.get("name") for tool in result.body["tools"]] == [None, "find"]
    assert list(result.body["tools"][1]["parameters"]) == sorted(SCHEMA)


def test_other_endpoints_have_no_tools():
    given = {"model": "m", "prompt": "Hi", "tools": [function()]}
    for endpoint in (Endpoint.COMPLETIONS, Endpoint.EMBEDDINGS):
        raw = orjson.dumps(given | {"input": "Hi"})
        assert rewritten(raw, SORTED, endpoint).raw is raw


@pytest.mark.parametrize(
    "tools",
    [None, [], {}, "tools", [1, 2.0], ["b", "a"], [[{"b": 1, "a": 2}]], [{}], [{"function": 1}]],
    ids=repr,
)
def test_what_is_no_tool_is_left_alone(tools):
    raw = orjson.dumps({**chat(), "tools": tools})
    assert rewritten(raw, SORTED).raw == raw


@pytest.mark.parametrize(
    "fields",
    [
        b'"metadata":{"tools":[{"a":1}]},"tools":T',
        b'"tools":T,"metadata":{"tools":[{"a":1}]}',
        b'"user":"\\"tools\\":[]","tools" : T',
        b'"user":"tools","tools":\n T ',
        b'"\\u0074ools":T,"x":{"tools":[{"a":1}]}',
        '"user":"\\u00e9 😀 é","metadata":{"tools":"é"},"tools":T'.encode(),
        b'"a\\"tools":T,"tools":T',
    ],
)
@pytest.mark.parametrize("indent", [None, 2], ids=["compact", "indented"])
def test_the_tools_are_found_wherever_they_stand_and_however_they_are_written(fields, indent):
    def printed(schema, *, as_sent=False):
        tool = function("é", "!")
        if not as_sent or indent is None:
            written = orjson.dumps([tool])
        else:
            written = json.dumps([tool], indent=indent, ensure_ascii=False).encode()
        return written.replace(b'"!"', orjson.dumps(schema))

    raw = b'{"model":"m","messages":[{"role":"user","content":"tools"}],%s}'
    given = raw % fields.replace(b"T", printed(SCHEMA, as_sent=True))
    result = rewritten(given)
    assert result.changes == (Rewrite.SCHEMA_KEYS,)
    expected = printed(IN_ORDER, as_sent=True)
    before, _, behind = (raw % fields).rpartition(b"T")
    before = before.replace(b"T", printed(SCHEMA, as_sent=True))
    assert result.raw == before + expected + behind


def test_tools_of_over_a_mebibyte_are_left_as_they_came():
    schema = {"type": "object", "description": "x" * 600_000}
    raw = orjson.dumps(chat(function("b", schema), function("a", schema)))
    result = rewritten(raw, SORTED)
    assert result.raw is raw
    assert format_rewrites(result.changes, result.declined) == (
        'none; declined="schema-keys=too-large, tools=too-large"'
    )


def test_a_deeply_nested_schema_is_put_in_order_by_either_way():
    schema = {"type": "object", "a": 1}
    for _ in range(110):
        schema = {"type": "object", "properties": {"b": schema}}
    for settings in (KEYS, KEYWORDS):
        result = rewritten(chat(function(schema=schema)), settings)
        assert result.changes == (Rewrite.SCHEMA_KEYS,)
        assert rewritten(result.raw, settings).raw is result.raw


def test_what_was_done_is_told_in_one_line():
    assert format_rewrites((), ()) == "none"
    assert format_rewrites((Rewrite.SCHEMA_KEYS, Rewrite.TOOLS), ()) == "schema-keys, tools"


@pytest.mark.parametrize("mark", ["cache_control", "prompt_cache_breakpoint"])
def test_tools_with_marks_for_the_provider_stay_where_they_are(mark):
    given = [function("b"), function("a", IN_ORDER), {**function("c", IN_ORDER), mark: {}}]
    result = rewritten(chat(*given), SORTED)
    assert result.body["tools"] == [function("b", IN_ORDER), *given[1:]]
    assert result.changes == (Rewrite.SCHEMA_KEYS,)
    assert result.declined == (Declined(Rewrite.TOOLS, NotRewritten.MARKED),)


def test_two_tools_of_a_name_are_put_in_order_whatever_numbers_they_hold():
    raw = orjson.dumps(chat(function("b"), function("b", note=0), function("a"), function("b")))
    raw = raw.replace(b'"note":0', b'"note":%d' % 2**70)
    names = [tool["function"]["name"] for tool in rewritten(raw, ORDER_ONLY).body["tools"]]
    assert names == ["a", "b", "b", "b"]
