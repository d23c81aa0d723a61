"""Chat completions, and errors, in Anthropic's form."""

import orjson
import pytest

from gateway.protocol.anthropic import reply
from gateway.protocol.anthropic.reply import Prompt, UnreadableReplyError, to_error
from gateway.protocol.endpoints.messages import SPEC
from gateway.protocol.http.cache_status import Reason

PROMPT = Prompt(lambda: 77, "m", frozenset({"f"}), 1)


def to_message(result):
    return reply.to_message(result, PROMPT)


def completion(finish="stop", usage=None, **message):
    choice = {"index": 0, "finish_reason": finish, "message": {"role": "assistant", **message}}
    return {"id": "chatcmpl-7", "model": "m", "choices": [choice], "usage": usage}


def call(arguments="{}"):
    return {"id": "c1", "type": "function", "function": {"name": "f", "arguments": arguments}}


def test_a_whole_message():
    usage = {
        "prompt_tokens": 10,
        "completion_tokens": 3,
        "prompt_tokens_details": {"cached_tokens": 4},
    }
    result = completion(usage=usage, content="Hello.", reasoning_content="Hm.")
    assert to_message(result) == {
        "id": "msg_7",
        "type": "message",
        "role": "assistant",
        "model": "m",
        "content": [
            {"type": "thinking", "thinking": "Hm.", "signature": ""},
            {"type": "text", "text": "Hello."},
        ],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": {
            "input_tokens": 6,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 4,
            "output_tokens": 3,
        },
    }


def test_cached_tokens_are_told_only_where_the_server_tells_them():
    usage = to_message(completion(usage={"prompt_tokens": 5, "completion_tokens": 1}))["usage"]
    assert usage == {"input_tokens": 5, "output_tokens": 1}


def test_calls_become_blocks():
    message = to_message(completion("tool_calls", tool_calls=[call('{"a": 1}'), call("")]))
    assert message["stop_reason"] == "tool_use"
    assert [block["input"] for block in message["content"]] == [{"a": 1}, {}]


@pytest.mark.parametrize("arguments", ['{"a":', "[]", "7"])
def test_arguments_that_are_no_object_arrive_as_a_text_and_are_not_stored(arguments):
    message = to_message(completion("tool_calls", content="a", tool_calls=[call(arguments)]))
    assert message["content"][0]["text"] == "a"
    assert message["content"][1]["input"] == {"arguments": arguments}
    assert SPEC.decline({}, message, ("tool_calls",)) is Reason.INVALID_TOOL_CALL


@pytest.mark.parametrize("arguments", [None, "", " ", "null", {}])
def test_no_arguments_are_an_empty_object(arguments):
    [block] = to_message(completion("tool_calls", tool_calls=[call(arguments)]))["content"]
    assert block["input"] == {}


@pytest.mark.parametrize("given", [None, "", 7])
def test_calls_without_an_id_get_different_ones(given):
    calls = [{**call(), "id": given} for _ in range(2)]
    del calls[1]["id"]
    one, other = to_message(completion("tool_calls", tool_calls=calls))["content"]
    assert one["id"].startswith("toolu_")
    assert one["id"] != other["id"]
    again = to_message(completion("tool_calls", tool_calls=calls))["content"]
    assert again == [one, other]


def test_two_calls_with_one_id_get_different_ones():
    one, other = to_message(completion("tool_calls", tool_calls=[call(), call()]))["content"]
    assert one["id"] == "c1"
    assert other["id"] not in ("", "c1")


def test_a_call_in_the_form_before_tools_is_one_too():
    function = {"name": "f", "arguments": '{"a": 1}'}
    message = to_message(completion("function_call", function_call=function))
    assert message["stop_reason"] == "tool_use"
    assert message["content"][0]["input"] == {"a": 1}


def test_content_in_parts_is_read():
    thinking = {"type": "thinking", "thinking": [{"type": "text", "text": "Hm."}]}
    parts = [thinking, {"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    blocks = to_message(completion(content=parts))["content"]
    assert blocks == [
        {"type": "thinking", "thinking": "Hm.", "signature": ""},
        {"type": "text", "text": "ab"},
    ]


ERROR = {"message": "Provider disconnected.", "code": 502}


@pytest.mark.parametrize("word", ["error", "abort", "ERROR"])
@pytest.mark.parametrize("more", [{}, {"error": ERROR}])
def test_half_an_answer_is_an_error(word, more):
    result = completion(word, content="Hel")
    result["choices"][0] |= more
    with pytest.raises(UnreadableReplyError, match="disconnected" if more else f"reason {word}"):
        to_message(result)


@pytest.mark.parametrize("result", [{"error": ERROR}, [{"error": ERROR}]])
def test_an_error_with_a_good_status_says_what_it_is(result):
    with pytest.raises(UnreadableReplyError, match="disconnected"):
        to_message(result)


@pytest.mark.parametrize("finish", ["weird", None, ""])
def test_an_answer_whose_end_has_no_known_word_is_not_stored(finish):
    message = to_message(completion(finish, content="a"))
    assert message["stop_reason"] == "end_turn"
    assert SPEC.decline({}, message, ("stop",)) is Reason.FINISH_REASON
    assert SPEC.decline({}, to_message(completion(content="a")), ("stop",)) is None


@pytest.mark.parametrize("result", [None, [], {}, {"choices": []}, {"choices": [{"text": "x"}]}])
def test_what_is_no_completion_is_an_error(result):
    with pytest.raises(UnreadableReplyError):
        to_message(result)


@pytest.mark.parametrize(
    ("finish", "more", "reason"),
    [
        ("stop", {}, "end_turn"),
        ("length", {}, "max_tokens"),
        ("tool_calls", {}, "end_turn"),
        ("tool_calls", {"tool_calls": []}, "end_turn"),
        ("tool_calls", {"tool_calls": [{}]}, "end_turn"),
        ("tool_calls", {"tool_calls": [call()]}, "tool_use"),
        ("eos", {}, "end_turn"),
        ("EOS", {"tool_calls": [call()]}, "tool_use"),
        ("MAX_TOKENS", {}, "max_tokens"),
        ("length", {"tool_calls": [call()]}, "max_tokens"),
        ("content_filter", {}, "refusal"),
        ("stop", {"tool_calls": [call()]}, "tool_use"),
        ("stop", {"refusal": "No."}, "refusal"),
        ("weird", {}, "end_turn"),
        (None, {}, "end_turn"),
        ("", {"tool_calls": [call()]}, "tool_use"),
    ],
)
def test_stop_reasons(finish, more, reason):
    assert to_message(completion(finish, **more))["stop_reason"] == reason


def test_the_stop_sequence_is_told_where_the_server_names_it():
    result = completion(content="a")
    result["choices"][0]["stop_reason"] = "END"
    message = to_message(result)
    assert (message["stop_reason"], message["stop_sequence"]) == ("stop_sequence", "END")


@pytest.mark.parametrize(
    ("status", "body", "kind", "message"),
    [
        (404, b'{"error": {"message": "no such model"}}', "not_found_error", "no such model"),
        (401, b'{"message": "who?"}', "authentication_error", "who?"),
        (422, b'{"detail": [{"msg": "bad field"}]}', "invalid_request_error", "bad field"),
        (429, b'{"error": "slow"}', "rate_limit_error", "slow"),
        (503, b"<html>", "overloaded_error", "The model's server answered 503."),
        (500, b"{}", "api_error", "The model's server answered 500."),
        (400, b'[{"error": {"message": "bad"}}]', "invalid_request_error", "bad"),
        (400, b'{"error": [{"message": "bad"}]}', "invalid_request_error", "bad"),
        (400, b'{"errors": [{"message": "bad"}]}', "invalid_request_error", "bad"),
        (400, b"[]", "invalid_request_error", "The model's server answered 400."),
    ],
)
def test_errors(status, body, kind, message):
    assert to_error(status, body) == {
        "type": "error",
        "error": {"type": kind, "message": message},
    }


VLLM = "This model's maximum context length is 40960 tokens, and your prompt has 51000."
LLAMA = "the request exceeds the available context size (8192 tokens), try increasing it"
LARGE = "max_tokens is too large: 9000. This model's maximum context length is 4096 tokens."


@pytest.mark.parametrize(
    ("status", "error", "message"),
    [
        (400, {"message": VLLM}, f"prompt is too long: {VLLM}"),
        (400, {"message": LLAMA}, f"prompt is too long: {LLAMA}"),
        (
            400,
            {"message": "Too much.", "code": "context_length_exceeded"},
            "prompt is too long: Too much.",
        ),
        (400, {"message": "Your prompt is too long."}, "Your prompt is too long."),
        (400, {"message": LARGE}, LARGE),
        (500, {"message": VLLM}, VLLM),
    ],
)
def test_a_prompt_beyond_the_context_gets_the_words_that_clients_know(status, error, message):
    told = to_error(status, orjson.dumps({"error": error}))["error"]
    kind = "invalid_request_error" if status == 400 else "api_error"
    assert told == {"type": kind, "message": message}


@pytest.mark.parametrize(
    ("usage", "told"),
    [
        (None, (77, 5)),
        ({"prompt_tokens": 3}, (3, 5)),
        ({"completion_tokens": 2}, (77, 2)),
        ({"prompt_tokens": -1, "completion_tokens": True}, (77, 5)),
    ],
)
def test_tokens_that_the_server_does_not_tell_are_estimated_and_say_so(usage, told):
    spoken = {"content": "Hellö", "reasoning_content": "Hm.", "tool_calls": [call('{"a": "b"}')]}
    given = to_message(completion("tool_calls", usage, **spoken))["usage"]
    assert (given["input_tokens"], given["output_tokens"]) == told  # 18 bytes were written
    assert given["estimated"] is True
