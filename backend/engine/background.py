"""Blocking work in threads that nobody has to wait for: what they do cannot be broken off.

A pool's threads would keep the process until they are done.
"""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

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
