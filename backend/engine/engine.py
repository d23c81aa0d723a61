"""The engine's loop, and an engine in a thread: for embedded use, benchmarks and tests.

``refrain backend`` has its engine in a process of its own (``worker``); loop and client are
the same. A step that hangs is not found here: a thread cannot be ended.
"""

import logging
import queue
import threading
from collections.abc import Callable
from time import monotonic
from typing import assert_never

import torch

from backend.engine.client import EngineClient
from backend.engine.core import EngineCore
from backend.engine.kv_transfer.fetches import Fetches
from backend.engine.kv_transfer.offers import Offers
from backend.engine.messages import (
    Abort,
    Asleep,
    Awake,
    EngineDescription,
    FromEngine,
    Ping,
    Report,
    Sleep,
    Stop,
    Submit,
    ToEngine,
    Wake,
)
from backend.engine.stepper import DeviceLostError
from backend.engine.wire import SocketEndpoint
from backend.tokenizer.tokenizer import Tokenizer

logger = logging.getLogger(__name__)

STATS_SECONDS = 0.1
"""Figures are as old as this while the engine works, and fresh when it has nothing to do."""
THREAD_STATS_SECONDS = 0.02

_MAX_RESTARTS_IN_A_ROW = 3
_CHECK_SECONDS = 10.0
_CHECKED_BLOCKS = 8_192
"""So many take a few milliseconds, by which a request may be late."""


class QueueEndpoint:
    """The loop's end within one process; ``wire.SocketEndpoint`` is that between two."""

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

    def send_now(self, message: FromEngine) -> None:
        """Do nothing: only a server lets its engine sleep, and that runs in another process."""

    def wake(self) -> None:
        """Let ``receive`` return, from any thread, though nothing came."""
        self._inbox.put(None)


class EngineLoop:
    """Owns ``core`` from ``run`` on."""

    def __init__(
        self,
        core: EngineCore,
        endpoint: SocketEndpoint | QueueEndpoint,
        *,
        stats_seconds: float,
        role: Offers | Fetches | None = None,
    ) -> None:
        """Figures are reported when all work is done, and else every ``stats_seconds``.

        ``role`` is for an engine that computes prompts for others, or has them computed.
        """
        self._core = core
        self._core.grammars.wake = endpoint.wake
        self._role = role
        if role is not None:
            role.wake = endpoint.wake
            role.wake()  # somebody may have asked before
        self._endpoint = endpoint
        self._stats_seconds = stats_seconds
        self._stats_at = -float("inf")
        self._next_check = -float("inf")
        self._failures = 0

    def run(self) -> None:
        """Run until a Stop arrives. Raises the error that makes it impossible to go on."""
        try:
            while self._take_in():
                worked = self._core.scheduler.has_work
                if worked:
                    self._step()
                self._report(idle=not self._core.scheduler.has_work)
                if worked and not self._core.scheduler.has_work:
                    self._check()
        finally:
            if self._role is not None:
                self._role.close()

    def _take_in(self) -> bool:
        """Take all messages. False: stop."""
        for message in self._endpoint.receive(wait=not self._core.scheduler.has_work):
            match message:
                case Submit():
                    self._submit(message)
                case Abort():
                    self._abort(message)
                case Ping():
                    self._stats_at = -float("inf")
                case Sleep():
                    self._sleep()
                case Wake():
                    self._core.wake()
                    self._endpoint.send_now(Awake())
                case Stop():
                    return False
                case _:
                    assert_never(message)
        self._core.admit_compiled()
        if self._role is not None and not self._guarded(self._role.advance):
            self._role.wake()  # there may be more, of which nobody tells again
        return True

    def _submit(self, message: Submit) -> None:
        if self._role is None or not self._role.submit(message):
            self._core.submit(message)

    def _abort(self, message: Abort) -> None:
        if self._role is None or not self._role.abort(message.number):
            self._core.abort(message)

    def _sleep(self) -> None:
        self._core.sleep()
        self._endpoint.send_now(Asleep())

    def _step(self) -> None:
        if self._guarded(self._core.step):
            self._failures = 0

    def _guarded(self, work: Callable[[], None]) -> bool:
        """Return whether ``work`` succeeded; the engine starts over otherwise."""
        try:
            work()
        except DeviceLostError:
            raise
        except Exception as error:  # noqa: BLE001  # raised again when it comes again
            self._start_over("scheduling failed", error)
            return False
        return True

    def _check(self) -> None:
        # Nothing runs, so it delays only a request that arrives at this moment.
        now = monotonic()
        if now < self._next_check:
            return
        self._next_check = now + _CHECK_SECONDS
        try:
            self._core.scheduler.check_integrity(_CHECKED_BLOCKS)
        except Exception as error:  # noqa: BLE001  # raised again when it comes again
            self._start_over("the block pool is damaged", error)

    def _start_over(self, what: str, error: Exception) -> None:
        # Not the model but our own bookkeeping: none of its state can be trusted.
        self._failures += 1
        if self._failures > _MAX_RESTARTS_IN_A_ROW:
            raise error
        logger.error("%s; the engine starts over", what, exc_info=error)
        self._core.start_over("the engine failed and started over")

    def _report(self, *, idle: bool) -> None:
        items = self._core.take_items()
        if self._role is not None:
            items = self._role.items(items)
        report = Report(items, cache_events=self._core.take_cache_events())
        now = monotonic()
        if idle or now - self._stats_at >= self._stats_seconds:
            report.stats = self._core.stats()
            self._stats_at = now
        if report:
            self._endpoint.send(report)


class Engine(EngineClient):
    """Implements ``backend.ports.Generator``.

    ``start`` returns at once; ``ready`` turns true after a first step has warmed the model.
    """

    def __init__(
        self,
        core: EngineCore,
        tokenizer: Tokenizer,
        description: EngineDescription,
        role: Offers | Fetches | None = None,
    ) -> None:
        """Prepare; nothing runs before ``start``."""
        self._inbox: queue.SimpleQueue[ToEngine | None] = queue.SimpleQueue()
        super().__init__(self._inbox.put)
        self._core, self._role = core, role
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
            endpoint = QueueEndpoint(self._inbox, self.receive)
            EngineLoop(
                self._core, endpoint, stats_seconds=THREAD_STATS_SECONDS, role=self._role
            ).run()
            self._core.persist()
        except Exception:
            reason = "the engine stopped after an internal error"
            logger.exception("the engine's loop ended")
        finally:
            self._core.grammars.close()
            self.close(reason)
            self._core.start_over(reason)  # it frees what the requests held
