"""A prefill and a decode engine behind the real gateway, with real HTTP servers."""

import re

import openai
import pytest

from backend.settings import address

pytest_plugins = ["running_backend"]

SECRET = {"kv_transfer_secret": "between the engines"}
ASKED = {"model": "tiny", "temperature": 0, "max_tokens": 8}
PROMPT = "A question that is long enough for several blocks of the prefix cache? " * 3


async def figure(server, name):
    text = (await server.get("/metrics")).raw.decode()
    found = re.search(rf"^refrain_engine_{name} (\S+)$", text, re.MULTILINE)
    return 0.0 if found is None else float(found[1])


@pytest.fixture
def engines(start_real_server):
    async def start():
        listening = (address("127.0.0.1:0"),)
        prefill = await start_real_server(role="prefill", kv_transfer=listening, **SECRET)
        at = f"127.0.0.1:{prefill.generator._role.port}"
        decode = await start_real_server(
            role="decode", kv_transfer=(address(at),), kv_host_bytes=2**24, **SECRET
        )
        return prefill, decode, at

    return start


async def test_the_gateway_has_prompts_computed_by_the_prefill_engine(
    engines, real_server, start_gateway
):
    prefill, decode, at = await engines()
    one = {"auth": "none", "preset": "refrain"}
    pool = [
        {"name": "p", "url": f"{prefill.url}/v1", "role": "prefill", "kv_transfer": at, **one},
        {"name": "d", "url": f"{decode.url}/v1", "role": "decode", **one},
    ]
    gateway = await start_gateway(upstream=(), upstreams=pool)
    texts = []
    for url in (real_server.url, gateway.url):
        async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="k", max_retries=0) as client:
            answer = await client.completions.create(prompt=PROMPT, **ASKED)
            texts.append(answer.choices[0].text)
    assert texts[0] == texts[1]
    blocks = (len(PROMPT) - 1) // 16
    complete = 'kv_transfers_total{result="complete"}'
    assert await figure(decode, complete) == 1
    assert await figure(prefill, 'kv_transfer_blocks_total{direction="sent"}') == blocks
    # A client's own header is not passed on, and its request is computed all the same.
    async with openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key="k") as client:
        await client.completions.create(
            prompt=PROMPT[1:], extra_headers={"X-Refrain-Prefill": "192.0.2.1:1"}, **ASKED
        )
    assert await figure(decode, complete) == 2
