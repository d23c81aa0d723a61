"""What a client is told when it, or the engine, is at fault; the connection stays usable."""

import asyncio
import gzip

import orjson
import pytest

from backend.ports import EngineError, RequestRejectedError
from backend.scheduler.request import FinishReason, TextDelta

pytest_plugins = ["running_backend"]

CHAT = {"model": "scripted", "messages": [{"role": "user", "content": "Hi"}]}


async def refused(server, raw):
    """Post bytes that must be refused; the reply, after showing that the connection works on."""
    reply = await server.request("POST", "/v1/chat/completions", raw)
    assert (await server.chat()).status == 200
    assert server.generator.requests.pop()
    assert server.generator.requests == []
    return reply


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"{",
        b'{"a": NaN}',
        b"\xff\xfe",
        b'{"a": "\\ud800"}',
        b"9" * 5000,
        b'{"a":1}x',
    ],
    ids=lambda raw: repr(raw[:12]),
)
async def test_invalid_json(server, raw):
    reply = await refused(server, raw)
    assert (reply.status, reply.error["type"]) == (400, "invalid_request_error")
    assert "not valid JSON" in reply.error["message"]


@pytest.mark.parametrize(
    "raw",
    [
        b"[" * 100_000,
        b'{"a":' * 2_000 + b"1" + b"}" * 2_000,
        b'{"\\u003a":' + b"[" * 1_020 + b"]" * 1_020 + b"}",  # the second parser's bound
    ],
    ids=["arrays", "objects", "second"],
)
async def test_a_body_that_is_nested_too_deeply(server, raw):
    reply = await refused(server, raw)
    assert (reply.status, reply.error["type"]) == (400, "invalid_request_error")
    assert reply.error["message"] == "The request body is nested too deeply."


@pytest.mark.parametrize("raw", [b"[]", b'"text"', b"1", b"null"])
async def test_a_body_that_is_no_object(server, raw):
    reply = await refused(server, raw)
    assert (reply.status, reply.error["code"]) == (400, "invalid_type")


@pytest.mark.parametrize(
    ("raw", "key"),
    [
        (b'{"model": "a", "model": "b"}', "model"),
        (b'{"a": {"b": [{"c": 1, "c": 1}]}}', "c"),
        (b'{"a\\u003a": 1, "x": 1, "x": "::"}', "x"),
        (b'{"x": 1, "x": 2, "deep": ' + b"[" * 300 + b"]" * 300 + b"}", "x"),
    ],
    ids=["top", "deep", "escaped colon", "deeply nested"],
)
async def test_duplicate_keys(server, raw, key):
    reply = await refused(server, raw)
    assert (reply.status, reply.error["code"], reply.error["param"]) == (400, "duplicate_key", key)


@pytest.mark.parametrize("text", ["a::b", 'quote" and : colon', "\\u003a", ":"])
async def test_colons_in_text_are_no_duplicate_keys(server, text):
    reply = await server.chat(text)
    assert reply.status == 200


MESSAGE = {"role": "user", "content": "Hi"}
TOOL = {"type": "function", "function": {"name": "f"}}


@pytest.mark.parametrize(
    ("change", "param", "code"),
    [
        ({"model": None}, "model", "missing_required_parameter"),
        ({"model": 3}, "model", "invalid_type"),
        ({"messages": None}, "messages", "missing_required_parameter"),
        ({"messages": []}, "messages", "empty_array"),
        ({"messages": "Hi"}, "messages", "invalid_type"),
        ({"messages": ["Hi"]}, "messages[0]", "invalid_type"),
        (
            {"messages": [MESSAGE, {"content": "Hi"}]},
            "messages[1].role",
            "missing_required_parameter",
        ),
        ({"messages": [{"role": "user"}]}, "messages[0].content", "missing_required_parameter"),
        ({"messages": [{"role": "judge", "content": ""}]}, "messages[0].role", "invalid_value"),
        ({"messages": [{"role": 1, "content": ""}]}, "messages[0].role", "invalid_type"),
        ({"messages": [{"role": "user", "content": []}]}, "messages[0].content", "empty_array"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
            "messages[0].content[0].type",
            "invalid_value",
        ),
        (
            {"messages": [{"role": "assistant", "tool_calls": [{}]}]},
            "messages[0].tool_calls[0].id",
            "missing_required_parameter",
        ),
        ({"temperature": 2.5}, "temperature", "decimal_above_max_value"),
        ({"temperature": "1"}, "temperature", "invalid_type"),
        ({"temperature": True}, "temperature", "invalid_type"),
        ({"top_p": -0.1}, "top_p", "decimal_below_min_value"),
        ({"n": 0}, "n", "integer_below_min_value"),
        ({"n": 129}, "n", "integer_above_max_value"),
        ({"n": 1.5}, "n", "invalid_type"),
        ({"max_tokens": 0}, "max_tokens", "integer_below_min_value"),
        (
            {"max_tokens": 1, "max_completion_tokens": 1},
            "max_tokens",
            "invalid_parameter_combination",
        ),
        ({"seed": 2**63}, "seed", "integer_above_max_value"),
        ({"stop": ["x"] * 65}, "stop", "array_above_max_length"),
        ({"stop": [1]}, "stop[0]", "invalid_type"),
        ({"stop": 1}, "stop", "invalid_type"),
        ({"stream": "yes"}, "stream", "invalid_type"),
        (
            {"stream_options": {"include_usage": True}},
            "stream_options",
            "invalid_parameter_combination",
        ),
        (
            {"stream": True, "stream_options": {"include_usage": 1}},
            "stream_options.include_usage",
            "invalid_type",
        ),
        ({"tools": [TOOL]}, "tools", "unsupported_parameter"),
        ({"tools": [{"type": "function"}]}, "tools[0].function", "missing_required_parameter"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type", "invalid_value"),
        ({"tools": [TOOL] * 129}, "tools", "array_above_max_length"),
        (
            {"tools": [{"type": "function", "function": {"name": "a b"}}]},
            "tools[0].function.name",
            "invalid_value",
        ),
        (
            {"tools": [{"type": "function", "function": {"name": "a" * 65}}]},
            "tools[0].function.name",
            "string_above_max_length",
        ),
        ({"tool_choice": "required"}, "tool_choice", "invalid_parameter_combination"),
        ({"tool_choice": "any"}, "tool_choice", "invalid_value"),
        ({"tool_choice": 1}, "tool_choice", "invalid_type"),
        (
            {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "g"}}},
            "tool_choice",
            "invalid_parameter_combination",
        ),
        ({"functions": [{"name": "f"}]}, "functions", "unsupported_parameter"),
        ({"function_call": {"name": "f"}}, "function_call", "unsupported_parameter"),
        ({"response_format": {"type": "xml"}}, "response_format.type", "invalid_value"),
        (
            {"response_format": {"type": "json_schema"}},
            "response_format.json_schema",
            "missing_required_parameter",
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "a"}}},
            "response_format.json_schema.schema",
            "missing_required_parameter",
        ),
        (
            {"response_format": {"type": "json_object"}, "min_tokens": 3},
            "min_tokens",
            "invalid_parameter_combination",
        ),
        (
            {"structured_outputs": {"regex": "a", "choice": ["b"]}},
            "structured_outputs",
            "invalid_parameter_combination",
        ),
        (
            {"structured_outputs": {"structural_tag": "{}"}},
            "structured_outputs.structural_tag",
            "unsupported_parameter",
        ),
        (
            {
                "response_format": {"type": "json_object"},
                "structured_outputs": {"choice": ["b"]},
            },
            "structured_outputs.choice",
            "invalid_parameter_combination",
        ),
        ({"reasoning_effort": "much"}, "reasoning_effort", "invalid_value"),
    ],
)
async def test_fields_that_are_refused(server, change, param, code):
    reply = await refused(server, orjson.dumps(CHAT | change))
    assert reply.status == 400
    assert reply.error["type"] == "invalid_request_error"
    assert (reply.error["param"], reply.error["code"]) == (param, code)
    message = reply.error["message"]
    assert param in message or message.startswith(("Invalid value", "Tool choice"))


async def test_the_message_names_what_was_expected(server):
    reply = await server.chat(3)
    assert reply.error["message"] == (
        "Invalid type for 'messages[0].content': expected one of a string or an array of objects, "
        "but got an integer instead."
    )
    assert (reply.error["param"], reply.error["code"]) == ("messages[0].content", "invalid_type")


async def test_the_message_names_how_long_an_array_is(server):
    reply = await refused(server, orjson.dumps(CHAT | {"stop": ["x"] * 65}))
    assert reply.error["message"] == (
        "Invalid 'stop': array too long. Expected an array with maximum length 64, but got an "
        "array with length 65 instead."
    )


async def test_unknown_model(server):
    reply = await refused(server, orjson.dumps(CHAT | {"model": "gpt-4o"}))
    assert (reply.status, reply.error["code"], reply.error["param"]) == (
        404,
        "model_not_found",
        "model",
    )
    assert "gpt-4o" in reply.error["message"]


async def test_a_prompt_over_the_context_is_refused_with_the_numbers(server):
    reply = await server.chat("x" * 95)  # and "user:" makes it 100, which leaves no room
    assert (reply.status, reply.error["code"]) == (400, "context_length_exceeded")
    assert "maximum context length is 100 tokens" in reply.error["message"]
    assert "resulted in 100 tokens" in reply.error["message"]
    assert (await server.chat("x" * 94)).status == 200


async def test_messages_that_the_template_refuses(server):
    reply = await server.chat("refuse me")
    assert (reply.status, reply.error["param"]) == (400, "messages")
    assert reply.error["message"] == "the template refuses these messages"


async def test_a_body_over_the_limit(start_server):
    server = await start_server(limits={"max_body_bytes": 1000})
    reply = await refused(server, orjson.dumps(CHAT | {"user": "x" * 1000}))
    assert (reply.status, reply.error["code"]) == (413, "request_too_large")


async def test_a_compressed_body(start_server):
    server = await start_server(limits={"max_body_bytes": 10_000})
    url, headers = server.url + "/v1/chat/completions", {"Content-Encoding": "gzip"}
    good, bomb = gzip.compress(orjson.dumps(CHAT)), gzip.compress(b" " * 1_000_000)
    for raw, status in ((good, 200), (b"not gzip", 400), (bomb, 413), (good, 200)):
        async with server.session.post(url, data=raw, headers=headers) as reply:
            assert reply.status == status
            assert ("error" in await reply.json()) == (status != 200)


async def test_a_large_body_is_parsed_off_the_event_loop_and_refused_all_the_same(server):
    reply = await refused(server, orjson.dumps(CHAT | {"n": 0, "user": "x" * 200_000}))
    assert (reply.status, reply.error["param"]) == (400, "n")


async def test_unknown_paths_and_methods(server):
    reply = await server.post("/v1/images", {})
    assert (reply.status, reply.error["code"]) == (404, "unknown_url")
    assert reply.error["message"] == "Invalid URL (POST /v1/images)"
    reply = await server.request("DELETE", "/v1/completions")
    assert (reply.status, reply.error["code"]) == (405, "method_not_supported")
    assert reply.headers["Allow"] == "POST"


@pytest.mark.parametrize("stream", [False, True])
async def test_what_the_engine_rejects_before_the_first_delta(start_server, stream):
    async def script(request):
        if request.request_id != "warm-up":
            raise RequestRejectedError("too big for the pool")
        yield TextDelta(0, "", 1, FinishReason.STOP)

    server = await start_server(script=script)
    reply = await server.chat(stream=stream)
    assert reply.status == 400
    assert "too big for the pool" in reply.error["message"]


@pytest.mark.parametrize("stream", [False, True])
async def test_an_engine_that_fails_at_once(start_server, stream):
    async def script(request):
        if request.request_id != "warm-up":
            raise EngineError("it broke")
        yield TextDelta(0, "", 1, FinishReason.STOP)

    server = await start_server(script=script)
    reply = await server.chat(stream=stream)
    assert (reply.status, reply.error["type"]) == (500, "server_error")


async def breaking(request):
    yield TextDelta(0, "Hel", 1)
    raise EngineError("it broke")


async def ending_early(request):
    yield TextDelta(0, "Hel", 1)


async def aborting(request):
    yield TextDelta(0, "Hel", 1)
    yield TextDelta(0, "lo", 2, FinishReason.ABORT)


@pytest.mark.parametrize("broken", [breaking, ending_early, aborting])
async def test_a_generation_that_breaks_off_is_no_answer(start_server, broken):
    server = await start_server()
    server.generator.script = broken
    plain = await server.chat()
    assert (plain.status, plain.error["code"]) == (500, "engine_error")

    streamed = await server.chat(stream=True)
    assert streamed.status == 200
    *events, last = [orjson.loads(data) for data in streamed.data]
    assert [event["choices"][0]["delta"].get("content") for event in events] == ["", "Hel"]
    assert last["error"]["code"] == "engine_error"
    assert set(last["error"]) == {"message", "type", "param", "code"}
    assert (
        await server.metric(
            'refrain_engine_requests_total{endpoint="/v1/chat/completions",outcome="server_error"}'
        )
        == 2
    )


async def test_the_connection_ends_after_a_stream_that_broke_off(start_server):
    server = await start_server()
    server.generator.script = breaking
    reader, writer = await asyncio.open_connection(server.host, server.port)
    body = orjson.dumps(CHAT | {"stream": True})
    writer.write(
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: test\r\n"
        b"Content-Length: %d\r\n\r\n%b" % (len(body), body)
    )
    received = await asyncio.wait_for(reader.read(), 60)  # until the server closes
    writer.close()
    assert b'"error"' in received
    assert b"[DONE]" not in received


async def test_an_unexpected_failure_is_logged_and_told_without_details(start_server, caplog):
    async def script(request):
        if request.request_id != "warm-up":
            raise ZeroDivisionError("a secret")
        yield TextDelta(0, "", 1, FinishReason.STOP)

    server = await start_server(script=script)
    reply = await server.chat()
    assert (reply.status, reply.error["code"]) == (500, "internal_error")
    assert "secret" not in reply.error["message"]
    assert "a secret" in caplog.text


@pytest.mark.parametrize(
    ("path", "body"), [("/v1/chat/completions", CHAT), ("/v1/responses", {"input": "Hi"})]
)
async def test_an_unexpected_failure_in_a_stream_is_its_last_event(
    start_server, caplog, path, body
):
    async def script(request):
        if request.request_id != "warm-up":
            yield TextDelta(0, "Hel", 1)
            raise ZeroDivisionError("a secret")
        yield TextDelta(0, "", 1, FinishReason.STOP)

    server = await start_server(script=script)
    asked = body | {"model": "scripted", "stream": True}
    async with server.session.post(server.url + path, json=asked) as reply:
        assert reply.status == 200
        text = await reply.text()  # raises where the framing is broken
    assert "Hel" in text
    last = orjson.loads(text.strip().rpartition("data: ")[2])
    assert "internal_error" in str(last) or "server_error" in str(last)
    assert "HTTP/1.1" not in text
    assert "secret" not in text
    assert "a secret" in caplog.text
    counted = f'refrain_engine_requests_total{{endpoint="{path}",outcome="server_error"}}'
    assert await server.metric(counted) == 1
