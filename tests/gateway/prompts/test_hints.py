"""Hints: where marks stand, what the client's own count for, and what makes the key."""

from dataclasses import replace
from typing import Any

import orjson
import pytest

from gateway.prompts.hints import add_hints
from gateway.prompts.outcome import Declined, NotRewritten, Rewrite
from gateway.prompts.rewrite.rules import rewrite
from policies.decision import (
    BreakpointField,
    BreakpointLifetime,
    Breakpoints,
    Endpoint,
    HintSettings,
    KeyRetention,
    PrefixSettings,
    VolatileKind,
)

SYSTEM = HintSettings(Breakpoints.SYSTEM)
EARLIER = HintSettings(Breakpoints.EARLIER)
KEY = HintSettings(cache_key=True)
LONG = "You are careful. " * 300  # 1,275 tokens, about
CLAUDE = "anthropic/claude-sonnet-4.5"
MARK = {"cache_control": {"type": "ephemeral"}}
THEIRS = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}
OWNER = b"o" * 32


def turn(role: str, content: Any) -> dict[str, Any]:
    return {"role": role, "content": content}


def text(content: str, **more: Any) -> dict[str, Any]:
    return {"type": "text", "text": content, **more}


def chat(*turns: dict[str, Any], model: str = CLAUDE, **more: Any) -> dict[str, Any]:
    return {"model": model, "messages": list(turns), **more}


USUAL = chat(turn("system", LONG), turn("user", "Hello"))


def told(
    body: dict[str, Any],
    settings: HintSettings,
    endpoint: Endpoint = Endpoint.CHAT,
    *,
    rule: str = "r",
    owner: bytes = OWNER,
) -> Any:
    raw = orjson.dumps(body, option=orjson.OPT_INDENT_2)
    result = add_hints(endpoint, body, raw, settings, rule=rule, owner=owner)
    assert orjson.loads(result.raw) == result.body
    again = add_hints(endpoint, result.body, result.raw, settings, rule=rule, owner=owner)
    assert (again.raw, again.changes) == (result.raw, ())
    return result


def marks(body: dict[str, Any], field: str = "cache_control") -> list[tuple[int, int]]:
    """Where marks stand: numbers of turn and part."""
    return [
        (index, number)
        for index, each in enumerate(body.get("messages", body.get("input")))
        for number, part in enumerate(each["content"] if isinstance(each["content"], list) else ())
        if field in part
    ]


def declined(result: Any) -> NotRewritten:
    ((hint, why),) = ((each.rewrite, each.why) for each in result.declined)
    assert hint is Rewrite.BREAKPOINTS
    return why


def test_the_end_of_the_system_message_is_marked_and_its_bytes_stay():
    raw = b'{"model":"%s", "messages":[ {"role":"system","content":"\\u00e9%s"},{"role":"user",' % (
        CLAUDE.encode(),
        LONG.encode(),
    )
    raw += b'"content":"Hello"} ] }'
    result = add_hints(Endpoint.CHAT, orjson.loads(raw), raw, SYSTEM, rule="r", owner=OWNER)
    head, tail = b'[{"type":"text","text":', b',"cache_control":{"type":"ephemeral"}}]'
    before, after = raw.split(b'"\\u00e9', 1)[0], raw.split(LONG.encode() + b'"', 1)[1]
    assert result.raw == before + head + b'"\\u00e9' + LONG.encode() + b'"' + tail + after
    assert orjson.loads(result.raw) == result.body
    assert result.changes == (Rewrite.BREAKPOINTS,)


def test_the_last_text_of_a_list_is_marked_and_blank_ones_are_not():
    image = {"type": "image_url", "image_url": {"url": "x"}}
    parts = [text(LONG), text("b"), text("  \n"), image]
    result = told(chat(turn("system", parts), turn("user", "Hello")), SYSTEM)
    assert marks(result.body) == [(0, 1)]
    assert result.body["messages"][0]["content"][1] == text("b", **MARK)


def test_tools_count_to_the_length_of_the_prefix():
    tools = [{"type": "function", "function": {"name": "f", "description": LONG}}]
    short = chat(turn("system", "Be brief."), turn("user", LONG))
    assert declined(told(short, SYSTEM)) is NotRewritten.TOO_SHORT
    assert marks(told({**short, "tools": tools}, SYSTEM).body) == [(0, 0)]


@pytest.mark.parametrize(
    ("model", "least"),
    [
        ("claude-3-5-sonnet-20241022", 1024),
        ("anthropic/claude-sonnet-4.6", 1024),
        ("bedrock/anthropic.claude-3-haiku-20240307-v1:0", 2048),
        ("claude-haiku-4-5-20251001", 4096),
        ("anthropic/claude-opus-4.5", 4096),
        ("claude-opus-4-7", 2048),
        ("claude-opus-4-1", 1024),
        ("claude-opus-5", 512),
        ("google/gemini-2.5-flash", 1024),
    ],
)
def test_the_least_length_is_that_of_the_model(model, least):
    for tokens, count in ((least, 1), (least - 1, 0)):
        body = chat(turn("system", "abcd" * tokens), turn("user", "Hello"), model=model)
        assert len(marks(told(body, SYSTEM).body)) == count


def test_a_model_that_is_not_known_gets_no_mark_unless_the_policy_names_the_field():
    body = {**USUAL, "model": "gpt-5.5"}
    assert declined(told(body, SYSTEM)) is NotRewritten.MODEL
    named = replace(SYSTEM, field=BreakpointField.CACHE_CONTROL, min_tokens=2000)
    assert declined(told(body, named)) is NotRewritten.TOO_SHORT
    assert marks(told(body, replace(named, min_tokens=1000)).body) == [(0, 0)]


def test_earlier_turns_are_marked_before_the_last_user_turn_and_nothing_of_it_moves_that():
    turns = [
        turn("system", LONG),
        turn("user", "One"),
        turn("assistant", None),
        turn("tool", "result"),
        turn("assistant", "Two"),
    ]
    for last in ("Three", [text("Three " * 5000)], "Values"):
        result = told(chat(*turns, turn("user", last)), EARLIER)
        assert marks(result.body) == [(0, 0), (4, 0)]
        assert result.body["messages"][-1] == turn("user", last)
    answered = chat(*turns, turn("user", "Three"), turn("assistant", None), turn("tool", "more"))
    assert marks(told(answered, EARLIER).body) == [(0, 0), (4, 0)]
    assert marks(told(chat(*turns, turn("user", "Three")), SYSTEM).body) == [(0, 0)]
    # What has no text cannot be marked: the mark stands before it.
    assert marks(told(chat(*turns[:4], turn("user", "?")), EARLIER).body) == [(0, 0), (1, 0)]


def test_no_mark_is_on_the_block_of_volatile_values_or_moved_by_it():
    body = chat(
        turn("system", LONG + "It is 2026-11-22T01:03:42Z."),
        turn("user", "One"),
        turn("assistant", "Two"),
        turn("user", "Three"),
    )
    raw = orjson.dumps(body)
    volatile = PrefixSettings(volatile=(VolatileKind.TIMESTAMPS,))
    rewritten = rewrite(Endpoint.CHAT, body, raw, volatile)
    assert rewritten.body["messages"][3]["content"].startswith("Values")
    assert marks(told(rewritten.body, EARLIER).body) == [(0, 0), (2, 0)]


def test_several_system_messages_are_marked_each_up_to_four():
    turns = [turn("system", LONG + str(number)) for number in range(5)]
    result = told(chat(*turns, turn("user", "Hello"), turn("user", "And?")), SYSTEM)
    assert marks(result.body) == [(1, 0), (2, 0), (3, 0), (4, 0)]
    result = told(chat(*turns, turn("user", "Hello"), turn("user", "And?")), EARLIER)
    assert marks(result.body) == [(2, 0), (3, 0), (4, 0), (5, 0)]


def test_marks_of_the_client_stay_and_count():
    tool = {"type": "function", "function": {"name": "f"}, **MARK}
    user = turn("user", [text("Hello", **MARK), text("you", **MARK)])
    turns = [turn("system", LONG), turn("system", LONG), user]
    result = told(chat(*turns, tools=[tool]), SYSTEM)
    assert marks(result.body) == [(1, 0), (2, 0), (2, 1)]  # and the tool's: four
    full = chat(*turns, tools=[tool, {**tool, "function": {"name": "g", **MARK}}])
    assert declined(told(full, SYSTEM)) is NotRewritten.TAKEN
    assert told(full, SYSTEM).body is full
    automatic = chat(*turns, tools=[tool], **MARK)
    assert declined(told(automatic, SYSTEM)) is NotRewritten.TAKEN
    own = chat(turn("system", [text(LONG, **MARK)]), turn("user", "Hello"))
    assert told(own, SYSTEM).body is own
    assert told(own, SYSTEM).declined == ()


def test_a_parameter_of_that_name_is_no_mark():
    schema = {"type": "object", "properties": {"cache_control": {"type": "string"}}}
    tools = [{"type": "function", "function": {"name": "f", "parameters": schema}}] * 4
    assert marks(told({**USUAL, "tools": tools}, SYSTEM).body) == [(0, 0)]


def test_no_mark_is_added_beside_one_of_another_lifetime():
    body = chat(turn("system", LONG), turn("user", [text("Hello", **THEIRS)]))
    assert declined(told(body, SYSTEM)) is NotRewritten.LIFETIMES
    long = replace(SYSTEM, lifetime=BreakpointLifetime.LONG)
    result = told(body, long)
    assert result.body["messages"][0]["content"][0] == text(LONG, **THEIRS)


def test_openais_marks_stand_where_openai_takes_them():
    field = "prompt_cache_breakpoint"
    turns = (turn("developer", LONG), turn("user", "One"), turn("assistant", "Two"))
    body = chat(*turns, turn("user", "Three"), model="gpt-5.6-terra")
    result = told(body, EARLIER)
    assert marks(result.body, field) == [(0, 0), (1, 0)]  # none on what the assistant said
    assert result.body["messages"][0]["content"][0][field] == {"mode": "explicit"}
    response = {"model": "gpt-6", "instructions": LONG, "input": body["messages"]}
    result = told(response, EARLIER, Endpoint.RESPONSES)
    assert marks(result.body, field) == [(0, 0), (1, 0)]
    assert result.body["input"][1]["content"][0]["type"] == "input_text"
    plain = {"model": "gpt-6", "instructions": LONG, "input": "Hello"}
    assert declined(told(plain, EARLIER, Endpoint.RESPONSES)) is NotRewritten.TOO_SHORT
    claude = {**response, "model": CLAUDE}
    assert declined(told(claude, EARLIER, Endpoint.RESPONSES)) is NotRewritten.MODEL


def key(body: dict[str, Any], settings: HintSettings = KEY, **more: Any) -> Any:
    endpoint = Endpoint.RESPONSES if "input" in body else Endpoint.CHAT
    return told(body, settings, endpoint, **more).body["prompt_cache_key"]


def test_requests_that_begin_alike_share_a_key_and_others_do_not():
    other_question = chat(turn("system", LONG), turn("user", "Goodbye"))
    assert key(USUAL) == key(other_question)
    assert len(key(USUAL)) <= 64
    others = [
        key({**USUAL, "model": "gpt-5"}),
        key(USUAL, rule="other"),
        key(USUAL, owner=b"p" * 32),
        key(chat(turn("system", "Other. " + LONG), turn("user", "Hello"))),
        key({**USUAL, "tools": [{"type": "function", "function": {"name": "f"}}]}),
        key({"model": CLAUDE, "instructions": LONG, "input": "Hello"}),
    ]
    assert len({key(USUAL), *others}) == len(others) + 1


def test_where_the_stable_beginning_is_short_a_conversation_keeps_its_key():
    first = (turn("system", "Be brief."), turn("user", "One " * 800))
    later = (*first, turn("assistant", "Two"), turn("user", "Three"))
    assert key(chat(*first)) == key(chat(*later))
    assert key(chat(*first)) != key(chat(first[0], turn("user", "Other " * 800)))


def test_conversations_are_spread_over_keys_and_each_stays_with_its_own():
    spread = replace(KEY, keys=4)
    found = set()
    for number in range(64):
        turns = (turn("system", LONG), turn("user", f"Question {number}"))
        ours = key(chat(*turns), spread)
        assert key(chat(*turns, turn("assistant", "A"), turn("user", "And?")), spread) == ours
        found.add(ours)
    assert len(found) == 4


def test_volatile_values_that_were_moved_do_not_change_the_key():
    blocks = [
        turn("user", f"Values of the placeholders in the messages above:\n[date-1] = {day}")
        for day in (1, 2)
    ]
    keys = [key(chat(turn("system", "Be brief."), each, turn("user", "Hi"))) for each in blocks]
    assert keys[0] == keys[1]


def test_what_the_client_says_of_key_and_retention_stays():
    settings = replace(KEY, retention=KeyRetention.DAY)
    result = told({**USUAL, "model": "gpt-5.1"}, settings)
    assert result.changes == (Rewrite.CACHE_KEY, Rewrite.RETENTION)
    assert result.body["prompt_cache_retention"] == "24h"
    mine = {"prompt_cache_key": "mine", "prompt_cache_retention": "in_memory"}
    for theirs in (mine, dict.fromkeys(mine), {**mine, "prompt_cache_options": {"ttl": "30m"}}):
        body = {**USUAL, **theirs}
        assert told(body, settings).body is body
    newer = told({**USUAL, "model": "gpt-5.6"}, settings)
    assert newer.declined == (Declined(Rewrite.RETENTION, NotRewritten.MODEL),)


def test_all_hints_together_are_spliced_in_order():
    settings = replace(EARLIER, cache_key=True, retention=KeyRetention.DAY)
    result = told(USUAL, settings)
    assert result.changes == (Rewrite.BREAKPOINTS, Rewrite.CACHE_KEY, Rewrite.RETENTION)
    assert list(result.body) == [*USUAL, "prompt_cache_key", "prompt_cache_retention"]


@pytest.mark.parametrize("endpoint", [Endpoint.COMPLETIONS, Endpoint.EMBEDDINGS])
def test_other_requests_get_no_hints(endpoint):
    body = {"model": CLAUDE, "prompt": LONG, "input": LONG}
    result = told(body, replace(EARLIER, cache_key=True), endpoint)
    assert (result.body, result.changes, result.declined) == (body, (), ())


@pytest.mark.parametrize(
    "body",
    [
        {"model": CLAUDE, "messages": []},
        {"model": CLAUDE, "messages": [{"role": "system"}, {"role": "user"}]},
        {"model": CLAUDE, "messages": [turn("system", [1, None, {"type": "text"}]), turn("x", 1)]},
        {"model": CLAUDE, "messages": [turn("system", LONG)]},
        {"model": CLAUDE, "messages": "text", "cache_control": 7, "tools": {"a": 1}},
        {"model": None, "messages": [turn(None, {"a": {"cache_control": []}})], "tools": [3]},
    ],
)
def test_whatever_the_shape_no_mark_is_guessed(body):
    result = told(body, EARLIER)
    assert result.body is body
    assert len(result.declined) == 1


def test_numbers_that_cannot_be_printed_leave_the_key_out():
    raw = b'{"model":"m","messages":[{"role":"user","content":"x","n":%d}]}' % 2**70
    body = {"model": "m", "messages": [{"role": "user", "content": "x", "n": 2**70}]}
    result = add_hints(Endpoint.CHAT, body, raw, KEY, rule="r", owner=OWNER)
    assert (result.raw, result.declined) == (
        raw,
        (Declined(Rewrite.CACHE_KEY, NotRewritten.UNREADABLE),),
    )
