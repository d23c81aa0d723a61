"""What a request to /v1/responses asks of the engine, and what is refused."""

import json
from dataclasses import replace

import pytest
from responses_api import CALL, CALLED, LOGPROBS, RETURNED, WEATHER, prompt

from backend.scheduler.request import GrammarKind, SamplingParams

pytest_plugins = ["running_backend"]


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
    call = {"type": "function", "function": {"name": "get_weather", "arguments": "{}"}}
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
    assert request.cache_salt


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
        ({"reasoning": {"effort": "much"}}, "reasoning.effort", "invalid_value"),
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


async def test_one_choice_may_be_asked_for_as_a_decimal(server):
    assert (await server.respond(n=1.0)).status == 200


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
