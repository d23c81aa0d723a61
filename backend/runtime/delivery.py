"""From the engine's thread to the event loops of those who wait.

One wake-up of an event loop delivers everything that a step made for it.
"""

import asyncio
from collections import defaultdict

from backend.core.types import TextDelta

Item = TextDelta | Exception
"""An exception ends the stream."""


class Stream:
    """Where one request's deltas go; created and read on ``loop``."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        """Bind to the event loop that will read."""
        self.loop = loop
        self.queue: asyncio.Queue[Item] = asyncio.Queue()


class Outbox:
    """Collects a step's deltas in the engine's thread."""

    def __init__(self) -> None:
        self._pending: defaultdict[asyncio.AbstractEventLoop, list[tuple[Stream, Item]]] = (
            defaultdict(list)
        )

    def put(self, stream: Stream, item: Item) -> None:
        """Queue ``item`` for the next ``flush``."""
        self._pending[stream.loop].append((stream, item))

    def flush(self) -> None:
        """Hand everything over. A loop that is closed has no reader any more; that is no fault."""
        pending, self._pending = self._pending, defaultdict(list)
        for loop, items in pending.items():
            try:
                loop.call_soon_threadsafe(_deliver, items)
            except RuntimeError:
                if not loop.is_closed():
                    raise


def _deliver(items: list[tuple[Stream, Item]]) -> None:
    for stream, item in items:
        stream.queue.put_nowait(item)
