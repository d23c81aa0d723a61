"""Tools that came before: recognised in whatever order they come, and never taken for others."""

import json
import random

import orjson
import pytest

from gateway.prompts.rewrite.rules import rewrite
from gateway.prompts.rewrite.tool_rules import MAX_FORM_BYTES, Form, KnownTools
from gateway.protocol.exact_json import parse_body
from policies.decision import Endpoint, PrefixSettings, SchemaKeys, VolatileKind

SORTED = PrefixSettings(sorts_tools=True)
STYLES = [
    pytest.param({"separators": (",", ":"), "ensure_ascii": False}, id="compact"),
    pytest.param({}, id="spaced"),
    pytest.param({"indent": 2, "ensure_ascii": False}, id="indented"),
    pytest.param({"indent": "\t"}, id="tabs"),
]


def tool(name, **schema):
    parameters = {"type": "object", "description": f"é {name} }}]", **schema}
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


def chat(tools):
    system = {"role": "system", "content": 'Read "tools": [{"a": 1}] é. \nIt is 2026-11-22 01:03.'}
    turns = [system, {"role": "user", "content": "What now?"}]
    return {"model": "m", "messages": turns, "tools": tools, "temperature": 0.5}


def sent(tools, style, known, settings=SORTED):
    raw = json.dumps(chat(tools), **style).encode()
    result = rewrite(
        Endpoint.CHAT, parse_body(raw), raw, settings, known=known.forms(settings.schema_keys, b"")
    )
    known.note(settings.schema_keys, result.tools, b"")
    return result


@pytest.mark.parametrize("style", STYLES)
def test_known_tools_are_sent_as_they_were_when_nobody_knew_them(style):
    tools = [tool(f"tool_{number}") for number in range(6)]
    known = KnownTools()
    assert len(sent(tools, style, known).tools) == 6
    chance = random.Random(1)
    for _ in range(5):
        chance.shuffle(tools)
        result = sent(tools, style, known)
        assert result.tools == ()
        assert result.raw == sent(tools, style, KnownTools()).raw
        assert parse_body(result.raw) == result.body


def test_tools_of_one_name_that_differ_are_told_apart():
    known = KnownTools()
    first, second = tool("a", b=1, a=2), tool("a", b=1, a=3)
    for tools in ([first], [second], [first, second], [second, first, first], [first, tool("b")]):
        result = sent(tools, {}, known)
        assert result.raw == sent(tools, {}, KnownTools()).raw
        assert parse_body(result.raw) == result.body


def test_what_is_known_with_one_order_of_keys_is_not_with_another():
    known = KnownTools()
    orders = [
        sent([tool("a", properties={"b": 1, "a": 2})], {}, known, PrefixSettings(keys)).raw
        for keys in (SchemaKeys.ON, SchemaKeys.KEYWORDS)
    ]
    assert orders[0] != orders[1]


def test_what_is_remembered_of_tools_is_bounded():
    known = KnownTools(max_bytes=4000)
    for number in range(100):
        name = str(number % 3)
        known.note(SchemaKeys.ON, [Form(name, bytes([number]) * 100, b"x" * 100, {})], b"")
        kept = [form for forms in known.forms(SchemaKeys.ON, b"").values() for form in forms]
        assert sum(len(form.original) + len(form.sent) for form in kept) <= 1000
        assert kept
    others = KnownTools(max_bytes=12_000)
    for name in ["other"] + ["one"] * 100:
        others.note(SchemaKeys.ON, [Form(name, b"x" * 50, b"x" * 40, {})], b"")
    assert "other" in others.forms(SchemaKeys.ON, b"")
    known.note(SchemaKeys.ON, [Form("long", b"x" * (MAX_FORM_BYTES + 1), b"", {})], b"")
    assert "long" not in known.forms(SchemaKeys.ON, b"")


@pytest.mark.parametrize("style", STYLES)
def test_every_rule_applies_however_a_request_is_written(style):
    settings = PrefixSettings(sorts_tools=True, whitespace=True, volatile=tuple(VolatileKind))
    result = sent([tool("b"), tool("a")], style, KnownTools(), settings)
    assert [str(change) for change in result.changes] == [
        "schema-keys",
        "tools",
        "whitespace",
        "volatile",
    ]
    assert parse_body(result.raw) == result.body
    assert orjson.loads(result.raw)["messages"][1]["content"].endswith("2026-11-22 01:03")
