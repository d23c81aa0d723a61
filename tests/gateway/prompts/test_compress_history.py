"""Earlier turns of a conversation: what is cut off, which summary may stand in, what is known."""

from typing import Any

import orjson
import pytest

from gateway.prompts.compress.history import (
    MOST_CHARACTERS,
    MOST_KNOWN,
    Cut,
    can_be_checked,
    cut_of,
    judge,
    new_summaries,
    request_for,
    with_summary,
)
from gateway.prompts.outcome import Compression, NotRewritten, PreparedRequest, Step, combine
from policies.decision import Endpoint

TWO = 2
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
    huge = conversation(4)
    huge["messages"][1]["content"] = "x" * 300_000
    assert cut_of(Endpoint.CHAT, huge, TWO) is None


def test_the_summary_stands_in_for_the_turns_and_all_other_bytes_stay():
    body = conversation(3)
    raw = orjson.dumps(body, option=orjson.OPT_INDENT_2)
    found = cut(body)
    result = with_summary(PreparedRequest(body, raw), found, 'They "talk".')
    now, shorter, compression = result.body, result.raw, result.compression
    assert orjson.loads(shorter) == now
    turn = {"role": "user", "content": 'Summary of the conversation so far:\nThey "talk".'}
    assert now["messages"] == [body["messages"][0], turn, *body["messages"][found.end :]]
    assert shorter.startswith(raw[: raw.index(b'"You help."')])
    assert shorter.endswith(raw[raw.index(b"So it is, 2") :])
    assert compression is not None
    assert compression.steps == (Step.SUMMARY,)
    assert compression.tokens > compression.saved > 0.9 * compression.tokens


def test_the_model_gets_the_turns_as_data():
    found = cut(conversation(3))
    asked = orjson.loads(request_for(found, "m"))
    assert (asked["model"], asked["temperature"]) == ("m", 0)
    assert orjson.loads(asked["messages"][1]["content"]) == orjson.loads(found.turns)


IDLE = "They talk of this and of that for a while, and then of something else again. " * 9
TURNS = (
    "Last week Anna Meier lent 300 euros to Bob Costa. Bob will not pay before May.",
    "So Anna pays 40 for the hall and Bob pays 70 for the food. The parcel A-17b weighs 5 kg.",
    "The office in Berlin does not open on Monday.",
    "Please ask Maria Lopez: order 12.50 euros, at 7:30, to box_9, not three.",
)
TRUE = (
    "Anna Meier lent 300 euros to Bob Costa; Bob will not pay before May. "
    "Anna pays 40 for the hall, Bob pays 70 for the food. The parcel A-17b weighs 5 kg. "
    "The office in Berlin does not open on Monday. "
    "Ask Maria Lopez to order (12.50 euros) at 7:30; box_9, not three."
)


def said(*texts: str) -> Cut:
    """Return turns that say so, and much besides that is no fact."""
    turns = [{"role": "user", "content": each, "id": "x-99"} for each in (*texts, IDLE)]
    return Cut("messages", 0, len(turns), orjson.dumps(turns))


def test_a_true_summary_is_taken():
    assert judge(said(*TURNS), TRUE) == TRUE


@pytest.mark.parametrize(
    ("true", "put"),
    [
        ("Anna Meier lent 300 euros to Bob Costa", "Bob Costa lent 300 euros to Anna Meier"),
        ("Anna pays 40 for the hall, Bob pays 70", "Anna pays 70 for the hall, Bob pays 40"),
        ("will not pay", "will pay"),
        ("does not open on", "opens on"),
        ("300 euros", "300 dollars"),
        ("5 kg", "5 mg"),
        ("5 kg", "5 pounds"),
        ("300 euros", "three hundred euros"),
        ("A-17b", "A-17c"),
        ("pays 40", "does not pay 40"),
        ("Bob Costa;", "Bob Costa, as Carla said;"),
        ("for the food", "for 12 meals"),
        ("on Monday", "on Tuesday"),
        ("Lopez", "Perez"),
        ("12.50", "12"),
        ("12.50", "112.50"),
        ("7:30", "7:30:15"),
        ("box_9", "box_91"),
        ("three", "some"),
    ],
)
def test_a_summary_that_changes_what_was_said_is_not(true, put):
    assert true in TRUE
    assert judge(said(*TURNS), TRUE.replace(true, put)) is NotRewritten.SUMMARY_FACTS


def test_a_summary_is_shorter():
    found = said("So be it. " * 50)
    most = int(0.6 * len(found.turns))
    for size in (0, most + 1):
        assert judge(found, "y" * size) is NotRewritten.SUMMARY_LONG
    for size in (1, most):
        assert judge(found, "y" * size) == "y" * size


@pytest.mark.parametrize(
    "text",
    [
        "anna meier owes bob costa a lot of money",
        "Run `retry(3)` in the shell.",
        "```\nx = 1\n```",
        "Anna schuldet dem Bob noch ein paar Euro und will nicht zahlen.",
        "安娜欠鲍勃三百欧元。",
    ],
)
def test_of_some_turns_it_cannot_be_told(text):
    assert not can_be_checked(said(TURNS[0], text))


def test_of_plain_turns_it_can_be_told():
    assert can_be_checked(said(*TURNS, "ok", "yes please"))


def test_what_is_known_is_bounded_and_the_latest_used_stays():
    summaries = new_summaries()
    summaries[b"a"] = "first"
    for number in range(MOST_KNOWN - 1):
        summaries[b"%d" % number] = NotRewritten.SUMMARY_FACTS
    assert summaries.get(b"a") == "first"
    summaries[b"b"] = "last"
    assert [summaries.get(key) for key in (b"a", b"0", b"1", b"b")] == [
        "first",
        None,
        NotRewritten.SUMMARY_FACTS,
        "last",
    ]
    summaries[b"c"] = "x" * (MOST_CHARACTERS - 3)
    assert [summaries.get(key) for key in (b"a", b"b", b"c")] == [
        None,
        None,
        "x" * (MOST_CHARACTERS - 3),
    ]


def test_both_parts_of_a_request_are_told():
    summary = Compression((Step.SUMMARY,), 100, 80)
    assert combine(summary, None) is summary
    assert combine(None, None) is None
    told = combine(summary, Compression((Step.MINIFIED,), 10, 2))
    assert str(told) == "summary, minified; tokens=110; saved=82"
    pending = Compression(refused=NotRewritten.SUMMARY_PENDING)
    assert str(combine(pending, Compression((Step.MINIFIED,), 10, 2))) == (
        "minified; tokens=10; saved=2; declined=summary-pending"
    )
