"""A pytest plugin: the real `openai` client on an engine whose model is told of tools.

Whoever uses it has a fixture ``model`` that yields from ``tool_model``.
"""

import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from tool_templates import with_template

from backend.engine.client import Stream
from backend.engine.loading import load_engine
from backend.scheduler.batch import StepBatch
from backend.scheduler.request import SamplingParams
from backend.server.app import build_application
from backend.server.served_model import LoadedModel, ServedModel
from backend.server.tool_parsers import format_of

pytest_plugins = ["running_backend"]


def tool_model(chat_model: Any, directory: Path, family: str) -> Iterator[LoadedModel]:
    """Yield ``chat_model`` with the template of ``family``, its engine running."""
    from running_backend import nothing_to_close

    with_template(chat_model, directory, family)
    engine, tokenizer = load_engine(str(directory), device="cpu")
    engine.start()
    form = format_of(tokenizer.tool_template)
    yield LoadedModel(engine, tokenizer, nothing_to_close, SamplingParams(), form)
    engine.stop()


@pytest.fixture
def one_by_one(model: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compute a token when the one before was read, of streams only: none are merged."""
    runner, read = model.generator._core.runner, threading.Semaphore(0)
    launch, receive = runner.launch, Stream.receive
    prompts: dict[int, int] = {}

    def wait(step: StepBatch) -> Any:
        prompts.update({new.slot: new.num_prompt_tokens for new in step.new})
        if any(row.start >= prompts[row.slot] for row in step.rows):
            assert read.acquire(timeout=60)
        return launch(step)

    async def tell(self: Stream) -> Any:
        received = await receive(self)
        read.release()
        return received

    monkeypatch.setattr(runner, "launch", wait)
    monkeypatch.setattr(Stream, "receive", tell)


@pytest.fixture
async def client(model: LoadedModel, serve_application: Any) -> AsyncIterator[openai.AsyncOpenAI]:
    from running_backend import at_once

    server = await serve_application(build_application(ServedModel("tiny", at_once(model))))
    await server.model.load()
    async with openai.AsyncOpenAI(
        base_url=f"{server.url}/v1", api_key="anything", max_retries=0
    ) as client:
        yield client
