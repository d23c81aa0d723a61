"""POST /v1/completions, plain and streamed, with a scripted generator."""

import asyncio

import pytest

from backend.ports import EngineError
from backend.scheduler.request import FinishReason, GenerationRequest, TextDelta
from backend.server.pipeline import Generation

pytest_plugins = ["running_backend"]


async def echo_tokens(request):
    """Answer with the prompt in capitals, once for each choice."""
    text = "".join(map(chr, request.prompt_tokens)).upper()
    for index in range(request.n):
        yield TextDelta(index, f"{text}{index}", 1)
        yield TextDelta(index, "", 2, FinishReason.LENGTH)


async def test_a_plain_reply_has_openais_form(server):
    body = (await server.complete("Hi")).json
    assert body["id"].startswith("cmpl-")
    assert body["object"] == "text_completion"
    assert body["choices"] == [
        {"text": "Hello world", "index": 0, "logprobs": None, "finish_reason": "stop"}
    ]
    assert body["usage"] == {
        "prompt_tokens": 2,
        "completion_tokens": 3,
        "total_tokens": 5,
        "prompt_tokens_details": {"cached_tokens": 0},
    }
    assert server.generator.requests[0].sampling.max_tokens == 16


@pytest.mark.parametrize(
    ("prompt", "texts"),
    [
        ("ab", ["AB0", "AB1"]),
        (["a", "b"], ["A0", "A1", "B0", "B1"]),
        ([97, 98], ["AB0", "AB1"]),
        ([[97], [98, 99]], ["A0", "A1", "BC0", "BC1"]),
    ],
)
async def test_every_form_of_prompt(start_server, prompt, texts):
    server = await start_server(script=echo_tokens)
    body = (await server.complete(prompt, n=2)).json
    assert [choice["text"] for choice in body["choices"]] == texts
    assert [choice["index"] for choice in body["choices"]] == list(range(len(texts)))
    streamed = [""] * len(texts)
    for event in (await server.complete(prompt, n=2, stream=True)).events:
        streamed[event["choices"][0]["index"]] += event["choices"][0]["text"]
    assert streamed == texts


async def test_a_stream_has_openais_form(server):
    reply = await server.complete("Hi", stream=True, stream_options={"include_usage": True})
    *events, last = reply.events
    assert {event["object"] for event in [*events, last]} == {"text_completion"}
    assert [
        (event["choices"][0]["text"], event["choices"][0]["finish_reason"]) for event in events
    ] == [("Hello", None), (" world", None), ("", "stop")]
    assert all(event["usage"] is None for event in events)
    assert (last["choices"], last["usage"]["total_tokens"]) == ([], 5)


async def test_text_prompts_can_be_echoed(start_server):
    server = await start_server(script=echo_tokens)
    body = (await server.complete(["a", "b"], echo=True)).json
    assert [choice["text"] for choice in body["choices"]] == ["aA0", "bB0"]
    events = (await server.complete("a", echo=True, stream=True)).events
    assert [event["choices"][0]["text"] for event in events] == ["a", "A0", ""]


@pytest.mark.parametrize(
    ("prompt", "param", "code"),
    [
        ("", "prompt", "empty_string"),
        ([], "prompt", "empty_array"),
        ([0x110000], "prompt", "invalid_value"),
        ([[1], []], "prompt[1]", "empty_array"),
        ([1, "a"], "prompt[1]", "invalid_type"),
        ([-1], "prompt[0]", "integer_below_min_value"),
        ({"a": 1}, "prompt", "invalid_type"),
        (["fits", "x" * 100], "prompt", "context_length_exceeded"),
    ],
)
async def test_prompts_that_cannot_be_completed(server, prompt, param, code):
    reply = await server.complete(prompt)
    assert (reply.status, reply.error["param"], reply.error["code"]) == (400, param, code)
    assert server.generator.requests == []


async def test_tokens_can_be_echoed_too(start_server):
    server = await start_server(script=echo_tokens)
    body = (await server.complete([[97, 98], [99]], echo=True)).json
    assert [choice["text"] for choice in body["choices"]] == ["abAB0", "cC0"]


@pytest.mark.parametrize("stream", [False, True])
async def test_no_tokens_are_told_where_none_are_wanted(start_server, stream):
    server = await start_server(script=echo_tokens)
    reply = await server.complete("ab", echo=True, max_tokens=0, stream=stream)
    if stream:
        choices = [event["choices"][0] for event in reply.events]
        assert "".join(choice["text"] for choice in choices) == "ab"
        assert choices[-1]["finish_reason"] == "length"
    else:
        (choice,) = reply.json["choices"]
        assert (choice["text"], choice["finish_reason"]) == ("ab", "length")
        assert reply.json["usage"]["completion_tokens"] == 0
    assert server.generator.requests[0].sampling.max_tokens == 1


async def test_one_failing_prompt_fails_all_and_cancels_the_others(start_server):
    others_run = asyncio.Event()

    async def script(request):
        if request.prompt_tokens == (98,):
            await others_run.wait()
            raise EngineError("out of luck")
        if request.request_id != "warm-up":
            others_run.set()
            await asyncio.Event().wait()
        yield TextDelta(0, "", 1, FinishReason.STOP)

    server = await start_server(script=script)
    reply = await server.complete(["a", "b"])
    assert (reply.status, reply.error["code"]) == (500, "engine_error")
    await asyncio.wait_for(server.generator.cancelled.wait(), 60)


async def test_what_a_slow_reader_does_not_take_is_not_fetched():
    made = 0

    class Endless:
        async def generate(self, request):
            nonlocal made
            while True:
                made += 1
                yield TextDelta(0, "x", 1)
                await asyncio.sleep(0)

    generation = Generation("id", [GenerationRequest("", (prompt,)) for prompt in (1, 2, 3)])
    deltas = generation.deltas(Endless())
    await anext(deltas)
    for _ in range(200):
        await asyncio.sleep(0)
    assert made <= 8  # one that was read, and of each prompt one that waits and one in hand
    assert {(await anext(deltas)).index for _ in range(6)} == {0, 1, 2}
    await deltas.aclose()
    before = made
    await asyncio.sleep(0)
    assert made == before
