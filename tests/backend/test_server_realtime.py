"""GET /v1/realtime over real sockets: events and their order, errors, bounds, and how it ends."""

import asyncio
import logging

import aiohttp
import orjson
import pytest
from responses_api import CALL, WEATHER, prompt

from backend.scheduler.request import FinishReason, Priority, TextDelta
from backend.server.app import LIVE
from backend.server.realtime.session import Bounds

pytest_plugins = ["running_backend"]

SESSION = {"type": "realtime"}
HANDSHAKE = (
    b"GET /v1/realtime HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)


def text_item(text, **fields):
    content = [{"type": "input_text", "text": text}]
    return {"type": "message", "role": "user", "content": content, **fields}


class Live:
    """A client's end of a session."""

    def __init__(self, socket):
        self.socket = socket

    async def send(self, kind, **fields):
        await self.socket.send_str(orjson.dumps({"type": kind, **fields}).decode())

    async def event(self):
        message = await self.socket.receive(timeout=60)
        assert message.type is aiohttp.WSMsgType.TEXT, message
        event = orjson.loads(message.data)
        assert event["event_id"]
        return event

    async def until(self, kind):
        """The events up to one of this kind."""
        events = [await self.event()]
        while events[-1]["type"] != kind:
            events.append(await self.event())
        return events

    async def say(self, text, **fields):
        await self.send("conversation.item.create", item=text_item(text, **fields))
        return (await self.until("conversation.item.done"))[-1]["item"]["id"]

    async def close_code(self):
        message = await self.socket.receive(timeout=60)
        assert message.type is aiohttp.WSMsgType.CLOSE, message
        return message.data


@pytest.fixture
async def connect():
    """Connect to a server; the session was announced."""
    sockets = []

    async def open_one(server, query="", **options):
        url = f"{server.url}/v1/realtime{query}"
        socket = await server.session.ws_connect(url, autoclose=False, **options)
        sockets.append(socket)
        live = Live(socket)
        (created,) = await live.until("session.created")
        assert created["session"]["model"] == server.model.name
        return live

    yield open_one
    for socket in sockets:
        await socket.close()


def gated(open_gate):
    """A script that says one word, and the rest once the gate opens."""

    async def script(request):
        yield TextDelta(0, "Hello", 1, cached_tokens=2)
        if request.request_id != "warm-up":
            await open_gate.wait()
        yield TextDelta(0, " world", 2, FinishReason.STOP, cached_tokens=2)

    return script


async def test_a_response_is_told_in_openai_s_order_and_joins_the_conversation(server, connect):
    live = await connect(server, "?model=scripted")
    await live.send("session.update", session={**SESSION, "instructions": "Be brief."})
    (updated,) = await live.until("session.updated")
    assert updated["session"]["instructions"] == "Be brief."
    asked = await live.say("Hi")
    await live.send("response.create", response={"metadata": {"topic": "greeting"}})
    events = await live.until("response.done")
    assert [event["type"] for event in events] == [
        "response.created",
        "response.output_item.added",
        "conversation.item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "conversation.item.done",
        "response.output_item.done",
        "response.done",
    ]
    assert events[2]["previous_item_id"] == asked
    assert events[6]["text"] == "Hello world"
    done = events[-1]["response"]
    assert (done["status"], done["metadata"]) == ("completed", {"topic": "greeting"})
    assert done["output"][0]["content"] == [{"type": "output_text", "text": "Hello world"}]
    usage = done["usage"]
    assert (usage["input_tokens"], usage["output_tokens"]) == (len(prompt(server)), 3)
    assert usage["total_tokens"] == len(prompt(server)) + 3
    assert prompt(server) == "system:Be brief.|user:Hi"

    await live.say("And?")
    await live.send("response.create")
    await live.until("response.done")
    assert prompt(server) == "system:Be brief.|user:Hi|assistant:Hello world|user:And?"


async def test_items_go_where_they_are_wanted_and_a_response_may_stand_apart(server, connect):
    live = await connect(server)
    first = await live.say("one", id="item_one")
    assert first == "item_one"
    await live.say("three")
    between = text_item("two", id="item_two")
    await live.send("conversation.item.create", item=between, previous_item_id=first)
    await live.until("conversation.item.done")
    before = text_item("zero")
    await live.send("conversation.item.create", item=before, previous_item_id="root")
    await live.until("conversation.item.done")
    await live.send("conversation.item.retrieve", item_id="item_two")
    (found,) = await live.until("conversation.item.retrieved")
    assert found["item"]["content"] == between["content"]
    await live.send("conversation.item.delete", item_id="item_one")
    await live.until("conversation.item.deleted")
    references = [{"type": "item_reference", "id": "item_two"}, text_item("apart")]
    apart = {"conversation": "none", "input": references, "instructions": "Alone."}
    await live.send("response.create", response=apart)
    events = await live.until("response.done")
    assert not any(event["type"].startswith("conversation") for event in events)
    assert prompt(server) == "system:Alone.|user:two|user:apart"
    await live.send("response.create")
    await live.until("response.done")
    assert prompt(server) == "user:zero|user:two|user:three"


async def test_functions_are_called_and_what_they_return_goes_on(speaking, connect):
    server = await speaking(CALL)
    live = await connect(server)
    await live.send("session.update", session={**SESSION, "tools": [WEATHER]})
    await live.until("session.updated")
    await live.say("Weather?")
    await live.send("response.create")
    events = await live.until("response.done")
    kinds = [event["type"] for event in events]
    assert "response.content_part.added" not in kinds
    told = events[kinds.index("response.function_call_arguments.done")]
    assert (told["name"], orjson.loads(told["arguments"])) == ("get_weather", {"city": "Paris"})
    (call,) = events[-1]["response"]["output"]
    assert (call["type"], call["status"], call["call_id"]) == (
        "function_call",
        "completed",
        told["call_id"],
    )
    returned = {"type": "function_call_output", "call_id": call["call_id"], "output": "sunny"}
    await live.send("conversation.item.create", item=returned)
    await live.until("conversation.item.done")
    await live.send("response.create")
    await live.until("response.done")
    assert prompt(server).endswith("|tool:sunny")


AUDIO = {"type": "message", "role": "user", "content": [{"type": "input_audio", "audio": "AA=="}]}
OUTPUT = {"type": "function_call_output", "call_id": "call_0", "output": "?"}
REFUSED = {
    "no JSON": ("{", None, None),
    "an array": ("[]", None, "invalid_type"),
    "a key twice": ('{"type": "response.create", "type": "x"}', "type", "duplicate_key"),
    "no type": ({}, "type", None),
    "an unknown event": ({"type": "response.begin"}, "type", "invalid_value"),
    "audio sent": ({"type": "input_audio_buffer.append"}, "type", "unsupported_event"),
    "audio cut": ({"type": "conversation.item.truncate"}, "type", "unsupported_event"),
    "an audio item": (
        {"type": "conversation.item.create", "item": AUDIO},
        "item.content[0].type",
        "invalid_value",
    ),
    "an audio format": (
        {"type": "session.update", "session": {**SESSION, "audio": {"output": {}}}},
        "session.audio",
        "unsupported_parameter",
    ),
    "spoken answers": (
        {"type": "response.create", "response": {"output_modalities": ["audio"]}},
        "response.output_modalities",
        "unsupported_parameter",
    ),
    "transcription": (
        {"type": "session.update", "session": {"type": "transcription"}},
        "session.type",
        "invalid_value",
    ),
    "another model": (
        {"type": "session.update", "session": {**SESSION, "model": "other"}},
        "session.model",
        "cannot_update_model",
    ),
    "a choice without tools": (
        {"type": "session.update", "session": {**SESSION, "tool_choice": "required"}},
        "session.tool_choice",
        "invalid_parameter_combination",
    ),
    "an output without a call": (
        {"type": "conversation.item.create", "item": OUTPUT},
        "item.call_id",
        "invalid_value",
    ),
    "an id twice": (
        {"type": "conversation.item.create", "item": text_item("again", id="item_0")},
        "item.id",
        "invalid_value",
    ),
    "an unknown place": (
        {"type": "conversation.item.create", "item": text_item("?"), "previous_item_id": "no"},
        "previous_item_id",
        "item_not_found",
    ),
    "an unknown item": (
        {"type": "conversation.item.delete", "item_id": "no"},
        "item_id",
        "item_not_found",
    ),
    "nothing to cancel": (
        {"type": "response.cancel"},
        "response_id",
        "response_cancel_not_active",
    ),
    "no room": (
        {"type": "conversation.item.create", "item": text_item("a" * 60)},
        "item",
        "conversation_too_long",
    ),
    "a prompt over the context": (
        {"type": "response.create", "response": {"instructions": "a" * 200}},
        "conversation",
        "context_length_exceeded",
    ),
}


async def test_what_cannot_be_obeyed_is_told_and_the_session_goes_on(start_server, connect):
    server = await start_server(limits={"realtime": Bounds(characters=50)})
    live = await connect(server)
    await live.say("Hi", id="item_0")
    seen = {}
    for name, (event, *_) in REFUSED.items():
        known = isinstance(event, dict)
        sent = orjson.dumps({**event, "event_id": name}).decode() if known else event
        await live.socket.send_str(sent)
        (told,) = await live.until("error")
        assert told["error"]["event_id"] == (name if known else None)
        assert told["error"]["message"]
        seen[name] = (event, told["error"]["param"], told["error"]["code"])
    assert seen == REFUSED
    await live.send("response.create")
    assert (await live.until("response.done"))[-1]["response"]["status"] == "completed"
    assert prompt(server) == "user:Hi"


async def test_one_response_at_a_time_and_a_cancelled_one_is_told_whole(start_server, connect):
    gate = asyncio.Event()
    server = await start_server(script=gated(gate))
    live = await connect(server)
    await live.say("Hi")
    await live.send("response.create")
    await live.until("response.output_text.delta")
    await live.send("response.create")
    (busy,) = await live.until("error")
    assert busy["error"]["code"] == "conversation_already_has_active_response"
    await live.send("response.cancel")
    events = await live.until("response.done")
    done = events[-1]["response"]
    assert done["status_details"] == {"type": "cancelled", "reason": "client_cancelled"}
    assert (done["status"], done["output"][0]["status"]) == ("cancelled", "incomplete")
    assert done["usage"]["output_tokens"] == 1
    assert done["usage"]["input_token_details"]["cached_tokens"] == 2
    assert server.generator.cancelled.is_set()
    gate.set()
    await live.send("response.create")
    assert (await live.until("response.done"))[-1]["response"]["status"] == "completed"


async def test_an_answer_that_is_cut_or_fails_says_so(start_server, connect):
    async def script(request):
        if b"cut" in bytes(request.prompt_tokens):
            yield TextDelta(0, "Hel", 1, FinishReason.LENGTH)
        else:
            yield TextDelta(0, "Hel", 1)  # and ends early

    live = await connect(await start_server(script=script))
    await live.say("cut")
    await live.send("response.create")
    done = (await live.until("response.done"))[-1]["response"]
    assert done["status_details"] == {"type": "incomplete", "reason": "max_output_tokens"}
    await live.send("response.create", response={"input": [text_item("fail")]})
    done = (await live.until("response.done"))[-1]["response"]
    assert (done["status"], done["status_details"]["error"]["code"]) == ("failed", "engine_error")


async def test_what_is_known_of_a_prompt_is_computed_before_its_response(start_server, connect):
    computing, begun = asyncio.Event(), asyncio.Event()

    async def script(request):
        if request.priority is Priority.LOW:
            begun.set()
            await computing.wait()
        yield TextDelta(0, "Yes", 1, FinishReason.STOP)

    server = await start_server(script=script, max_model_len=1_000)
    live = await connect(server, headers={"Authorization": "Bearer k"})
    await live.say("short")
    await live.say("long " * 20)
    await asyncio.wait_for(begun.wait(), 60)
    assert not server.generator.cancelled.is_set()
    await live.say("last")
    await live.send("response.create")
    await live.until("response.done")
    ahead, asked = server.generator.requests  # one at a time, and ended by the response
    assert server.generator.cancelled.is_set()
    assert (ahead.sampling.max_tokens, ahead.stream) == (1, False)
    assert ahead.cache_salt == asked.cache_salt != ""
    assert asked.prompt_tokens[: len(ahead.prompt_tokens)] == ahead.prompt_tokens


async def test_names_and_call_ids_count_as_characters(start_server, connect):
    live = await connect(await start_server(limits={"realtime": Bounds(characters=50)}))
    call = {"type": "function_call", "call_id": "c" * 10, "name": "n" * 10, "arguments": "{}"}
    returned = {"type": "function_call_output", "call_id": "c" * 10, "output": "o"}
    for item in (call, returned):  # 22 and 11
        await live.send("conversation.item.create", item=item)
        await live.until("conversation.item.done")
    for item in (
        {**call, "name": "n" * 20},
        {**call, "call_id": "d" * 16},
        {**returned, "output": "o" * 8},
    ):
        await live.send("conversation.item.create", item=item)
        (told,) = await live.until("error")
        assert told["error"]["code"] == "conversation_too_long"


async def test_a_prompt_that_is_too_long_is_not_computed_again(start_server, connect, monkeypatch):
    server, written = await start_server(max_model_len=60), asyncio.Queue()
    encoder = server.model._loaded.encoder
    write = encoder.apply_chat_template

    def noting(messages, **options):
        written.put_nowait(len(messages))
        return write(messages, **options)

    live = await connect(server)
    monkeypatch.setattr(encoder, "apply_chat_template", noting)
    await live.say("a" * 70, id="item_long")
    assert await asyncio.wait_for(written.get(), 60) == 1
    for _ in range(3):
        await live.say("short")
    await live.send("response.create")
    assert (await live.until("error"))[-1]["error"]["code"] == "context_length_exceeded"
    assert [written.get_nowait() for _ in range(written.qsize())] == [4]
    await live.send("conversation.item.delete", item_id="item_long")
    await live.until("conversation.item.deleted")
    await live.say("more")
    assert await asyncio.wait_for(written.get(), 60) == 4


async def test_keys_and_the_gateway_s_salt_keep_clients_apart_in_the_prefix_cache(server, connect):
    salts = []
    for protocol, salt in (("a", "1"), ("b", "1"), ("a", "2"), ("a", "1")):
        key = f"openai-insecure-api-key.{protocol}"
        headers = {"X-Refrain-Cache-Salt": salt}
        live = await connect(server, protocols=["realtime", key], headers=headers)
        await live.say("Hi")
        await live.send("response.create")
        await live.until("response.done")
        salts.append(server.generator.requests[-1].cache_salt)
    assert salts[0] == salts[3]
    assert len(set(salts)) == 3


async def test_a_client_that_vanishes_takes_its_response_along(start_server, connect):
    server = await start_server(script=gated(asyncio.Event()))
    live = await connect(server)
    await live.say("Hi")
    await live.send("response.create")
    await live.until("response.output_text.delta")
    live.socket._response.connection.transport.abort()
    await asyncio.wait_for(server.generator.cancelled.wait(), 60)


async def test_a_stopping_server_lets_a_response_end(start_server, connect):
    gate = asyncio.Event()
    server = await start_server(script=gated(gate))
    busy, idle = await connect(server), await connect(server)
    await busy.say("Hi")
    await busy.send("response.create")
    await busy.until("response.output_text.delta")
    server.runner.app[LIVE].close()
    assert await idle.close_code() == 1001
    gate.set()
    assert (await busy.until("response.done"))[-1]["response"]["status"] == "completed"
    assert await busy.close_code() == 1001


async def test_binary_and_large_messages_close_the_session(server, connect):
    live = await connect(server)
    await live.socket.send_bytes(b"{}")
    assert await live.close_code() == 1003
    live = await connect(server)
    sending = asyncio.create_task(live.socket.send_str("a" * 10_000_000))
    assert await live.close_code() == 1009
    sending.cancel()
    await asyncio.gather(sending, return_exceptions=True)


@pytest.mark.parametrize("bounds", [Bounds(idle_seconds=0.05), Bounds(session_seconds=0.05)])
async def test_a_session_does_not_last_for_ever(start_server, connect, bounds):
    live = await connect(await start_server(limits={"realtime": bounds}))
    assert await live.close_code() == 1001


async def test_half_a_frame_does_not_hold_a_session(start_server):
    server = await start_server(limits={"realtime": Bounds(heartbeat_seconds=0.1)})
    reader, writer = await asyncio.open_connection(server.host, server.port)
    writer.write(HANDSHAKE + b"\x81\xff\x00")  # the rest of the length never comes
    assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 101 ")
    assert b"session.created" in await asyncio.wait_for(reader.read(), 60)
    writer.close()


async def test_a_flood_is_answered_in_order_within_bounds(start_server, connect):
    server = await start_server(limits={"realtime": Bounds(items=50)}, max_model_len=10)
    live = await connect(server)

    async def flood():
        for number in range(3_000):
            item = text_item("a", id=f"item_{number}")
            await live.send("conversation.item.create", item=item)

    sending = asyncio.create_task(flood())
    for number in range(50):
        events = await live.until("conversation.item.done")
        assert events[-1]["item"]["id"] == f"item_{number}"
    for _ in range(2_950):
        (refused,) = await live.until("error")
        assert refused["error"]["code"] == "conversation_too_long"
    await sending


async def test_what_is_refused_is_refused_before_the_switch(start_server, connect, caplog):
    server = await start_server(limits={"realtime": Bounds(sessions=1)})
    caplog.set_level(logging.DEBUG)

    async def refused(query="", **options):
        with pytest.raises(aiohttp.WSServerHandshakeError) as error:
            await server.session.ws_connect(f"{server.url}/v1/realtime{query}", **options)
        return error.value.status

    assert await refused("?model=other") == 404
    assert await refused("?call_id=rtc_1") == 400
    assert await refused(headers={"Origin": "https://evil.example"}) == 403
    assert await refused(headers={"Origin": "null"}) == 403
    key = "openai-insecure-api-key.sk-secret"
    assert await refused(protocols=[key]) == 400
    assert (await server.get("/v1/realtime")).status == 426
    own = {"Origin": f"http://{server.host}:{server.port}"}
    live = await connect(server, protocols=["realtime", key], headers=own)
    assert live.socket.protocol == "realtime"
    assert await refused() == 503
    await live.socket.close()
    server.model._loaded.generator.ready = False
    assert await refused() == 503
    assert "sk-secret" not in caplog.text
