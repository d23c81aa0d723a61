"""Streams of chat completions as the events of a message, however they are cut."""

import orjson
import pytest

from gateway.protocol.anthropic.reply import Prompt, to_message
from gateway.protocol.anthropic.stream import MessageEvents
from gateway.protocol.endpoints.messages import StreamedMessage
from gateway.protocol.tokens import NOTHING_SAID, prompt_usage

PROMPT = Prompt(lambda: 77, "m", frozenset({"f"}), 1)


def chunk(delta=None, finish=None, usage=None, **more):
    choices = (
        [] if delta is None else [{"index": 0, "delta": delta, "finish_reason": finish, **more}]
    )
    data = {"id": "chatcmpl-7", "model": "m", "choices": choices, "usage": usage}
    return b"data: " + orjson.dumps(data) + b"\n\n"


def piece(index, arguments, **more):
    return {"tool_calls": [{"index": index, "function": {"arguments": arguments, **more}}]}


def call(index, name):
    given = {"index": index, "id": name, "function": {"name": "f", "arguments": ""}}
    return {"tool_calls": [given]}


DONE = b"data: [DONE]\n\n"
USAGE = {"prompt_tokens": 9, "completion_tokens": 4, "prompt_tokens_details": {"cached_tokens": 2}}
STREAM = b"".join(
    [
        b": waiting\n\n",
        chunk({"role": "assistant", "content": ""}),
        chunk({"reasoning_content": "Hm"}),
        chunk({"reasoning_content": "."}),
        chunk({"content": "I "}),
        chunk({"content": "look."}),
        chunk(call(0, "a")),
        chunk(piece(0, '{"x"')),
        chunk(piece(0, ":1}")),
        chunk(call(1, "b")),
        chunk({}, "tool_calls"),
        chunk(usage=USAGE),
        DONE,
    ]
)


def translated(*pieces):
    events = MessageEvents(PROMPT)
    return b"".join([*map(events.feed, pieces), events.end()])


def names(stream):
    return [
        line.removeprefix("event: ")
        for line in stream.decode().splitlines()
        if line.startswith("event: ")
    ]


def assembled(stream):
    answer = StreamedMessage(assemble=True, max_bytes=10**6)
    answer.feed(stream)
    answer.end()
    return answer


def test_a_stream_is_the_message_that_the_plain_reply_is():
    answer = assembled(translated(STREAM))
    function = {"name": "f", "arguments": '{"x":1}'}
    calls = [
        {"id": "a", "function": function},
        {"id": "b", "function": {**function, "arguments": ""}},
    ]
    message = {"content": "I look.", "reasoning_content": "Hm.", "tool_calls": calls}
    choice = {"message": message, "finish_reason": "tool_calls"}
    plain = {"id": "chatcmpl-7", "model": "m", "choices": [choice], "usage": USAGE}
    assert answer.done
    assert answer.result() == to_message(plain, PROMPT)


def test_the_events_come_in_order():
    block = ["content_block_start", "content_block_delta", "content_block_stop"]
    start, delta, stop = block
    assert names(translated(STREAM)) == [
        "message_start",
        *(start, delta, delta, stop),
        *(start, delta, delta, stop),
        *(start, delta, delta, stop),
        *(start, stop),
        "message_delta",
        "message_stop",
    ]


@pytest.mark.parametrize("size", [1, 2, 3, 7, 50])
def test_any_cut_gives_the_same_events(size):
    cuts = [STREAM[at : at + size] for at in range(0, len(STREAM), size)]
    assert translated(*cuts) == translated(STREAM)


def test_comments_pass():
    assert translated(STREAM).startswith(b": waiting\n\n")


def test_a_stream_that_stops_without_done_is_whole_if_it_has_a_finish_reason():
    assert names(translated(STREAM.removesuffix(DONE)))[-1] == "message_stop"


def test_a_stream_that_breaks_off_has_no_end():
    broken = translated(STREAM.partition(chunk(call(1, "b")))[0])
    assert "message_stop" not in names(broken)
    answer = assembled(broken)
    assert not answer.ended


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (b'{"error": {"message": "oh"}}', "api_error"),
        (b'{"error": {"message": "oh", "code": 429}}', "rate_limit_error"),
        (b'{"error": {"message": "oh", "code": 400}}', "invalid_request_error"),
        (b'{"error": {"message": "oh", "type": "BadRequestError"}}', "invalid_request_error"),
    ],
)
def test_an_error_ends_the_stream(data, kind):
    stream = translated(chunk({"content": "a"}), b"data: " + data + b"\n\n", DONE)
    last = stream.strip().rpartition(b"data: ")[2]
    assert orjson.loads(last) == {"type": "error", "error": {"type": kind, "message": "oh"}}
    assert names(stream)[-1] == "error"


@pytest.mark.parametrize("data", [b"oh", b"[]", b"7"])
def test_what_is_no_object_is_an_error(data):
    assert names(translated(b"data: " + data + b"\n\n")) == ["error"]


def test_an_empty_piece_of_an_earlier_call_changes_nothing():
    ended = (chunk({}, "tool_calls"), DONE)
    before = translated(chunk(call(0, "a")), chunk(call(1, "b")), *ended)
    assert (
        translated(chunk(call(0, "a")), chunk(call(1, "b")), chunk(piece(0, "")), *ended) == before
    )


def test_a_stop_sequence_is_named():
    stream = translated(chunk({"content": "a"}), chunk({}, "stop", stop_reason="END"), DONE)
    assert assembled(stream).result()["stop_sequence"] == "END"


def test_a_stream_without_usage_has_an_estimate_as_the_plain_reply_has():
    stream = translated(STREAM.replace(chunk(usage=USAGE), b""))
    usage = assembled(stream).usage
    assert usage == {"input_tokens": 77, "output_tokens": 5, "estimated": True}
    assert prompt_usage(usage) is NOTHING_SAID


def test_two_calls_that_share_an_index_are_two_blocks():
    stream = translated(
        chunk(call(0, "a")),
        chunk(piece(0, '{"x":1}')),
        chunk(call(0, "b")),
        chunk(piece(0, '{"x":2}', name=None)),
        chunk({}, "tool_calls"),
        DONE,
    )
    blocks = assembled(stream).result()["content"]
    assert [(block["id"], block["input"]) for block in blocks] == [("a", {"x": 1}), ("b", {"x": 2})]


def test_a_call_that_repeats_its_id_is_one_block():
    again = {"index": 0, "id": "a", "function": {"name": "f", "arguments": '{"x":1}'}}
    stream = translated(
        chunk(call(0, "a")), chunk({"tool_calls": [again]}), chunk({}, "tool_calls"), DONE
    )
    [block] = assembled(stream).result()["content"]
    assert block["input"] == {"x": 1}


@pytest.mark.parametrize("error", [{"code": 400}, {"code": "context_length_exceeded"}])
def test_a_prompt_beyond_the_context_gets_the_words_that_clients_know(error):
    message = "The maximum context length is 9 tokens."
    data = orjson.dumps({"error": {**error, "message": message}})
    stream = translated(b"data: " + data + b"\n\n")
    told = orjson.loads(stream.strip().rpartition(b"data: ")[2])["error"]
    assert told == {"type": "invalid_request_error", "message": f"prompt is too long: {message}"}


WORDS = ["Hi", " there", ' "you"', "", " é", "\n", " \\", ' "text":"', ' "content":"', " end", "."]


def test_each_piece_of_text_arrives_whatever_it_holds():
    pieces = [chunk({"content": word}) for word in WORDS]
    stream = translated(*pieces, chunk({}, "stop"), DONE)
    deltas = [
        orjson.loads(line.removeprefix(b"data: "))["delta"]
        for line in stream.splitlines()
        if b'"content_block_delta"' in line and line.startswith(b"data: ")
    ]
    assert deltas == [{"type": "text_delta", "text": word} for word in WORDS if word]
    assert assembled(stream).result()["content"] == [{"type": "text", "text": "".join(WORDS)}]


def test_text_beside_anything_else_is_not_taken_for_text_alone():
    said = [{"content": "a"}, {"content": "b", "reasoning_content": "Hm"}, {"content": "c"}]
    stream = translated(
        *map(chunk, said), chunk({"content": "d"}, "length"), chunk({"content": "e"}), DONE
    )
    answer = assembled(stream).result()
    texts = [block.get("text", block.get("thinking")) for block in answer["content"]]
    assert texts == ["a", "Hm", "bcde"]
    assert answer["stop_reason"] == "max_tokens"


def test_text_behind_the_end_is_no_part_of_the_message():
    events = MessageEvents(PROMPT)
    said = chunk({"content": "a"})
    assert b"text_delta" in events.feed(said * 3)
    assert b"message_stop" in events.feed(b"data: [DONE]\n\n")
    assert events.feed(said) == b""
