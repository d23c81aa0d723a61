"""The one model that is offered, from before its weights are read until the server ends."""

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import aclosing
from dataclasses import dataclass, field

from backend.core.types import EngineStats, GenerationRequest, SamplingParams
from backend.ports import Generator, PromptEncoder
from backend.server.errors import unavailable, unknown_model

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """An engine with its tokenizer.

    ``close`` stops the engine and returns when it has; TimeoutError when it does not. ``sampling``
    is used for what a request leaves open.
    """

    generator: Generator
    encoder: PromptEncoder
    close: Callable[[], None]
    sampling: SamplingParams = field(default_factory=SamplingParams)


class ServedModel:
    """Owned by the event loop; nothing here is touched from another thread."""

    def __init__(self, name: str, load: Callable[[], LoadedModel]) -> None:
        """``load`` blocks, in a thread of its own, until the engine accepts requests."""
        self.name = name
        self.created = int(time.time())
        self._load = load
        self._loaded: LoadedModel | None = None
        self.left_threads = False
        """Whether a thread of ours could not be ended: it loads, or computes a long step."""

    async def load(self) -> None:
        """Load and warm up. Raises what loading raises.

        Besides those, EngineError when the first token cannot be computed. Reading weights cannot
        be broken off, so it happens in a daemon thread: cancelling this leaves the thread behind,
        and it does not keep the process.
        """
        outcome: Future[LoadedModel] = Future()
        outcome.set_running_or_notify_cancel()
        threading.Thread(
            target=self._load_into, args=(outcome,), name="load-model", daemon=True
        ).start()
        try:
            loaded = await asyncio.wrap_future(outcome)
        except asyncio.CancelledError:
            self.left_threads = True
            raise
        try:
            await _warm_up(loaded.generator)
        except BaseException:
            await self._stop(loaded)
            raise
        self._loaded = loaded

    def unready_reasons(self) -> tuple[str, ...]:
        """Return why nothing can be generated now; empty when it can."""
        if self._loaded is None:
            return ("the model is being loaded",)
        return () if self._loaded.generator.ready else ("the engine is not running",)

    def check_name(self, name: str) -> None:
        """Raise ApiError (404) when another model is meant."""
        if name != self.name:
            raise unknown_model(name)

    def require(self) -> LoadedModel:
        """Return the model once it can generate. Raises ApiError (503)."""
        reasons = self.unready_reasons()
        if self._loaded is None or reasons:
            raise unavailable(", ".join(reasons))
        return self._loaded

    def stats(self) -> EngineStats | None:
        """Return the engine's figures, None before there is one."""
        return None if self._loaded is None else self._loaded.generator.stats()

    async def close(self) -> None:
        """Stop the engine; the model is unavailable from then on."""
        loaded, self._loaded = self._loaded, None
        if loaded is not None:
            await self._stop(loaded)

    async def _stop(self, loaded: LoadedModel) -> None:
        try:
            await asyncio.to_thread(loaded.close)
        except TimeoutError as error:
            self.left_threads = True
            log.warning("%s", error)

    def _load_into(self, outcome: Future[LoadedModel]) -> None:
        try:
            outcome.set_result(self._load())
        except BaseException as error:  # noqa: BLE001  # raised again by who waits
            outcome.set_exception(error)


async def _warm_up(generator: Generator) -> None:
    """Generate one token, which ends once the engine is warm, or with the reason why it is not."""
    request = GenerationRequest(
        "warm-up", prompt_tokens=(0,), sampling=SamplingParams(temperature=0.0, max_tokens=1)
    )
    async with aclosing(generator.generate(request)) as deltas:
        async for _ in deltas:
            pass
