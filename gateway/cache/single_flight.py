"""One run of a slow question for all who ask it at the same time.

Law: who asks waits for the same run and gets what it comes to, its failure included. It ends with
the last who waits, and with nobody before.
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
    """The runs under way, by what they are about."""

    def __init__(self) -> None:
        self._runs: dict[Hashable, _Run[T]] = {}

    async def ask(self, about: Hashable, run: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Return what the run about this comes to, and begin one where none is under way."""
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
        """Let whoever asks from now on wait for a new run: what it is about has changed."""
        self._runs.pop(about, None)

    def part_all(self) -> None:
        """Do so for all there is."""
        self._runs.clear()
