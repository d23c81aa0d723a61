"""Texts that only want their vectors, and the searches that come meanwhile."""

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from embeddings.index.local import open_local_index
from embeddings.index.text_index import MAX_BULK_BATCH, TextIndex
from embeddings.messages import Reason

DIGEST = "ab" * 32


class GatedEncoder:
    """Notes each batch, and waits in it until it may go on."""

    name, digest, dimensions, lanes = "gated", DIGEST, 4, 1

    def __init__(self) -> None:
        self.batches: list[list[str]] = []
        self.began = threading.Event()
        self.may_run = threading.Event()
        self.may_run.set()

    def encode(self, texts):
        self.batches.append(list(texts))
        self.began.set()
        assert self.may_run.wait(30)
        return [
            Reason.TEXT_TOO_LONG if text == "long" else np.eye(4, dtype=np.float32)[len(text) % 4]
            for text in texts
        ]


@pytest.fixture
def encoder():
    return GatedEncoder()


@pytest.fixture
async def texts(encoder, tmp_path):
    index = await open_local_index(
        tmp_path, encoder_digest=DIGEST, dimensions=4, max_vectors=100, clock=time.time
    )
    made = TextIndex(encoder, ThreadPoolExecutor(1), index, time.time)
    yield made
    encoder.may_run.set()
    await made.close()


async def test_a_search_waits_for_one_small_batch_of_many_texts(texts, encoder):
    encoder.may_run.clear()
    wanted = [f"text {number}" for number in range(16)]
    embedding = asyncio.create_task(texts.embed(wanted))
    assert await asyncio.to_thread(encoder.began.wait, 30)
    search = asyncio.create_task(texts.search(b"p", "a question", 1))
    await asyncio.sleep(0)
    encoder.may_run.set()
    async with asyncio.timeout(30):
        await search
        assert len(await embedding) == 16
    assert encoder.batches.index(["a question"]) <= 2
    assert max(map(len, encoder.batches)) == MAX_BULK_BATCH


async def test_many_texts_do_not_drive_a_questions_vector_from_memory(texts, encoder):
    await texts.search(b"p", "a question", 1)
    for start in range(0, 2000, 16):
        await texts.embed([f"text {number}" for number in range(start, start + 16)])
    encoder.batches.clear()
    await texts.add(b"p", b"key", "a question", time.time() + 60)
    assert encoder.batches == []


async def test_one_text_without_a_vector_fails_all(texts):
    assert await texts.embed(["a", "long", "b"]) is Reason.TEXT_TOO_LONG
    assert await texts.embed([]) == ()
