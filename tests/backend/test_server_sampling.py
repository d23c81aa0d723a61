"""Sampling parameters: how they reach the engine, and how they are refused."""

import dataclasses

import pytest

from backend.scheduler.request import SamplingParams

pytest_plugins = ["running_backend"]


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        (
            {"presence_penalty": 2, "frequency_penalty": -2.0, "repetition_penalty": 1.1},
            {"presence_penalty": 2.0, "frequency_penalty": -2.0, "repetition_penalty": 1.1},
        ),
        ({"min_p": 0.1, "min_tokens": 3}, {"min_p": 0.1, "min_tokens": 3}),
        ({"stop": list("abcdefgh") * 8}, {"stop": tuple("abcdefgh") * 8}),
        ({"stop_token_ids": [7, 5, 7]}, {"stop_token_ids": frozenset({5, 7})}),
        ({"logit_bias": {"5": 1, "6": -100}}, {"logit_bias": ((5, 1.0), (6, -100.0))}),
        ({"logit_bias": {}, "stop_token_ids": [], "min_tokens": 0}, {}),
    ],
)
@pytest.mark.parametrize("endpoint", ["chat", "complete"])
async def test_parameters_reach_the_engine(server, endpoint, fields, expected):
    reply = await getattr(server, endpoint)("Hi", max_tokens=9, **fields)
    assert reply.status == 200
    assert server.generator.requests[0].sampling == SamplingParams(max_tokens=9, **expected)


async def test_every_field_of_the_parameters_can_be_set_by_a_request(server):
    everything = {
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 3,
        "min_p": 0.1,
        "seed": 7,
        "max_tokens": 9,
        "min_tokens": 2,
        "stop": "x",
        "stop_token_ids": [5],
        "ignore_eos": True,
        "presence_penalty": 1.0,
        "frequency_penalty": 1.0,
        "repetition_penalty": 1.1,
        "logit_bias": {"5": 1},
        "logprobs": 1,
        "echo": True,
    }
    # A grammar says when the text is over, so it does not go with min_tokens and ignore_eos.
    for fields in everything, {"guided_regex": "a+"}:
        await server.complete("Hi", **fields)
    default = SamplingParams()
    sent = [request.sampling for request in server.generator.requests]
    assert len(sent) == 2
    for field in dataclasses.fields(SamplingParams):
        values = {getattr(each, field.name) for each in sent}
        assert values != {getattr(default, field.name)}, field.name


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"presence_penalty": 2.1}, "presence_penalty", "decimal_above_max_value"),
        ({"frequency_penalty": -3}, "frequency_penalty", "decimal_below_min_value"),
        ({"repetition_penalty": 0}, "repetition_penalty", "decimal_below_min_value"),
        ({"repetition_penalty": "1"}, "repetition_penalty", "invalid_type"),
        ({"min_p": 1.5}, "min_p", "decimal_above_max_value"),
        ({"min_tokens": -1}, "min_tokens", "integer_below_min_value"),
        ({"min_tokens": 5, "max_tokens": 4}, "min_tokens", "invalid_parameter_combination"),
        ({"stop_token_ids": [1, -1]}, "stop_token_ids[1]", "integer_below_min_value"),
        ({"stop_token_ids": 3}, "stop_token_ids", "invalid_type"),
        ({"stop_token_ids": [1] * 1_025}, "stop_token_ids", "array_above_max_length"),
        ({"logit_bias": dict.fromkeys(map(str, range(1_025)), 1)}, "logit_bias", None),
        ({"logit_bias": [1]}, "logit_bias", "invalid_type"),
        ({"logit_bias": {"a": 1}}, "logit_bias", "invalid_value"),
        ({"logit_bias": {"-1": 1}}, "logit_bias", "invalid_value"),
        ({"logit_bias": {"9" * 5000: 1}}, "logit_bias", "invalid_value"),
        ({"logit_bias": {"5": 101}}, "logit_bias.5", "decimal_above_max_value"),
        ({"logit_bias": {"5": "1"}}, "logit_bias.5", "invalid_type"),
        ({"logit_bias": {str(0x110000): 1}}, "logit_bias", "invalid_value"),
        ({"prompt_logprobs": 1}, "prompt_logprobs", "unsupported_parameter"),
        ({"use_beam_search": True}, "use_beam_search", "unsupported_parameter"),
        ({"allowed_token_ids": [1]}, "allowed_token_ids", "unsupported_parameter"),
        ({"cache_salt": ""}, "cache_salt", "empty_string"),
    ],
)
@pytest.mark.parametrize("endpoint", ["chat", "complete"])
async def test_what_is_out_of_range_is_refused(server, endpoint, fields, param, code):
    reply = await getattr(server, endpoint)("Hi", **fields)
    assert reply.status == 400
    assert (reply.error["param"], reply.error["code"]) == (param, code)
    assert param in reply.error["message"]
    assert len(reply.error["message"]) < 300
    assert server.generator.requests == []


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"top_logprobs": 3}, "top_logprobs", "invalid_parameter_combination"),
        (
            {"logprobs": False, "top_logprobs": 3},
            "top_logprobs",
            "invalid_parameter_combination",
        ),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", "integer_above_max_value"),
        ({"logprobs": 1}, "logprobs", "invalid_type"),
    ],
)
async def test_log_probabilities_that_chat_does_not_have(server, fields, param, code):
    reply = await server.chat(**fields)
    assert (reply.status, reply.error["param"], reply.error["code"]) == (400, param, code)


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"logprobs": 6}, "logprobs", "integer_above_max_value"),
        ({"logprobs": True}, "logprobs", "invalid_type"),
        ({"n": 2, "best_of": 1}, "best_of", "invalid_parameter_combination"),
        ({"n": 2, "best_of": 3}, "best_of", "unsupported_parameter"),
        ({"best_of": 2}, "best_of", "unsupported_parameter"),
        ({"min_tokens": 17}, "min_tokens", "invalid_parameter_combination"),
    ],
)
async def test_what_completions_do_not_have(server, fields, param, code):
    reply = await server.complete(**fields)
    assert (reply.status, reply.error["param"], reply.error["code"]) == (400, param, code)
    assert server.generator.requests == []


async def test_choices_are_bounded_over_all_prompts(server):
    reply = await server.complete(["a"] * 17, n=128)
    assert (reply.status, reply.error["param"]) == (400, "n")
    assert len((await server.complete(["a"] * 16, n=128)).json["choices"]) == 2_048


async def test_best_of_as_many_as_are_returned_needs_no_choice(server):
    assert len((await server.complete(n=2, best_of=2)).json["choices"]) == 2
    assert (await server.complete(best_of=1)).status == 200


async def test_a_salt_goes_with_every_prompt(server):
    await server.complete(["a", "b"], cache_salt="tenant")
    one, two = (request.cache_salt for request in server.generator.requests)
    assert one == two != ""
    await server.chat()
    assert server.generator.requests[-1].cache_salt == ""


async def test_the_models_recommendation_counts_here_too(start_server):
    server = await start_server(sampling=SamplingParams(min_p=0.05, repetition_penalty=1.1))
    await server.chat()
    await server.chat(min_p=0, repetition_penalty=1)
    advised, own = (request.sampling for request in server.generator.requests)
    assert advised == SamplingParams(min_p=0.05, repetition_penalty=1.1)
    assert own == SamplingParams()
