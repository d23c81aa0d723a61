"""Chat completions, and errors, in Anthropic's form."""

import orjson
import pytest

from gateway.protocol.anthropic import reply
from gateway.protocol.anthropic.reply import UnreadableReplyError, to_error


def to_message(result):
    return reply.to_message(result, lambda: 77)


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
def test_arguments_that_are_no_object_are_an_error(arguments):
    with pytest.raises(UnreadableReplyError, match="no JSON object"):
        to_message(completion("tool_calls", tool_calls=[call(arguments)]))


@pytest.mark.parametrize("result", [None, [], {}, {"choices": []}, {"choices": [{"text": "x"}]}])
def test_what_is_no_completion_is_an_error(result):
    with pytest.raises(UnreadableReplyError):
        to_message(result)


@pytest.mark.parametrize(
    ("finish", "more", "reason"),
    [
        ("stop", {}, "end_turn"),
        ("length", {}, "max_tokens"),
        ("tool_calls", {}, "tool_use"),
        ("content_filter", {}, "refusal"),
        ("stop", {"tool_calls": [call()]}, "tool_use"),
        ("stop", {"refusal": "No."}, "refusal"),
        ("abort", {}, "abort"),
        (None, {}, None),
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
