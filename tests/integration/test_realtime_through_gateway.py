"""/v1/realtime of the real engine behind the real gateway, by the unmodified openai client."""

import asyncio
from hashlib import sha256

import openai
import pytest

pytest_plugins = ["running_backend"]


async def until(connection, kind):
    async with asyncio.timeout(60):
        while (event := await connection.recv()).type != kind:
            assert event.type != "error", event
    return event


@pytest.fixture
async def client_of(start_real_server, start_gateway, tmp_path):
    engine = await start_real_server()
    digest = sha256(b"gk-shop").hexdigest()
    other = sha256(b"gk-other").hexdigest()
    (tmp_path / "keys").write_text(
        f"shop {digest} models=tiny,alias budget=60tokens/day\n"
        f"own {sha256(b'gk-own').hexdigest()}\nother {other}\n"
    )
    one = {"url": f"{engine.url}/v1", "auth": "none", "rename": {"alias": "tiny"}, "probe": "off"}
    one["cache_salt"] = True
    gateway = await start_gateway(upstream=(), upstreams=[one], gateway_keys=tmp_path / "keys")
    clients = []

    def client(key):
        clients.append(openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key=key, max_retries=0))
        return clients[-1]

    yield client
    for each in clients:
        await each.close()


async def test_a_session_of_the_engine_through_the_gateway(client_of):
    shop = client_of("gk-shop")
    with pytest.raises(Exception, match="401"):
        await client_of("gk-wrong").realtime.connect(model="alias").enter()
    with pytest.raises(Exception, match="403"):
        await shop.realtime.connect(model="other").enter()
    async with shop.realtime.connect(model="alias") as connection:
        created = await until(connection, "session.created")
        assert created.session.model == "tiny"
        await connection.session.update(session={"type": "realtime", "temperature": 0})
        await until(connection, "session.updated")
        content = [{"type": "input_text", "text": "How are you today? " * 2}]
        item = {"type": "message", "role": "user", "content": content}
        await connection.conversation.item.create(item=item)
        await until(connection, "conversation.item.done")
        await connection.response.create(response={"max_output_tokens": 8})
        done = await until(connection, "response.done")
        usage = done.response.usage
        assert done.response.output[0].content[0].text
        assert usage.total_tokens == usage.input_tokens + usage.output_tokens >= 55
        # The budget is used up by it.
        error = await connection.recv()
        assert (error.type, error.error.code) == ("error", "insufficient_quota")
    with pytest.raises(Exception, match="429"):
        await shop.realtime.connect(model="alias").enter()


async def test_holders_share_no_prefix_cache_and_choose_no_salt(client_of):
    cached = []
    for key in ("gk-own", "gk-other", "gk-own"):
        headers = {"X-Refrain-Cache-Salt": "mine"}
        session = client_of(key).realtime.connect(model="alias", extra_headers=headers)
        async with session as connection:
            content = [{"type": "input_text", "text": "How are you today? " * 8}]
            item = {"type": "message", "role": "user", "content": content}
            # Not an item of the conversation, which would be computed before it is asked.
            await connection.response.create(response={"input": [item], "max_output_tokens": 1})
            done = await until(connection, "response.done")
            cached.append(done.response.usage.input_token_details.cached_tokens)
    assert cached[:2] == [0, 0]
    assert cached[2] > 0
