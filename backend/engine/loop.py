"""The engine's loop: takes messages in, steps for as long as there is work, reports.

Synchronous, and alone in touching scheduler, cache and sampler. Where it runs, in a thread or in a
process of its own, is its endpoint's affair.
"""

import logging
import time
from collections.abc import Callable
from typing import Protocol, assert_never

from backend.engine.core import EngineCore
from backend.engine.messages import Abort, Ping, Report, Stop, Submit, ToEngine
from backend.engine.step_faults import DeviceLostError

logger = logging.getLogger(__name__)

_MAX_RESTARTS_IN_A_ROW = 3
_CHECK_SECONDS = 10.0
_CHECK_PAUSE = 1_000
"""Times as long as a check of a large pool took, before the next."""


class Endpoint(Protocol):
    """The engine's end of the way to its clients."""

    def receive(self, *, wait: bool) -> list[ToEngine]:
        """Return what came; ``wait`` for it when nothing has."""
        ...

    def send(self, report: Report) -> None:
        """Send without waiting for whoever reads."""
        ...

    def wake(self) -> None:
        """Let ``receive`` return, from any thread, though nothing came."""
        ...


class EngineLoop:
    """Owns ``core`` from ``run`` on."""

    def __init__(
        self,
        core: EngineCore,
        endpoint: Endpoint,
        *,
        stats_seconds: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Figures are reported when all work is done, and else every ``stats_seconds``."""
        self._core = core
        self._core.grammars.wake = endpoint.wake
        self._endpoint = endpoint
        self._stats_seconds = stats_seconds
        self._clock = clock
        self._stats_at = -float("inf")
        self._next_check = -float("inf")
        self._failures = 0

    def run(self) -> None:
        """Run until told to stop. Raises what makes it impossible to go on."""
        while self._take_in():
            worked = self._core.has_work
            if worked:
                self._step()
            self._report(idle=not self._core.has_work)
            if worked and not self._core.has_work:
                self._check()

    def _take_in(self) -> bool:
        """Take all messages. False: stop."""
        for message in self._endpoint.receive(wait=not self._core.has_work):
            match message:
                case Submit():
                    self._core.submit(message)
                case Abort():
                    self._core.abort(message)
                case Ping():
                    self._stats_at = -float("inf")
                case Stop():
                    return False
                case _:
                    assert_never(message)
        self._core.admit_compiled()
        return True

    def _step(self) -> None:
        try:
            self._core.step()
        except DeviceLostError:
            raise
        except Exception as error:  # noqa: BLE001  # raised again when it comes again
            self._start_over("scheduling failed", error)
        else:
            self._failures = 0

    def _check(self) -> None:
        # Nothing runs, so it costs nobody anything but who comes in this moment.
        began = self._clock()
        if began < self._next_check:
            return
        try:
            self._core.scheduler.check_integrity()
        except Exception as error:  # noqa: BLE001  # raised again when it comes again
            self._start_over("the block pool is damaged", error)
        now = self._clock()
        self._next_check = now + max(_CHECK_SECONDS, _CHECK_PAUSE * (now - began))

    def _start_over(self, what: str, error: Exception) -> None:
        # Not the model but our own bookkeeping: none of its state can be trusted.
        self._failures += 1
        if self._failures > _MAX_RESTARTS_IN_A_ROW:
            raise error
        logger.error("%s; the engine starts over", what, exc_info=error)
        self._core.num_restarts += 1
        self._core.start_over("the engine failed and started over")

    def _report(self, *, idle: bool) -> None:
        report = Report(self._core.take_items(), cache_events=self._core.take_cache_events())
        now = self._clock()
        if idle or now - self._stats_at >= self._stats_seconds:
            report.stats = self._core.stats()
            self._stats_at = now
        if report:
            self._endpoint.send(report)
