"""Whatever the request: bytes are only added, no provider refuses it for that, once is enough."""

import json

from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.prompts.hints import add_hints
from gateway.prompts.outcome import Rewrite
from gateway.prompts.rewrite.text_rules import BLOCK
from gateway.protocol.exact_json import parse_body
from policies.decision import (
    BreakpointField,
    BreakpointLifetime,
    Breakpoints,
    Endpoint,
    HintSettings,
    KeyRetention,
)

FIELDS = [BreakpointField.CACHE_CONTROL.value, BreakpointField.PROMPT_CACHE_BREAKPOINT.value]
MARKS = st.sampled_from(
    [{}] * 6
    + [
        {"cache_control": {"type": "ephemeral"}},
        {"cache_control": {"type": "ephemeral", "ttl": "1h"}},
        {"cache_control": None},
        {"prompt_cache_breakpoint": {"mode": "explicit"}},
    ]
)
TEXTS = st.sampled_from(
    ["", " \n", "brief", 'a "quoted" \\ word', "Grüße, 世界 😀\u2028", '"cache_control":{}', BLOCK]
)
PARTS = st.builds(
    lambda kind, text, mark: {"type": kind, "text": text, **mark},
    st.sampled_from(["text", "text", "input_text", "image_url"]),
    TEXTS,
    MARKS,
)
CONTENT = TEXTS | st.none() | st.lists(PARTS | st.sampled_from([7, None]), max_size=3)
TURNS = st.builds(
    lambda role, content, mark: {"role": role, "content": content, **mark},
    st.sampled_from(["system", "developer", "system", "user", "assistant", "tool"]),
    CONTENT,
    st.just({}),
)
TOOLS = st.lists(
    st.builds(
        lambda mark, inner: {
            "type": "function",
            "function": {"name": "f", "parameters": {"properties": {"cache_control": {}}}, **inner},
            **mark,
        },
        MARKS,
        st.just({}),
    ),
    max_size=3,
)
BODIES = st.builds(
    lambda field, model, turns, last, tools, more: {
        "model": model,
        field: [*turns, *last],
        **({"tools": tools} if tools else {}),
        **more,
    },
    st.sampled_from(["messages", "messages", "input"]),
    st.sampled_from(["claude-sonnet-4-5", "gpt-5.6", "gpt-4o", "m", None]),
    st.lists(TURNS, max_size=6),
    st.builds(lambda content: [{"role": "user", "content": content}], CONTENT) | st.just([]),
    TOOLS,
    st.sampled_from(
        [{}, {}, {"cache_control": {"type": "ephemeral"}}, {"prompt_cache_key": None}, {"x": 2**70}]
    ),
)
SETTINGS = st.builds(
    HintSettings,
    st.sampled_from(Breakpoints),
    st.sampled_from(BreakpointField),
    st.sampled_from(BreakpointLifetime),
    st.sampled_from([1, 2, 30, None]),
    st.booleans(),
    st.sampled_from([1, 3]),
    st.sampled_from(KeyRetention),
)
STYLES = st.sampled_from(
    [
        lambda body: json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode(),
        lambda body: json.dumps(body).encode(),
        lambda body: json.dumps(body, indent=1, ensure_ascii=False).encode() + b"\n",
    ]
)


def endpoint_of(body):
    return Endpoint.CHAT if "messages" in body else Endpoint.RESPONSES


def turns_of(body):
    return body.get("messages", body.get("input"))


def told(body, raw, how):
    return add_hints(endpoint_of(body), body, raw, how, rule="r", owner=b"o" * 32)


def marks(value, field):
    """All marks of a value but those in the parameters of tools."""
    if isinstance(value, list):
        return [mark for each in value for mark in marks(each, field)]
    if not isinstance(value, dict):
        return []
    here = [value[field]] if value.get(field) is not None else []
    return here + [
        mark for name, each in value.items() if name != "parameters" for mark in marks(each, field)
    ]


def is_subsequence(some, whole):
    rest = iter(whole)
    return all(byte in rest for byte in some)


def last_user(turns):
    users = [
        index
        for index, turn in enumerate(turns)
        if turn["role"] == "user"
        and not (isinstance(turn["content"], str) and turn["content"].startswith(BLOCK))
    ]
    return users[-1] if users else 0


@settings(max_examples=60)
@given(BODIES, SETTINGS, STYLES)
def test_a_request_keeps_all_it_has_and_is_told_once(given_body, how, style):
    raw = style(given_body)
    body = parse_body(raw)
    came = json.dumps(body)
    result = told(body, raw, how)
    assert json.dumps(body) == came
    assert parse_body(result.raw) == result.body
    assert (result.raw == raw) is (not result.changes)
    assert is_subsequence(raw, result.raw)
    again = told(parse_body(result.raw), result.raw, how)
    assert (again.raw, again.changes) == (result.raw, ())
    assert not {each.rewrite for each in result.declined} & set(result.changes)
    last = last_user(turns_of(body))
    assert turns_of(result.body)[last:] == turns_of(body)[last:]


@settings(max_examples=60)
@given(BODIES, SETTINGS, STYLES)
def test_no_mark_is_one_that_a_provider_refuses(given_body, how, style):
    raw = style(given_body)
    body = parse_body(raw)
    result = told(body, raw, how)
    if Rewrite.BREAKPOINTS not in result.changes:
        assert all(marks(result.body, field) == marks(body, field) for field in FIELDS)
        return
    (field,) = (each for each in FIELDS if marks(result.body, each) != marks(body, each))
    assert len(marks(result.body, field)) <= 4
    if field == "cache_control":
        assert len({mark.get("ttl", "5m") for mark in marks(result.body, field)}) == 1
    for turn, before in zip(turns_of(result.body), turns_of(body), strict=True):
        if turn == before:
            continue
        came = before["content"] if isinstance(before["content"], list) else []
        new = [part for part in turn["content"] if part not in came]
        assert len(new) == 1
        assert new[0]["text"].strip()


@settings(max_examples=60)
@given(BODIES, SETTINGS, CONTENT.filter(lambda content: not marks(content, "cache_control")))
def test_the_last_user_turn_moves_no_mark(given_body, how, content):
    turns = turns_of(given_body)
    last = last_user(turns)
    if not turns or turns[last]["role"] != "user" or isinstance(content, str):
        return
    if any(marks(turns[last:], field) or marks(content, field) for field in FIELDS):
        return
    field = "messages" if "messages" in given_body else "input"
    other = [*turns[:last], {"role": "user", "content": content}, *turns[last + 1 :]]
    results = [
        told(body, json.dumps(body).encode(), how)
        for body in (given_body, {**given_body, field: other})
    ]
    one, two = (turns_of(result.body)[:last] for result in results)
    assert one == two
