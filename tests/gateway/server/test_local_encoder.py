"""The embeddings process as the gateway's local encoder, spoken to over its socket."""

import asyncio
import tempfile
from pathlib import Path

import pytest

from embeddings.client import EmbeddingsClient
from embeddings.messages import AskStatus, Embed, IndexStatus, Reason, Refused, Vectors
from embeddings.wire import FrameReader, decode, encode
from gateway.semantic.ports import SemanticUnavailableError

LOADING = IndexStatus()
READY = IndexStatus(ready=True, encoder="minilm", digest="ab" * 32, dimensions=2, vectors=0)


class Service:
    """Loads until it was asked for its status a second time; refuses the text "long"."""

    asked = 0

    def answer(self, message):
        match message:
            case AskStatus():
                self.asked += 1
                return READY if self.asked > 1 else LOADING
            case Embed(texts) if "long" in texts:
                return Refused(Reason.TEXT_TOO_LONG, "the text has no vector")
            case Embed(texts):
                return Vectors.packed([(0.6, 0.8)] * len(texts))

    async def connected(self, reader, writer):
        frames = FrameReader()
        while data := await reader.read(1 << 16):
            for envelope in map(decode, frames.feed(data)):
                writer.write(encode(envelope.request_id, self.answer(envelope.message)))
        writer.close()


@pytest.fixture
async def local():
    with tempfile.TemporaryDirectory(prefix="refrain-") as directory:
        path = Path(directory) / "s"
        server = await asyncio.start_unix_server(Service().connected, path=str(path))
        service = EmbeddingsClient(path, timeout=20)
        yield service
        await service.close()
        server.close()
        await asyncio.sleep(0)


async def test_its_name_is_learnt_once_it_is_loaded(local):
    assert (local.name, local.digest) == ("", "")
    while await local.not_ready() is not None:
        pass
    assert (local.name, local.digest) == ("minilm", "ab" * 32)


async def test_it_embeds_texts_in_order(local):
    (vector, other) = await local.embed(["a", "b"])
    assert list(vector) == list(other) == pytest.approx([0.6, 0.8])


async def test_a_text_without_a_vector_is_told_by_its_reason(local):
    with pytest.raises(SemanticUnavailableError, match="text-too-long"):
        await local.embed(["a", "long"])
