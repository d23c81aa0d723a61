"""Log probabilities and cached tokens in replies, plain and streamed, with a scripted generator."""

import math

import pytest

from backend.core.types import FinishReason, TextDelta, TokenLogprobs

pytest_plugins = ["running_backend"]

A, B, C = map(ord, "aéc")


def logprobs(token, offset, *top):
    return TokenLogprobs(
        token, -0.5, tuple((each, -0.25 * (1 + at)) for at, each in enumerate(top)), offset
    )


async def script(request):
    for index in range(request.n):
        yield TextDelta(index, "a", 1, logprobs=(logprobs(A, 0, A, B),), cached_tokens=3)
        held = (logprobs(B, 1, C, A), logprobs(C, 2, C, B))
        yield TextDelta(index, "éc", 3, logprobs=held, cached_tokens=3)
        yield TextDelta(index, "", 4, FinishReason.LENGTH, cached_tokens=3 + index)


@pytest.fixture
async def scripted(start_server):
    return await start_server(script=script)


async def test_chat_describes_each_token(scripted):
    reply = (await scripted.chat(logprobs=True, top_logprobs=2)).json
    assert scripted.generator.requests[0].sampling.logprobs == 2
    told = reply["choices"][0]["logprobs"]
    assert told["refusal"] is None
    assert [each["token"] for each in told["content"]] == ["a", "é", "c"]
    assert told["content"][1] == {
        "token": "é",
        "logprob": -0.5,
        "bytes": [0xC3, 0xA9],
        "top_logprobs": [
            {"token": "c", "logprob": -0.25, "bytes": [99]},
            {"token": "a", "logprob": -0.5, "bytes": [97]},
        ],
    }


async def test_a_stream_of_chat_has_them_with_their_text(scripted):
    plain = (await scripted.chat(logprobs=True, top_logprobs=2)).json["choices"][0]["logprobs"]
    chunks = [
        event["choices"][0]
        for event in (await scripted.chat(logprobs=True, top_logprobs=2, stream=True)).events
    ]
    described = []
    for chunk in chunks:
        tokens = chunk["logprobs"]["content"] if chunk["logprobs"] else []
        assert "".join(each["token"] for each in tokens) == chunk["delta"].get("content", "")
        described += tokens
    assert described == plain["content"]
    assert chunks[0]["logprobs"] is None
    assert chunks[-1]["logprobs"] is None


async def test_chat_without_top_describes_the_chosen_alone(scripted):
    await scripted.chat(logprobs=True)
    assert scripted.generator.requests[0].sampling.logprobs == 0


@pytest.mark.parametrize("fields", [{}, {"logprobs": False}, {"logprobs": None}])
async def test_without_being_asked_nothing_is_told(scripted, fields):
    assert (await scripted.chat(**fields)).json["choices"][0]["logprobs"] is None
    assert scripted.generator.requests[0].sampling.logprobs is None


async def test_completions_tell_names_values_and_places(scripted):
    told = (await scripted.complete("Hi", logprobs=2)).json["choices"][0]["logprobs"]
    assert told == {
        "tokens": ["a", "é", "c"],
        "token_logprobs": [-0.5] * 3,
        "top_logprobs": [
            {"a": -0.25, "é": -0.5},
            # The chosen token is told too where it is not among the likeliest.
            {"c": -0.25, "a": -0.5, "é": -0.5},
            {"c": -0.25, "é": -0.5},
        ],
        "text_offset": [0, 1, 2],
    }


async def test_a_stream_of_completions_adds_up_to_the_same(scripted):
    plain = (await scripted.complete("Hi", logprobs=2)).json["choices"][0]["logprobs"]
    added = {key: [] for key in plain}
    for event in (await scripted.complete("Hi", logprobs=2, stream=True)).events:
        for key, values in (event["choices"][0]["logprobs"] or {}).items():
            added[key] += values
    assert added == plain


async def test_what_is_impossible_is_a_number_too(start_server):
    async def impossible(request):
        told = (TokenLogprobs(A, -math.inf, ((B, -math.inf),)),)
        yield TextDelta(0, "a", 1, FinishReason.STOP, told)

    server = await start_server(script=impossible)
    (told,) = (await server.chat(logprobs=True, top_logprobs=1)).json["choices"][0]["logprobs"][
        "content"
    ]
    assert told["logprob"] == told["top_logprobs"][0]["logprob"] == -9999.0


async def test_parts_of_characters_are_bytes(start_server):
    server = await start_server(script=script)
    server.model.require().encoder.token_bytes = lambda token: chr(token).encode()[:1]
    told = (await server.complete(logprobs=0)).json["choices"][0]["logprobs"]
    assert told["tokens"] == ["a", "bytes:\\xc3", "c"]
    (_, part, _) = (await server.chat(logprobs=True)).json["choices"][0]["logprobs"]["content"]
    assert (part["token"], part["bytes"]) == ("\ufffd", [0xC3])


@pytest.mark.parametrize("stream", [False, True])
async def test_cached_tokens_are_the_engines_and_count_once_for_each_prompt(scripted, stream):
    fields = {"n": 2, "stream": stream} | (
        {"stream_options": {"include_usage": True}} if stream else {}
    )
    reply = await scripted.complete(["a", "b"], **fields)
    body = reply.events[-1] if stream else reply.json
    assert body["usage"]["prompt_tokens_details"] == {"cached_tokens": 6}
