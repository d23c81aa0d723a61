"""What the gateway renders and assembles, against OpenAI's published schemas.

The scripted upstream speaks OpenAI's form; whichever way an answer was first asked for, the other
wire mode is made by the gateway alone.
"""

import copy
import os
from pathlib import Path
from typing import Any

import jsonschema
import orjson
import pytest
from scripted_responses import call, message, reasoning, response, text

from gateway.protocol.endpoints.registry import SPECS
from gateway.protocol.endpoints.responses import render_response
from gateway.protocol.streaming.decode import DONE, Decoder, encode
from policies.decision import Endpoint
from scripted_upstream import completion

DATA = Path(os.environ.get("REFRAIN_DATA") or Path(__file__).parents[2] / "../shared/data")
DESCRIPTION = DATA / "openai-openapi.json"

pytestmark = pytest.mark.skipif(
    not DESCRIPTION.is_file(), reason=f"OpenAI's API description is not at {DESCRIPTION}"
)

CHAT, COMPLETIONS = Endpoint.CHAT, Endpoint.COMPLETIONS
TOKEN = {"token": "a", "logprob": -0.5, "bytes": [97], "top_logprobs": []}


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
def check():
    components = strict(orjson.loads(DESCRIPTION.read_bytes())["components"])
    # OpenAI's own completion chunks break its one schema for replies and chunks in two places:
    # a chunk before the last has no finish reason, and usage may be null.
    chunk = copy.deepcopy(components["schemas"]["CreateCompletionResponse"])
    choice = chunk["properties"]["choices"]["items"]["properties"]
    choice["finish_reason"] = {"anyOf": [choice["finish_reason"], {"type": "null"}]}
    chunk["properties"]["usage"] = {"anyOf": [chunk["properties"]["usage"], {"type": "null"}]}
    components["schemas"]["CompletionChunk"] = chunk

    def validate(body, name):
        schema = {"$ref": f"#/components/schemas/{name}", "components": components}
        jsonschema.Draft202012Validator(schema).validate(body)

    return validate


def with_choices(reply: dict[str, Any], *choices: dict[str, Any]) -> dict[str, Any]:
    numbered = [
        {"index": index, "logprobs": None, "finish_reason": "stop", **choice}
        for index, choice in enumerate(choices)
    ]
    return {**reply, "choices": numbered}


def said(content: str | None, **message: Any) -> dict[str, Any]:
    return {"message": {"role": "assistant", "content": content, "refusal": None, **message}}


CALL = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
REPLY = completion("Hello")
CHATS = {
    "one choice": REPLY,
    "fingerprint and tier": REPLY | {"system_fingerprint": "fp_1", "service_tier": "default"},
    "two choices": with_choices(REPLY, said("a"), said("b")),
    "refusal": with_choices(REPLY, said(None, refusal="No.")),
    "tool calls": with_choices(
        REPLY, said(None, tool_calls=[CALL, CALL]) | {"finish_reason": "tool_calls"}
    ),
    "logprobs": with_choices(
        REPLY, said("a") | {"logprobs": {"content": [TOKEN], "refusal": None}}
    ),
    "reasoning": with_choices(REPLY, said("a", reasoning_content="because")),
}
TEXT = {**REPLY, "object": "text_completion"}
TEXT_LOGPROBS = {"tokens": ["a"], "token_logprobs": [-0.5], "top_logprobs": [], "text_offset": [0]}
TEXTS = {
    "one choice": with_choices(TEXT, {"text": "a"}),
    "two choices": with_choices(TEXT, {"text": "a"}, {"text": "b", "logprobs": TEXT_LOGPROBS}),
}


def rendered(endpoint: Endpoint, result: dict[str, Any], *, usage: bool) -> list[dict[str, Any]]:
    stream = SPECS[endpoint].streaming.render(result, include_usage=usage)
    *events, last = Decoder().feed(stream)
    assert last.data == DONE
    return [orjson.loads(event.data) for event in events if event.data is not None]


def assembled(endpoint: Endpoint, chunks: list[dict[str, Any]]) -> dict[str, Any]:
    answer = SPECS[endpoint].streaming.follow(assemble=True, max_bytes=10**6)
    for chunk in chunks:
        answer.feed(encode(orjson.dumps(chunk)))
    return answer.result()


@pytest.mark.parametrize("usage", [True, False])
@pytest.mark.parametrize("name", CHATS)
def test_chats(name, usage, check):
    check(CHATS[name], "CreateChatCompletionResponse")
    chunks = rendered(CHAT, CHATS[name], usage=usage)
    assert len(chunks) >= 3
    for chunk in chunks:
        check(chunk, "CreateChatCompletionStreamResponse")
    check(assembled(CHAT, chunks), "CreateChatCompletionResponse")


@pytest.mark.parametrize("usage", [True, False])
@pytest.mark.parametrize("name", TEXTS)
def test_completions(name, usage, check):
    check(TEXTS[name], "CreateCompletionResponse")
    chunks = rendered(COMPLETIONS, TEXTS[name], usage=usage)
    assert len(chunks) >= 2
    for chunk in chunks:
        check(chunk, "CompletionChunk")
    check(assembled(COMPLETIONS, chunks), "CreateCompletionResponse")


WHOLES = {
    "text": response(message(text("Hello"))),
    "logprobs": response(message(text("a", logprobs=[TOKEN]))),
    "call": response(call('{"x": 1}')),
    "reasoning": response(reasoning("first", "second"), message(text("so"), place=1)),
    "reasoning text": response(reasoning(content=[{"type": "reasoning_text", "text": "hm"}])),
    "incomplete": response(
        message(text("a"), status="incomplete"),
        status="incomplete",
        incomplete_details={"reason": "max_output_tokens"},
    ),
}


@pytest.mark.parametrize("name", WHOLES)
def test_responses(name, check):
    # OpenAI's own responses say null for no user, which its schema does not allow.
    whole = {field: value for field, value in WHOLES[name].items() if field != "user"}
    check(whole, "Response")
    events = [orjson.loads(event.data) for event in Decoder().feed(render_response(whole))]
    assert len(events) >= 4
    for event in events:
        check(event, "ResponseStreamEvent")
        check(event, EVENTS[event["type"]])


EVENTS = {
    "response.created": "ResponseCreatedEvent",
    "response.in_progress": "ResponseInProgressEvent",
    "response.completed": "ResponseCompletedEvent",
    "response.incomplete": "ResponseIncompleteEvent",
    "response.output_item.added": "ResponseOutputItemAddedEvent",
    "response.output_item.done": "ResponseOutputItemDoneEvent",
    "response.content_part.added": "ResponseContentPartAddedEvent",
    "response.content_part.done": "ResponseContentPartDoneEvent",
    "response.output_text.delta": "ResponseTextDeltaEvent",
    "response.output_text.done": "ResponseTextDoneEvent",
    "response.function_call_arguments.delta": "ResponseFunctionCallArgumentsDeltaEvent",
    "response.function_call_arguments.done": "ResponseFunctionCallArgumentsDoneEvent",
    "response.reasoning_summary_part.added": "ResponseReasoningSummaryPartAddedEvent",
    "response.reasoning_summary_part.done": "ResponseReasoningSummaryPartDoneEvent",
    "response.reasoning_summary_text.delta": "ResponseReasoningSummaryTextDeltaEvent",
    "response.reasoning_summary_text.done": "ResponseReasoningSummaryTextDoneEvent",
    "response.reasoning_text.delta": "ResponseReasoningTextDeltaEvent",
    "response.reasoning_text.done": "ResponseReasoningTextDoneEvent",
}


def test_a_result_assembled_from_the_barest_chunks_is_whole(check):
    """Servers leave out what is null; a plain reply may not."""
    top = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    deltas = [{"content": "a"}, {}]
    chunks = [
        {**top, "choices": [{"index": 0, "delta": delta, "finish_reason": end}]}
        for delta, end in zip(deltas, (None, "stop"), strict=True)
    ]
    check(assembled(CHAT, chunks), "CreateChatCompletionResponse")


def test_the_schemas_do_refuse(check):
    """The validator itself, shown to fail."""
    with pytest.raises(jsonschema.ValidationError):
        check({**REPLY, "choices": [{"index": 0}]}, "CreateChatCompletionResponse")
    with pytest.raises(jsonschema.ValidationError):
        check({**REPLY, "object": "chat.completion"}, "CreateChatCompletionStreamResponse")


async def test_both_wires_of_a_running_gateway(gateway, check):
    """A miss asked for plain, a hit streamed, and the other way round."""
    for first, second in ((False, True), (True, False)):
        for wire in (first, second):
            body = {
                "model": "scripted",
                "messages": [{"role": "user", "content": f"Hello, first {first}"}],
                "stream": wire,
            }
            url = f"{gateway.url}/v1/chat/completions"
            async with gateway.session.post(url, json=body) as reply:
                assert reply.status == 200
                raw = await reply.read()
            if wire is second:
                assert reply.headers["Cache-Status"].startswith("refrain; hit")
            if not wire:
                check(orjson.loads(raw), "CreateChatCompletionResponse")
                continue
            *events, last = Decoder().feed(raw)
            assert last.data == DONE
            for event in events:
                check(orjson.loads(event.data), "CreateChatCompletionStreamResponse")
