"""Files and batches of the engine behind the real gateway, by the unmodified openai client."""

import asyncio

import openai
import orjson
import pytest

from backend.server.batches.runner import Batches
from backend.server.batches.store import Store

pytest_plugins = ["running_backend"]


async def test_a_batch_passes_through_and_stays_its_tenants(start_server, start_gateway, tmp_path):
    batches = Batches(Store(tmp_path, most_bytes=10**6, keep_seconds=3600), concurrency=1)
    engine = await start_server(limits={"batches": batches})
    gateway = await start_gateway(upstream=(f"{engine.url}/v1",))
    at = {"base_url": f"{gateway.url}/v1", "max_retries": 0}
    async with openai.AsyncOpenAI(api_key="a", **at) as client:
        asked = {"model": "scripted", "prompt": "Hi"}
        line = {"custom_id": "1", "method": "POST", "url": "/v1/completions", "body": asked}
        file = await client.files.create(file=("a.jsonl", orjson.dumps(line)), purpose="batch")
        batch = await client.batches.create(
            input_file_id=file.id, endpoint="/v1/completions", completion_window="24h"
        )
        async with asyncio.timeout(30):
            while batch.status != "completed":
                batch = await client.batches.retrieve(batch.id)
        assert [each.id async for each in client.batches.list()] == [batch.id]
        told = orjson.loads((await client.files.content(batch.output_file_id)).content)
        assert told["response"]["body"]["choices"][0]["text"] == "Hello world"
        async with openai.AsyncOpenAI(api_key="b", **at) as other:
            with pytest.raises(openai.NotFoundError):
                await other.batches.retrieve(batch.id)
            with pytest.raises(openai.NotFoundError):
                await other.files.content(batch.output_file_id)
        assert (await client.files.delete(batch.output_file_id)).deleted
