"""An embedding model in a thread of its own: token ids of many requests in, vectors out.

The modules of sentence-transformers compute (transformer, pooling, projections), so a vector is
the one that the model's author meant.

Laws:
- Requests take turns, one input each, so that a request of two thousand inputs does not hold up one
  of a single input. A pass costs its longest input times their number, because of padding.
- What waits is bounded in tokens. A request is taken whole or not at all, and gets an end: its
  vectors or an exception. One that is given up costs nothing from the next pass on.
- The thread alone touches the model; the queue is behind one lock.
"""

import asyncio
import logging
import threading
from collections import OrderedDict, deque
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from copy import copy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tokenizers
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from backend.engine.loading import device_of
from backend.engine.stepper import Fault, fault_of
from backend.models.config import ModelLoadError, first_line, read_json
from backend.models.dtypes import DTYPES
from backend.ports import EmbeddingShape, EngineError, PromptEncoder, QueueFullError
from backend.settings import EngineOptions
from backend.tokenizer.tokenizer import Tokenizer

logger = logging.getLogger(__name__)

# A pass cannot be broken off: a new request waits for one at most.
_TOKENS_PER_PASS = {"cpu": 2_048, "cuda": 65_536}
# OpenAI takes 300,000 tokens in one request.
_MAX_WAITING_TOKENS = 2_000_000
_RETRY_SECONDS = 1.0


@dataclass(slots=True, eq=False)
class EmbeddingJob:
    """A request's inputs, the vectors that are computed, and who waits for them."""

    inputs: Sequence[tuple[int, ...]]
    done: "Future[list[bytes]]" = field(default_factory=Future)
    vectors: dict[int, bytes] = field(default_factory=dict)


class EmbeddingQueue:
    """Inputs of many jobs in the order in which they are computed; not thread-safe."""

    def __init__(self, *, max_tokens_per_pass: int, max_waiting_tokens: int) -> None:
        """Bound passes, padding included, and what waits; a pass of one input may cost more."""
        self._max_tokens_per_pass = max_tokens_per_pass
        self._max_waiting_tokens = max_waiting_tokens
        self._waiting: OrderedDict[EmbeddingJob, deque[int]] = OrderedDict()
        self.num_waiting_tokens = 0

    @property
    def num_waiting(self) -> int:
        """Inputs that no pass has taken yet."""
        return sum(map(len, self._waiting.values()))

    def add(self, job: EmbeddingJob) -> None:
        """Queue a job. Raises QueueFullError.

        One that is larger than the bound is taken when it is the only one.
        """
        total = sum(map(len, job.inputs))
        if self._waiting and self.num_waiting_tokens + total > self._max_waiting_tokens:
            text = f"{self.num_waiting_tokens} tokens wait to be embedded"
            raise QueueFullError(text, _RETRY_SECONDS)
        # Longest first, so that what meets in a pass is of like length.
        longest_first = sorted(range(len(job.inputs)), key=lambda at: -len(job.inputs[at]))
        self._waiting[job] = deque(longest_first)
        self.num_waiting_tokens += total

    def drop(self, job: EmbeddingJob) -> None:
        """Take out what is left of a job, if anything is."""
        for position in self._waiting.pop(job, ()):
            self.num_waiting_tokens -= len(job.inputs[position])

    def take(self) -> list[tuple[EmbeddingJob, int]]:
        """Return the inputs of the next pass, by position; none only when nothing waits."""
        batch: list[tuple[EmbeddingJob, int]] = []
        longest = 0
        while self._waiting:
            job, positions = next(iter(self._waiting.items()))
            longest = max(longest, len(job.inputs[positions[0]]))
            if batch and longest * (len(batch) + 1) > self._max_tokens_per_pass:
                break
            batch.append((job, positions.popleft()))
            self._waiting.move_to_end(job)
            if not positions:
                del self._waiting[job]
        self.num_waiting_tokens -= sum(len(job.inputs[position]) for job, position in batch)
        return batch


class EmbeddingEngine:
    """Implements ``backend.ports.Embedder``."""

    def __init__(self, model: "EmbeddingModel", queue: EmbeddingQueue) -> None:
        """Prepare; nothing is computed before ``start``."""
        self._model = model
        self._queue = queue
        self._open: set[EmbeddingJob] = set()
        self._changed = threading.Condition()
        self._refusal: str | None = "the engine was not started"
        self._thread = threading.Thread(target=self._run, name="embedding-engine", daemon=True)

    @property
    def ready(self) -> bool:
        return self._refusal is None

    @property
    def shape(self) -> EmbeddingShape:
        return self._model.shape

    @property
    def num_waiting(self) -> int:
        with self._changed:
            return self._queue.num_waiting

    def start(self) -> None:
        """Start the thread. Raises RuntimeError on a second call."""
        self._refusal = None
        self._thread.start()

    def stop(self, timeout: float = 10.0) -> None:
        """Fail what waits and end after the pass that runs; a second call is harmless.

        Raises TimeoutError when that pass takes longer than ``timeout`` seconds.
        """
        with self._changed:
            self._refusal = self._refusal or "the engine is shutting down"
            self._changed.notify()
        if self._thread.ident is not None:
            self._thread.join(timeout)
        if self._thread.is_alive():
            raise TimeoutError(f"the engine did not stop within {timeout} s")

    async def embed(self, inputs: Sequence[tuple[int, ...]]) -> list[bytes]:
        job = EmbeddingJob(inputs)
        with self._changed:
            if self._refusal is not None:
                raise EngineError(self._refusal)
            self._queue.add(job)
            self._open.add(job)
            self._changed.notify()
        try:
            return await asyncio.wrap_future(job.done)
        finally:
            with self._changed:
                self._queue.drop(job)
                self._open.discard(job)

    def _run(self) -> None:
        try:
            while batch := self._next_batch():
                self._compute(batch)
        except Exception:
            logger.exception("the embedding engine ended")
        finally:
            with self._changed:
                self._refusal = self._refusal or "the engine stopped after an internal error"
                left = list(self._open)
            self._fail(left, self._refusal)

    def _next_batch(self) -> list[tuple[EmbeddingJob, int]]:
        """Wait for inputs; none when the engine is to stop."""
        with self._changed:
            self._changed.wait_for(lambda: self._refusal is not None or self._queue.num_waiting)
            return [] if self._refusal is not None else self._queue.take()

    def _compute(self, batch: list[tuple[EmbeddingJob, int]]) -> None:
        try:
            vectors = self._model.embed([job.inputs[position] for job, position in batch])
        except Exception as error:
            if fault_of(error) is Fault.DEVICE:
                raise  # every later pass would fail as well
            logger.exception("a pass of %d inputs failed", len(batch))
            self._fail(
                [job for job, _ in batch], "the engine failed while it computed this request"
            )
            return
        for (job, position), vector in zip(batch, vectors, strict=True):
            if vector is None:
                self._fail([job], "the model's output is not finite for this request")
                continue
            job.vectors[position] = vector
            if len(job.vectors) == len(job.inputs):
                with suppress(InvalidStateError):  # its reader has gone
                    job.done.set_result([job.vectors[index] for index in range(len(job.inputs))])

    def _fail(self, jobs: Iterable[EmbeddingJob], reason: str) -> None:
        for job in jobs:
            with self._changed:
                self._queue.drop(job)
            with suppress(InvalidStateError):  # it has failed already, or its reader has gone
                job.done.set_exception(EngineError(reason))


class EmbeddingModel:
    """Computes batches; owned by one thread."""

    def __init__(self, model: Any, shape: EmbeddingShape) -> None:
        """``model`` is a SentenceTransformer whose first module reads token ids."""
        self.shape = shape
        self.device: torch.device = model.device
        self._model = model
        self._num_threads = torch.get_num_threads()

    @torch.inference_mode()
    def embed(self, batch: Sequence[Sequence[int]]) -> list[bytes | None]:
        """Return each input's vector as packed little-endian float32, None where it is not finite.

        Every input has tokens, and they fit the context.
        """
        # A new thread has the number that was set last, perhaps by another engine of this process.
        torch.set_num_threads(self._num_threads)
        tokens = self._padded(batch, self._model.tokenizer.pad_token_id or 0)
        mask = self._padded([(1,) * len(ids) for ids in batch], 0)
        vectors = self._vectors(batch, {"input_ids": tokens, "attention_mask": mask})
        finite = torch.isfinite(vectors).all(dim=1).tolist()
        packed = vectors.cpu().numpy().astype("<f4")
        return [row.tobytes() if good else None for row, good in zip(packed, finite, strict=True)]

    def _vectors(self, _: Sequence[Sequence[int]], features: dict[str, Any]) -> Tensor:
        output = self._model(features)
        vectors: Tensor = output["sentence_embedding"][:, : self.shape.dimensions].float()
        if self.shape.unit:
            vectors = torch.nn.functional.normalize(vectors, dim=1)
        return vectors

    def _padded(self, batch: Sequence[Sequence[int]], value: int) -> Tensor:
        rows = [torch.tensor(ids, dtype=torch.long) for ids in batch]
        side = self._model.tokenizer.padding_side
        padded = pad_sequence(rows, batch_first=True, padding_value=value, padding_side=side)
        return padded.to(self.device)


class PromptedTokenizer(Tokenizer):
    """Puts a prompt of the model before every whole text: its default one, if it has one."""

    prompt: str = ""
    named: dict[str, PromptEncoder]
    """The same tokenizer with each prompt of the model, by its name."""

    def encode(self, text: str, *, add_special_tokens: bool = False) -> list[int]:
        return super().encode(self.prompt + text, add_special_tokens=add_special_tokens)


def start_embedding_engine(options: EngineOptions) -> tuple[EmbeddingEngine, PromptedTokenizer]:
    """Load what ``options`` name and start its engine. Raises ModelLoadError."""
    model, tokenizer = load_embedding_model(options)
    shape = "%s: %d dimensions, inputs of up to %d tokens"
    logger.info(shape, options.model, model.shape.dimensions, model.shape.max_tokens)
    return start_engine(model), tokenizer


def start_engine(model: EmbeddingModel) -> EmbeddingEngine:
    """Start an engine for a model whose passes and queue have this module's bounds."""
    tokens = _TOKENS_PER_PASS[model.device.type]
    queue = EmbeddingQueue(max_tokens_per_pass=tokens, max_waiting_tokens=_MAX_WAITING_TOKENS)
    engine = EmbeddingEngine(model, queue)
    engine.start()
    return engine


def load_embedding_model(options: EngineOptions) -> tuple[EmbeddingModel, PromptedTokenizer]:
    """Load a directory in the layout of sentence-transformers. Raises ModelLoadError."""
    model, directory = load_by_library(options, "SentenceTransformer"), Path(options.model)
    prompts = _prompts(model, directory)
    dimensions = int(model.get_embedding_dimension())
    shape = EmbeddingShape(
        context_of(model, options.max_model_len),
        dimensions,
        _matryoshka(options, dimensions),
        # The length of a vector means something where the similarity is another than the cosine.
        unit=model.similarity_fn_name == "cosine" or type(model[-1]).__name__ == "Normalize",
    )
    tokenizer = PromptedTokenizer(tokens_of(model), eos_token_ids=frozenset(), template=None)
    tokenizer.named = {}
    for name, prompt in prompts.items():
        tokenizer.named[name] = prompted = copy(tokenizer)
        prompted.prompt = prompt
    tokenizer.prompt = prompts.get(model.default_prompt_name or "", "")
    return EmbeddingModel(model, shape), tokenizer


def load_by_library(options: EngineOptions, kind: str) -> Any:
    """Return a model of this class of sentence-transformers. Raises ModelLoadError."""
    try:
        import sentence_transformers  # noqa: PLC0415 - takes seconds
        from transformers.utils.logging import disable_progress_bar  # noqa: PLC0415
    except ModuleNotFoundError as error:
        install = "pip install 'refrain-gateway[transformers]'"
        raise ModelLoadError(f"{options.model} needs {error.name}: {install}") from error

    disable_progress_bar()
    directory, device = Path(options.model), str(device_of(options.device))
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    dtype = "float32" if options.dtype == "auto" and device == "cpu" else options.dtype
    try:
        model = getattr(sentence_transformers, kind)(
            str(directory),
            device=device,
            local_files_only=True,
            model_kwargs={"dtype": DTYPES.get(dtype, dtype)},
        )
    except Exception as error:  # damaged files raise whatever the library trips over first
        raise ModelLoadError(f"{directory}: {first_line(error)}") from error
    first = model[0]
    tokenizer = getattr(first, "tokenizer", None)
    if not hasattr(first, "auto_model") or not hasattr(tokenizer, "backend_tokenizer"):
        raise ModelLoadError(
            f"{directory}: its first module, {type(first).__name__}, does not read token ids; only "
            "text transformers with a fast tokenizer are served"
        )
    return model.eval()


def tokens_of(model: Any) -> tokenizers.Tokenizer:
    """Return a copy of the library's tokenizer, which every call of the library changes."""
    return tokenizers.Tokenizer.from_str(model.tokenizer.backend_tokenizer.to_str())


def _prompts(model: Any, directory: Path) -> dict[str, str]:
    """Return the prompts that texts may have, by name. Raises ModelLoadError."""
    if "message" in model[0].modality_config:
        raise ModelLoadError(f"{directory}: texts through a chat template are not supported")
    if all(getattr(module, "include_prompt", True) for module in model):
        return dict(model.prompts)
    if model.prompts.get(model.default_prompt_name or ""):
        raise ModelLoadError(f"{directory}: leaving the prompt out of pooling is not supported")
    return {name: prompt for name, prompt in model.prompts.items() if not prompt}


def context_of(model: Any, wanted: int | None) -> int:
    """Return the longest input in tokens, special ones included. Raises ModelLoadError."""
    positions = getattr(model[0].auto_model.config, "max_position_embeddings", None)
    if positions is not None:
        embeddings = getattr(model[0].auto_model.base_model, "embeddings", None)
        if hasattr(embeddings, "position_embeddings"):  # RoBERTa's begin behind the padding's
            positions -= getattr(embeddings, "padding_idx", -1) + 1
    trained = int(model.max_seq_length)
    most = trained if positions is None else min(trained, positions)
    if wanted is None:
        return most
    if not 1 < wanted <= (positions or most):
        raise ModelLoadError(
            f"max-model-len {wanted}: the model's context is {positions or most} tokens"
        )
    return wanted


def _matryoshka(options: EngineOptions, dimensions: int) -> frozenset[int]:
    """Return the lengths that the model's vectors may be cut to, by options or ``config.json``.

    The keys are those that other servers read. A model that was not trained for it makes poor
    vectors when cut, so silence means none.
    """
    config = read_json(Path(options.model) / "config.json")
    listed = config.get("matryoshka_dimensions")
    if isinstance(listed, list):
        return frozenset(size for size in listed if isinstance(size, int) and size < dimensions)
    any_length = options.matryoshka or config.get("is_matryoshka") is True
    return frozenset(range(1, dimensions)) if any_length else frozenset()
