"""A live session that passes through: keys, models, limits, frames and closes, both ways."""

import asyncio
import time
from contextlib import AsyncExitStack
from hashlib import sha256

import aiohttp
import orjson
import pytest
from aiohttp import WSMsgType, web
from faulty_upstreams import pool

from gateway.protocol.reply_usage import LiveUsage
from gateway.protocol.tokens import PromptUsage, tokens_in
from gateway.server.http import middleware
from running_gateway import start_app

OWN = "sk-upstreams-own"
BROWSERS = "openai-insecure-api-key."


def line(name, *attributes):
    return " ".join((name, sha256(f"gk-{name}".encode()).hexdigest(), *attributes)) + "\n"


def bearing(name):
    return {"Authorization": f"Bearer gk-{name}"}


def event(kind, **fields):
    return orjson.dumps({"type": kind, **fields}).decode()


class Upstream:
    """Speaks as OpenAI's realtime API does, as far as a gateway looks at it."""

    def __init__(self):
        self.requests, self.events, self.ended = [], [], asyncio.Queue()
        self.status = 101
        self.usage = {
            "total_tokens": 30,
            "input_tokens": 20,
            "output_tokens": 10,
            "input_token_details": {"cached_tokens": 16},
        }

    async def handle(self, request):
        self.requests.append(request)
        if self.status != 101:
            error = {"message": "no", "type": "x", "param": None, "code": "odd"}
            return web.json_response({"error": error}, status=self.status)
        socket = web.WebSocketResponse(protocols=("realtime",), autoclose=False, max_msg_size=2**26)
        socket.headers["openai-processing-ms"] = "7"
        await socket.prepare(request)
        await socket.send_str(event("session.created", event_id="event_1"))
        async for message in socket:
            if message.type is WSMsgType.BINARY:
                await socket.send_bytes(message.data[::-1])
                continue
            self.events.append(message.data)
            match orjson.loads(message.data):
                case {"type": "response.create"}:
                    await socket.send_str(event("response.created"))
                    await socket.send_str(event("response.output_text.delta", delta="Hi"))
                    await socket.send_str(event("response.done", response={"usage": self.usage}))
                case {"type": "begin"}:
                    await socket.send_str(event("response.created"))
                    await socket.send_str(event("response.output_text.delta", delta="H" * 400))
                case {"type": "close", "code": code}:
                    await socket.close(code=code, message=b"because")
                case {"type": "break"}:
                    request.transport.abort()
                case {"type": "large", "size": size}:
                    await socket.send_str("a" * size)
                case _:
                    await socket.send_str(message.data)
        self.ended.put_nowait(socket.close_code)
        return socket


@pytest.fixture
async def live(start_gateway, tmp_path, monkeypatch):
    """Start a gateway before a realtime upstream; return both and a way to connect."""
    async with AsyncExitStack() as stack:
        monkeypatch.setenv("OWN", OWN)
        noon = time.time() // 86_400 * 86_400 + 43_200
        monkeypatch.setattr(time, "time", lambda: noon)

        async def start(*lines, **upstream):
            fake = Upstream()
            app = web.Application()
            app.router.add_get("/v1/realtime", fake.handle)
            runner, url = await start_app(app)
            stack.push_async_callback(runner.cleanup)
            settings = {}
            if lines:
                (tmp_path / "keys").write_text("".join(lines))
                settings["gateway_keys"] = tmp_path / "keys"
                upstream["api_key_env"] = "OWN"
            one = {"url": f"{url}/v1", **upstream}
            gateway = await pool(start_gateway, one, **settings)

            async def connect(query="?model=m", **options):
                url = f"{gateway.url}/v1/realtime{query}"
                socket = await gateway.session.ws_connect(url, max_msg_size=2**26, **options)
                stack.push_async_callback(socket.close)
                return socket

            return gateway, fake, connect

        yield start


async def received(socket):
    message = await socket.receive(timeout=60)
    assert message.type is WSMsgType.TEXT, message
    return orjson.loads(message.data)


async def until(socket, kind):
    while (found := await received(socket))["type"] != kind:
        pass
    return found


async def refused(connect, *args, **options):
    with pytest.raises(aiohttp.WSServerHandshakeError) as error:
        await connect(*args, **options)
    return error.value


async def test_messages_pass_both_ways_and_the_head_says_why_nothing_is_cached(live):
    _, fake, connect = await live()
    socket = await connect("?model=m&x=1", headers={"OpenAI-Beta": "realtime=v1"})
    headers = socket._response.headers
    assert headers["Cache-Status"] == "refrain; fwd=bypass; detail=realtime"
    assert headers["x-request-id"]
    assert headers["openai-processing-ms"] == "7"
    sent = fake.requests[0]
    assert (sent.path_qs, sent.headers["OpenAI-Beta"]) == (
        "/v1/realtime?model=m&x=1",
        "realtime=v1",
    )
    assert "refrain" in sent.headers["Via"]
    assert (await received(socket))["event_id"] == "event_1"
    whole = event("echo", text="ü" * 300_000)
    await socket.send_str(whole)
    assert await socket.receive_str(timeout=60) == whole
    await socket.send_bytes(b"abc")
    assert await socket.receive_bytes(timeout=60) == b"cba"


async def test_a_close_passes_on_with_its_code_from_either_side(live):
    _, fake, connect = await live()
    socket = await connect()
    await socket.close(code=4001, message=b"enough")
    assert await asyncio.wait_for(fake.ended.get(), 60) == 4001
    socket = await connect()
    await received(socket)
    await socket.send_str(event("close", code=4002))
    message = await socket.receive(timeout=60)
    assert (message.type, message.data, message.extra) == (WSMsgType.CLOSE, 4002, "because")
    socket = await connect()
    await received(socket)
    await socket.send_str(event("break"))
    assert (await socket.receive(timeout=60)).data == 1014
    socket = await connect()
    socket._response.connection.transport.abort()
    assert await asyncio.wait_for(fake.ended.get(), 60) == 4002
    assert await asyncio.wait_for(fake.ended.get(), 60) is not None


async def test_messages_over_the_bound_close_both_sides(live):
    _, fake, connect = await live()
    socket = await connect()
    await received(socket)
    sending = asyncio.create_task(socket.send_str("a" * 17 * 2**20))
    assert (await socket.receive(timeout=60)).data == 1009
    sending.cancel()
    await asyncio.gather(sending, return_exceptions=True)
    assert await asyncio.wait_for(fake.ended.get(), 60) in {1001, 1009}  # whoever is first
    socket = await connect()
    await received(socket)
    await socket.send_str(event("large", size=17 * 2**20))
    assert (await socket.receive(timeout=60)).data == 1009


async def test_a_slow_reader_holds_its_upstream_back(live):
    *_, connect = await live()
    socket = await connect()
    await received(socket)
    for _ in range(8):
        await socket.send_str(event("large", size=2**20))
    sizes = [len(await socket.receive_str(timeout=60)) for _ in range(8)]
    assert sizes == [2**20] * 8


async def test_keys_are_checked_before_the_switch_and_never_sent_on(live, caplog):
    gateway, fake, connect = await live(line("shop"))
    caplog.set_level("DEBUG")
    assert (await refused(connect)).status == 401
    assert (await refused(connect, headers={"Authorization": "Bearer gk-wrong"})).status == 401
    assert (await refused(connect, protocols=["realtime", f"{BROWSERS}gk-wrong"])).status == 401
    assert not fake.requests
    socket = await connect(protocols=["realtime", f"{BROWSERS}gk-shop"])
    assert (socket.protocol, (await received(socket))["type"]) == ("realtime", "session.created")
    sent = fake.requests[0].headers
    assert (sent["Sec-WebSocket-Protocol"], sent["Authorization"]) == ("realtime", f"Bearer {OWN}")
    assert "gk-shop" not in str(sent) + caplog.text
    reply = await gateway.session.get(f"{gateway.url}/v1/realtime", headers=bearing("shop"))
    assert reply.status == 400  # the upstream's own word on a request that wants no WebSocket
    reply.release()


HANDSHAKE = {
    "Host": "x",
    "Upgrade": "websocket",
    "Connection": "Upgrade",
    "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
    "Sec-WebSocket-Version": "13",
}
MALFORMED = (
    {"Upgrade": "h2c, websocket"},
    {"Connection": "keep-alive"},
    {"Sec-WebSocket-Key": "short"},
    {"Sec-WebSocket-Version": "99"},
    {"Content-Length": "5"},
    {"Transfer-Encoding": "chunked"},
)


async def test_a_malformed_handshake_is_the_client_s_fault_and_opens_no_session(live):
    gateway, fake, _ = await live()
    host, port = gateway.url.removeprefix("http://").split(":")
    for wrong in MALFORMED:
        lines = "".join(f"{name}: {value}\r\n" for name, value in {**HANDSHAKE, **wrong}.items())
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(f"GET /v1/realtime?model=m HTTP/1.1\r\n{lines}\r\n".encode())
        reply = await asyncio.wait_for(reader.read(), 60)
        assert reply.startswith(b"HTTP/1.1 400 "), (wrong, reply)
        assert b"invalid_handshake" in reply
        writer.close()
    assert not fake.requests


async def test_a_page_of_another_origin_needs_a_key_that_is_checked_here(live):
    gateway, fake, connect = await live()
    host = gateway.url.removeprefix("http://")
    for foreign in ("https://evil.example", "null", f"ftp://{host}", f"http://{host}0", "http://["):
        assert (await refused(connect, headers={"Origin": foreign, **bearing("x")})).status == 403
    assert not fake.requests
    await connect(headers={"Origin": f"http://{host}"})
    _, fake, connect = await live(line("shop"))
    await connect(headers={"Origin": "https://shop.example", **bearing("shop")})
    assert "Origin" not in fake.requests[0].headers


async def test_upstreams_that_know_salts_get_one_for_each_holder(live):
    _, fake, connect = await live(line("a"), line("b"), cache_salt=True)
    for name in ("a", "b", "a"):
        await connect(headers={**bearing(name), "X-Refrain-Cache-Salt": "mine"})
    salts = [each.headers.getall("X-Refrain-Cache-Salt") for each in fake.requests]
    assert salts[0] == salts[2]
    assert len({salt for each in salts for salt in each}) == len(salts[0]) + len(salts[1]) == 2
    assert "mine" not in str(salts)
    _, fake, connect = await live(line("a"))
    await connect(headers={**bearing("a"), "X-Refrain-Cache-Salt": "mine"})
    assert "X-Refrain-Cache-Salt" not in fake.requests[0].headers


async def test_a_subprotocol_s_key_never_stands_beside_another_one(live):
    _, fake, connect = await live()
    protocols = ["realtime", f"{BROWSERS}one", f"{BROWSERS}two"]
    await connect(protocols=protocols)
    await connect(protocols=protocols, headers={"Authorization": "Bearer own"})
    keys = [each.headers.getall("Authorization") for each in fake.requests]
    assert keys == [["Bearer one"], ["Bearer own"]]


async def test_a_session_is_limited_as_requests_are(live):
    _, fake, connect = await live(
        line("slow", "rpm=1"), line("one", "concurrency=1"), line("poor", "budget=50tokens/day")
    )
    await connect(headers=bearing("slow"))
    assert (await refused(connect, headers=bearing("slow"))).status == 429
    first = await connect(headers=bearing("one"))
    error = await refused(connect, headers=bearing("one"))
    assert (error.status, error.headers["Cache-Status"]) == (429, "refrain; detail=key-limit")
    await first.close()

    socket = await connect(headers=bearing("poor"))
    await socket.send_str(event("response.create"))
    assert (await until(socket, "response.done"))["response"]["usage"] == fake.usage
    await socket.send_str(event("response.create"))
    await until(socket, "response.done")
    told = await received(socket)
    assert (told["type"], told["error"]["code"]) == ("error", "insufficient_quota")
    assert (await socket.receive(timeout=60)).data == 1008
    assert (await refused(connect, headers=bearing("poor"))).status == 429


async def test_a_client_that_leaves_its_response_is_charged_an_estimate(live):
    gateway, _, connect = await live(line("shop", "tpm=1000", "concurrency=1"))
    socket = await connect(headers=bearing("shop"))
    await socket.send_str(event("begin"))
    await until(socket, "response.output_text.delta")
    socket._response.connection.transport.abort()
    while (reply := await gateway.get("/v1/files", headers=bearing("shop"))).status == 429:
        pass
    assert 1000 - int(reply.headers["x-ratelimit-remaining-tokens"]) >= 100


def test_usage_is_read_of_the_event_s_own_type_and_of_each_response():
    usage, counts = LiveUsage(), {"input_tokens": 5, "output_tokens": 7}
    usage.note_sent(40)
    for name in ("one", "two", "three"):
        assert usage.feed(event("response.created", response={"id": name})) is None
    nested = {"type": "response.done", "response": {"id": "one", "usage": counts}}
    for kind in ("session.updated", "conversation.item.added"):
        assert usage.feed(orjson.dumps({"session": nested, "type": kind}).decode()) is None
        assert usage.feed(event(kind, item=nested, response=nested["response"])) is None
    said = event(
        "response.output_text.delta", response_id="two", delta='"type":"response.done"' * 9
    )
    odd = orjson.dumps({"delta": "a" * 90, "type": "response.x.delta", "response_id": "one"})
    for delta in (said, said, odd.decode()):
        assert usage.feed(delta) is None
    done = usage.feed(
        event("response.done", event_id="e", response={"id": "three", "usage": counts})
    )
    assert done == PromptUsage(5, 7)
    assert usage.is_answering
    assert usage.feed(event("response.done", response={"id": "one"})) == PromptUsage(
        tokens_in(40), tokens_in(len(odd))
    )
    usage.feed(event("response.created", response={"id": "four"}))
    left = usage.end()
    assert (left.prompt, left.completion) == (2 * tokens_in(40), tokens_in(2 * len(said)))


async def test_a_holder_without_tokens_gets_no_response_in_any_of_its_sessions(live):
    _, fake, connect = await live(line("poor", "budget=50tokens/day"))
    idle, busy, spender = [await connect(headers=bearing("poor")) for _ in range(3)]
    await busy.send_str(event("begin"))
    await until(busy, "response.output_text.delta")
    for _ in range(2):
        await spender.send_str(event("response.create"))
        await until(spender, "response.done")
    asked = len(fake.events)
    await idle.send_str(event("response.create"))
    await busy.send_str(event("begin"))  # beside its first response, so the upstream begins it
    for socket in (idle, busy):
        assert (await until(socket, "error"))["error"]["code"] == "insufficient_quota"
        assert (await socket.receive(timeout=60)).data == 1008
    assert fake.events[asked:] == [event("begin")]


async def test_a_restricted_key_names_its_own_models_alone(live):
    _, fake, connect = await live(line("shop", "models=m"), line("open"))
    assert (await refused(connect, "?model=o", headers=bearing("shop"))).status == 403
    assert (await refused(connect, "", headers=bearing("shop"))).status == 403
    socket = await connect(headers=bearing("shop"))
    await received(socket)
    await socket.send_str(event("session.update", session={"model": "o"}))
    assert (await received(socket))["error"]["code"] == "model_not_allowed"
    await socket.send_str("{")
    assert (await received(socket))["type"] == "error"
    await socket.send_str(event("echo", instructions="o"))
    assert (await received(socket))["instructions"] == "o"
    assert len(fake.events) == 1


async def test_the_model_of_the_query_is_routed_and_renamed(live):
    _, fake, connect = await live(models=["real"], rename={"alias": "real"})
    await connect("?x=1&model=alias")
    assert fake.requests[0].query == {"x": "1", "model": "real"}


async def test_an_upstream_that_refuses_is_quoted_and_one_without_realtime_is_not_asked(live):
    gateway, fake, connect = await live()
    fake.status = 429
    async with gateway.session.get(
        f"{gateway.url}/v1/realtime",
        headers={
            "Upgrade": "websocket",
            "Connection": "Upgrade",
            "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
            "Sec-WebSocket-Version": "13",
        },
    ) as reply:
        assert (reply.status, (await reply.json())["error"]["code"]) == (429, "odd")
        assert reply.headers["Connection"] == "close"
    _, other, connect = await live(preset="groq")
    assert (await refused(connect)).status == 501
    assert not other.requests


async def test_a_stopping_gateway_says_so_to_its_sessions(live, monkeypatch):
    apps, new_app = [], middleware.new_app
    monkeypatch.setattr(
        middleware, "new_app", lambda *args, **more: apps.append(new_app(*args, **more)) or apps[0]
    )
    _, fake, connect = await live()
    busy, idle = await connect(), await connect()
    await busy.send_str(event("begin"))
    await until(busy, "response.output_text.delta")
    await received(idle)
    apps[0][middleware.STOPPING].set()
    assert (await idle.receive(timeout=60)).data == 1001
    await busy.send_str(event("response.create"))
    await until(busy, "response.done")
    assert (await busy.receive(timeout=60)).data == 1001
    assert {await asyncio.wait_for(fake.ended.get(), 60) for _ in range(2)} == {1001}
