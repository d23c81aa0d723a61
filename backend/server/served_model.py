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
from backend.ports import Embedder, Generator, PromptEncoder
from backend.server.errors import cannot_embed, cannot_generate, unavailable, unknown_model

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

    @property
    def ready(self) -> bool:
        """Whether requests can be computed now."""
        return self.generator.ready

    @property
    def max_model_len(self) -> int:
        """The context in tokens."""
        return self.generator.max_model_len

    async def warm_up(self) -> None:
        """Generate one token; it ends once the engine is warm, or with the reason why it is not."""
        request = GenerationRequest(
            "warm-up", prompt_tokens=(0,), sampling=SamplingParams(temperature=0.0, max_tokens=1)
        )
        async with aclosing(self.generator.generate(request)) as deltas:
            async for _ in deltas:
                pass


@dataclass(frozen=True, slots=True)
class LoadedEmbedder:
    """An embedding engine with its tokenizer; ``close`` as above."""

    embedder: Embedder
    encoder: PromptEncoder
    close: Callable[[], None]

    @property
    def ready(self) -> bool:
        """Whether requests can be computed now."""
        return self.embedder.ready

    @property
    def max_model_len(self) -> int:
        """The longest input in tokens."""
        return self.embedder.shape.max_tokens

    async def warm_up(self) -> None:
        """Embed one token."""
        await self.embedder.embed([(0,)])


Loaded = LoadedModel | LoadedEmbedder


class ServedModel:
    """Owned by the event loop; nothing here is touched from another thread."""

    def __init__(self, name: str, load: Callable[[], Loaded]) -> None:
        """``load`` blocks, in a thread of its own, until the engine accepts requests."""
        self.name = name
        self.created = int(time.time())
        self._load = load
        self._loaded: Loaded | None = None
        self.left_threads = False
        """Whether a thread of ours could not be ended: it loads, or computes a long step."""

    async def load(self) -> None:
        """Load and warm up. Raises what loading raises.

        Besides those, EngineError when the first token cannot be computed. Reading weights cannot
        be broken off, so it happens in a daemon thread: cancelling this leaves the thread behind,
        and it does not keep the process.
        """
        outcome: Future[Loaded] = Future()
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
            await loaded.warm_up()
        except BaseException:
            await self._stop(loaded)
            raise
        self._loaded = loaded

    def unready_reasons(self) -> tuple[str, ...]:
        """Return why nothing can be generated now; empty when it can."""
        if self._loaded is None:
            return ("the model is being loaded",)
        return () if self._loaded.ready else ("the engine is not running",)

    def check_name(self, name: str) -> None:
        """Raise ApiError (404) when another model is meant."""
        if name != self.name:
            raise unknown_model(name)

    def require(self) -> LoadedModel:
        """Return the model once it can generate. Raises ApiError (503, 404)."""
        loaded = self.require_any()
        if isinstance(loaded, LoadedEmbedder):
            raise cannot_generate(self.name)
        return loaded

    def require_embedder(self) -> LoadedEmbedder:
        """Return the model once it can embed. Raises ApiError (503, 404)."""
        loaded = self.require_any()
        if isinstance(loaded, LoadedModel):
            raise cannot_embed(self.name)
        return loaded

    def require_any(self) -> Loaded:
        """Return the model, of whichever kind, once it can compute. Raises ApiError (503)."""
        reasons = self.unready_reasons()
        if self._loaded is None or reasons:
            raise unavailable(", ".join(reasons))
        return self._loaded

    def stats(self) -> EngineStats | None:
        """Return the engine's figures, None where there is none that generates."""
        return self._loaded.generator.stats() if isinstance(self._loaded, LoadedModel) else None

    def embeddings_waiting(self) -> int | None:
        """Return how many inputs wait to be embedded, None where none can be."""
        loaded = self._loaded
        return loaded.embedder.num_waiting if isinstance(loaded, LoadedEmbedder) else None

    async def close(self) -> None:
        """Stop the engine; the model is unavailable from then on."""
        loaded, self._loaded = self._loaded, None
        if loaded is not None:
            await self._stop(loaded)

    async def _stop(self, loaded: Loaded) -> None:
        try:
            await asyncio.to_thread(loaded.close)
        except TimeoutError as error:
            self.left_threads = True
            log.warning("%s", error)

    def _load_into(self, outcome: Future[Loaded]) -> None:
        try:
            outcome.set_result(self._load())
        except BaseException as error:  # noqa: BLE001  # raised again by who waits
            outcome.set_exception(error)
