"""What is done in threads is done for somebody: a client that left takes it along."""

import asyncio
import threading

import pytest

from backend.server.prompts import completion_prompts, off_loop
from backend.server.protocol.errors import ApiError

LIMIT = 120.0


@pytest.fixture
def gate():
    """Open it, or threads stand before it."""
    event = threading.Event()
    yield event
    event.set()


class GatedEncoder:
    """Tells when it begins, and ends when the gate is open."""

    vocab_size = 256

    def __init__(self, gate):
        self.began = asyncio.Event()
        self.encoded = []
        self._loop = asyncio.get_running_loop()
        self._gate = gate

    def encode(self, text, *, add_special_tokens=False):
        self.encoded.append(text)
        self._loop.call_soon_threadsafe(self.began.set)
        assert self._gate.wait(LIMIT)
        return [1]


async def test_of_many_prompts_those_not_begun_are_dropped(gate):
    encoder = GatedEncoder(gate)
    texts = [f"{number}" * 3_000 for number in range(5)]
    task = asyncio.create_task(completion_prompts(encoder, texts, max_model_len=100))
    await asyncio.wait_for(encoder.began.wait(), LIMIT)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    gate.set()
    await asyncio.get_running_loop().shutdown_default_executor()
    assert encoder.encoded == texts[:1]


async def test_of_many_prompts_the_first_without_room_is_the_last(gate):
    encoder = GatedEncoder(gate)
    gate.set()
    texts = [f"{number}" * 3_000 for number in range(5)]
    with pytest.raises(ApiError, match="maximum context length is 1 tokens"):
        await completion_prompts(encoder, texts, max_model_len=1)
    assert encoder.encoded == texts[:1]


async def test_what_no_thread_has_begun_is_dropped(gate):
    loop, begun, more = asyncio.get_running_loop(), [], asyncio.Event()

    def work():
        begun.append(None)
        loop.call_soon_threadsafe(more.set)
        assert gate.wait(LIMIT)

    tasks = [asyncio.create_task(off_loop(work, True)) for _ in range(200)]
    await asyncio.wait_for(more.wait(), LIMIT)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    gate.set()
    await loop.shutdown_default_executor()
    assert len(begun) <= 32  # as many threads as there may be
