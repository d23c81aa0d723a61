"""/v1/messages as a cached endpoint: checks, what bars a lookup, admission, events."""

import orjson
import pytest

from gateway.protocol.conversation import answer_text, last_user_text, prompt_text, system_text
from gateway.protocol.endpoints.registry import SPECS
from gateway.protocol.endpoints.spec import Question
from gateway.protocol.errors import ClientError
from gateway.protocol.http.cache_status import Reason
from gateway.protocol.streaming.decode import encode_event
from policies.decision import CLEAN_FINISH_REASONS, Endpoint

MESSAGES = Endpoint.MESSAGES
SPEC, COUNT = SPECS[MESSAGES], SPECS[Endpoint.COUNT_TOKENS]
BODY = {"model": "m", "max_tokens": 5, "messages": [{"role": "user", "content": "Hi"}]}


def text(words, **more):
    return {"type": "text", "text": words, **more}


def message(*content, stop="end_turn", **more):
    return {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "m",
        "content": list(content),
        "stop_reason": stop,
        "stop_sequence": None,
        "usage": {"input_tokens": 3, "cache_read_input_tokens": 2, "output_tokens": 4},
        **more,
    }


CALL = {"type": "tool_use", "id": "t", "name": "f", "input": {"a": [1, None]}}
THOUGHT = {"type": "thinking", "thinking": "Hm.", "signature": "c2ln"}
CITED = text("It is so.", citations=[{"type": "char_location", "cited_text": "so"}])
WHOLE = message(THOUGHT, CITED, {"type": "redacted_thinking", "data": "x"}, CALL, stop="tool_use")


def test_a_usual_body_is_looked_up():
    assert SPEC.validate(BODY) is None
    assert SPEC.bypass_reason(BODY) is None


@pytest.mark.parametrize(
    "changes",
    [
        {"messages": None},
        {"messages": []},
        {"messages": [7]},
        {"messages": [{"content": "Hi"}]},
        {"messages": [{"role": "user"}]},
        {"messages": [{"role": "user", "content": 7}]},
        {"max_tokens": "many"},
        {"system": 7},
    ],
)
def test_what_no_server_accepts_is_refused(changes):
    with pytest.raises(ClientError):
        SPEC.validate({**BODY, **changes})


@pytest.mark.parametrize("name", ["max_tokens", "model"])
def test_what_some_servers_accept_is_only_forwarded(name):
    error = SPEC.validate({each: value for each, value in BODY.items() if each != name})
    assert error is not None
    assert error.param == name


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"tools": [{"type": "web_search_20250305", "name": "w"}]}, Reason.WEB_SEARCH),
        ({"tools": [{"type": "code_execution_20250825", "name": "c"}]}, Reason.HOSTED_TOOLS),
        ({"tools": [{"type": 7}]}, Reason.HOSTED_TOOLS),
        ({"mcp_servers": [{"url": "u"}]}, Reason.HOSTED_TOOLS),
        ({"container": "c"}, Reason.CONVERSATION),
        ({"thread": {}}, Reason.CONVERSATION),
        ({"tools": [{"name": "f", "input_schema": {}}]}, None),
        ({"tools": [{"type": "custom", "name": "f"}]}, None),
        ({"tools": [{"type": "bash_20250124", "name": "bash"}]}, None),
        ({"mcp_servers": []}, None),
    ],
)
def test_what_runs_on_the_providers_servers_bars_a_lookup(fields, reason):
    assert SPEC.bypass_reason({**BODY, **fields}) is reason


def asked(*turns, **fields):
    return SPEC.find_question({**BODY, "messages": list(turns), **fields})


def user(content):
    return {"role": "user", "content": content}


def test_a_plain_question_is_found():
    found = asked(user("Hi"), {"role": "assistant", "content": [text("Yes?")]}, user("Why?"))
    assert isinstance(found, Question)
    assert (found.text, found.follows) == ("Why?", True)
    assert found.rest["messages"][-1] == {"role": "user"}


@pytest.mark.parametrize(
    ("turns", "fields", "reason"),
    [
        ([user("Hi")], {"tools": [{"name": "f"}]}, Reason.TOOLS),
        ([{"role": "assistant", "content": "I"}], {}, Reason.LAST_TURN),
        ([user([text("a"), text("b")])], {}, Reason.NOT_TEXT),
        ([user([text("a", cache_control={"type": "ephemeral"})])], {}, Reason.NOT_TEXT),
        ([user([{"type": "image", "source": {}}]), user("And?")], {}, Reason.NOT_TEXT),
        ([user([{"type": "tool_result"}]), user("And?")], {}, Reason.TOOL_RESULTS),
    ],
)
def test_what_is_no_plain_question(turns, fields, reason):
    assert asked(*turns, **fields) is reason


@pytest.mark.parametrize(
    "result",
    [
        WHOLE,
        message(text("Hi")),
        message(text("Hi"), stop="stop_sequence", stop_sequence="."),
        message(CALL, stop="tool_use"),
    ],
)
def test_what_ended_well_is_admitted(result):
    assert SPEC.decline(BODY, result, CLEAN_FINISH_REASONS) is None


@pytest.mark.parametrize(
    ("result", "reason"),
    [
        ({}, Reason.UNKNOWN_SHAPE),
        (message(text("Hi"), stop="max_tokens"), Reason.TRUNCATED),
        (message(text("Hi"), stop="model_context_window_exceeded"), Reason.TRUNCATED),
        (message(text("Hi"), stop="pause_turn"), Reason.FINISH_REASON),
        (message(text("Hi"), stop=None), Reason.FINISH_REASON),
        (message(text("Hi"), stop="refusal"), Reason.REFUSAL),
        (message(text("Hi"), stop="tool_use"), Reason.INVALID_TOOL_CALL),
        (message({**CALL, "input": "x"}, stop="tool_use"), Reason.INVALID_TOOL_CALL),
        (message(), Reason.EMPTY),
        (message(text("")), Reason.EMPTY),
        (message({"type": "server_tool_use"}), Reason.UNKNOWN_SHAPE),
        (message(text(7)), Reason.UNKNOWN_SHAPE),
    ],
)
def test_what_is_not_admitted(result, reason):
    assert SPEC.decline(BODY, result, CLEAN_FINISH_REASONS) is reason


def test_an_answer_that_should_be_json_and_is_not_is_declined():
    body = {**BODY, "output_config": {"format": {"type": "json_schema", "schema": {}}}}
    assert SPEC.decline(body, message(text("{")), CLEAN_FINISH_REASONS) is Reason.INVALID_JSON
    assert SPEC.decline(body, message(text("{}")), CLEAN_FINISH_REASONS) is None


def followed(stream, size=10**6, **settings):
    answer = SPEC.streaming.follow(assemble=True, max_bytes=10**6, **settings)
    passed = []
    for at in range(0, len(stream), size):
        now, last = answer.feed(stream[at : at + size])
        passed += [now, last or (b"", b"")]
    now, last = answer.end()
    passed += [now, last or (b"", b"")]
    return answer, *(b"".join(form) for form in zip(*passed, strict=True))


@pytest.mark.parametrize("size", [1, 5, 64, 10**6])
@pytest.mark.parametrize("result", [WHOLE, message(text("Hi")), message(CALL, stop="tool_use")])
def test_a_hit_as_events_is_the_same_message(result, size):
    stream = SPEC.streaming.render(result, include_usage=True)
    answer, full, without_usage = followed(stream, size)
    assert answer.done
    assert answer.result() == result
    assert answer.usage == result["usage"]
    assert full == without_usage == stream


def test_the_events_have_anthropics_order():
    stream = SPEC.streaming.render(message(text("Hi")), include_usage=True)
    events = [part.split(b"\n") for part in stream.strip().split(b"\n\n")]
    names = [name.removeprefix(b"event: ").decode() for name, _ in events]
    assert names == [
        "message_start",
        "content_block_start",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]
    data = [orjson.loads(line.removeprefix(b"data: ")) for _, line in events]
    assert [event["type"] for event in data] == names
    assert data[0]["message"]["content"] == []
    assert data[0]["message"]["stop_reason"] is None
    assert data[-2]["delta"] == {"stop_reason": "end_turn", "stop_sequence": None}


def event(kind, **data):
    return b"data: " + orjson.dumps({"type": kind, **data}) + b"\n\n"


START = event("message_start", message=message(stop=None))
BLOCK = event("content_block_start", index=0, content_block=text(""))
WORD = event("content_block_delta", index=0, delta={"type": "text_delta", "text": "Hi"})
STOP = event("content_block_stop", index=0)
END = event("message_delta", delta={"stop_reason": "end_turn"}, usage={"output_tokens": 9})
LAST = event("message_stop")
PING = event("ping")


def test_pings_are_no_part_and_counts_add_up():
    answer, *_ = followed(START + PING + BLOCK + WORD + PING + STOP + END + LAST)
    result = answer.result()
    assert result["content"] == [text("Hi")]
    assert result["usage"]["output_tokens"] == 9
    assert result["usage"]["input_tokens"] == 3


@pytest.mark.parametrize(
    ("events", "reason"),
    [
        (START + BLOCK + WORD + STOP + LAST, Reason.UNCLEAN),
        (START + BLOCK + WORD + END + LAST, Reason.UNCLEAN),
        (BLOCK + WORD + STOP + LAST, Reason.UNCLEAN),
        (START + WORD + END + LAST, Reason.UNKNOWN_SHAPE),
        (START + BLOCK + BLOCK + END + LAST, Reason.UNKNOWN_SHAPE),
        (START + event("of_tomorrow") + BLOCK + WORD + STOP + END + LAST, Reason.UNKNOWN_SHAPE),
        (START + END + END + LAST, Reason.UNKNOWN_SHAPE),
    ],
)
def test_what_does_not_add_up_is_not_stored(events, reason):
    answer, full, _ = followed(events)
    assert answer.result() is reason
    assert full == events


def test_arguments_that_are_no_json_are_not_stored():
    call = event("content_block_start", index=0, content_block={**CALL, "input": {}})
    piece = {"type": "input_json_delta", "partial_json": '{"a":'}
    bad = event("content_block_delta", index=0, delta=piece)
    answer, *_ = followed(START + call + bad + STOP + END + LAST)
    assert answer.result() is Reason.INVALID_TOOL_CALL


def test_an_error_of_the_upstream_passes():
    error = event("error", error={"type": "overloaded_error", "message": "busy"})
    answer, full, _ = followed(START + error)
    assert answer.error is not None
    assert full == START + error
    assert answer.result() is Reason.UNCLEAN


def test_the_texts_for_policy_and_scan():
    body = {
        **BODY,
        "system": [text("Be brief."), text("Be kind.")],
        "messages": [user([text("one"), text("two")])],
    }
    assert system_text(MESSAGES, body) == "Be brief.\nBe kind."
    assert last_user_text(MESSAGES, body) == "one\ntwo"
    assert "Be kind." in prompt_text(MESSAGES, body, "")


def test_the_scan_does_not_read_what_only_the_author_can():
    found = answer_text(MESSAGES, WHOLE)
    assert "c2ln" not in found
    assert "Hm." in found


@pytest.mark.parametrize(
    ("result", "reason"),
    [
        ({"input_tokens": 7}, None),
        ({"input_tokens": 7, "estimated": True}, Reason.UNCLEAN),
        ({"count": 7}, Reason.UNKNOWN_SHAPE),
    ],
)
def test_a_count_is_stored_unless_it_is_an_estimate(result, reason):
    assert COUNT.decline(BODY, result, CLEAN_FINISH_REASONS) is reason


def test_a_body_without_its_path_is_recognised_where_only_one_endpoint_fits():
    assert SPEC.recognises({**BODY, "system": "s"})
    assert not SPEC.recognises(BODY)


@pytest.mark.parametrize(
    "block",
    [
        {"type": "container_upload", "file_id": "file_1"},
        {"type": "image", "source": {"type": "file", "file_id": "file_1"}},
        {"type": "tool_result", "content": [{"type": "document", "source": {"type": "file"}}]},
        {
            "type": "document",
            "source": {
                "type": "content",
                "content": [
                    {"type": "image", "source": {"type": "file"}},
                ],
            },
        },
    ],
)
def test_a_file_that_the_provider_stores_bars_a_lookup(block):
    turns = [{"role": "user", "content": [text("What is it?"), block]}]
    assert SPEC.bypass_reason({**BODY, "messages": turns}) is Reason.CONVERSATION
    assert COUNT.bypass_reason({**BODY, "messages": turns}) is Reason.CONVERSATION


@pytest.mark.parametrize("kind", [[], {}, 7])
def test_a_block_with_a_type_that_is_no_text_is_only_forwarded(kind):
    turns = [{"role": "user", "content": [{"type": kind}]}]
    assert SPEC.validate({**BODY, "messages": turns}) is not None


def test_an_answer_made_in_a_container_is_not_admitted():
    result = message(text("Done."), container={"id": "c"})
    assert SPEC.decline(BODY, result, CLEAN_FINISH_REASONS) is Reason.UNKNOWN_SHAPE
    assert SPEC.decline(BODY, {**result, "container": None}, CLEAN_FINISH_REASONS) is None


def test_arguments_that_came_with_the_blocks_beginning_stay():
    answer = SPEC.streaming.follow(assemble=True, max_bytes=10**6)
    empty = {"index": 0, "delta": {"type": "input_json_delta", "partial_json": ""}}
    events = (
        ("message_start", {"message": {**message(), "stop_reason": None}}),
        ("content_block_start", {"index": 0, "content_block": CALL}),
        ("content_block_delta", empty),
        ("content_block_stop", {"index": 0}),
        ("message_delta", {"delta": {"stop_reason": "tool_use"}}),
        ("message_stop", {}),
    )
    answer.feed(b"".join(encode_event(kind, event) for kind, event in events))
    assert answer.result()["content"] == [CALL]
