"""Embeds the inputs of many requests together, in a thread of its own.

Law: the thread alone touches the model; requests and what waits are behind one lock, held for no
longer than it takes to move them. Every request that was taken gets an end: its vectors or an
exception. One that is given up costs nothing from the next pass on.
"""

import asyncio
import logging
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

from backend.engine.embedding_model import EmbeddingModel, load_embedding_model
from backend.engine.step_faults import Fault, fault_of
from backend.ports import EmbeddingShape, EngineError, QueueFullError
from backend.scheduler.embedding_queue import EmbeddingQueue, Place, QueueBoundError
from backend.tokenizer.tokenizer import Tokenizer

logger = logging.getLogger(__name__)

_RETRY_SECONDS = 1.0

# A pass cannot be broken off: it is how long a new request waits for its turn at most.
_TOKENS_PER_PASS_CPU = 2_048
_TOKENS_PER_PASS_CUDA = 65_536
# OpenAI takes 300,000 tokens in one request.
_MAX_WAITING_TOKENS = 2_000_000


@dataclass(slots=True, eq=False)
class _Request:
    inputs: Sequence[tuple[int, ...]]
    loop: asyncio.AbstractEventLoop
    done: "asyncio.Future[list[bytes]]"
    vectors: dict[int, bytes] = field(default_factory=dict)


class EmbeddingEngine:
    """Implements ``backend.ports.Embedder``."""

    def __init__(
        self, model: EmbeddingModel, *, max_tokens_per_pass: int, max_waiting_tokens: int
    ) -> None:
        """Prepare; nothing is computed before ``start``."""
        self._model = model
        self._queue = EmbeddingQueue(
            max_tokens_per_pass=max_tokens_per_pass, max_waiting_tokens=max_waiting_tokens
        )
        self._requests: dict[int, _Request] = {}
        self._request_ids = count()
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
        loop = asyncio.get_running_loop()
        request = _Request(inputs, loop, loop.create_future())
        with self._changed:
            if self._refusal is not None:
                raise EngineError(self._refusal)
            request_id = next(self._request_ids)
            try:
                self._queue.add(request_id, [len(tokens) for tokens in inputs])
            except QueueBoundError as error:
                raise QueueFullError(str(error), _RETRY_SECONDS) from error
            self._requests[request_id] = request
            self._changed.notify()
        try:
            return await request.done
        finally:
            with self._changed:
                self._forget(request_id)

    def _run(self) -> None:
        try:
            self._run_passes()
        except Exception:
            logger.exception("the embedding engine ended")
        finally:
            with self._changed:
                self._refusal = self._refusal or "the engine stopped after an internal error"
            self._fail(set(self._requests), self._refusal)

    def _run_passes(self) -> None:
        while batch := self._next_batch():
            try:
                vectors = self._model.embed([tokens for _, tokens in batch])
            except Exception as error:
                if fault_of(error) is Fault.DEVICE:
                    raise  # every later pass would fail as well
                logger.exception("a pass of %d inputs failed", len(batch))
                reason = "the engine failed while it computed this request"
                self._fail({place.request_id for place, _ in batch}, reason)
                continue
            self._deliver([place for place, _ in batch], vectors)

    def _next_batch(self) -> list[tuple[Place, tuple[int, ...]]]:
        """Wait for inputs; none when the engine is to stop."""
        with self._changed:
            self._changed.wait_for(lambda: self._refusal is not None or self._requests_wait())
            if self._refusal is not None:
                return []
            return [
                (place, self._requests[place.request_id].inputs[place.position])
                for place in self._queue.take()
            ]

    def _requests_wait(self) -> bool:
        return self._queue.num_waiting_tokens > 0

    def _deliver(self, places: Sequence[Place], vectors: Sequence[bytes | None]) -> None:
        spoilt: set[int] = set()
        with self._changed:
            for place, vector in zip(places, vectors, strict=True):
                request = self._requests.get(place.request_id)
                if request is None:
                    continue
                if vector is None:
                    spoilt.add(place.request_id)
                    continue
                request.vectors[place.position] = vector
                if len(request.vectors) == len(request.inputs):
                    del self._requests[place.request_id]
                    ordered = [request.vectors[index] for index in range(len(request.inputs))]
                    _settle(request, ordered)
        self._fail(spoilt, "the model's output is not finite for this request")

    def _fail(self, request_ids: set[int], reason: str) -> None:
        with self._changed:
            for request_id in request_ids:
                request = self._requests.get(request_id)
                if request is not None:
                    self._forget(request_id)
                    _settle(request, EngineError(reason))

    def _forget(self, request_id: int) -> None:
        self._queue.drop(request_id)
        self._requests.pop(request_id, None)


def _settle(request: _Request, outcome: list[bytes] | EngineError) -> None:
    def settle() -> None:
        if request.done.done():
            return  # its reader has gone meanwhile
        if isinstance(outcome, EngineError):
            request.done.set_exception(outcome)
        else:
            request.done.set_result(outcome)

    try:
        request.loop.call_soon_threadsafe(settle)
    except RuntimeError:
        if not request.loop.is_closed():
            raise


def start_embedding_engine(
    directory: Path, *, device: str, dtype: str, max_model_len: int | None, threads: int | None
) -> tuple[EmbeddingEngine, Tokenizer]:
    """Load a model directory and start its engine. Raises ModelLoadError."""
    model, tokenizer = load_embedding_model(
        directory, device=device, dtype=dtype, max_model_len=max_model_len, threads=threads
    )
    tokens = _TOKENS_PER_PASS_CUDA if model.on_cuda else _TOKENS_PER_PASS_CPU
    engine = EmbeddingEngine(
        model, max_tokens_per_pass=tokens, max_waiting_tokens=_MAX_WAITING_TOKENS
    )
    engine.start()
    logger.info(
        "%s: %d dimensions, inputs of up to %d tokens",
        directory,
        model.shape.dimensions,
        model.shape.max_tokens,
    )
    return engine, tokenizer
