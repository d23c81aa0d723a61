"""Bodies that are read in a thread: understood as small ones are, and bounded."""

import pytest

pytest_plugins = ["running_backend"]

FILL = 100_000  # beyond what is read on the event loop


@pytest.fixture
async def server(start_server):
    return await start_server(max_model_len=10_000_000)


async def test_a_long_conversation_arrives_whole(server):
    contents = [f'{number} "ä\\😀\n' * 20 for number in range(2_000)]
    messages = [{"role": "user", "content": content} for content in contents]
    reply = await server.post("/v1/chat/completions", {"model": "scripted", "messages": messages})
    assert reply.status == 200
    tokens = server.generator.requests[0].prompt_tokens
    assert "".join(map(chr, tokens)) == "|".join(f"user:{content}" for content in contents)


async def test_many_tokens_arrive_whole(server):
    tokens = [number % 1000 for number in range(FILL)]
    assert (await server.complete(tokens)).status == 200
    assert server.generator.requests[0].prompt_tokens == tuple(tokens)


@pytest.mark.parametrize(
    ("wrong", "code"),
    [(True, "invalid_type"), (-1, "integer_below_min_value"), ("1", "invalid_type")],
)
async def test_a_wrong_token_among_many_is_named_by_its_place(server, wrong, code):
    reply = await server.complete([[1], [1] * FILL + [wrong] + [1] * FILL])
    assert (reply.status, reply.error["code"]) == (400, code)
    assert reply.error["param"] == f"prompt[1][{FILL}]"
    reply = await server.post("/detokenize", {"tokens": [1] * FILL + [wrong]})
    assert (reply.status, reply.error["param"]) == (400, f"tokens[{FILL}]")


@pytest.mark.parametrize(
    "end", [b"1", b"]]", b"]} x", b"],}", b",]}", b']"a":1}', b'],"a":"\\x"}', b'],"a":"', b"]"]
)
async def test_what_is_no_json_after_much_that_is(server, end):
    raw = b'{"model":"m","ignored":[1' + b",1" * FILL + end
    reply = await server.request("POST", "/v1/chat/completions", raw)
    assert reply.status == 400
    assert "not valid JSON" in reply.error["message"]


async def test_a_key_that_comes_again_far_behind(server):
    raw = b'{"model":"m","ignored":[1' + b",1" * FILL + b'],"model":"m"}'
    reply = await server.request("POST", "/v1/chat/completions", raw)
    assert (reply.status, reply.error["code"]) == (400, "duplicate_key")
    assert reply.error["param"] == "model"


@pytest.mark.parametrize(
    ("bound", "ignored"), [("MAX_CONTAINERS", [[]] * 30_000), ("MAX_VALUES", [0] * 40_000)]
)
async def test_more_than_is_read_is_refused(server, monkeypatch, bound, ignored):
    monkeypatch.setattr(f"backend.server.body.{bound}", 20_000)
    reply = await server.chat(metadata=ignored)
    assert (reply.status, reply.error["code"]) == (413, "request_too_large")
    assert "at most 20000 " in reply.error["message"]
    assert (await server.chat(metadata=ignored[:15_000], user="x" * FILL)).status == 200


@pytest.mark.parametrize(("ignored", "number"), [("[]", 125_000), ("1", 500_000)])
async def test_what_a_parser_holds_the_interpreter_for_is_bounded(server, ignored, number):
    raw = f'{{"model":"m","metadata":[{",".join([ignored] * number)}]}}'.encode()
    reply = await server.request("POST", "/v1/chat/completions", raw)
    assert (reply.status, reply.error["code"]) == (413, "request_too_large")
    assert f"at most {number} " in reply.error["message"]
