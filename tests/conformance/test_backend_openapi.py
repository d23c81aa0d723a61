"""Real replies, chunks and errors of the engine's server against OpenAI's published schemas."""

import copy
import os
from pathlib import Path
from typing import Any

import jsonschema
import orjson
import pytest
from aiohttp import FormData

from backend.ports import EngineError
from backend.scheduler.request import FinishReason, TextDelta
from backend.server.batches.runner import Batches
from backend.server.batches.store import Store
from backend.server.tool_parsers import FORMATS, reasoning

pytest_plugins = ["running_backend", "running_embedder"]

DATA = Path(os.environ.get("REFRAIN_DATA") or Path(__file__).parents[2] / "../shared/data")
DESCRIPTION = DATA / "openai-openapi.json"

pytestmark = pytest.mark.skipif(
    not DESCRIPTION.is_file(), reason=f"OpenAI's API description is not at {DESCRIPTION}"
)


def strict(node: Any) -> Any:
    """Read ``nullable`` as OpenAPI 3.0 meant it: the description still uses it in 3.1."""
    if isinstance(node, list):
        return [strict(item) for item in node]
    if not isinstance(node, dict):
        return node
    node = {key: strict(value) for key, value in node.items()}
    if node.pop("nullable", False) is True:
        return {"anyOf": [node, {"type": "null"}]}
    return node


@pytest.fixture(scope="module")
def description():
    return strict(orjson.loads(DESCRIPTION.read_bytes()))


@pytest.fixture
def check(description):
    def validate(body, name):
        schema = {"$ref": f"#/components/schemas/{name}", "components": description["components"]}
        jsonschema.Draft202012Validator(schema).validate(body)

    return validate


@pytest.fixture
def check_completion_chunk(description):
    """OpenAI gives completions one schema for whole replies and chunks, and its own chunks
    break it in two places: a chunk before the last has no finish reason, and usage may be null."""
    components = copy.deepcopy(description["components"])
    reply = components["schemas"]["CreateCompletionResponse"]["properties"]
    choice = reply["choices"]["items"]["properties"]
    choice["finish_reason"] = {"anyOf": [choice["finish_reason"], {"type": "null"}]}
    reply["usage"] = {"anyOf": [reply["usage"], {"type": "null"}]}
    schema = {"$ref": "#/components/schemas/CreateCompletionResponse", "components": components}
    return jsonschema.Draft202012Validator(schema).validate


@pytest.fixture
def check_response(description):
    """OpenAI's schema gives a user to every response; its own, and its example, say null."""
    components = copy.deepcopy(description["components"])
    named = components["schemas"]["ModelResponseProperties"]["properties"]
    named["user"] = {"anyOf": [named["user"], {"type": "null"}]}

    def validate(body, name="Response"):
        schema = {"$ref": f"#/components/schemas/{name}", "components": components}
        jsonschema.Draft202012Validator(schema).validate(body)

    return validate


USAGE = {"stream": True, "stream_options": {"include_usage": True}}


def ended(events):
    """The choices that came to their end."""
    choices = [choice for event in events for choice in event["choices"]]
    return {choice["index"] for choice in choices if choice["finish_reason"]}


async def test_chat(real_server, check):
    fields = {"n": 2, "max_tokens": 5, "temperature": 0}
    check((await real_server.chat(**fields)).json, "CreateChatCompletionResponse")
    for streamed in ({"stream": True}, USAGE):
        events = (await real_server.chat(**fields, **streamed)).events
        # How many follow depends on time: what a reader has not taken is merged.
        assert len(events) >= 4
        assert ended(events) == {0, 1}
        for event in events:
            check(event, "CreateChatCompletionStreamResponse")


async def test_completions(real_server, check, check_completion_chunk):
    fields = {"n": 2, "max_tokens": 5, "temperature": 0}
    check((await real_server.complete(**fields)).json, "CreateCompletionResponse")
    for streamed in ({"stream": True}, USAGE):
        events = (await real_server.complete(**fields, **streamed)).events
        assert len(events) >= 2
        assert ended(events) == {0, 1}
        for event in events:
            check_completion_chunk(event)


async def test_log_probabilities(real_server, check, check_completion_chunk):
    fields = {"n": 2, "max_tokens": 5, "temperature": 1, "seed": 1}
    chat = fields | {"logprobs": True, "top_logprobs": 2}
    reply = (await real_server.chat(**chat)).json
    check(reply, "CreateChatCompletionResponse")
    assert len(reply["choices"][1]["logprobs"]["content"][0]["top_logprobs"]) == 2
    for event in (await real_server.chat(**chat, stream=True)).events:
        check(event, "CreateChatCompletionStreamResponse")
    check((await real_server.complete(**fields, logprobs=2)).json, "CreateCompletionResponse")
    for event in (await real_server.complete(**fields, logprobs=2, stream=True)).events:
        check_completion_chunk(event)


async def test_embeddings(embedding_server, check, description):
    fields = {"model": "minilm", "input": ["one", "two"]}
    reply = await embedding_server.post("/v1/embeddings", fields)
    check(reply.json, "CreateEmbeddingResponse")
    for refused in ({"input": ""}, {"input": "x " * 300}, {"dimensions": 5}):
        reply = await embedding_server.post("/v1/embeddings", fields | refused)
        assert reply.status == 400
        check(reply.json, "ErrorResponse")
    parameters = properties(description, "CreateEmbeddingRequest") - set(fields)
    assert {"encoding_format", "dimensions", "user"} <= parameters
    reply = await embedding_server.post("/v1/embeddings", dict.fromkeys(parameters) | fields)
    assert reply.status == 200, reply.json


ADD = {
    "type": "function",
    "name": "add",
    "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}},
}


async def test_responses(start_real_server, check_response):
    server = await start_real_server()
    asked = {"max_output_tokens": 5, "temperature": 0, "metadata": {"a": "b"}}
    asked |= {"include": ["message.output_text.logprobs"], "top_logprobs": 2}
    response = (await server.respond(**asked)).json
    check_response(response)
    assert len(response["output"][0]["content"][0]["logprobs"][0]["top_logprobs"]) == 2
    events = (await server.respond(**asked, stream=True)).typed_events
    assert len(events) >= 8
    for event in events:
        check_response(event, "ResponseStreamEvent")


async def test_responses_with_calls(start_server, check_response):
    server = await start_server(script=calling, tools=FORMATS["qwen"])
    asked = {"tools": [ADD], "text": {"format": {"type": "json_object"}}}
    response = (await server.respond(**asked)).json
    check_response(response)
    assert [item["type"] for item in response["output"]] == ["message", "function_call"]
    for event in (await server.respond(**asked, stream=True)).typed_events:
        check_response(event, "ResponseStreamEvent")


async def test_reasoning(start_server, check, check_response):
    server = await start_server(script=thinking, reasoning=reasoning.FORMATS["qwen3"])
    check((await server.chat()).json, "CreateChatCompletionResponse")
    for event in (await server.chat(**USAGE)).events:
        check(event, "CreateChatCompletionStreamResponse")
    response = (await server.respond()).json
    check_response(response)
    assert [item["type"] for item in response["output"]] == ["reasoning", "message"]
    for event in (await server.respond(stream=True)).typed_events:
        check_response(event, "ResponseStreamEvent")


async def thinking(request):
    yield TextDelta(0, "<think>\nWell, ", 1)
    yield TextDelta(0, "well.</think>", 2)
    yield TextDelta(0, "Yes.", 3, FinishReason.STOP)


async def calling(request):
    yield TextDelta(0, "Let me see.", 1)
    call = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'
    yield TextDelta(0, call, 2, FinishReason.STOP)


async def test_responses_that_fail(start_server, check_response):
    async def script(request):
        yield TextDelta(0, "Hel", 1)
        raise EngineError("it broke")

    server = await start_server()
    server.generator.script = script
    events = (await server.respond(stream=True)).typed_events
    assert [event["type"] for event in events[-2:]] == ["response.failed", "error"]
    for event in events:
        check_response(event, "ResponseStreamEvent")


async def test_models(real_server, check):
    check((await real_server.get("/v1/models")).json, "ListModelsResponse")
    check((await real_server.get("/v1/models/tiny")).json, "Model")


async def test_errors(real_server, check):
    for reply in (
        await real_server.chat(n=0),
        await real_server.respond(background=True),
        await real_server.chat("x" * 600),
        await real_server.get("/v1/models/other"),
        await real_server.get("/v1/nowhere"),
        await real_server.request("POST", "/v1/completions", b"{"),
    ):
        assert reply.status >= 400
        check(reply.json, "ErrorResponse")


async def test_requests_of_the_description_are_understood(real_server, description):
    """Every top-level parameter that OpenAI names is accepted at its neutral value."""
    for name, ask in (
        ("CreateChatCompletionRequest", real_server.chat),
        ("CreateCompletionRequest", real_server.complete),
    ):
        parameters = properties(description, name) - {"model", "messages", "prompt"}
        assert {"temperature", "logit_bias", "user"} <= parameters
        reply = await ask(**dict.fromkeys(parameters) | {"max_tokens": 1, "extra": None})
        assert reply.status == 200, reply.json
    parameters = properties(description, "CreateResponse") - {"model", "input"}
    assert {"temperature", "instructions", "user", "previous_response_id"} <= parameters
    reply = await real_server.respond(**dict.fromkeys(parameters) | {"max_output_tokens": 1})
    assert reply.status == 200, reply.json


def properties(description: Any, name: str) -> set[str]:
    schema = description["components"]["schemas"][name]
    found = set(schema.get("properties", {}))
    for part in schema.get("allOf", ()):
        found |= set(part.get("properties", {}))
        if "$ref" in part:
            found |= properties(description, part["$ref"].rpartition("/")[2])
    return found


async def test_files_and_batches(start_server, check, tmp_path):
    batches = Batches(Store(tmp_path, most_bytes=10**6, keep_seconds=3600), concurrency=1)
    server = await start_server(limits={"batches": batches})
    form = FormData({"purpose": "batch"}, default_to_multipart=True)
    form.add_field("file", b"{}\n", filename="a.jsonl")
    async with server.session.post(f"{server.url}/v1/files", data=form) as reply:
        file = await reply.json()
    check(file, "OpenAIFile")
    asked = {"endpoint": "/v1/completions", "completion_window": "24h"}
    batch = (await server.post("/v1/batches", asked | {"input_file_id": file["id"]})).json
    check(without_nulls(batch), "Batch")
    check(without_nulls((await server.get("/v1/batches")).json), "ListBatchesResponse")
    while batch["status"] != "completed":
        batch = (await server.get(f"/v1/batches/{batch['id']}")).json
    check(without_nulls(batch), "Batch")
    check((await server.get("/v1/files")).json, "ListFilesResponse")
    check((await server.request("DELETE", f"/v1/files/{file['id']}")).json, "DeleteFileResponse")


def without_nulls(node: Any) -> Any:
    """Leave out what is null: of a batch, OpenAI's own examples have it against the schema."""
    if isinstance(node, list):
        return [without_nulls(each) for each in node]
    if not isinstance(node, dict):
        return node
    return {key: without_nulls(value) for key, value in node.items() if value is not None}
