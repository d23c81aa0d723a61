"""An engine in a thread of this process: for embedded use, benchmarks and tests.

``refrain backend`` has its engine in a process of its own (``worker``); loop and client are
the same. A step that hangs is not found here: a thread cannot be ended.
"""

import logging
import queue
import threading
from collections.abc import Callable

import torch

from backend.engine.client import EngineClient, TextSource
from backend.engine.core import EngineCore
from backend.engine.messages import EngineDescription, Report, Stop, ToEngine
from backend.engine.worker import EngineLoop

logger = logging.getLogger(__name__)

_STATS_SECONDS = 0.02


class Engine(EngineClient):
    """Implements ``backend.ports.Generator``.

    ``start`` returns at once; ``ready`` turns true after a first step has warmed the model.
    """

    def __init__(
        self, core: EngineCore, tokenizer: TextSource, description: EngineDescription
    ) -> None:
        """Prepare; nothing runs before ``start``."""
        self._inbox: queue.SimpleQueue[ToEngine | None] = queue.SimpleQueue()
        super().__init__(self._inbox.put)
        self._core = core
        self._tokenizer = tokenizer
        self._description = description
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self.receive(Report(stats=core.stats()))
        self._warm = False
        self._num_threads = torch.get_num_threads()

    @property
    def ready(self) -> bool:
        return self._warm and super().ready

    @property
    def max_model_len(self) -> int:
        return self._description.max_model_len

    def start(self) -> None:
        """Start the loop. Raises RuntimeError on a second call."""
        if self._thread.ident is not None:
            raise RuntimeError("an engine is started once")
        self.open(self._description, self._tokenizer)
        self._thread.start()

    def stop(self, timeout: float = 10.0) -> None:
        """Fail open requests and end the loop after the step in flight; a second call is harmless.

        Raises TimeoutError when that step takes longer than ``timeout`` seconds.
        """
        self._inbox.put(Stop())
        if self._thread.ident is not None:
            self._thread.join(timeout)
        if self._thread.is_alive():
            raise TimeoutError(f"the engine did not stop within {timeout} s")

    def _run(self) -> None:
        reason = "the engine is shutting down"
        # A new thread has the number that was set last, perhaps by another engine of this process.
        torch.set_num_threads(self._num_threads)
        try:
            self._core.warm_up()
            self._warm = True
            endpoint = _QueueEndpoint(self._inbox, self.receive)
            EngineLoop(self._core, endpoint, stats_seconds=_STATS_SECONDS).run()
        except Exception:
            reason = "the engine stopped after an internal error"
            logger.exception("the engine loop ended")
        finally:
            self._core.grammars.close()
            self.close(reason)
            self._core.start_over(reason)  # it frees what the requests held
            self.receive(Report(stats=self._core.stats()))


class _QueueEndpoint:
    """The loop's end within one process."""

    def __init__(
        self, inbox: "queue.SimpleQueue[ToEngine | None]", send: Callable[[Report], None]
    ) -> None:
        self._inbox = inbox
        self.send = send

    def receive(self, *, wait: bool) -> list[ToEngine]:
        """Return what came; ``wait`` if nothing came."""
        messages = [self._inbox.get()] if wait else []
        while not self._inbox.empty():  # nobody else takes messages out
            messages.append(self._inbox.get())
        return [message for message in messages if message is not None]

    def wake(self) -> None:
        """Let ``receive`` return, from any thread, though nothing came."""
        self._inbox.put(None)
