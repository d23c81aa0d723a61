"""Log probabilities and cached tokens in replies, plain and streamed, with a scripted generator."""

import math

import pytest

from backend.scheduler.request import FinishReason, TextDelta, TokenLogprobs
from backend.server.completions import EchoedPrompt

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


async def scoring(request):
    """Say of each token of the prompt but the first how likely it was."""
    known = tuple(
        TokenLogprobs(token, -float(at), ((A, -0.5),))
        for at, token in enumerate(request.prompt_tokens)
    )[1:]
    for index in range(request.n):
        yield TextDelta(index, "a", 1, logprobs=(logprobs(A, 0),), prompt_logprobs=known)
        yield TextDelta(index, "c", 2, FinishReason.LENGTH, (logprobs(C, 1),))


@pytest.mark.parametrize("stream", [False, True])
async def test_an_echoed_prompt_has_log_probabilities_too(start_server, stream):
    server = await start_server(script=scoring)
    reply = await server.complete("xéz", echo=True, logprobs=1, n=2, stream=stream)
    assert server.generator.requests[0].sampling.prompt_logprobs == 1
    told = [{}, {}]
    for body in reply.events if stream else [reply.json]:
        for choice in body["choices"]:
            for key, values in (choice["logprobs"] or {}).items():
                told[choice["index"]][key] = told[choice["index"]].get(key, []) + values
    assert told[0] == told[1]
    assert told[0] == {
        "tokens": ["x", "é", "z", "a", "c"],
        "token_logprobs": [None, -1.0, -2.0, -0.5, -0.5],
        "top_logprobs": [
            None,
            {"a": -0.5, "é": -1.0},
            {"a": -0.5, "z": -2.0},
            {"a": -0.5},
            {"c": -0.5},
        ],
        "text_offset": [0, 1, 2, 3, 4],
    }


async def test_a_prompt_alone_can_be_scored(start_server):
    server = await start_server(script=scoring)
    (choice,) = (await server.complete([120, 121], echo=True, logprobs=1, max_tokens=0)).json[
        "choices"
    ]
    assert choice["text"] == "xy"
    assert choice["logprobs"]["tokens"] == ["x", "y"]
    assert choice["logprobs"]["token_logprobs"] == [None, -1.0]


@pytest.mark.parametrize("stream", [False, True])
async def test_missing_log_probabilities_of_a_prompt_are_a_failure(scripted, stream):
    reply = await scripted.complete("ab", echo=True, logprobs=1, stream=stream)
    if stream:
        assert '"engine_error"' in reply.data[-1]
    else:
        assert (reply.status, reply.error["code"]) == (500, "engine_error")


async def test_places_in_a_prompt_know_of_tokens_that_are_not_in_its_text():
    spelled = [b"<s>", b" Hi", b" \xc3", b"\xa9", b"!"]
    known = tuple(TokenLogprobs(token, -1.0) for token in range(1, 5))
    told = EchoedPrompt("Hi é!", (0, 1, 2, 3, 4)).logprobs(known, spelled.__getitem__)
    assert told["text_offset"] == [0, 0, 2, 3, 4]
    assert told["tokens"] == ["<s>", " Hi", "bytes:\\x20\\xc3", "bytes:\\xa9", "!"]
