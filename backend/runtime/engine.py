"""The engine: one thread that owns all scheduler state, and the way in and out of it.

Law: handlers send messages, the loop answers through a stream. Every request that was accepted
gets an end: a finish reason for each choice, or an exception. That holds when a step crashes, when
the engine stops, and when the loop itself dies.
"""

import asyncio
import logging
import queue
import threading
from collections.abc import AsyncGenerator
from dataclasses import dataclass

from backend.core.types import EngineStats, GenerationRequest, TextDelta
from backend.ports import EngineError, RequestRejectedError
from backend.runtime.delivery import Outbox, Stream
from backend.runtime.engine_core import EngineCore, EngineLimits, Job, TextSource
from backend.runtime.model_runner import ModelRunner

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Submit:
    job: Job


@dataclass(frozen=True, slots=True)
class _Abort:
    job: Job


@dataclass(frozen=True, slots=True)
class _Stop:
    pass


_Message = _Submit | _Abort | _Stop


class Engine:
    """Implements ``backend.ports.Generator``.

    ``start`` returns at once; ``ready`` turns true after a first step has warmed the model.
    """

    def __init__(
        self, runner: ModelRunner, tokenizer: TextSource, limits: EngineLimits, *, vocab_size: int
    ) -> None:
        """Prepare; nothing runs before ``start``. ``vocab_size`` bounds prompt token ids."""
        self._runner = runner
        self._outbox = Outbox()
        self._core = EngineCore(runner, tokenizer, limits, self._outbox)
        self._limits = limits
        self._vocab_size = vocab_size
        self._inbox: queue.SimpleQueue[_Message] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._state_lock = threading.Lock()
        self._refusal: str | None = "the engine was not started"
        self._ready = False
        self._stats = self._core.stats()

    @property
    def ready(self) -> bool:
        """See ``Generator``."""
        return self._ready

    @property
    def max_model_len(self) -> int:
        """See ``Generator``."""
        return self._limits.max_model_len

    def stats(self) -> EngineStats:
        """See ``Generator``; as of the last step."""
        return self._stats

    def start(self) -> None:
        """Start the loop. Raises RuntimeError on a second call."""
        with self._state_lock:
            self._refusal = None
        self._thread.start()

    def stop(self, timeout: float = 10.0) -> None:
        """Fail open requests and end the loop after the step in flight; a second call is harmless.

        Raises TimeoutError when that step takes longer than ``timeout`` seconds.
        """
        self._inbox.put(_Stop())
        if self._thread.ident is not None:
            self._thread.join(timeout)
        if self._thread.is_alive():
            raise TimeoutError(f"the engine did not stop within {timeout} s")

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[TextDelta, None]:
        """See ``Generator``."""
        self._validate(request)
        stream = Stream(asyncio.get_running_loop())
        job = Job(request, stream)
        self._post(_Submit(job))
        num_open = request.n
        try:
            while num_open:
                for delta in await stream.receive():
                    if delta.finish_reason is not None:
                        num_open -= 1
                    yield delta
        except (EngineError, RequestRejectedError):
            num_open = 0  # nothing is left to abort
            raise
        finally:
            if num_open:
                self._inbox.put(_Abort(job))

    def _validate(self, request: GenerationRequest) -> None:
        num_prompt_tokens = len(request.prompt_tokens)
        if num_prompt_tokens == 0:
            raise RequestRejectedError("the prompt has no tokens")
        if num_prompt_tokens >= self.max_model_len:
            raise RequestRejectedError(
                f"the prompt has {num_prompt_tokens} tokens; the context of {self.max_model_len} "
                "leaves no room for an answer"
            )
        if not 0 <= min(request.prompt_tokens) <= max(request.prompt_tokens) < self._vocab_size:
            raise RequestRejectedError(f"prompt tokens must lie in 0 to {self._vocab_size - 1}")
        max_tokens = request.sampling.max_tokens
        if request.n < 1 or (max_tokens is not None and max_tokens < 1):
            raise RequestRejectedError("n and max_tokens must be at least 1")

    def _post(self, message: _Message) -> None:
        # The lock closes the gap between the loop's last look into the inbox and its end.
        with self._state_lock:
            if self._refusal is not None:
                raise EngineError(self._refusal)
            self._inbox.put(message)

    def _run(self) -> None:
        reason = "the engine is shutting down"
        try:
            self._runner.warm_up()
            self._ready = True
            while self._receive():
                self._step()
        except Exception:
            reason = "the engine stopped after an internal error"
            logger.exception("the engine loop ended")
        finally:
            self._close(reason)

    def _receive(self) -> bool:
        """Take in all messages, waiting when there is nothing to compute. False: stop."""
        message: _Message | None = None if self._core.has_work else self._inbox.get()
        while True:
            match message:
                case _Submit(job):
                    self._core.submit(job)
                case _Abort(job):
                    self._core.abort(job)
                case _Stop():
                    return False
                case None:
                    pass
            try:
                message = self._inbox.get_nowait()
            except queue.Empty:
                return True

    def _step(self) -> None:
        if self._core.has_work:
            try:
                self._core.step()
            except Exception:
                # Not the model but our own bookkeeping: none of its state can be trusted.
                logger.exception("scheduling failed; the engine starts over")
                self._core.fail_all("the engine failed and started over")
        self._stats = self._core.stats()
        self._outbox.flush()

    def _close(self, reason: str) -> None:
        self._ready = False
        with self._state_lock:
            self._refusal = reason
        while True:
            try:
                message = self._inbox.get_nowait()
            except queue.Empty:
                break
            if isinstance(message, _Submit):
                self._outbox.put(message.job.stream, EngineError(reason))
        self._core.fail_all(reason)
        self._stats = self._core.stats()
        self._outbox.flush()
