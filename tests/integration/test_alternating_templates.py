"""Chat templates that insist on user and assistant in turn: prompts go to them as they came."""

import asyncio
import shutil
from pathlib import Path
from typing import Any

import orjson
import pytest

from running_gateway import RunningGateway, StartGateway

pytest_plugins = ["running_backend"]

ALTERNATING = """
{%- if messages[0].role == 'system' %}{% set turns = messages[1:] %}{{ messages[0].content }}
{%- else %}{% set turns = messages %}{% endif %}
{%- for message in turns %}
    {%- if (message.role == 'user') != (loop.index0 % 2 == 0) %}
        {{- raise_exception('Conversation roles must alternate user/assistant/...') }}
    {%- endif %}
    {{- message.role }}: {{ message.content }}
{% endfor %}assistant:
"""
STABLE = "You are the assistant of a shop. Answer briefly."
REFUSED = 'none; declined="volatile=refused"'


@pytest.fixture
def chat_model(chat_model: Path, tmp_path: Path) -> Path:
    directory = tmp_path / "alternating"
    shutil.copytree(chat_model, directory)
    settings = {"eos_token": "<|end|>", "chat_template": ALTERNATING}
    (directory / "tokenizer_config.json").write_bytes(orjson.dumps(settings))
    return directory


@pytest.fixture
async def engine(start_real_server: Any) -> Any:
    return await start_real_server()


@pytest.fixture
async def gateway(start_gateway: StartGateway, engine: Any, tmp_path: Path) -> RunningGateway:
    policy = tmp_path / "policy.yaml"
    policy.write_text(
        "version: 1\ndefault: {exact: on, semantic: off, freshness: 1h, scope: tenant, "
        "pii: bypass, prefix: {volatile: [timestamps]}}\n"
    )
    return await start_gateway(upstream=(f"{engine.url}/v1",), policy=policy)


async def refusals(engine: Any, number: int) -> float:
    """How many chats the engine has refused, once it is so many: it counts when it has answered."""
    sample = 'refrain_engine_requests_total{endpoint="/v1/chat/completions",outcome="client_error"}'
    async with asyncio.timeout(30):
        while (counted := await engine.metric(sample) or 0.0) < number:
            pass
    return float(counted)


async def asked(gateway: RunningGateway, number: int, **more: Any) -> Any:
    turns = [
        {"role": "system", "content": f"It is 2026-11-22T01:03:4{number}.123Z. {STABLE}"},
        {"role": "user", "content": "One?"},
    ]
    body = {"model": "tiny", "messages": turns, "temperature": 0, "max_tokens": 2, **more}
    return await gateway.post("/v1/chat/completions", orjson.dumps(body))


@pytest.mark.parametrize("stream", [False, True], ids=["plain", "streamed"])
async def test_a_template_that_refuses_the_moved_values_gets_the_prompt_as_it_came(
    gateway: RunningGateway, engine: Any, *, stream: bool
):
    for number in range(3):
        reply = await asked(gateway, number, stream=stream)
        assert reply.status == 200
        assert reply.headers["X-Refrain-Rewrite"] == REFUSED
    assert await refusals(engine, 3) == 3
    line = 'refrain_rewrites_declined_total{reason="refused",rewrite="volatile",rule="default"} 3.0'
    assert line in (await gateway.get("/metrics")).raw.decode()


async def test_a_prompt_that_the_template_refuses_as_it_came_is_refused(
    gateway: RunningGateway, engine: Any
):
    turns = [
        {"role": "system", "content": f"It is 2026-11-22T01:03:42.123Z. {STABLE}"},
        {"role": "user", "content": "One?"},
        {"role": "user", "content": "Two?"},
    ]
    for _ in range(2):
        reply = await asked(gateway, 0, messages=turns)
        assert reply.status == 400
        assert "must alternate" in reply.json["error"]["message"]
    assert await refusals(engine, 4) == 4
