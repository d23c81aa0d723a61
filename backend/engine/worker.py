"""The engine's own process, and its loop: takes messages in, steps while there is work, reports.

The supervisor starts it as ``python -m backend.engine.worker FD``; FD is one end of a socket pair.
The process never outlives its parent: whatever closes the other end, ``kill -9`` of the parent
included, ends it at once, in the middle of a step or of a load. Signals meant for a terminal's or a
service's whole group are the parent's to act on, so they are ignored here.
"""

import logging
import os
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol, assert_never

from backend.engine.messages import (
    Abort,
    Loaded,
    LoadFailed,
    Loading,
    Ping,
    Report,
    Stop,
    Submit,
    ToEngine,
)
from backend.engine.step_faults import DeviceLostError
from backend.engine.wire import PeerGoneError, SocketEndpoint
from backend.models.config import ModelLoadError
from backend.process import configure_logging
from backend.settings import EngineOptions

if TYPE_CHECKING:
    from backend.engine.core import EngineCore

logger = logging.getLogger(__name__)

STATS_SECONDS = 0.1
"""Figures are as old as this while the engine works, and fresh when it has nothing to do."""

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
        """Send without waiting for the reader."""
        ...

    def wake(self) -> None:
        """Let ``receive`` return, from any thread, though nothing came."""
        ...


class EngineLoop:
    """Owns ``core`` from ``run`` on."""

    def __init__(
        self,
        core: "EngineCore",
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
        """Run until a Stop arrives. Raises the error that makes it impossible to go on."""
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
        # Nothing runs, so it delays only a request that arrives at this moment.
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


def main(argv: Sequence[str]) -> int:
    """Run on the socket whose descriptor is ``argv[0]``; return after a Stop."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    configure_logging()
    sock = socket.socket(fileno=int(argv[0]))
    endpoint = SocketEndpoint(sock)
    threading.Thread(target=_end_with_parent, args=(sock,), name="parent", daemon=True).start()
    try:
        return _serve(endpoint, endpoint.await_message(EngineOptions))
    except PeerGoneError:
        return 1


def _end_with_parent(sock: socket.socket) -> None:
    poller = select.poll()
    poller.register(sock, 0)  # poll reports a closed other end always
    poller.poll()
    os._exit(1)


def _serve(endpoint: SocketEndpoint, options: EngineOptions) -> int:
    try:
        endpoint.send_now(Loading("importing torch"))
        from backend.engine.loading import load_model  # noqa: PLC0415  # seconds

        loaded = load_model(options, lambda stage: endpoint.send_now(Loading(stage)))
        endpoint.send_now(Loading("taking the first step"))
        loaded.core.warm_up()
    except ModelLoadError as error:
        endpoint.send_now(LoadFailed(str(error)))
        return 1
    except PeerGoneError:
        raise
    except Exception as error:
        logger.exception("the engine cannot start")
        endpoint.send_now(LoadFailed(f"{type(error).__name__}: {error}"))
        return 1
    endpoint.send_now(Loaded(loaded.description))
    code = 0
    try:
        EngineLoop(loaded.core, endpoint, stats_seconds=STATS_SECONDS).run()
    except PeerGoneError:
        code = 1
    except Exception:
        logger.exception("the engine's loop ended")
        code = 1
    # There is nothing to save; taking torch down in order takes a second, or for ever after a
    # device was lost.
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
