"""Tool calls in the forms in which servers stream them, as blocks of a message."""

import json
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.protocol.anthropic.calls import MAX_EXTRA_BYTES, Call, _Piece, split_id, with_extra
from gateway.protocol.anthropic.reply import Prompt, to_message
from gateway.protocol.anthropic.request import to_chat
from gateway.protocol.anthropic.stream import MessageEvents
from gateway.protocol.endpoints.messages import StreamedMessage
from gateway.protocol.streaming.decode import EventTooLargeError

TOOLS = frozenset({"read", "read_file", "write"})
PROMPT = Prompt(lambda: 77, "m", TOOLS, 1)


def event(delta=None, finish=None, **more):
    choice = {"index": 0, "delta": delta or {}, "finish_reason": finish, **more}
    return b"data: " + orjson.dumps({"id": "c-1", "model": "m", "choices": [choice]}) + b"\n\n"


def entry(name=None, arguments=None, **more):
    function = {"name": name, "arguments": arguments}
    return {"function": {n: v for n, v in function.items() if v is not None}, **more}


def events_of(*chunks, prompt=PROMPT, finish="tool_calls", **bounds):
    """Return the events for chunks with lists of entries, or with other deltas."""
    stream = MessageEvents(prompt, **bounds)
    deltas = [{"tool_calls": each} if isinstance(each, list) else each for each in chunks]
    pieces = [event(delta) for delta in deltas] + [event(finish=finish), b"data: [DONE]\n\n"]
    return b"".join([stream.feed(piece) for piece in pieces]) + stream.end()


def read(events):
    """Return the blocks of a message, having checked that its events come in order."""
    blocks, is_open, ended = [], False, False
    for part in events.split(b"\n\n"):
        kind, _, data = part.partition(b"\ndata: ")
        if not data:
            continue
        assert not ended
        value = json.loads(data)
        assert kind == b"event: " + value["type"].encode()
        match value:
            case {"type": "content_block_start", "index": at, "content_block": block}:
                assert (at, is_open) == (len(blocks), False)
                blocks.append((block, []))
                is_open = True
            case {"type": "content_block_delta", "index": at, "delta": delta}:
                assert (at, is_open) == (len(blocks) - 1, True)
                blocks[-1][1].append(next(v for n, v in delta.items() if n != "type"))
            case {"type": "content_block_stop", "index": at}:
                assert (at, is_open) == (len(blocks) - 1, True)
                is_open = False
            case {"type": "message_stop"}:
                assert not is_open
                ended = True
            case {"type": kind}:
                assert kind in ("message_start", "message_delta")
    assert ended
    return blocks


def calls_of(*chunks, **options):
    """Return name, input and id of each call."""
    return [
        (block["name"], json.loads("".join(pieces) or "{}"), block["id"])
        for block, pieces in read(events_of(*chunks, **options))
        if block["type"] == "tool_use"
    ]


A, B = ("read", {"a": 1}, "x"), ("write", {"b": 2}, "y")
FORMS = {
    "by turns": [
        [entry("read", "", index=0, id="x")],
        [entry("write", "", index=1, id="y")],
        [entry(None, '{"a"', index=0)],
        [entry(None, '{"b"', index=1)],
        [entry(None, ": 1}", index=0)],
        [entry(None, ": 2}", index=1)],
    ],
    "begun in one chunk": [
        [entry("read", "", index=0, id="x"), entry("write", "", index=1, id="y")],
        [entry(None, '{"b": 2}', index=1)],
        [entry(None, '{"a": 1}', index=0)],
    ],
    "pieces of both in one chunk": [
        [entry("read", "{", index=0, id="x"), entry("write", "{", index=1, id="y")],
        [entry(None, '"a": 1}', index=0), entry(None, '"b": 2}', index=1)],
    ],
    "whole in one chunk": [
        [entry("read", '{"a": 1}', index=0, id="x"), entry("write", '{"b": 2}', index=1, id="y")]
    ],
    "without an index": [
        [entry("read", '{"a": 1}', id="x")],
        [entry("write", '{"b": 2}', id="y")],
    ],
    "without an index, in one chunk": [
        [entry("read", '{"a": 1}', id="x"), entry("write", '{"b": 2}', id="y")]
    ],
    "without an index, in pieces": [
        [entry("read", "", id="x")],
        [entry(None, '{"a": 1}')],
        [entry("write", "", id="y")],
        [entry(None, '{"b": 2}')],
    ],
    "all with one index": [
        [entry("read", '{"a": 1}', index=0, id="x")],
        [entry("write", "", index=0, id="y")],
        [entry(None, '{"b": 2}', index=0)],
    ],
    "names before ids": [
        [entry("read", index=0)],
        [entry(index=0, id="x")],
        [entry("write", '{"b": ', index=1)],
        [entry(None, '{"a": 1}', index=0)],
        [entry(None, "2}", index=1, id="y")],
    ],
    "names in pieces": [
        [entry("re", "", index=0, id="x")],
        [entry("ad", "", index=0)],
        [entry(None, '{"a": 1}', index=0)],
        [entry("wri", index=1, id="y")],
        [entry("te", '{"b": 2}', index=1)],
    ],
    "names again and again": [
        [entry("read", '{"a"', index=0, id="x")],
        [entry("read", ": 1}", index=0, id="x")],
        [entry("read", "", index=0)],
        [entry("write", "", index=1, id="y")],
        [entry("write", '{"b": 2}', index=1)],
    ],
    "longer names each time": [
        [entry("re", index=0, id="x")],
        [entry("read", '{"a": 1}', index=0)],
        [entry("write", '{"b": 2}', index=1, id="y")],
    ],
    "another id in each chunk": [
        [entry("read", "", index=0, id="x")],
        [entry(None, '{"a": 1}', index=0, id="z1")],
        [entry("write", '{"b": 2}', index=1, id="y")],
        [entry("", "", index=1, id="z2")],
    ],
    "a call sent once more": [
        [entry("read", '{"a": 1}', index=0, id="x")],
        [entry("write", '{"b": 2}', index=1, id="y")],
        [entry("read", '{"a": 1}', index=0, id="x"), entry("write", '{"b": 2}', index=1, id="y")],
    ],
    "entries that say nothing": [
        [{}, None, {"index": 0}, entry("", "", index=0)],
        [entry("read", '{"a": 1}', index=0, id="x")],
        [entry("write", '{"b": 2}', index=1, id="y"), {"index": 2}],
    ],
    "arguments as objects": [
        [entry("read", {"a": 1}, index=0, id="x"), entry("write", {"b": 2}, index=1, id="y")]
    ],
}


@pytest.mark.parametrize("chunks", FORMS.values(), ids=FORMS.keys())
def test_each_form_gives_the_same_calls(chunks):
    assert calls_of(*chunks) == [A, B]


@pytest.mark.parametrize("given", [{}, {"id": None}, {"id": ""}, {"id": 7}])
@pytest.mark.parametrize("index", [{}, {"index": 0}])
def test_calls_without_an_id_are_kept_apart_and_get_those_of_the_plain_reply(given, index):
    entries = [entry("read", '{"a": 1}', **given), entry("read", '{"a": 1}', **given)]
    called = calls_of(*([each | index] for each in entries))
    assert [each[:2] for each in called] == [("read", {"a": 1})] * 2
    plain = {"id": "c-1", "choices": [{"message": {"tool_calls": entries}}]}
    assert [each[2] for each in called] == [
        block["id"] for block in to_message(plain, PROMPT)["content"]
    ]
    assert len({each[2] for each in called}) == 2
    later = to_message(plain, PROMPT._replace(turns=3))["content"]
    assert later[0]["id"] != called[0][2]


def test_a_name_that_begins_another_one_waits_for_its_rest():
    whole = calls_of(
        [entry("read", "", index=0, id="x")],
        [entry("_file", "", index=0)],
        [entry(None, "{}", index=0)],
    )
    assert whole == [("read_file", {}, "x")]


def test_the_only_tool_needs_no_name():
    prompt = PROMPT._replace(tools=frozenset({"read"}))
    assert calls_of([entry(None, "{}", index=0, id="x")], prompt=prompt) == [("read", {}, "x")]


@pytest.mark.parametrize("pieces", [["nu", "ll"], ["", " "], [None]])
def test_no_arguments_bring_no_piece(pieces):
    chunks = [[entry("write", piece, index=0, id="y")] for piece in pieces]
    [(_, brought)] = read(events_of(*chunks))
    assert brought == []


def test_arguments_that_are_no_object_are_not_lost():
    stream = events_of([entry("write", "[1", index=0, id="y")], [entry(None, "]", index=0)])
    [(_, brought)] = read(stream)
    assert json.loads("".join(brought)) == {"arguments": "[1]"}
    assert b'"invalid_arguments":true' in stream


def test_text_amid_the_pieces_of_a_call_waits_for_its_end():
    blocks = read(
        events_of(
            {"content": "I look."},
            [entry("read", '{"a"', index=0, id="x")],
            {"content": "And "},
            {"content": "write."},
            [entry("write", "{", index=1, id="y")],
            [entry(None, ": 1}", index=0)],
            [entry(None, '"b": 2}', index=1)],
        )
    )
    assert [(block["type"], "".join(pieces)) for block, pieces in blocks] == [
        ("text", "I look."),
        ("tool_use", '{"a": 1}'),
        ("text", "And write."),
        ("tool_use", '{"b": 2}'),
    ]


def test_a_call_streams_as_soon_as_the_one_before_is_whole():
    stream = MessageEvents(PROMPT)
    stream.feed(event({"tool_calls": [entry("read", '{"a": 1}', index=0, id="x")]}))
    seen = stream.feed(event({"tool_calls": [entry("write", '{"b', index=1, id="y")]}))
    assert seen.count(b"content_block_stop") == 2, "its name and its type"
    assert b'"partial_json":"{\\"b"' in seen


def test_what_waits_is_bounded():
    chunks = [
        [entry("read", "{", index=0, id="x")],
        *([entry("write", "x" * 100, index=1, id="y")] for _ in range(20)),
    ]
    with pytest.raises(EventTooLargeError):
        events_of(*chunks, max_held=1000)


@pytest.mark.parametrize("finish", ["tool_calls", "function_call"])
def test_an_end_by_calls_without_a_call_is_an_end(finish):
    stream = events_of({"content": "Done."}, finish=finish)
    assert b'"stop_reason":"end_turn"' in stream


@pytest.mark.parametrize("finish", ["weird", None, ""])
def test_an_end_without_a_known_word_is_an_end_that_is_not_stored(finish):
    stream = events_of({"content": "Done."}, finish=finish)
    answer = StreamedMessage(assemble=True, max_bytes=10**6)
    answer.feed(stream)
    assert answer.result()["stop_reason"] == "end_turn"
    assert answer.result()["finish_reason"] == (finish or "")


@pytest.mark.parametrize("more", [{}, {"error": {"message": "Gone.", "code": 502}}])
def test_a_finish_reason_of_error_is_an_error_after_what_came(more):
    stream = MessageEvents(PROMPT)
    events = stream.feed(event({"content": "Hel"}) + event({"content": "lo"}, "error", **more))
    events += stream.feed(b"data: [DONE]\n\n") + stream.end()
    assert events.count(b"text_delta") == 2
    last = events.strip().rpartition(b"\n\n")[2]
    assert last.startswith(b"event: error\n")
    assert (b"Gone." if more else b"finish reason error") in last


def test_a_null_is_no_event_and_an_error_may_be_in_an_array():
    null = b"data: null\n\n"
    given = [event({"content": "a"}), event({"content": "b"}, "stop"), b"data: [DONE]\n\n"]
    plain, kept = MessageEvents(PROMPT), MessageEvents(PROMPT)
    assert kept.feed(null + null.join(given)) == plain.feed(b"".join(given))
    failed = MessageEvents(PROMPT).feed(b'data: [{"error": {"message": "No.", "code": 400}}]\n\n')
    assert b'{"type":"invalid_request_error","message":"No."}' in failed


SIGNED = {"google": {"thought_signature": "Ab+/=" * 99}}


@pytest.mark.parametrize(
    "signed",
    [
        {"extra_content": SIGNED},
        {"thought_signature": "Ab+/="},
        {"provider_specific_fields": {"thought_signature": "Ab+/="}},
    ],
)
def test_what_gemini_signs_comes_back_with_the_call_and_its_id_without_it(signed):
    called = entry("read", '{"a":1}', id="call_1", **signed)
    plain = {"id": "c-1", "choices": [{"message": {"tool_calls": [called]}}]}
    [block] = to_message(plain, PROMPT)["content"]
    named, rest = entry("read", "", index=0, id="call_1"), entry(None, '{"a":1}', index=0, **signed)
    for chunks in ([[called | {"index": 0}]], [[named], [rest]]):
        [(streamed, _)] = read(events_of(*chunks))
        assert streamed["id"] == block["id"]
    assert set(block["id"]) <= set(
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-"
    )
    result = {"type": "tool_result", "tool_use_id": block["id"], "content": "ok"}
    turns = [
        {"role": "assistant", "content": [block]},
        {"role": "user", "content": [result]},
    ]
    said, answered = to_chat({"model": "m", "messages": turns})["messages"]
    assert said["tool_calls"] == [{"type": "function", **called}]
    assert answered["tool_call_id"] == "call_1"


@pytest.mark.parametrize("given", ["x", "", "x__extra_content__", "x__extra_content__!", None, 7])
@pytest.mark.parametrize("carried", ["", "W10", "eyJpZCI6IngifQ"])  # [], {"id":"x"}
def test_any_other_id_stays(given, carried):
    given = given + carried if isinstance(given, str) else given
    assert split_id(given) == (given, None)


def test_a_signature_of_any_size_leaves_the_id_bounded():
    assert with_extra("x", {"thought_signature": "b" * MAX_EXTRA_BYTES}) == "x"


@pytest.mark.parametrize("end", ["}", "", " ", '"}', "x"])
def test_pieces_of_a_long_call_take_linear_time_while_text_waits(
    monkeypatch: pytest.MonkeyPatch, end: str
):
    parsed = list[int]()

    def counted(text: str) -> Any:
        parsed.append(len(text))
        return json.loads(text)

    monkeypatch.setattr("gateway.protocol.anthropic.calls.orjson.loads", counted)
    call = Call()
    for piece in ('{"a": "', *[f"xxx{end}"] * 500, '"}', *[end or " "] * 500):
        call.take(_Piece(None, "", "", piece, {}), frozenset())
        call.is_whole()
    assert len(parsed) <= 2


@given(
    st.recursive(
        st.text('}"\\{ a', max_size=4), lambda inner: st.dictionaries(st.text('}"\\{'), inner)
    ),
    st.sampled_from(["", " ", "}", "{}", "x", '"']),
    st.integers(1, 4),
)
def test_a_call_is_whole_where_its_text_is_an_object(value: Any, end: str, size: int):
    text = json.dumps({"a": value}) + end
    call = Call()
    for start in range(0, len(text), size):
        call.take(_Piece(None, "", "", text[start : start + size], {}), frozenset())
        try:
            is_object = isinstance(json.loads(call.arguments), dict)
        except ValueError:
            is_object = False
        assert call.is_whole() is is_object
