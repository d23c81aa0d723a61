"""POST /v1/chat/completions, plain and streamed, with a scripted generator."""

import pytest

from backend.scheduler.request import FinishReason, Priority, SamplingParams, TextDelta

pytest_plugins = ["running_backend"]


async def test_a_plain_reply_has_openais_form(server):
    reply = await server.chat("Hi", n=2)
    assert reply.status == 200
    assert reply.headers["Content-Type"].startswith("application/json")
    body = reply.json
    assert body["id"].startswith("chatcmpl-")
    assert body["object"] == "chat.completion"
    assert body["model"] == "scripted"
    assert [choice["index"] for choice in body["choices"]] == [0, 1]
    assert body["choices"][1] == {
        "index": 1,
        "message": {
            "role": "assistant",
            "content": "Hello world",
            "refusal": None,
            "annotations": [],
        },
        "logprobs": None,
        "finish_reason": "stop",
    }
    assert body["usage"] == {
        "prompt_tokens": len("user:Hi"),
        "completion_tokens": 6,
        "total_tokens": len("user:Hi") + 6,
        "prompt_tokens_details": {"cached_tokens": 0},
    }


async def test_a_stream_has_openais_form(server):
    reply = await server.chat("Hi", stream=True)
    assert reply.headers["Content-Type"] == "text/event-stream; charset=utf-8"
    events = reply.events
    assert len({(event["id"], event["created"], event["model"]) for event in events}) == 1
    assert {event["object"] for event in events} == {"chat.completion.chunk"}
    assert all("usage" not in event for event in events)
    assert [
        (event["choices"][0]["delta"], event["choices"][0]["finish_reason"]) for event in events
    ] == [
        ({"role": "assistant", "content": "", "refusal": None}, None),
        ({"content": "Hello"}, None),
        ({"content": " world"}, None),
        ({}, "stop"),
    ]


async def test_a_stream_with_usage_ends_in_a_chunk_of_its_own(server):
    reply = await server.chat("Hi", stream=True, stream_options={"include_usage": True})
    *events, last = reply.events
    assert all(event["usage"] is None and len(event["choices"]) == 1 for event in events)
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == 3
    assert last["usage"]["prompt_tokens_details"] == {"cached_tokens": 0}


async def test_each_choice_of_a_stream_begins_with_the_role_and_ends_once(start_server):
    async def interleaved(request):
        yield TextDelta(1, "b", 1)
        yield TextDelta(0, "a", 1)
        yield TextDelta(1, "B", 2, FinishReason.LENGTH)
        yield TextDelta(0, "A", 2, FinishReason.STOP)

    server = await start_server(script=interleaved)
    choices = [event["choices"][0] for event in (await server.chat(n=2, stream=True)).events]
    for index, text, reason in ((0, "aA", "stop"), (1, "bB", "length")):
        own = [choice for choice in choices if choice["index"] == index]
        assert own[0]["delta"]["role"] == "assistant"
        assert "".join(choice["delta"].get("content", "") for choice in own) == text
        assert [choice["finish_reason"] for choice in own] == [None] * (len(own) - 1) + [reason]


async def test_sampling_parameters_reach_the_engine(server):
    await server.chat(temperature=0, top_p=0.5, top_k=3, seed=7, stop=["a", "b"], max_tokens=9, n=2)
    request = server.generator.requests[0]
    assert request.n == 2
    assert request.sampling == SamplingParams(
        temperature=0.0, top_p=0.5, top_k=3, seed=7, stop=("a", "b"), max_tokens=9
    )


async def test_defaults_are_openais(server):
    await server.chat()
    assert server.generator.requests[0].sampling == SamplingParams(temperature=1.0, max_tokens=None)


async def test_the_models_recommendation_fills_what_a_request_leaves_open(start_server):
    recommended = SamplingParams(temperature=0.6, top_p=0.9, top_k=20)
    server = await start_server(sampling=recommended)
    await server.chat(top_p=0.5)
    await server.chat(temperature=0, top_k=0)
    open_top_p, own = (request.sampling for request in server.generator.requests)
    assert open_top_p == SamplingParams(temperature=0.6, top_p=0.5, top_k=20)
    assert own == SamplingParams(temperature=0.0, top_p=0.9, top_k=0)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"max_completion_tokens": 5}, SamplingParams(max_tokens=5)),
        ({"stop": "x"}, SamplingParams(stop=("x",))),
        ({"top_k": -1}, SamplingParams(top_k=0)),
        ({"ignore_eos": True}, SamplingParams(ignore_eos=True)),
        ({"temperature": None, "stop": None, "max_tokens": None, "n": None}, SamplingParams()),
    ],
)
async def test_other_ways_to_say_it(server, fields, expected):
    assert (await server.chat(**fields)).status == 200
    assert server.generator.requests[0].sampling == expected


async def test_messages_become_the_templates_prompt(server):
    messages = [
        {"role": "developer", "content": "Be kind."},
        {"role": "assistant", "content": None, "refusal": None, "tool_calls": None},
        {"role": "user", "content": [{"type": "text", "text": t} for t in ("one", "two")]},
    ]
    await server.post("/v1/chat/completions", {"model": "scripted", "messages": messages})
    prompt = "".join(map(chr, server.generator.requests[0].prompt_tokens))
    assert prompt == "system:Be kind.|assistant:|user:one\ntwo"


async def test_long_prompts_are_encoded_off_the_event_loop(start_server):
    import threading

    server = await start_server(max_model_len=1_000_000)
    encoder = server.model.require().encoder
    threads = []
    encode = encoder.encode

    def spy(text, **options):
        threads.append(threading.current_thread() is threading.main_thread())
        return encode(text, **options)

    encoder.encode = spy
    for length in (10, 300_000):
        assert (await server.chat("x" * length)).status == 200
    assert threads == [True, False]
    assert len(server.generator.requests[1].prompt_tokens) == 300_000 + len("user:")


@pytest.mark.parametrize(
    "fields",
    [
        {"user": "u", "metadata": {"a": "b"}, "store": True, "service_tier": "auto"},
        {"safety_identifier": "s", "prompt_cache_key": "k", "prediction": None},
        {"presence_penalty": 0, "frequency_penalty": 0.0, "logit_bias": {}, "logprobs": False},
        {"tools": [], "tool_choice": "none", "functions": [], "parallel_tool_calls": True},
        {"response_format": {"type": "text"}, "modalities": ["text"], "top_logprobs": 0},
        {"prediction": {"type": "content", "content": "x"}, "prompt_cache_retention": "24h"},
    ],
)
async def test_fields_that_change_no_answer_are_ignored(server, fields):
    assert (await server.chat(**fields)).status == 200


@pytest.mark.parametrize(
    ("told", "priority"),
    [
        ("high", Priority.HIGH),
        ("low", Priority.LOW),
        ("normal", Priority.NORMAL),
        ("HIGHEST", Priority.NORMAL),
        (None, Priority.NORMAL),
    ],
)
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
async def test_the_gateways_word_on_priority_reaches_the_engine(server, path, told, priority):
    question = {"messages": [{"role": "user", "content": "Hi"}]}
    body = {"model": "scripted", **(question if "chat" in path else {"prompt": ["a", "b"]})}
    headers = {} if told is None else {"X-Refrain-Priority": told}
    async with server.session.post(server.url + path, json=body, headers=headers) as reply:
        assert reply.status == 200
    assert {request.priority for request in server.generator.requests} == {priority}


async def salt_of(server, headers, **fields):
    body = {"model": "scripted", "prompt": "a", **fields}
    async with server.session.post(
        server.url + "/v1/completions", json=body, headers=headers
    ) as reply:
        assert reply.status == 200
    return server.generator.requests[-1].cache_salt


async def test_kv_is_shared_within_a_tenant_alone(server):
    who = [
        {},
        {"Authorization": "Bearer one"},
        {"Authorization": "Bearer two"},
        {"api-key": "Bearer one"},
        {"Authorization": "Bearer one", "OpenAI-Project": "shop"},
    ]
    salts = [await salt_of(server, headers) for headers in who]
    assert len(set(salts)) == len(who)
    assert salts[0] == ""
    assert not any("one" in salt for salt in salts)
    assert [await salt_of(server, headers) for headers in who] == salts


async def test_a_clients_salt_divides_the_kv_of_its_own_tenant_only(server):
    one, two = ({"Authorization": f"Bearer {key}"} for key in ("one", "two"))
    asked = [(who, salt) for who in ({}, one, two) for salt in ("shared", "own")]
    salts = [await salt_of(server, who, cache_salt=salt) for who, salt in asked]
    assert len(set(salts)) == len(asked)
    assert [await salt_of(server, who, cache_salt=salt) for who, salt in asked] == salts


async def test_no_salt_of_a_client_is_another_tenants(server):
    """Neither the salt that the engine uses for the tenant, nor what that is made of."""
    victim = {"Authorization": "Bearer one"}
    alone = await salt_of(server, victim)
    divided = await salt_of(server, victim, cache_salt="x")
    forged = [alone, divided, f"{alone},x", "Bearer one", "Bearer one\0\0\0\0", ",x"]
    for who in ({}, {"Authorization": "Bearer two"}):
        assert not {await salt_of(server, who, cache_salt=salt) for salt in forged} & {
            alone,
            divided,
        }
