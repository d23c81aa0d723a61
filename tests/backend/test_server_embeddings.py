"""/v1/embeddings with the real MiniLM: OpenAI's shape, the library's vectors, OpenAI's errors."""

import asyncio
import base64
import json
import struct
from functools import partial

import pytest
from openai import AsyncOpenAI
from prometheus_client.parser import text_string_to_metric_families

from backend.app import create_app
from backend.server.batches.runner import Batches
from backend.server.batches.store import Store
from backend.settings import Settings

pytest_plugins = ["running_backend", "running_embedder", "tiny_encoders"]

TEXTS = ["How do I reset my password?", "", "naïve café 東京", "x " * 200, "How do I reset it?"]
TEXTS[1] = "A short one."


def near(one, other):
    return max(abs(a - b) for a, b in zip(one, other, strict=True)) < 2e-6


@pytest.fixture(scope="module")
def expected(minilm):
    """What the library itself makes of the texts."""
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(minilm), device="cpu", local_files_only=True)
    return model.encode(TEXTS, normalize_embeddings=True).tolist()


@pytest.fixture
def serve_edited(serve_application, minilm, tmp_path):
    """Serve the model with changes to its ``config.json``, as the command does."""

    async def start(*, matryoshka=False, **changes):
        for file in minilm.iterdir():
            if file.name != "config.json":
                (tmp_path / file.name).symlink_to(file)
        config = json.loads((minilm / "config.json").read_text())
        (tmp_path / "config.json").write_text(json.dumps(config | changes))
        settings = Settings(
            str(tmp_path), served_model_name="minilm", device="cpu", matryoshka=matryoshka
        )
        server = await serve_application(create_app(settings))
        await server.model.load()
        return server

    return start


async def embed(server, given, **fields):
    return await server.post("/v1/embeddings", {"model": "minilm", "input": given, **fields})


async def test_vectors_are_the_librarys_in_the_order_of_the_inputs(embedding_server, expected):
    body = (await embed(embedding_server, TEXTS)).json
    assert body["object"] == "list"
    assert body["model"] == "minilm"
    assert [item["index"] for item in body["data"]] == list(range(len(TEXTS)))
    assert {item["object"] for item in body["data"]} == {"embedding"}
    for item, vector in zip(body["data"], expected, strict=True):
        assert near(item["embedding"], vector)
    assert body["usage"]["prompt_tokens"] == body["usage"]["total_tokens"] > 200


async def test_one_text_is_counted_with_its_special_tokens(embedding_server, expected):
    body = (await embed(embedding_server, TEXTS[0])).json
    assert near(body["data"][0]["embedding"], expected[0])
    tokenized = (await embedding_server.post("/tokenize", {"prompt": TEXTS[0]})).json
    assert body["usage"]["prompt_tokens"] == tokenized["count"] == 9


async def test_base64_is_little_endian_float32(embedding_server, expected):
    body = (await embed(embedding_server, TEXTS[0], encoding_format="base64")).json
    raw = base64.b64decode(body["data"][0]["embedding"])
    assert near(struct.unpack("<384f", raw), expected[0])
    plain = (await embed(embedding_server, TEXTS[0], encoding_format="float")).json
    assert list(struct.unpack("<384f", raw)) == pytest.approx(plain["data"][0]["embedding"])


async def test_token_arrays_are_taken_as_they_are(embedding_server, expected):
    arrays = [
        (await embedding_server.post("/tokenize", {"prompt": text})).json["tokens"]
        for text in TEXTS[:3]
    ]
    body = (await embed(embedding_server, arrays)).json
    for item, vector in zip(body["data"], expected, strict=False):
        assert near(item["embedding"], vector)
    assert body["usage"]["prompt_tokens"] == sum(map(len, arrays))
    body = (await embed(embedding_server, arrays[0])).json
    assert len(body["data"]) == 1
    assert near(body["data"][0]["embedding"], expected[0])


async def test_openais_own_client(embedding_server, expected):
    async with AsyncOpenAI(base_url=f"{embedding_server.url}/v1", api_key="any") as client:
        made = await client.embeddings.create(model="minilm", input=TEXTS)  # asks for base64
    assert near(made.data[2].embedding, expected[2])


async def test_a_batch_of_openais_client(serve_embedder, embedding_engine, tmp_path):
    batches = Batches(Store(tmp_path, most_bytes=10**8, keep_seconds=3600), concurrency=2)
    server = await serve_embedder(*embedding_engine, "minilm", batches=batches)
    asked = {"method": "POST", "url": "/v1/embeddings"}
    lines = [
        {"custom_id": text, "body": {"model": "minilm", "input": text}, **asked} for text in TEXTS
    ]
    data = b"\n".join(json.dumps(line).encode() for line in lines)
    async with AsyncOpenAI(base_url=f"{server.url}/v1", api_key="any") as client:
        file = await client.files.create(file=("a.jsonl", data), purpose="batch")
        batch = await client.batches.create(
            input_file_id=file.id, endpoint="/v1/embeddings", completion_window="24h"
        )
        async with asyncio.timeout(60):
            while batch.status != "completed":
                batch = await client.batches.retrieve(batch.id)
        told = (await client.files.content(batch.output_file_id)).text.splitlines()
        plain = await client.embeddings.create(model="minilm", input=TEXTS)
    found = {each["custom_id"]: each["response"]["body"] for each in map(json.loads, told)}
    for text, item in zip(TEXTS, plain.data, strict=True):
        assert near(found[text]["data"][0]["embedding"], item.embedding)


async def test_many_requests_at_once_get_their_own_vectors(embedding_server, expected):
    picks = [index % len(TEXTS) for index in range(40)]
    replies = await asyncio.gather(*(embed(embedding_server, TEXTS[pick]) for pick in picks))
    for pick, reply in zip(picks, replies, strict=True):
        assert near(reply.json["data"][0]["embedding"], expected[pick])


async def test_a_large_batch_does_not_hold_up_the_server_or_a_short_request(embedding_server):
    large = asyncio.create_task(embed(embedding_server, ["word " * 30] * 200))
    small = await embed(embedding_server, "short")
    assert small.status == 200
    assert (await embedding_server.get("/healthz")).status == 200
    assert not large.done()
    assert len((await large).json["data"]) == 200


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"input": None}, "input", "missing_required_parameter"),
        ({"input": ""}, "input", "empty_string"),
        ({"input": ["a", ""]}, "input[1]", "empty_string"),
        ({"input": []}, "input", "empty_array"),
        ({"input": [[]]}, "input[0]", "empty_array"),
        ({"input": ["a"] * 2049}, "input", "array_above_max_length"),
        ({"input": [[1]] * 2049}, "input", "array_above_max_length"),
        ({"input": {"text": "a"}}, "input", "invalid_type"),
        ({"input": [1, "a"]}, "input[1]", "invalid_type"),
        ({"input": [99_999]}, "input", "invalid_value"),
        ({"input": "x " * 300}, "input", "context_length_exceeded"),
        ({"input": [[101], [101] * 257]}, "input", "context_length_exceeded"),
        ({"input": ["x " * 200] * 1600}, "input", "max_tokens_per_request"),
        ({"input": "a", "encoding_format": "hex"}, "encoding_format", "invalid_value"),
        ({"input": "a", "dimensions": 0}, "dimensions", "integer_below_min_value"),
        ({"input": "a", "dimensions": 128}, "dimensions", "invalid_value"),
        ({"input": "a", "dimensions": 385}, "dimensions", "invalid_value"),
        ({"input": "a", "truncate_prompt_tokens": 5}, "truncate_prompt_tokens", None),
    ],
    ids=lambda value: str(value)[:30],
)
async def test_refusals(embedding_server, fields, param, code):
    reply = await embedding_server.post("/v1/embeddings", {"model": "minilm", **fields})
    assert (reply.status, reply.error["type"]) == (400, "invalid_request_error")
    assert reply.error["param"] == param
    assert reply.error["code"] == (code or "unsupported_parameter")


async def test_the_longest_input_is_taken_and_the_message_has_the_numbers(embedding_server):
    assert (await embed(embedding_server, [101] * 256)).status == 200
    message = (await embed(embedding_server, [101] * 257)).error["message"]
    assert message.startswith("This model's maximum context length is 256 tokens, however you")
    assert "257 tokens" in message


async def test_its_own_number_of_dimensions_may_be_asked_for(embedding_server):
    reply = await embed(embedding_server, "a", dimensions=384)
    assert len(reply.json["data"][0]["embedding"]) == 384


@pytest.mark.parametrize(
    ("declared", "lengths"),
    [
        ({"is_matryoshka": True}, {"good": 100, "bad": 385}),
        ({"matryoshka": True}, {"good": 100, "bad": 385}),
        ({"matryoshka_dimensions": [64, 128, 384]}, {"good": 128, "bad": 100}),
    ],
)
async def test_a_model_trained_for_it_gives_shorter_vectors(
    serve_edited, expected, declared, lengths
):
    good, bad = lengths["good"], lengths["bad"]
    server = await serve_edited(**declared)
    (item,) = (await embed(server, TEXTS[0], dimensions=good)).json["data"]
    length = sum(number**2 for number in expected[0][:good]) ** 0.5
    assert near(item["embedding"], [number / length for number in expected[0][:good]])
    assert (await embed(server, TEXTS[0], dimensions=bad)).error["param"] == "dimensions"


@pytest.mark.parametrize(
    ("pooling", "options"),
    [
        ("cls", {}),
        ("max", {"similarity_fn_name": "dot"}),
        ("mean", {"dense": True}),
        ("mean_sqrt_len_tokens", {"dense": True, "similarity_fn_name": "dot"}),
        ("weightedmean", {"default_prompt_name": "topic"}),
        ("lasttoken", {"similarity_fn_name": "euclidean", "truncate_dim": 20}),
    ],
)
async def test_each_pooling_prompt_and_length_is_the_librarys(
    serve_application, tmp_path, pooling, options
):
    from sentence_transformers import SentenceTransformer
    from tiny_encoders import save_embedder

    directory = save_embedder(tmp_path, pooling, **options)
    model = SentenceTransformer(str(directory), device="cpu", local_files_only=True)
    unit = "similarity_fn_name" not in options
    texts = ["a b c d e", "j", "f g h a b c d"]
    settings = Settings(str(directory), served_model_name="minilm", device="cpu")
    server = await serve_application(create_app(settings))
    await server.model.load()
    for fields, encode in (
        ({}, model.encode),
        ({"prompt_name": "topic"}, partial(model.encode, prompt_name="topic")),
        ({"input_type": "query"}, model.encode_query),
        (
            {"input_type": "search_query", "dimensions": 8},
            partial(model.encode_query, truncate_dim=8),
        ),
        ({"input_type": "passage"}, model.encode_document),
        (
            {"input_type": "document", "dimensions": 5},
            partial(model.encode_document, truncate_dim=5),
        ),
    ):
        body = (await embed(server, texts, **fields)).json
        expected = encode(texts, normalize_embeddings=unit, show_progress_bar=False).tolist()
        for item, vector in zip(body["data"], expected, strict=True):
            assert item["embedding"] == pytest.approx(vector, abs=2e-6), fields
    for field in ("prompt_name", "input_type"):
        refused = await embed(server, texts, **{field: "weather"})
        assert (refused.status, refused.error["param"]) == (400, field)
        assert "It has: document, query, topic." in refused.error["message"]


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}]}),
        ("/v1/completions", {"prompt": "Hi"}),
    ],
)
async def test_a_model_that_cannot_generate_says_so(embedding_server, path, fields):
    reply = await embedding_server.post(path, {"model": "minilm", **fields})
    assert (reply.status, reply.error["param"]) == (404, "model")
    assert "not a chat model" in reply.error["message"]
    assert "v1/embeddings" in reply.error["message"]


async def test_a_model_that_cannot_embed_says_so(server):
    reply = await server.post("/v1/embeddings", {"model": "scripted", "input": "Hi"})
    assert (reply.status, reply.error["param"]) == (404, "model")
    assert reply.error["message"].startswith("You are not allowed to generate embeddings from this")


async def test_another_model(embedding_server):
    reply = await embedding_server.post("/v1/embeddings", {"model": "other", "input": "Hi"})
    assert (reply.status, reply.error["code"]) == (404, "model_not_found")


async def test_readiness_models_and_metrics(embedding_server):
    assert (await embedding_server.get("/readyz")).status == 200
    (model,) = (await embedding_server.get("/v1/models")).json["data"]
    assert (model["id"], model["max_model_len"]) == ("minilm", 256)
    await embed(embedding_server, TEXTS[0])
    page = (await embedding_server.get("/metrics")).raw.decode()
    values = {
        sample.name: sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
    }
    assert values["refrain_engine_embedded_tokens_total"] == 9
    assert values["refrain_engine_embeddings_waiting"] == 0
