"""/tokenize and /detokenize: what the engine would be given, in vLLM's shape."""

import asyncio

import pytest

pytest_plugins = ["running_backend", "running_embedder"]


async def tokenize(server, **fields):
    return await server.post("/tokenize", fields)


async def test_a_prompt(real_server):
    reply = await tokenize(real_server, model="tiny", prompt="Hi!")
    tokens = reply.json["tokens"]
    assert reply.json == {"count": 3, "max_model_len": 512, "tokens": tokens, "token_strs": None}
    assert (await real_server.post("/detokenize", {"tokens": tokens})).json == {"prompt": "Hi!"}


async def test_the_model_may_be_left_out_and_an_unknown_one_is_refused(real_server):
    assert (await tokenize(real_server, prompt="Hi")).status == 200
    for path, fields in (("/tokenize", {"prompt": "Hi"}), ("/detokenize", {"tokens": [1]})):
        reply = await real_server.post(path, {"model": "other", **fields})
        assert (reply.status, reply.error["code"]) == (404, "model_not_found")


async def test_token_strings(real_server):
    body = (await tokenize(real_server, prompt="a b", return_token_strs=True)).json
    assert body["token_strs"] == ["a", "Ġ", "b"]


async def test_a_conversation_is_what_chat_completions_would_compute(real_server):
    messages = [{"role": "user", "content": "Hi"}]
    tokenized = (await tokenize(real_server, messages=messages)).json
    answered = (await real_server.chat("Hi", max_tokens=1)).json
    assert tokenized["count"] == answered["usage"]["prompt_tokens"]
    text = (await real_server.post("/detokenize", {"tokens": tokenized["tokens"]})).json["prompt"]
    assert text == "user: Hi\nassistant: "
    without = (await tokenize(real_server, messages=messages, add_generation_prompt=False)).json
    assert without["count"] == tokenized["count"] - len("assistant: ")


async def test_special_tokens_are_kept_on_the_way_back(real_server):
    tokens = (await tokenize(real_server, prompt="a<|end|>b")).json["tokens"]
    assert len(tokens) == 3
    assert (await real_server.post("/detokenize", {"tokens": tokens})).json["prompt"] == "a<|end|>b"


async def test_special_tokens_around_a_text_are_added_unless_refused(embedding_server):
    whole = (await tokenize(embedding_server, prompt="hello", return_token_strs=True)).json
    assert whole["token_strs"] == ["[CLS]", "hello", "[SEP]"]
    assert whole["max_model_len"] == 256
    bare = (await tokenize(embedding_server, prompt="hello", add_special_tokens=False)).json
    assert bare["tokens"] == whole["tokens"][1:-1]


async def test_a_text_over_the_context_is_counted_and_holds_nobody_up(real_server):
    long = asyncio.create_task(tokenize(real_server, prompt="word " * 200_000))
    for _ in range(3):
        assert (await real_server.get("/healthz")).status == 200
    body = (await long).json
    assert body["count"] == 1_000_000


async def test_nothing_is_nothing(real_server):
    assert (await tokenize(real_server, prompt="")).json["tokens"] == []
    assert (await real_server.post("/detokenize", {"tokens": []})).json == {"prompt": ""}


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": "a", "messages": [{"role": "user", "content": "b"}]}, "prompt"),
        ("/tokenize", {"prompt": ["a"]}, "prompt"),
        ("/tokenize", {"messages": []}, "messages"),
        ("/tokenize", {"messages": [{"role": "user"}]}, "messages[0].content"),
        ("/tokenize", {"prompt": "a", "continue_final_message": True}, "continue_final_message"),
        ("/detokenize", {}, "tokens"),
        ("/detokenize", {"tokens": "a"}, "tokens"),
        ("/detokenize", {"tokens": [-1]}, "tokens[0]"),
        ("/detokenize", {"tokens": [1, 2**40]}, "tokens[1]"),
        ("/detokenize", {"tokens": [257]}, "tokens"),
    ],
    ids=str,
)
async def test_refusals(real_server, path, fields, param):
    reply = await real_server.post(path, fields)
    assert (reply.status, reply.error["type"]) == (400, "invalid_request_error")
    assert reply.error["param"] == param


async def test_messages_that_cannot_be_templated(embedding_server):
    reply = await tokenize(embedding_server, messages=[{"role": "user", "content": "Hi"}])
    assert (reply.status, reply.error["param"]) == (400, "messages")
