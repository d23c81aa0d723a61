"""Earlier turns of a conversation: what is cut off, which summary may stand in, what is known."""

from typing import Any

import orjson
import pytest

from gateway.prompts.compress.history import (
    Cut,
    cut_of,
    is_short,
    keeps_facts,
    request_for,
    with_summary,
)
from gateway.prompts.compress.outcome import Compression, Refusal, Step, both
from gateway.prompts.compress.summaries import Summaries
from gateway.protocol.endpoint import Endpoint
from policies.decision import CompressSettings

TWO = CompressSettings(enabled=True, history=2)
LONG = "We talk about bread and about rivers for a while. " * 20


def conversation(users: int, **fields: Any) -> dict[str, Any]:
    turns: list[dict[str, Any]] = [{"role": "system", "content": "You help."}]
    for number in range(users):
        turns.append({"role": "user", "content": f"{LONG} {number}"})
        turns.append({"role": "assistant", "content": f"So it is, {number}."})
    turns.append({"role": "user", "content": "And now?"})
    return {"model": "m", "messages": turns, **fields}


def cut(body: dict[str, Any], endpoint: Endpoint = Endpoint.CHAT) -> Cut:
    found = cut_of(endpoint, body, TWO)
    assert found is not None
    return found


def test_where_a_conversation_is_cut_moves_in_steps():
    users = {count + 1: cut_of(Endpoint.CHAT, conversation(count), TWO) for count in range(2, 8)}
    assert users[3] is None
    ends = [users[count].end for count in range(4, 9)]
    assert ends == [5, 5, 9, 9, 13]
    assert all(users[count].start == 1 for count in range(4, 9))
    assert users[4].turns == users[5].turns


def test_a_tool_keeps_its_answer():
    body = conversation(3)
    calls = [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}]
    body["messages"][4:4] = [
        {"role": "assistant", "content": None, "tool_calls": calls},
        {"role": "tool", "tool_call_id": "c", "content": "7"},
    ]
    found = cut(body)
    assert body["messages"][found.end]["role"] == "user"
    assert b'"tool_call_id":"c"' in found.turns


@pytest.mark.parametrize(
    "changed",
    [
        {"cache_control": {"type": "ephemeral"}},
        {"role": "system"},
        {"content": 2**70},
    ],
)
def test_what_is_not_plain_is_not_cut(changed):
    body = conversation(4)
    body["messages"][2] |= changed
    assert cut_of(Endpoint.CHAT, body, TWO) is None


def test_short_conversations_and_other_bodies_are_not_cut():
    short = {"messages": [{"role": "user", "content": "a"}] * 9}
    assert cut_of(Endpoint.CHAT, short, TWO) is None
    assert cut_of(Endpoint.RESPONSES, {"input": "text"}, TWO) is None
    assert cut_of(Endpoint.COMPLETIONS, {"prompt": "text"}, TWO) is None
    off = CompressSettings(enabled=True)
    assert cut_of(Endpoint.CHAT, conversation(9), off) is None
    huge = conversation(4)
    huge["messages"][1]["content"] = "x" * 300_000
    assert cut_of(Endpoint.CHAT, huge, TWO) is None


def test_the_summary_stands_in_for_the_turns_and_all_other_bytes_stay():
    body = conversation(3)
    raw = orjson.dumps(body, option=orjson.OPT_INDENT_2)
    found = cut(body)
    now, shorter = with_summary(body, raw, found, 'They "talk".')
    assert orjson.loads(shorter) == now
    turn = {"role": "user", "content": 'Summary of the conversation so far:\nThey "talk".'}
    assert now["messages"] == [body["messages"][0], turn, *body["messages"][found.end :]]
    assert shorter.startswith(raw[: raw.index(b'"You help."')])
    assert shorter.endswith(raw[raw.index(b"So it is, 2") :])


def test_the_model_gets_the_turns_as_data():
    found = cut(conversation(3))
    asked = orjson.loads(request_for(found, "m"))
    assert (asked["model"], asked["temperature"]) == ("m", 0)
    assert orjson.loads(asked["messages"][1]["content"]) == orjson.loads(found.turns)


FACTS = "Please ask Maria Lopez: order A-17b of 12.50 euros, at 7:30, to box_9, not three."
KEPT = "Ask Maria Lopez about order a-17b (12.50 euros) at 7:30; box_9, not three."


@pytest.mark.parametrize(
    ("lost", "put"),
    [
        ("Lopez", "Perez"),
        ("a-17b", "a-17c"),
        ("12.50", "12"),
        ("12.50", "112.50"),
        ("7:30", "7:30:15"),
        ("box_9", "box_91"),
        ("three", "some"),
    ],
)
def test_a_summary_keeps_every_number_name_and_identifier(lost, put):
    turns = orjson.dumps([{"role": "user", "content": FACTS, "id": "x-99"}])
    found = Cut("messages", 0, 1, turns)
    assert keeps_facts(found, KEPT)
    assert not keeps_facts(found, KEPT.replace(lost, put))


def test_a_summary_is_shorter():
    found = Cut("messages", 0, 1, b"x" * 1000)
    assert [is_short(found, "y" * size) for size in (0, 1, 600, 601)] == [False, True, True, False]


def test_what_is_known_is_bounded_and_the_latest_asked_for_stays():
    summaries = Summaries(most=2, most_characters=10)
    summaries.note(b"a", "12345")
    summaries.note(b"b", Refusal.SUMMARY_FACTS)
    assert summaries.find(b"a") == "12345"
    summaries.note(b"c", "67890")
    assert [summaries.find(key) for key in (b"a", b"b", b"c")] == ["12345", None, "67890"]
    summaries.note(b"c", "678901")
    assert [summaries.find(key) for key in (b"a", b"c")] == [None, "678901"]
    summaries.note(b"d", "x" * 11)
    assert [summaries.find(key) for key in (b"c", b"d")] == [None, None]


def test_both_parts_of_a_request_are_told():
    summary = Compression((Step.SUMMARY,), 100, 80)
    assert both(summary, None) is summary
    assert both(None, None) is None
    told = both(summary, Compression((Step.MINIFIED,), 10, 2))
    assert str(told) == "summary, minified; tokens=110; saved=82"
    pending = Compression(refused=Refusal.SUMMARY_PENDING)
    assert str(both(pending, Compression((Step.MINIFIED,), 10, 2))) == (
        "minified; tokens=10; saved=2; declined=summary-pending"
    )
