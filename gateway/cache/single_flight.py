"""One run of a slow task for all its concurrent callers.

Law: all callers wait for the same run and get its result, failures included. The run ends early
only if the last caller leaves.
"""

import asyncio
from collections.abc import Callable, Coroutine, Hashable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

T = TypeVar("T")


@dataclass(slots=True)
class _Run(Generic[T]):
    task: asyncio.Task[T]
    waiting: int = 0


class SingleFlight(Generic[T]):
    """The current runs, by key."""

    def __init__(self) -> None:
        self._runs: dict[Hashable, _Run[T]] = {}

    async def ask(self, about: Hashable, run: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Return the result of the key's run; begin one if none is under way."""
        shared = self._runs.get(about)
        if shared is None:
            shared = self._runs[about] = _Run(asyncio.create_task(run()))
        shared.waiting += 1
        try:
            return await asyncio.shield(shared.task)
        finally:
            shared.waiting -= 1
            if shared.task.done() or not shared.waiting:
                shared.task.cancel()
                if self._runs.get(about) is shared:
                    del self._runs[about]

    def part(self, about: Hashable) -> None:
        """Let later callers wait for a new run: the subject of the current one has changed."""
        self._runs.pop(about, None)

    def part_all(self) -> None:
        """Do so for all there is."""
        self._runs.clear()
