import json
import subprocess
import sys
import time

import pytest

from gateway.cache.key import canonical_form
from gateway.protocol import exact_json
from gateway.protocol.exact_json import (
    BodyError,
    BodyTooLargeError,
    LoneSurrogateError,
    parse_body,
)
from policies.decision import Endpoint

CHAT, COMPLETIONS, RESPONSES = Endpoint.CHAT, Endpoint.COMPLETIONS, Endpoint.RESPONSES


def form(raw: str | bytes) -> bytes:
    return canonical_form(CHAT, parse_body(raw.encode() if isinstance(raw, str) else raw))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ('{"a":1,"logit_bias":{"c":2,"d":3}}', '{ "logit_bias" : {"d":3, "c":2},\n"a":1}'),
        ('{"a":1}', '{"a":1e0}'),
        ('{"a":100}', '{"a":1E2}'),
        ('{"a":100000}', '{"a":0.1e6}'),
        ('{"a":[10000000000000000]}', '{"a":[1e16]}'),
        ('{"a":10000000000000000000000}', '{"a":1e22}'),
        ('{"a":1e308}', '{"a":10.0E+307}'),
        ('{"a":-1e23}', '{"a":-1000e20}'),
        ('{"a":0}', '{"a":-0.0}'),
        ('{"a":0.1}', '{"a":1e-1}'),
        ('{"a":18446744073709551617}', '{ "a":18446744073709551617}'),
        ('{"a":"\\u00e9\\/"}', '{"a":"é/"}'),
        ('{"\\u0061":1}', '{"a":1}'),
        ('{"a":"x\\u003ay"}', '{"a":"x:y"}'),
    ],
)
def test_spellings_of_one_value_share_a_form(one, other):
    assert form(one) == form(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ('{"a":1}', '{"a":"1"}'),
        ('{"a":1}', '{"a":true}'),
        ('{"a":0}', '{"a":false}'),
        ('{"a":null}', "{}"),
        ('{"a":null}', '{"a":""}'),
        ('{"a":[]}', '{"a":{}}'),
        ('{"a":[1,2]}', '{"a":[2,1]}'),
        ('{"a":1}', '{"a":1.0000000000000002}'),
        ('{"a":18446744073709551617}', '{"a":18446744073709551618}'),
        ('{"a":18446744073709551616}', '{"a":18446744073709551615}'),
        ('{"a":-9223372036854775809}', '{"a":-9223372036854775810}'),
        ('{"a":9007199254740993}', '{"a":9007199254740992}'),
        ('{"a":1e308}', '{"a":1e307}'),
        ('{"a":1e308}', '{"a":-1e308}'),
        ('{"a":1e308}', '{"a":"1e308"}'),
        ('{"a":"Hi"}', '{"a":"hi"}'),
        ('{"a":"hi"}', '{"a":"hi "}'),
        ('{"a":"hi  you"}', '{"a":"hi you"}'),
        ('{"a":"é"}', '{"a":"e\u0301"}'),
        ('{"a":"1.0"}', '{"a":"1"}'),
        ('{"a":"x","b":"y"}', '{"a":"x\\",\\"b\\":\\"y"}'),
        ('{"a":"\\u0000"}', '{"a":""}'),
        ('{"A":1}', '{"a":1}'),
        ('{"a":{"c":2,"d":3}}', '{"a":{"d":3,"c":2}}'),
        ('{"a":[{"c":2,"d":3}]}', '{"a":[{"d":3,"c":2}]}'),
    ],
)
def test_values_that_an_upstream_tells_apart_differ(one, other):
    assert form(one) != form(other)


@pytest.mark.parametrize(
    "raw",
    [
        '{"a":1,"a":1}',
        '{"a":1,"\\u0061":2}',
        '{"a":{"b":1,"c":2,"b":3}}',
        '{"a":[{"b":{"x":1,"x":1}}]}',
        '{"a":":","a":"::"}',
        '{"a":{"b":":::"},"c":"::","a":1}',
        '{"a":"\\u003a","a":"\\u003A"}',
        '{"":1,"":2}',
        '{"a":1e99,"a":2}',
        '{"messages":[{"role":"user","content":"a","content":"b"}],"model":"m"}',
    ],
)
def test_duplicate_keys_are_refused_at_any_depth_and_in_any_spelling(raw):
    with pytest.raises(BodyError, match="more than once"):
        parse_body(raw.encode())


@pytest.mark.parametrize(
    "raw",
    [
        '{"a":"x:y:z","b":":","c":{"d":"::"}}',
        '{"a":"\\u003a\\u003A:"}',
        '{"a:b":{"c:d":1}}',
        '{"a\\u003ab":1}',
        '{"a":"1.0,2.0}3.0]e+"}',
    ],
)
def test_colons_and_number_likes_in_text_are_no_duplicates(raw):
    assert canonical_form(CHAT, parse_body(raw.encode())) == form(raw)


def test_a_refused_duplicate_is_named_and_cut_short():
    with pytest.raises(BodyError) as caught:
        parse_body(b'{"' + b"k" * 10_000 + b'":1,"' + b"k" * 10_000 + b'":2}')
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b" ",
        b"{",
        b"nothing",
        b"{'a':1}",
        b'{"a":1}{"b":2}',
        b'{"a":1,}',
        b'{"a":NaN}',
        b'{"a":Infinity}',
        b'{"a":-Infinity}',
        b'{"a":1e400}',
        b'{"a":-1e400}',
        b'{"a":01}',
        b'{"a":+1}',
        b'{"a":.5}',
        b'\xef\xbb\xbf{"a":1}',
        b'{"a":"\xff"}',
        b'{"a":"\xc0\xaf"}',
        b'{"a":"\xed\xa0\x80"}',
        b'{"a":"\\ud800","b":NaN}',
        b'{"a":"\\ud800"',
        b'{"a":"\x00"}',
        '{"a":1}'.encode("utf-16"),
        '{"a":1}'.encode("utf-32-le"),
    ],
)
def test_invalid_json_is_refused(raw):
    with pytest.raises(BodyError, match="could not parse"):
        parse_body(raw)


@pytest.mark.parametrize("raw", [b"[]", b"[{}]", b'"{}"', b"1", b"null", b"true"])
def test_only_an_object_is_a_body(raw):
    with pytest.raises(BodyError, match="object"):
        parse_body(raw)


@pytest.mark.parametrize("depth", [254, 255, 256, 900, 1_100, 200_000])
@pytest.mark.parametrize("inner", ["1", "1.0", '"\\u003a"'])
def test_a_depth_bomb_is_refused_or_keyed_but_never_crashes(depth, inner):
    raw = '{"a":' + "[" * depth + inner + "]" * depth + "}"
    with pytest.raises(BodyError, match=r"deep|parse"):
        parse_body(raw.encode())


@pytest.mark.parametrize("inner", ["1", "1.0", '"\\u003a"', "18446744073709551617"])
def test_two_hundred_levels_are_allowed(inner):
    raw = '{"a":' + "[" * 200 + inner + "]" * 200 + "}"
    assert form(raw).count(b"[") == 200


@pytest.mark.parametrize("digits", [309, 5_000, 1_000_000])
def test_a_huge_number_is_refused_quickly(digits):
    began = time.thread_time()
    with pytest.raises(BodyError):
        parse_body(b'{"a":' + b"9" * digits + b"}")
    assert time.thread_time() - began < 2.0


def test_the_largest_numbers_keep_their_digits():
    assert form(b'{"a":' + b"9" * 308 + b"}") == b'{"a":' + b"9" * 308 + b"}"


def test_finding_a_duplicate_among_many_keys_takes_linear_time():
    members = ",".join(f'"k{number}":1' for number in range(80_000))
    began = time.thread_time()
    with pytest.raises(BodyError, match="'k79999'"):
        parse_body(f'{{{members},"k79999":2}}'.encode())
    assert time.thread_time() - began < 5.0


def test_a_duplicate_in_a_large_body_is_refused_unnamed():
    members = ",".join(f'"k{number}":1' for number in range(200_000))
    with pytest.raises(BodyError, match="has a key more than once"):
        parse_body(f'{{{members},"k199999":2}}'.encode())


BOMBS = {
    "integers of 309 digits": b"1e308,",
    "the same below zero": b"-1E+308,",
    "numbers below any double": b"1e-99999999,",
    "floats of integral value": b"1.0,",
    "the largest that is written out": b"1e22,",
    "long integers": b"1234567890123456789012345,",
    "small objects": b'{"a":1},',
    "arrays of arrays": b"[" * 200 + b"]" * 200 + b",",
    "short texts": b'"a",',
    "texts of escapes": b'"\\\\\\"\\u003a",',
    "halves of surrogate pairs": b'"\\ud83d",',
    "long integers, few enough": b"9" * 300 + b",",
    "floats, few enough": b"1" * 40 + b".0,",
    "texts, few enough": b'"\\\\\\"' + b"t" * 40 + b'",',
}


PARSES_EACH = """
import resource, sys
from contextlib import suppress
from gateway.cache.key import canonical_form
from gateway.protocol import exact_json
from gateway.protocol.exact_json import BodyError, parse_body

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

size = int(sys.argv[1])
before = peak()
for unit in sys.argv[2:]:
    raw = b'{"a":[%b0]}' % (unit.encode() * (size // len(unit)))
    with suppress(BodyError):
        canonical_form("/v1/chat/completions", parse_body(raw))
    del raw
print(peak() - before)
"""


def test_a_body_takes_at_most_five_times_its_size():
    size = 12_000_000
    argv = [sys.executable, "-c", PARSES_EACH, str(size), *map(bytes.decode, BOMBS.values())]
    found = subprocess.run(argv, capture_output=True, check=True)
    assert int(found.stdout) < 5 * size


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b'{"a":[' + b"1," * 500_000 + b"1]}", "500,000 structural characters"),
        (b'{"a":"' + b"\\\\" * 4_000_001 + b'"}', "8,000,000 backslashes"),
    ],
    ids=["values", "escapes"],
)
def test_a_body_with_too_many_parts_is_refused_before_it_is_parsed(raw, message):
    with pytest.raises(BodyTooLargeError, match=message):
        parse_body(raw + b"no JSON")


@pytest.mark.parametrize(
    "text", [b"," * 600_000, b'\\"[,' * 200_000, b"\\\\" * 50_001 + b"{," * 300_000]
)
@pytest.mark.parametrize("pad", range(3))
def test_what_stands_in_a_text_is_no_value(text, pad):
    raw = b'{"pad":"' + b"p" * pad + b'","a":"' + text + b'","b":[1,2]}'
    assert parse_body(raw)["b"] == [1, 2]


NEUTRAL = [
    "stream",
    "stream_options",
    "store",
    "user",
    "metadata",
    "service_tier",
    "safety_identifier",
    "prompt_cache_key",
    "prompt_cache_retention",
]


@pytest.mark.parametrize("field", NEUTRAL)
def test_a_neutral_field_is_left_out_of_the_form_at_the_top_only(field):
    assert canonical_form(CHAT, {"model": "m", field: "x"}) == canonical_form(CHAT, {"model": "m"})
    assert canonical_form(CHAT, {"a": {field: 1}}) != canonical_form(CHAT, {"a": {}})


@pytest.mark.parametrize(
    "field",
    [
        "temperature",
        "seed",
        "n",
        "stop",
        "tools",
        "response_format",
        "prompt",
        "logit_bias",
        "max_tokens",
        "cache_salt",
        "reasoning_effort",
        "made_up_tomorrow",
        "Stream",
        "users",
    ],
)
def test_every_other_field_is_in_the_form_unknown_ones_included(field):
    assert canonical_form(CHAT, {"model": "m", field: 1}) != canonical_form(CHAT, {"model": "m"})
    assert canonical_form(CHAT, {"model": "m", field: 1}) != canonical_form(
        CHAT, {"model": "m", field: 2}
    )


def said(content, **message):
    return {"role": "user", "content": content, **message}


def part(text, kind="text", **members):
    return {"type": kind, "text": text, **members}


@pytest.mark.parametrize(
    ("endpoint", "field", "kind"), [(CHAT, "messages", "text"), (RESPONSES, "input", "input_text")]
)
def test_content_that_is_one_text_part_is_that_text(endpoint, field, kind):
    def form_of(*messages):
        return canonical_form(endpoint, {field: list(messages)})

    plain = form_of({"role": "system", "content": "s"}, said("x", name="Ann"))
    parts = [part("x", kind)]
    assert form_of({"role": "system", "content": "s"}, said(parts, name="Ann")) == plain
    assert form_of({"role": "system", "content": [part("s", kind)]}, said("x", name="Ann")) == plain
    assert parts == [part("x", kind)]


@pytest.mark.parametrize(
    "content",
    [
        [],
        [part("x"), part("")],
        [part("x", cache_control={"type": "ephemeral"})],
        [part("x", "input_text")],
        [part(None)],
        [part(["x"])],
        [{"text": "x"}],
        [{"type": "text"}],
        [[part("x")]],
        ["x"],
        part("x"),
        None,
    ],
)
def test_any_other_content_is_not_that_text(content):
    plain = canonical_form(CHAT, {"messages": [said("x")]})
    assert canonical_form(CHAT, {"messages": [said(content)]}) != plain


def test_texts_fold_in_messages_only():
    assert canonical_form(CHAT, {"prediction": said([part("x")])}) != canonical_form(
        CHAT, {"prediction": said("x")}
    )
    assert canonical_form(COMPLETIONS, {"messages": [said([part("x")])]}) != canonical_form(
        COMPLETIONS, {"messages": [said("x")]}
    )


@pytest.mark.parametrize("messages", [None, "x", {}, [None], ["x"], [[]], [{"content": 1}]])
def test_what_validation_has_not_seen_is_keyed_as_it_is(messages):
    form = canonical_form(CHAT, {"messages": messages})
    assert parse_body(form) == {"messages": messages}


@pytest.mark.parametrize("half", ["\\ud800", "\\udc00", "\\ud83dx"])
def test_half_of_a_surrogate_pair_is_told_apart(half):
    with pytest.raises(LoneSurrogateError) as caught:
        parse_body(b'{"a":"%s","b":1.0}' % half.encode())
    assert caught.value.body == {"a": json.loads(f'"{half}"'), "b": 1}


def test_beside_half_of_a_surrogate_pair_all_else_is_as_strict():
    for raw, message in (
        (b'{"a":"\\ud800","a":1}', "more than once"),
        (b'["\\ud800"]', "must be an object"),
    ):
        with pytest.raises(BodyError, match=message) as caught:
            parse_body(raw)
        assert not isinstance(caught.value, LoneSurrogateError)


def schema(*names, **more):
    return {"type": "object", "properties": {name: {"type": "string"} for name in names}, **more}


def nested(*names):
    """A schema whose order is deep in it."""
    return schema("x", **{"$defs": {"y": {"anyOf": [{"items": schema(*names)}]}}})


def tool(given):
    return {"type": "function", "function": {"name": "f", "parameters": given}}


MESSAGES, RERANK = Endpoint.MESSAGES, Endpoint.RERANK
WITH_AN_ORDER = {
    "response_format": (
        CHAT,
        lambda s: {
            "response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": s}}
        },
    ),
    "json object with a schema": (
        CHAT,
        lambda s: {"response_format": {"type": "json_object", "schema": s}},
    ),
    "structural tags": (
        CHAT,
        lambda s: {"response_format": {"type": "structural_tag", "structures": [{"schema": s}]}},
    ),
    "tools": (CHAT, lambda s: {"tools": [tool(s)]}),
    "functions": (CHAT, lambda s: {"functions": [{"name": "f", "parameters": s}]}),
    "guided_json": (CHAT, lambda s: {"guided_json": s}),
    "structured_outputs": (CHAT, lambda s: {"structured_outputs": {"json": s}}),
    "nvext": (CHAT, lambda s: {"nvext": {"guided_json": s}}),
    "chat_template_kwargs": (CHAT, lambda s: {"chat_template_kwargs": s}),
    "documents": (CHAT, lambda s: {"documents": [s]}),
    "completions": (COMPLETIONS, lambda s: {"guided_json": s}),
    "text.format": (
        RESPONSES,
        lambda s: {"text": {"format": {"type": "json_schema", "name": "a", "schema": s}}},
    ),
    "flat tools": (
        RESPONSES,
        lambda s: {"tools": [{"type": "function", "name": "f", "parameters": s}]},
    ),
    "tools of an item": (
        RESPONSES,
        lambda s: {"input": [{"type": "additional_tools", "tools": [tool(s)]}]},
    ),
    "output_config": (
        MESSAGES,
        lambda s: {"output_config": {"format": {"type": "json_schema", "schema": s}}},
    ),
    "output_format": (MESSAGES, lambda s: {"output_format": {"type": "json_schema", "schema": s}}),
    "input_schema": (MESSAGES, lambda s: {"tools": [{"name": "f", "input_schema": s}]}),
    "input of a call": (
        MESSAGES,
        lambda s: {
            "messages": [
                {
                    "role": "assistant",
                    "content": [{"type": "tool_use", "id": "c", "name": "f", "input": s}],
                }
            ]
        },
    ),
    "arguments as an object": (
        CHAT,
        lambda s: {
            "messages": [
                {
                    "role": "assistant",
                    "content": "",
                    "tool_calls": [{"function": {"name": "f", "arguments": s}}],
                }
            ]
        },
    ),
    "documents to rank": (RERANK, lambda s: {"documents": [s]}),
}


@pytest.mark.parametrize("made", [schema, nested], ids=["at the top", "deep"])
@pytest.mark.parametrize("place", WITH_AN_ORDER)
def test_the_order_that_a_model_may_follow_is_told_apart(place, made):
    endpoint, body = WITH_AN_ORDER[place]

    def keyed(*names):
        return canonical_form(endpoint, {"model": "m"} | body(made(*names)))

    assert keyed("reasoning", "answer") != keyed("answer", "reasoning")
    assert keyed("reasoning", "answer") == keyed("reasoning", "answer")


@pytest.mark.parametrize("keyword", ["const", "default", "enum", "examples"])
def test_the_order_of_data_in_a_schema_is_told_apart(keyword):
    def keyed(value):
        given = {"type": "object", "properties": {"x": {keyword: [value]}}}
        return canonical_form(CHAT, {"tools": [tool(given)]})

    assert keyed({"a": 1, "b": 2}) != keyed({"b": 2, "a": 1})


def shuffled(value):
    """The same value with the members of each object in the opposite order."""
    match value:
        case dict():
            return {name: shuffled(value[name]) for name in reversed(value)}
        case list():
            return [shuffled(each) for each in value]
        case _:
            return value


@pytest.mark.parametrize(
    "fields",
    [
        {"logit_bias": {"1": 2, "3": 4}, "temperature": 1},
        {"messages": [said("x", name="Ann"), said([part('{"a": {"b": 1}}'), part("y")])]},
        {"tools": [{"type": "custom", "name": "f"}], "stop": ["a", "b"]},
        {"top_k": 3, "stop_token_ids": [1, 2], "min_p": 0.1},
    ],
)
def test_elsewhere_the_order_does_not_count(fields):
    given = {"model": "m"} | fields
    form = canonical_form(CHAT, given)
    assert canonical_form(CHAT, shuffled(given)) == form
    assert b"\n" not in form, "it has the key that it always had"


def test_a_form_without_an_order_is_never_that_of_one_with_an_order():
    given = canonical_form(CHAT, {"guided_json": {"b": 1, "a": 2}, "model": "m"})
    assert given.splitlines() == [
        b'{"guided_json":{"a":2,"b":1},"model":"m"}',
        b'"guided_json":{"b":1,"a":2}',
    ]


def test_a_body_with_too_many_long_integers_is_refused():
    for unit in (b"18446744073709551617,", b"1e22,"):
        assert form(b'{"a":[' + unit * 10_000 + b"0]}").count(b",") == 10_000
        with pytest.raises(BodyTooLargeError, match="10,000 integers of over 64 bits"):
            parse_body(b'{"a":[' + unit * 10_001 + b"0]}")


def test_numbers_of_any_kind_beside_a_long_integer_keep_their_form():
    body = {"a": [2**70, -(2**65)], "b": {"c": 2**64, "d": 1e-7, "e": [1e300, "1"]}, "f": [{}]}
    printed = exact_json.dumps(body)
    assert parse_body(printed) == body
    assert form(printed) == form(json.dumps(body))
    assert b"1180591620717411303424,-36893488147419103232" in printed
