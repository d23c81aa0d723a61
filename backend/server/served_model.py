"""The one model that is offered, from before its weights are read until the server ends."""

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import ClassVar

from backend.ports import Embedder, EncodePairs, Generator, PromptEncoder, Sleeper
from backend.scheduler.request import GenerationRequest, SamplingParams
from backend.scheduler.stats import EngineStats
from backend.server.protocol.errors import ApiError, unavailable
from backend.server.tool_parsers import ToolFormat
from backend.server.tool_parsers.reasoning import ReasoningFormat
from backend.settings import AdapterSource


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """An engine with its tokenizer; ``close`` stops the engine and returns when it has."""

    generator: Generator
    encoder: PromptEncoder
    close: Callable[[], Awaitable[None]]
    sampling: SamplingParams = field(default_factory=SamplingParams)
    """Used for what a request leaves open."""
    tool_format: ToolFormat | str = ""
    """How the model calls functions, or why it cannot."""
    reasoning_format: ReasoningFormat | None = None
    """How it reasons before it answers, None where all that it writes is the answer."""
    sleeper: Sleeper | None = None
    adapter: int = 0
    """The LoRA adapter by which it computes, 0: none."""
    endpoint: ClassVar[str] = "v1/chat/completions"

    @property
    def unready_reason(self) -> str | None:
        """Why requests cannot be computed now, None where they can."""
        return None if self.generator.ready else self.generator.unready_reason

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
    close: Callable[[], Awaitable[None]]
    prompts: Mapping[str, PromptEncoder] = field(default_factory=dict, kw_only=True)
    """Encoders that put a prompt of the model before texts, by the prompt's name."""
    makes: ClassVar[str] = "makes embeddings"
    endpoint: ClassVar[str] = "v1/embeddings"

    @property
    def unready_reason(self) -> str | None:
        """Why requests cannot be computed now, None where they can."""
        return None if self.embedder.ready else "the engine is not running"

    @property
    def max_model_len(self) -> int:
        """The longest input in tokens."""
        return self.embedder.shape.max_tokens

    async def warm_up(self) -> None:
        await self.embedder.embed([(0,)])


@dataclass(frozen=True, slots=True)
class LoadedReranker(LoadedEmbedder):
    """An engine whose inputs are pairs, and whose vectors have one number: the score."""

    encode_pairs: EncodePairs
    makes: ClassVar[str] = "scores pairs of texts"
    endpoint: ClassVar[str] = "v1/rerank"

    async def warm_up(self) -> None:
        await self.embedder.embed(self.encode_pairs([("a", "b")], False))


Loaded = LoadedModel | LoadedEmbedder

Load = Callable[[Callable[[str], None]], Awaitable[Loaded]]
"""Loads a model; the argument takes the stage of loading, for people."""


class ServedModel:
    """Owned by the event loop; nothing here is touched from another thread."""

    def __init__(self, name: str, load: Load, *, adapters: Sequence[AdapterSource] = ()) -> None:
        """``load`` returns once the engine accepts requests; cancelling it gives it up.

        ``adapters`` are its LoRA adapters, in the engine's order.
        """
        self.name = name
        self.adapters = {each.name: each for each in adapters}
        self._number_of = {name: number for number, name in enumerate(self.adapters, 1)}
        self.created = int(time.time())
        self._load = load
        self._loaded: Loaded | None = None
        self._stage = ""

    async def load(self) -> None:
        """Load and warm up. Raises what loading raises.

        Besides those, EngineError when the first token cannot be computed.
        """
        loaded = await self._load(self._set_stage)
        try:
            await loaded.warm_up()
        except BaseException:
            await loaded.close()
            raise
        self._loaded = loaded

    @property
    def unready_reason(self) -> str | None:
        """Why nothing can be computed now, None where it can."""
        if self._loaded is None:
            return f"the model is being loaded{self._stage}"
        return self._loaded.unready_reason

    @property
    def detail(self) -> tuple[str, ...]:
        """What of a model that computes was replaced, and why."""
        return self._loaded.generator.detail if isinstance(self._loaded, LoadedModel) else ()

    @property
    def max_model_len(self) -> int | None:
        """The context in tokens, None until the model is loaded."""
        return None if self._loaded is None else self._loaded.max_model_len

    def check_name(self, name: str) -> None:
        """Raise ApiError (404) when another model is meant."""
        if name != self.name and name not in self.adapters:
            problem = f"The model '{name}' does not exist or you do not have access to it."
            raise ApiError(404, problem, param="model", code="model_not_found")

    def require(self, name: str | None = None) -> LoadedModel:
        """Return the model once it can generate, if ``name`` is its own. Raises ApiError.

        With the name of an adapter it computes by that.
        """
        loaded = self.require_any(name)
        if isinstance(loaded, LoadedEmbedder):
            raise ApiError(
                404,
                f"The model '{self.name}' {loaded.makes}. This is not a chat model and thus not "
                "supported in the v1/chat/completions, v1/completions and v1/responses endpoints. "
                f"Did you mean to use {loaded.endpoint}?",
                param="model",
            )
        adapter = self._number_of.get(name or "")
        return loaded if adapter is None else replace(loaded, adapter=adapter)

    def require_embedder(self, name: str | None = None) -> LoadedEmbedder:
        """Return the model once it can embed, if ``name`` is its own. Raises ApiError."""
        loaded = self.require_any(name)
        if isinstance(loaded, LoadedModel | LoadedReranker):
            raise ApiError(
                404,
                f"You are not allowed to generate embeddings from this model: '{self.name}' is not "
                "an embedding model and thus not supported in the v1/embeddings endpoint. Did you "
                f"mean to use {loaded.endpoint}?",
                param="model",
            )
        return loaded

    def require_reranker(self, name: str) -> LoadedReranker:
        """Return the model once it can score, if ``name`` is its own. Raises ApiError."""
        loaded = self.require_any(name)
        if not isinstance(loaded, LoadedReranker):
            raise ApiError(
                404,
                f"The model '{self.name}' is not a reranker and thus not supported in the "
                f"v1/rerank and v1/score endpoints. Did you mean to use {loaded.endpoint}?",
                param="model",
            )
        return loaded

    def require_any(self, name: str | None = None) -> Loaded:
        """Return the model once it can compute. Raises ApiError (404, 503)."""
        if name is not None:
            self.check_name(name)
        reason = self.unready_reason
        if self._loaded is None or reason is not None:
            raise unavailable(reason or "")
        return self._loaded

    @property
    def sleeper(self) -> Sleeper | None:
        """What puts the engine to sleep, None where nothing can."""
        return self._loaded.sleeper if isinstance(self._loaded, LoadedModel) else None

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
            await loaded.close()

    def _set_stage(self, stage: str) -> None:
        self._stage = f": {stage}"
