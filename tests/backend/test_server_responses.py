"""/v1/responses over HTTP, with a scripted generator: OpenAI's shapes."""

import pytest
from responses_api import CALL, LOGPROBS, WEATHER, prompt, unnamed

from backend.scheduler.request import FinishReason

pytest_plugins = ["running_backend"]


async def test_a_plain_response_has_openais_form(speaking):
    server = await speaking("Hello", " world")
    response = (await server.respond("Hi", instructions="Be kind.", user="u1")).json
    assert response["id"].startswith("resp_")
    assert response["output"][0].pop("id").startswith("msg_")
    part = {"type": "output_text", "text": "Hello world", "annotations": [], "logprobs": []}
    assert response["output"] == [
        {"type": "message", "status": "completed", "role": "assistant", "content": [part]}
    ]
    assert response["usage"] == {
        "input_tokens": len("system:Be kind.|user:Hi"),
        "input_tokens_details": {"cached_tokens": 2, "cache_write_tokens": 0},
        "output_tokens": 3,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": len("system:Be kind.|user:Hi") + 3,
    }
    assert response["completed_at"] >= response["created_at"] > 0
    told = {"status": "completed", "instructions": "Be kind.", "user": "u1", "metadata": {}}
    told |= {"tools": [], "tool_choice": "auto", "temperature": 1.0, "top_p": 1.0, "error": None}
    assert response.items() >= told.items()
    assert prompt(server) == "system:Be kind.|user:Hi"


async def test_a_stream_has_openais_events_in_their_order(speaking):
    server = await speaking("Hello", " world")
    reply = await server.respond(stream=True)
    assert reply.headers["Content-Type"].startswith("text/event-stream")
    assert b"[DONE]" not in reply.raw
    events = reply.typed_events
    assert [event["type"].removeprefix("response.") for event in events] == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "completed",
    ]
    begun = events[0]["response"]
    assert begun["status"] == "in_progress"
    assert begun["output"] == []
    assert "usage" not in begun
    assert events[2]["item"]["content"] == []
    assert [event["delta"] for event in events[4:6]] == ["Hello", " world"]
    last = events[-1]["response"]
    assert events[6]["text"] == last["output"][0]["content"][0]["text"] == "Hello world"
    assert events[7]["part"] == last["output"][0]["content"][0]
    assert events[8]["item"] == last["output"][0]
    assert {event["item_id"] for event in events[3:8]} == {last["output"][0]["id"]}
    assert last["id"] == begun["id"]
    assert unnamed(last) == unnamed((await server.respond()).json)


async def test_an_answer_that_is_cut_is_incomplete(speaking):
    server = await speaking("Hello", reason=FinishReason.LENGTH)
    plain = (await server.respond(max_output_tokens=1)).json
    assert server.generator.requests[-1].sampling.max_tokens == 1
    assert plain["status"] == plain["output"][0]["status"] == "incomplete"
    assert plain["incomplete_details"] == {"reason": "max_output_tokens"}
    assert plain["completed_at"] is None
    assert plain["max_output_tokens"] == 1
    *_, done, last = (await server.respond(max_output_tokens=1, stream=True)).typed_events
    assert done["item"]["status"] == "incomplete"
    assert last["type"] == "response.incomplete"
    assert unnamed(last["response"]) == unnamed(plain)


@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_without_text_is_an_empty_message(speaking, stream):
    server = await speaking()
    reply = await server.respond(stream=stream)
    response = reply.typed_events[-1]["response"] if stream else reply.json
    [message] = response["output"]
    assert message["content"][0]["text"] == ""


async def test_calls_are_items_of_their_own(speaking):
    server = await speaking("Let me see.\n", *CALL, "\n" + CALL)
    plain = (await server.respond(tools=[WEATHER])).json
    message, first, second = plain["output"]
    assert message["content"][0]["text"] == "Let me see."
    assert first["id"].startswith("fc_")
    assert first["call_id"].startswith("call_")
    assert first["call_id"] != second["call_id"]
    assert unnamed(first) == {
        "type": "function_call",
        "status": "completed",
        "name": "get_weather",
        "arguments": '{"city": "Paris"}',
    }
    assert plain["tools"] == [WEATHER | {"strict": False}]
    events = (await server.respond(tools=[WEATHER], stream=True)).typed_events
    of_first = [event for event in events if event.get("output_index") == 1]
    added, *deltas, whole, done = of_first
    assert added["item"]["arguments"] == ""
    assert len(deltas) > 5
    assert {event["type"] for event in deltas} == {"response.function_call_arguments.delta"}
    assert "".join(event["delta"] for event in deltas) == '{"city": "Paris"}'
    assert whole["type"] == "response.function_call_arguments.done"
    assert (whole["name"], whole["arguments"]) == ("get_weather", '{"city": "Paris"}')
    assert whole["item_id"] == added["item"]["id"] == done["item"]["id"]
    last = events[-1]["response"]
    assert last["output"][1] == done["item"]
    assert unnamed(last) == unnamed(plain)


@pytest.mark.parametrize("stream", [False, True])
async def test_log_probabilities_are_those_of_the_text_before_calls(speaking, stream):
    server = await speaking("Let ", "me see.\n" + CALL[:12], CALL[12:])
    reply = await server.respond(tools=[WEATHER], stream=stream, **LOGPROBS)
    response = reply.typed_events[-1]["response"] if stream else reply.json
    told = response["output"][0]["content"][0]["logprobs"]
    assert "".join(token["token"] for token in told) == "Let me see."
    assert told[0]["top_logprobs"] == [{"token": "L", "logprob": -0.5, "bytes": [76]}]
    assert response["top_logprobs"] == 1
    if stream:
        deltas = [
            event["logprobs"]
            for event in reply.typed_events
            if "delta" in event and "content_index" in event
        ]
        assert [token for tokens in deltas[:2] for token in tokens] == told
