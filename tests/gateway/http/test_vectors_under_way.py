"""Vectors are added after the reply: a load, a removal and the end of a worker wait for them."""

import asyncio

import orjson
import pytest

from embeddings.messages import Add, AskStatus, Cancel, Done, IndexStatus, Matches, Remove
from embeddings.wire import FrameReader, decode, encode
from gateway.cache.writer import CacheWriter
from scripted_upstream import completion

QUESTION = "How do I reset my password?"


class IndexService:
    """The fake at the index's socket: vectors arrive once the gateway waits for them."""

    def __init__(self) -> None:
        self.keys: set[bytes] = set()
        self.asked, self.awaited = asyncio.Event(), asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        frames, replies = FrameReader(), set()
        while data := await reader.read(65536):
            for envelope in map(decode, frames.feed(data)):
                if not isinstance(envelope.message, Cancel):
                    reply = asyncio.create_task(self._reply(envelope, writer))
                    replies.add(reply)
        for reply in replies:
            reply.cancel()
        writer.close()

    async def _reply(self, envelope, writer) -> None:
        reply = Done()
        match envelope.message:
            case Add(key=key):
                self.asked.set()
                await self.awaited.wait()
                self.keys.add(key)
            case Remove(keys=keys):
                self.keys.difference_update(keys)
            case AskStatus():
                reply = IndexStatus(ready=True)
            case _:
                reply = Matches(())
        writer.write(encode(envelope.request_id, reply))


@pytest.fixture
async def index(tmp_path, monkeypatch):
    service = IndexService()
    settle = CacheWriter.settle

    async def awaited(writer: CacheWriter, *keys) -> None:
        service.awaited.set()
        await settle(writer, *keys)

    monkeypatch.setattr(CacheWriter, "settle", awaited)
    server = await asyncio.start_unix_server(service.serve, tmp_path / "e.sock")
    yield service
    server.close()


@pytest.fixture
async def gateway(index, start_gateway, tmp_path):
    return await start_gateway(semantic_socket=tmp_path / "e.sock")


async def test_a_worker_that_ends_waits_for_its_vectors(gateway, index):
    assert "stored" in (await gateway.ask(QUESTION)).cache
    await index.asked.wait()
    assert not index.keys
    await gateway.stop()
    assert len(index.keys) == 1


async def test_a_load_returns_once_its_vector_is_in_the_index(gateway, index):
    request = {"model": "m", "messages": [{"role": "user", "content": QUESTION}]}
    fields = {"request": request, "answer": completion("Click on Forgot.")}
    reply = await gateway.post("/admin/load", orjson.dumps(fields))
    assert reply.json["stored"] is True
    assert len(index.keys) == 1


async def test_a_purge_leaves_no_vector_that_was_under_way(gateway, index):
    assert "stored" in (await gateway.ask(QUESTION)).cache
    reply = await gateway.post("/admin/purge", b'{"all": true, "dry_run": false}')
    assert reply.json["entries"] == 1
    assert index.awaited.is_set()
    assert not index.keys
