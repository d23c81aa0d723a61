"""Whatever the request: nothing is lost, nothing else changes, and a second time nothing does."""

import json
from collections import Counter
from dataclasses import replace

import orjson
from examples import some
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.prompts.outcome import Rewrite
from gateway.prompts.rewrite.rules import rewrite
from gateway.prompts.rewrite.text_rules import BLOCK, Memory
from gateway.prompts.rewrite.tool_rules import KnownTools
from gateway.protocol.exact_json import parse_body
from policies.decision import (
    DocumentOrder,
    DocumentSettings,
    Endpoint,
    PrefixSettings,
    SchemaKeys,
    VolatileKind,
)

BEGIN, END = "<doc", "</doc>"
WORDS = [
    "2026-11-22T01:03:42.123Z",
    "2026-11-22",
    "on Sunday, November 22, 2026 at 1:03 PM",
    "3f2a77e0-1b2c-4d5e-8f90-a1b2c3d4e5f6",
    "request id: abc-123",
    "Hello Anna,",
    "2026年11月22日",
    "build-77",
    "<doc>a 2026-01-01 \n</doc>",
    "<doc id=2>b</doc>",
    "<doc>b</doc>\n<doc>a</doc> <doc>c</doc><doc>b</doc>",
    "<doc>2</doc>\r\n\t<doc>1</doc>  \n<doc></doc>",
    "[timestamp-1]",
    "<doc>",
    "</doc>",
    "```",
    "~~~~",
    "    indented  ",
    "words",
    "Grüße, 世界 😀",
    " ",
    "  ",
    "\t",
    "\n",
    "\r\n",
    "\r",
    "\n\n",
    BLOCK,
    '"tools":[{"type":"function","function":{"name":"a","parameters":{"b":1,"a":2}}}]',
    '"parameters": {"b": {}, "a": 1}}}, {"type": "function"',
    "}]}",
]
CHARACTERS = st.characters(exclude_categories=["Cs"])  # no surrogates: orjson reads none
TEXTS = st.one_of(
    st.lists(st.sampled_from(WORDS) | st.text(CHARACTERS, max_size=3), max_size=12).map(" ".join),
    st.lists(st.sampled_from(WORDS), max_size=12).map("".join),
)
USUAL = st.lists(st.sampled_from(WORDS[:12]), max_size=8).map(
    lambda words: "\n".join(["You are a careful assistant of a large shop.", *words, "Be brief. "])
)
TEXTS = USUAL | TEXTS
PARTS = st.builds(lambda text: {"type": "text", "text": text}, TEXTS)
CONTENT = TEXTS | st.lists(PARTS, max_size=3)
TURNS = st.builds(
    lambda role, content: {"role": role, "content": content},
    st.sampled_from(["system", "developer", "user", "assistant", "tool"]),
    CONTENT,
)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-9, 9)
    | st.sampled_from(["a", "é", 0.5, '"parameters":{']),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["b", "a", "properties", "items", "ü", "parameters", "}"]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=8,
)
TOOLS = st.lists(
    st.builds(
        lambda name, schema, strict: {
            "type": "function",
            "function": {"name": name, "strict": strict, "parameters": schema},
        },
        st.sampled_from("abc"),
        VALUES,
        st.booleans(),
    ),
    max_size=4,
)
BODIES = st.builds(
    lambda turns, tools, extra: {"messages": turns, "tools": tools, "model": "m", **extra},
    st.lists(TURNS, max_size=5).flatmap(
        lambda turns: st.builds(lambda text: [*turns, {"role": "user", "content": text}], CONTENT)
    )
    | st.lists(TURNS, min_size=1, max_size=6),
    TOOLS,
    st.sampled_from([{}, {"metadata": {"tools": "messages", "messages": []}}, {"x": 2**70}]),
)
RESPONSES = st.builds(
    lambda instructions, given, tools: {
        "instructions": instructions,
        "input": given,
        "tools": [{"type": "function", **tool["function"]} for tool in tools],
        "model": "m",
    },
    TEXTS,
    TEXTS | st.lists(TURNS, max_size=5),
    TOOLS,
)
SETTINGS = st.builds(
    PrefixSettings,
    st.sampled_from(SchemaKeys),
    st.booleans(),
    st.booleans(),
    st.lists(st.sampled_from(VolatileKind), unique=True).map(tuple),
    st.sampled_from([(), (r"build-\d+",), (r"(?s).+",), (r"\w+", "```"), (r"\n<doc",)]),
    st.none()
    | st.builds(DocumentSettings, st.just(BEGIN), st.just(END), st.sampled_from(DocumentOrder)),
    st.booleans(),
)
STYLES = st.sampled_from(
    [
        lambda body: json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode(),
        lambda body: json.dumps(body).encode(),
        lambda body: json.dumps(body, ensure_ascii=False).encode(),
        lambda body: json.dumps(body, indent=1, ensure_ascii=False).encode(),
        lambda body: json.dumps(body, indent=2).encode(),
        lambda body: json.dumps(body, separators=(" ,\n", "\t:")).encode(),
        lambda body: json.dumps(body).replace('"parameters"', '"p\\u0061rameters"').encode(),
    ]
)
REQUESTS = st.tuples(st.just(Endpoint.CHAT), BODIES) | st.tuples(
    st.just(Endpoint.RESPONSES), RESPONSES
)


def sorted_json(value):
    return json.dumps(value, sort_keys=True)


def turns_of(body):
    found = body.get("messages", body.get("input"))
    return found if isinstance(found, list) else [{"role": "user", "content": found}]


def text_of(turn):
    content = turn["content"]
    if isinstance(content, str):
        return content
    return "".join(part["text"] for part in content or ())


def is_block(turn):
    return (
        turn["role"] == "user"
        and isinstance(turn["content"], str)
        and turn["content"].startswith(BLOCK)
    )


@settings(max_examples=some(100))
@given(REQUESTS, SETTINGS, STYLES)
def test_a_request_keeps_all_it_has_and_is_rewritten_once(request, how, style):
    endpoint, given_body = request
    raw = style(given_body)
    body = parse_body(raw)
    came = json.dumps(body)
    result = rewrite(endpoint, body, raw, how)
    assert json.dumps(body) == came
    assert parse_body(result.raw) == result.body
    assert (result.raw == raw) is (not result.changes)
    tools = KnownTools()
    tools.note(how.schema_keys, result.tools, b"")
    once_more = rewrite(endpoint, body, raw, how, known=tools.forms(how.schema_keys, b""))
    assert once_more == replace(result, tools=())
    again = rewrite(endpoint, parse_body(result.raw), result.raw, how)
    assert again.raw == result.raw
    assert again.changes == ()
    assert not {each.rewrite for each in result.declined} & set(result.changes)
    assert Counter(map(sorted_json, result.body["tools"])) == Counter(
        map(sorted_json, body["tools"])
    )
    fields = ("tools", "messages", "input", "instructions")
    assert list(result.body) == list(body)
    assert all(result.body[field] == body[field] for field in body if field not in fields)
    before = turns_of(body)
    moved = [turn for turn in turns_of(result.body) if turn not in before]
    blocks = [turn for turn in moved if is_block(turn)]
    after = list(turns_of(result.body))
    if Rewrite.VOLATILE in result.changes:
        (block,) = blocks
        at = after.index(block)
        after.pop(at)
        _values_are_there(body, result.body, block)
    users = [index for index, turn in enumerate(before) if turn["role"] == "user"]
    users = [index for index in users if not is_block(before[index])]
    last = users[-1] if users else 0
    assert orjson.dumps(after[last:], option=orjson.OPT_PASSTHROUGH_SUBCLASS) == orjson.dumps(
        before[last:]
    )
    assert [turn["role"] for turn in after] == [turn["role"] for turn in before]
    if not (how.whitespace or how.volatile or how.patterns or how.documents):
        assert after == before


def _values_are_there(body, sent, block):
    """Whoever puts the values back in the place of their placeholders has the texts again."""
    values = block["content"].removeprefix(BLOCK)
    text = "\n".join([sent.get("instructions") or "", *map(text_of, turns_of(sent))])
    text = text.replace(block["content"], "")
    for line in values.split("\n["):
        if " = " in line:
            name, _, value = line.partition(" = ")
            if f"[{name}" in text:
                text = text.replace(f"[{name}", value, 1)
    came = "\n".join([body.get("instructions") or "", *map(text_of, turns_of(body))])
    assert Counter("".join(text.split())) == Counter("".join(came.split()))


DOCUMENTS = st.lists(st.sampled_from(["alpha", "beta", "gamma", "delta", "é"]), max_size=6)


@given(DOCUMENTS, DOCUMENTS, st.randoms(use_true_random=False), st.data())
def test_the_same_documents_are_sent_as_the_same_bytes_however_they_were_retrieved(
    some, others, random, data
):
    order = data.draw(st.sampled_from(DocumentOrder))
    how = PrefixSettings(documents=DocumentSettings(BEGIN, END, order))
    met = [BEGIN + ">" + text + END for text in some]
    ranks = {}
    if order is DocumentOrder.SHARED and others:
        known = rewrite(*request_with(others), how).digests
        ranks = {digest: rank for rank, digest in enumerate(dict.fromkeys(known), 1)}
    memory = Memory(b"", ranks)
    shuffled = list(some)
    random.shuffle(shuffled)
    one = rewrite(*request_with(some), how, memory)
    other = rewrite(*request_with(shuffled), how, memory)
    assert one.raw == other.raw
    assert one.digests == other.digests
    sent = one.body["messages"][0]["content"]
    assert Counter(sent.split("\n")[1:-1]) == Counter(met)


def request_with(documents):
    content = "\n".join(["Read:", *(f"{BEGIN}>{text}{END}" for text in documents), "Then answer."])
    body = {
        "messages": [{"role": "system", "content": content}, {"role": "user", "content": "?"}],
        "tools": [],
        "model": "m",
    }
    return Endpoint.CHAT, body, orjson.dumps(body)
