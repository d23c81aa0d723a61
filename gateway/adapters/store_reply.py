"""How a thread's answer reaches the coroutine that waits for it.

Law: every wait ends, with a value or a StoreError, whatever happens to the thread.
"""

import asyncio
from contextlib import suppress
from typing import Generic, TypeVar

from gateway.ports import StoreError, StoreUnavailableError

T = TypeVar("T")


class Reply(Generic[T]):
    """Where the loop waits for a thread's answer. Made on the loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._future: asyncio.Future[T] = self._loop.create_future()

    @property
    def wanted(self) -> bool:
        """Whether somebody still waits."""
        return not self._future.done()

    def settle(self, outcome: T | StoreError) -> None:
        """Hand over the answer; called from any thread."""
        # A closed loop has nobody waiting on it.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._set, outcome)

    async def wait(self, seconds: float, what: str) -> T:
        """Return the answer. Raises StoreError, at the latest after ``seconds``."""
        late = StoreUnavailableError(f"{what} took longer than {seconds:g} s")
        expiry = self._loop.call_later(seconds, self._set, late)
        try:
            return await self._future
        finally:
            expiry.cancel()

    def _set(self, outcome: T | StoreError) -> None:
        if self._future.done():
            return
        if isinstance(outcome, StoreError):
            self._future.set_exception(outcome)
        else:
            self._future.set_result(outcome)
