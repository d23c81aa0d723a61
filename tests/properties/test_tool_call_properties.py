"""Tool calls in text: where it is cut changes nothing, and calls come out as written."""

import json
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from backend.server.tool_parsers.families import (
    CLOSE_TAG,
    OPEN_TAG,
    PYTHON_TAG,
    HermesToolCallParser,
    LlamaToolCallParser,
)
from backend.server.tool_parsers.streaming_json import (
    CallArguments,
    CallStart,
    Content,
    gather,
    joined,
)

NAMES = ("get_weather", "f", "a-b.c")
FUNCTIONS = {name: {} for name in NAMES}
FORMATS = {
    "qwen": HermesToolCallParser,
    "llama": lambda **options: LlamaToolCallParser(FUNCTIONS, **options),
}
PARTS = [
    *(OPEN_TAG, CLOSE_TAG, "<tool", "</tool_", ">", "<", PYTHON_TAG, "<|python", "\n", " ", ";"),
    *('{"name": "f", "arguments": {', '{"name":"f","parameters":{', '{"name": "', '{"arguments": '),
    *('"a": 1', '"b": "}"', '"c": "\\"</tool_call>"', "[", "]", "{", "}", '"', "\\", ",", ":"),
    *('"x', "Hello", "é🙂", "null", '"name"', '"f"', "oops", "}}", '{"a": 1}', "{}", "1.5e3"),
    '<tool_call>\n{"name": "f", "arguments": {"a": {"b": [1, "}"]}}}\n</tool_call>',
    '{"name": "f", "parameters": {"a": 1}}',
    '{"name": "unknown", "parameters": {"a": 1}}',
]
TEXT = st.lists(st.sampled_from(PARTS), max_size=14).map("".join)


def parsed(parser, pieces):
    return joined([event for piece in pieces for event in parser.push(piece)] + parser.finish())


def cut(text, points):
    at = [0, *sorted(point % (len(text) + 1) for point in points), len(text)]
    return [text[start:stop] for start, stop in pairwise(at)]


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("eager", [True, False])
@given(TEXT, st.lists(st.integers(0, 500), max_size=12), st.sampled_from([None, 1, 2]))
@example("<tool_call>", [3], None)
def test_where_text_is_cut_changes_nothing(form, eager, text, points, max_calls):
    def parser():
        return FORMATS[form](eager=eager, max_calls=max_calls)

    whole = parsed(parser(), [text])
    assert parsed(parser(), cut(text, points)) == whole
    assert parsed(parser(), list(text)) == whole


@pytest.mark.parametrize("form", FORMATS)
@given(TEXT)
def test_a_careful_parser_loses_nothing_but_markup_and_only_tells_valid_calls(form, text):
    content, calls = gather(parsed(FORMATS[form](eager=False), [text]))
    for call in calls:
        assert isinstance(json.loads(call.arguments), dict)
    if not calls:
        assert content == text


JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.text(), st.sampled_from(PARTS)),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(), inner, max_size=2),
    max_leaves=4,
)
ARGUMENTS = st.dictionaries(st.text(max_size=5) | st.sampled_from(PARTS), JSON, max_size=3)
CALLS = st.lists(st.tuples(st.sampled_from(NAMES), ARGUMENTS), min_size=1, max_size=3)
STYLE = st.sampled_from(
    [
        {},
        {"ensure_ascii": False},
        {"indent": 2},
        {"separators": (",", ":")},
        {"sort_keys": True},  # arguments before the name
    ]
)


@given(CALLS, STYLE, st.booleans(), st.sampled_from(["", "Let me see.", "{", "a <tool b"]))
def test_qwen_calls_come_out_as_written(calls, style, eager, before):
    written = [json.dumps({"name": name, "arguments": args}, **style) for name, args in calls]
    text = before + "".join(f"\n{OPEN_TAG}\n{call}\n{CLOSE_TAG}" for call in written)
    content, found = gather(parsed(HermesToolCallParser(eager=eager), list(text)))
    assert content == before
    assert [(call.name, json.loads(call.arguments)) for call in found] == calls


@pytest.mark.parametrize("style", [{}, {"sort_keys": True}])
@pytest.mark.parametrize("number", [2**64, -(2**63) - 1, 10**40])
def test_whole_numbers_of_any_length_come_out_as_written(style, number):
    call = json.dumps({"name": "f", "arguments": {"é": [number]}}, **style)
    _, found = gather(parsed(HermesToolCallParser(), [f"{OPEN_TAG}{call}{CLOSE_TAG}"]))
    assert [json.loads(each.arguments) for each in found] == [{"é": [number]}]


@given(CALLS, STYLE, st.booleans(), st.sampled_from(["", "\n", PYTHON_TAG, f" {PYTHON_TAG} "]))
def test_llama_calls_come_out_as_written(calls, style, eager, before):
    written = [json.dumps({"name": name, "parameters": args}, **style) for name, args in calls]
    text = before + "; ".join(written)
    content, found = gather(parsed(LlamaToolCallParser(FUNCTIONS, eager=eager), list(text)))
    assert content == ""
    assert [(call.name, json.loads(call.arguments)) for call in found] == calls


@pytest.mark.parametrize("form", FORMATS)
@given(TEXT)
def test_calls_are_numbered_and_arguments_follow_their_start(form, text):
    started = -1
    for event in parsed(FORMATS[form](), [text]):
        match event:
            case CallStart(index, _):
                started += 1
                assert index == started
            case CallArguments(index, piece):
                assert index == started
                assert piece
            case Content(piece):
                assert piece
