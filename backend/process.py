"""What our processes share: how they log, and work in threads that nobody has to wait for."""

import asyncio
import logging
import os
import select
import signal
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from backend.log_lines import log_to_stderr
from backend.request_id import CURRENT

T = TypeVar("T")

_NAME = "background"


async def in_background(work: Callable[[], T]) -> T:
    """Return what ``work`` returns, or raise it; cancelling leaves its thread behind."""
    outcome: Future[T] = Future()
    outcome.set_running_or_notify_cancel()

    def run() -> None:
        try:
            result = work()
        except BaseException as error:  # noqa: BLE001  # raised again by who waits
            outcome.set_exception(error)
        else:
            outcome.set_result(result)

    threading.Thread(target=run, name=_NAME, daemon=True).start()
    return await asyncio.wrap_future(outcome)


def is_left_behind() -> bool:
    """Whether such a thread still works."""
    return any(thread.name == _NAME for thread in threading.enumerate())


def end_with_parent(descriptor: int) -> None:
    """Make this process end as soon as the other end of a socket pair is closed.

    Signals meant for a terminal's or a service's whole group are the parent's to act on.
    """
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)

    def watch() -> None:
        poller = select.poll()
        poller.register(descriptor, 0)  # poll reports a closed other end always
        poller.poll()
        os._exit(1)

    threading.Thread(target=watch, name="parent", daemon=True).start()


def configure_logging(form: str) -> None:
    """Write log lines to stderr; ``form`` is ``text``, ``json`` or ``auto``."""
    # Errors of torch and of the device say in words what to do.
    log_to_stderr(form, request_id=CURRENT.get, quotes_errors=True)
    # It quotes what it cannot parse: header lines, which may have keys in them. Faults of ours are
    # logged by who answers for them.
    logging.getLogger("aiohttp.server").setLevel(logging.CRITICAL)
