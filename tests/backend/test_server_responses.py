"""/v1/responses over HTTP, with a scripted generator: OpenAI's shapes, what the engine is told."""

import json
from dataclasses import replace

import pytest

from backend.core.types import FinishReason, GrammarKind, SamplingParams, TextDelta, TokenLogprobs
from backend.ports import EngineError, QueueFullError
from backend.server.tools.formats import FORMATS

pytest_plugins = ["running_backend"]

WEATHER = {
    "type": "function",
    "name": "get_weather",
    "description": "The weather of a city.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
}
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>'
CALLED = {"type": "function_call", "call_id": "call_1", "name": "get_weather", "arguments": "{}"}
RETURNED = {"type": "function_call_output", "call_id": "call_1", "output": "sunny"}
LOGPROBS = {"include": ["message.output_text.logprobs"], "top_logprobs": 1}


def saying(*pieces, reason=FinishReason.STOP):
    async def script(request):
        length = 0
        for number, piece in enumerate(pieces, start=1):
            told = ()
            if request.sampling.logprobs is not None:
                told = tuple(
                    TokenLogprobs(ord(character), -0.5, ((ord(character), -0.5),), length + place)
                    for place, character in enumerate(piece)
                )
            length += len(piece)
            yield TextDelta(0, piece, number, None, told)
        yield TextDelta(0, "", len(pieces) + 1, reason, cached_tokens=2)

    return script


@pytest.fixture
def speaking(start_server):
    async def start(*pieces, **options):
        return await start_server(script=saying(*pieces, **options), tools=FORMATS["qwen"])

    return start


def prompt(server):
    return "".join(map(chr, server.generator.requests[-1].prompt_tokens))


def unnamed(value):
    """Leave out what differs from one response to the next."""
    if isinstance(value, list):
        return [unnamed(item) for item in value]
    if not isinstance(value, dict):
        return value
    fleeting = {"id", "call_id", "item_id", "created_at", "completed_at"}
    return {key: unnamed(item) for key, item in value.items() if key not in fleeting}


async def test_a_plain_response_has_openais_form(speaking):
    server = await speaking("Hello", " world")
    response = (await server.respond("Hi", instructions="Be kind.", user="u1")).json
    assert response["id"].startswith("resp_")
    assert response["output"][0].pop("id").startswith("msg_")
    part = {"type": "output_text", "text": "Hello world", "annotations": [], "logprobs": []}
    assert response["output"] == [
        {"type": "message", "status": "completed", "role": "assistant", "content": [part]}
    ]
    assert response["usage"] == {
        "input_tokens": len("system:Be kind.|user:Hi"),
        "input_tokens_details": {"cached_tokens": 2, "cache_write_tokens": 0},
        "output_tokens": 3,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": len("system:Be kind.|user:Hi") + 3,
    }
    assert response["completed_at"] >= response["created_at"] > 0
    told = {"status": "completed", "instructions": "Be kind.", "user": "u1", "metadata": {}}
    told |= {"tools": [], "tool_choice": "auto", "temperature": 1.0, "top_p": 1.0, "error": None}
    assert response.items() >= told.items()
    assert prompt(server) == "system:Be kind.|user:Hi"


async def test_a_stream_has_openais_events_in_their_order(speaking):
    server = await speaking("Hello", " world")
    reply = await server.respond(stream=True)
    assert reply.headers["Content-Type"].startswith("text/event-stream")
    assert b"[DONE]" not in reply.raw
    events = reply.typed_events
    assert [event["type"].removeprefix("response.") for event in events] == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "completed",
    ]
    begun = events[0]["response"]
    assert begun["status"] == "in_progress"
    assert begun["output"] == []
    assert "usage" not in begun
    assert events[2]["item"]["content"] == []
    assert [event["delta"] for event in events[4:6]] == ["Hello", " world"]
    last = events[-1]["response"]
    assert events[6]["text"] == last["output"][0]["content"][0]["text"] == "Hello world"
    assert events[7]["part"] == last["output"][0]["content"][0]
    assert events[8]["item"] == last["output"][0]
    assert {event["item_id"] for event in events[3:8]} == {last["output"][0]["id"]}
    assert last["id"] == begun["id"]
    assert unnamed(last) == unnamed((await server.respond()).json)


async def test_an_answer_that_is_cut_is_incomplete(speaking):
    server = await speaking("Hello", reason=FinishReason.LENGTH)
    plain = (await server.respond(max_output_tokens=1)).json
    assert server.generator.requests[-1].sampling.max_tokens == 1
    assert plain["status"] == plain["output"][0]["status"] == "incomplete"
    assert plain["incomplete_details"] == {"reason": "max_output_tokens"}
    assert plain["completed_at"] is None
    assert plain["max_output_tokens"] == 1
    *_, done, last = (await server.respond(max_output_tokens=1, stream=True)).typed_events
    assert done["item"]["status"] == "incomplete"
    assert last["type"] == "response.incomplete"
    assert unnamed(last["response"]) == unnamed(plain)


@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_without_text_is_an_empty_message(speaking, stream):
    server = await speaking()
    reply = await server.respond(stream=stream)
    response = reply.typed_events[-1]["response"] if stream else reply.json
    [message] = response["output"]
    assert message["content"][0]["text"] == ""


async def test_calls_are_items_of_their_own(speaking):
    server = await speaking("Let me see.\n", *CALL, "\n" + CALL)
    plain = (await server.respond(tools=[WEATHER])).json
    message, first, second = plain["output"]
    assert message["content"][0]["text"] == "Let me see."
    assert first["id"].startswith("fc_")
    assert first["call_id"].startswith("call_")
    assert first["call_id"] != second["call_id"]
    assert unnamed(first) == {
        "type": "function_call",
        "status": "completed",
        "name": "get_weather",
        "arguments": '{"city": "Paris"}',
    }
    assert plain["tools"] == [WEATHER | {"strict": False}]
    events = (await server.respond(tools=[WEATHER], stream=True)).typed_events
    of_first = [event for event in events if event.get("output_index") == 1]
    added, *deltas, whole, done = of_first
    assert added["item"]["arguments"] == ""
    assert len(deltas) > 5
    assert {event["type"] for event in deltas} == {"response.function_call_arguments.delta"}
    assert "".join(event["delta"] for event in deltas) == '{"city": "Paris"}'
    assert whole["type"] == "response.function_call_arguments.done"
    assert (whole["name"], whole["arguments"]) == ("get_weather", '{"city": "Paris"}')
    assert whole["item_id"] == added["item"]["id"] == done["item"]["id"]
    last = events[-1]["response"]
    assert last["output"][1] == done["item"]
    assert unnamed(last) == unnamed(plain)


@pytest.mark.parametrize("stream", [False, True])
async def test_log_probabilities_are_those_of_the_text_before_calls(speaking, stream):
    server = await speaking("Let ", "me see.\n" + CALL[:12], CALL[12:])
    reply = await server.respond(tools=[WEATHER], stream=stream, **LOGPROBS)
    response = reply.typed_events[-1]["response"] if stream else reply.json
    told = response["output"][0]["content"][0]["logprobs"]
    assert "".join(token["token"] for token in told) == "Let me see."
    assert told[0]["top_logprobs"] == [{"token": "L", "logprob": -0.5, "bytes": [76]}]
    assert response["top_logprobs"] == 1
    if stream:
        deltas = [
            event["logprobs"]
            for event in reply.typed_events
            if "delta" in event and "content_index" in event
        ]
        assert [token for tokens in deltas[:2] for token in tokens] == told


async def test_items_are_the_conversation_that_chat_would_be_given(server):
    given = [
        {"role": "developer", "content": [{"type": "input_text", "text": "Be brief."}]},
        {"type": "message", "role": "user", "content": "Weather?"},
        {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "x"},
        {
            "type": "message",
            "id": "msg_1",
            "status": "completed",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "Let me see.", "annotations": []}],
        },
        CALLED | {"id": "fc_1", "status": "completed"},
        CALLED | {"call_id": "call_2"},
        RETURNED | {"output": [{"type": "input_text", "text": "rain"}]},
        RETURNED | {"call_id": "call_2"},
        {"role": "assistant", "content": "It rains."},
        {"role": "assistant", "content": "And shines."},
        {"role": "user", "content": [{"type": "input_text", "text": each} for each in "ab"]},
    ]
    server.model.require().encoder.apply_chat_template = lambda messages, **_: repr(messages)
    server.generator.max_model_len = 10_000
    assert (await server.respond(given)).status == 200
    call = {"type": "function", "function": {"name": "get_weather", "arguments": {}}}
    assert prompt(server) == repr(
        [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "Weather?"},
            {
                "role": "assistant",
                "content": "Let me see.",
                "tool_calls": [{"id": "call_1", **call}, {"id": "call_2", **call}],
            },
            {"role": "tool", "content": "rain", "tool_call_id": "call_1"},
            {"role": "tool", "content": "sunny", "tool_call_id": "call_2"},
            {"role": "assistant", "content": "It rains."},
            {"role": "assistant", "content": "And shines."},
            {"role": "user", "content": "a\nb"},
        ]
    )


async def test_what_a_response_was_can_be_sent_back(speaking):
    server = await speaking("Let me see.", CALL)
    output = (await server.respond(tools=[WEATHER])).json["output"]
    returned = RETURNED | {"call_id": output[1]["call_id"]}
    server.generator.max_model_len = 10_000
    reply = await server.respond([{"role": "user", "content": "Hi"}, *output, returned])
    assert reply.status == 200, reply.json
    assert prompt(server) == "user:Hi|assistant:Let me see.|tool:sunny"


async def test_sampling_is_told_to_the_engine_and_to_the_client(start_server):
    server = await start_server(sampling=SamplingParams(temperature=0.6, top_p=0.9))
    extras = {"seed": 7, "top_k": 5, "min_p": 0.1, "stop": ["x"], "cache_salt": "s"}
    response = (await server.respond(top_p=0.5, **extras, **LOGPROBS)).json
    assert (response["temperature"], response["top_p"]) == (0.6, 0.5)
    [request] = server.generator.requests
    wanted = SamplingParams(temperature=0.6, top_p=0.5, top_k=5, min_p=0.1, seed=7, stop=("x",))
    assert request.sampling == replace(wanted, logprobs=1)
    assert request.cache_salt == "s"


async def test_who_asks_and_how_is_repeated(server):
    names = {"metadata": {"a": "b"}, "safety_identifier": "s", "prompt_cache_key": "k"}
    response = (await server.respond(**names, store=True, service_tier="flex")).json
    assert response.items() >= names.items()
    assert response["store"] is False
    assert response["service_tier"] == "default"
    nobody = (await server.respond()).json
    repeated = ("user", "safety_identifier", "prompt_cache_key")
    assert [nobody[name] for name in repeated] == [None, None, None]


async def test_the_form_of_the_answer_becomes_a_grammar(speaking):
    server = await speaking("{}")
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    schema["additionalProperties"] = False
    wanted = {"type": "json_schema", "name": "thing", "schema": schema, "strict": True}
    response = (await server.respond(text={"format": wanted})).json
    assert server.generator.requests[-1].sampling.grammar.kind is GrammarKind.JSON_SCHEMA
    assert response["text"] == {"format": wanted, "verbosity": "medium"}
    response = (await server.respond(text={"format": {"type": "json_object"}})).json
    assert server.generator.requests[-1].sampling.grammar.kind is GrammarKind.JSON_OBJECT
    assert response["text"]["format"] == {"type": "json_object"}
    named = {"type": "function", "name": "get_weather"}
    response = (await server.respond(tools=[WEATHER], tool_choice=named)).json
    assert server.generator.requests[-1].sampling.grammar.kind is GrammarKind.STRUCTURE
    assert response["tool_choice"] == named


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id", "unsupported_parameter"),
        ({"conversation": "conv_1"}, "conversation", "unsupported_parameter"),
        ({"background": True}, "background", "unsupported_parameter"),
        ({"prompt": {"id": "pmpt_1"}}, "prompt", "unsupported_parameter"),
        ({"truncation": "auto"}, "truncation", "unsupported_parameter"),
        ({"reasoning": {"effort": "high"}}, "reasoning.effort", "unsupported_parameter"),
        ({"n": 2}, "n", "unsupported_parameter"),
        ({"max_tokens": 5}, "max_tokens", "unsupported_parameter"),
        ({"response_format": {"type": "text"}}, "response_format", "unsupported_parameter"),
        ({"messages": []}, "messages", "unsupported_parameter"),
        ({"max_output_tokens": 0}, "max_output_tokens", "integer_below_min_value"),
        ({"temperature": 3}, "temperature", "decimal_above_max_value"),
        ({"top_logprobs": 2}, "top_logprobs", "invalid_parameter_combination"),
        ({"include": ["other"]}, "include[0]", "invalid_value"),
        ({"metadata": {"a": 1}}, "metadata.a", "invalid_type"),
        ({"user": 1}, "user", "invalid_type"),
        ({"text": {"verbosity": "low"}}, "text.verbosity", "unsupported_parameter"),
        ({"text": {"format": {"type": "xml"}}}, "text.format.type", "invalid_value"),
        (
            {"text": {"format": {"type": "json_schema", "name": "a"}}},
            "text.format.schema",
            "missing_required_parameter",
        ),
        (
            {
                "text": {
                    "format": {
                        "type": "json_schema",
                        "name": "a",
                        "schema": {"type": "object", "properties": {"b": {"not": {}}}},
                        "strict": True,
                    }
                }
            },
            "text.format",
            None,
        ),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type", "invalid_value"),
        ({"tools": [{"type": "function"}]}, "tools[0].name", "missing_required_parameter"),
        (
            {"tools": [WEATHER | {"parameters": {"type": "array"}}], "tool_choice": "required"},
            "tools[0].parameters",
            "invalid_function_parameters",
        ),
        ({"tool_choice": "required"}, "tool_choice", "invalid_parameter_combination"),
        (
            {"tools": [WEATHER], "tool_choice": {"type": "function", "name": "other"}},
            "tool_choice",
            "invalid_parameter_combination",
        ),
        (
            {"tools": [WEATHER], "tool_choice": {"type": "mcp", "server_label": "x"}},
            "tool_choice.type",
            "invalid_value",
        ),
        ({"input": None}, "input", "missing_required_parameter"),
        ({"input": 5}, "input", "invalid_type"),
        ({"input": []}, "input", "empty_array"),
        ({"input": ["a"]}, "input[0]", "invalid_type"),
        ({"input": [{"type": "item_reference", "id": "a"}]}, "input[0].type", "invalid_value"),
        ({"input": [{"content": "a"}]}, "input[0].role", "missing_required_parameter"),
        ({"input": [{"role": "tool", "content": "a"}]}, "input[0].role", "invalid_value"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image"}]}]},
            "input[0].content[0].type",
            "invalid_value",
        ),
        ({"input": [{"type": "reasoning", "id": "a", "summary": []}]}, "input", None),
        ({"input": [RETURNED]}, "input", None),
        ({"input": [CALLED]}, "input", None),
        ({"input": "x" * 200}, "input", "context_length_exceeded"),
        ({"input": "refuse me"}, "input", "invalid_messages"),
        ({"model": "other"}, "model", "model_not_found"),
    ],
)
async def test_what_is_refused_is_named(speaking, fields, param, code):
    server = await speaking("Hello")
    body = {"model": server.model.name, "input": "Hi", "stream": True}
    reply = await server.post("/v1/responses", body | fields)
    assert reply.status == (404 if param == "model" else 400)
    assert (reply.error["param"], reply.error["code"]) == (param, code)
    assert not server.generator.requests


@pytest.mark.parametrize("stream", [False, True])
async def test_a_schema_that_is_too_deep_to_be_repeated_is_refused(speaking, stream):
    server = await speaking("Hello")
    for depth, status in ((200, 200), (252, 400), (300, 400)):
        parameters = {"type": "object"}
        for _ in range(depth):
            parameters = {"type": "object", "properties": parameters}
        tools = json.dumps([WEATHER | {"parameters": parameters}])
        raw = f'{{"model": "scripted", "input": "Hi", "stream": {json.dumps(stream)}, "tools": '
        reply = await server.request("POST", "/v1/responses", f"{raw}{tools}}}".encode())
        assert reply.status == status
    assert reply.error["message"] == "The request body is nested too deeply."


async def test_a_conversation_of_many_items_is_translated(server):
    server.generator.max_model_len = 100_000
    given = [{"role": "user", "content": "a"}] * 600
    assert (await server.respond(given)).status == 200
    assert prompt(server) == "|".join(["user:a"] * 600)


async def test_a_parameter_that_moved_says_where_to(server):
    error = (await server.respond(max_tokens=5)).error
    assert error["message"].endswith("this parameter has moved to 'max_output_tokens'.")


async def test_calls_without_outputs_are_worded_as_openai_does(server):
    error = (await server.respond([CALLED])).error
    assert error["message"] == "No tool output found for function call call_1."
    error = (await server.respond([RETURNED, CALLED])).error
    expected = "No tool call found for function call output with call_id call_1."
    assert error["message"] == expected


async def test_an_engine_that_fails_midway_ends_the_stream_with_an_error(start_server):
    async def script(request):
        yield TextDelta(0, "Hel", 1)
        raise EngineError("it broke")

    server = await start_server()
    server.generator.script = script
    reply = await server.respond(stream=True)
    *_, failed, error = reply.typed_events
    assert failed["type"] == "response.failed"
    assert failed["response"]["status"] == "failed"
    assert failed["response"]["error"]["code"] == "server_error"
    assert error["type"] == "error"
    assert error["error"].items() >= {"code": "engine_error", "param": None}.items()
    assert error["message"] == error["error"]["message"] == "The engine failed: it broke"
    count = 'refrain_engine_requests_total{endpoint="/v1/responses",outcome="server_error"}'
    assert await server.metric(count) == 1


async def test_what_the_engine_gives_up_at_once_begins_and_fails(start_server):
    async def script(request):
        yield TextDelta(0, "", 0, FinishReason.ABORT)

    server = await start_server()
    server.generator.script = script
    events = (await server.respond(stream=True)).typed_events
    kinds = [event["type"] for event in events]
    assert kinds == ["response.created", "response.in_progress", "response.failed", "error"]


@pytest.mark.parametrize("stream", [False, True])
async def test_what_fails_before_the_first_word_has_a_status_of_its_own(start_server, stream):
    async def script(request):
        raise QueueFullError("too many", 3)
        yield

    server = await start_server()
    server.generator.script = script
    reply = await server.respond(stream=stream)
    assert reply.status == 429
    assert reply.error["code"] == "queue_full"
    assert reply.headers["Retry-After"] == "3"


@pytest.mark.parametrize("stream", [False, True])
async def test_a_generation_that_ends_early_is_no_answer(start_server, stream):
    async def script(request):
        yield TextDelta(0, "Hel", 1)

    server = await start_server()
    server.generator.script = script
    reply = await server.respond(stream=stream)
    if stream:
        assert reply.typed_events[-1]["error"]["code"] == "engine_error"
    else:
        assert reply.status == 500


async def test_a_client_that_leaves_cancels_its_generation(start_server):
    async def script(request):
        yield TextDelta(0, "Hello", 1)
        await server.generator.cancelled.wait()

    server = await start_server()
    server.generator.script = script
    body = {"model": server.model.name, "input": "Hi", "stream": True}
    async with server.session.post(f"{server.url}/v1/responses", json=body) as reply:
        await reply.content.readuntil(b"output_text.delta")
        reply.close()
    await server.generator.cancelled.wait()
