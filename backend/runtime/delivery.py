"""From the engine's thread to the event loops of those who wait.

One wake-up of an event loop delivers everything that a step made for it. A reader who is slower
than the engine gets what has gathered as one delta, so falling behind makes its work less.
"""

import asyncio
from collections import defaultdict
from collections.abc import Iterable
from itertools import chain

from backend.core.types import TextDelta

Item = TextDelta | Exception
"""An exception ends the stream."""


class Stream:
    """Where one request's deltas go; created and read on ``loop``."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        """Bind to the event loop that will read."""
        self.loop = loop
        self._items: list[Item] = []
        self._arrival = asyncio.Event()

    def put(self, item: Item) -> None:
        """Add ``item``; on the stream's loop."""
        self._items.append(item)
        self._arrival.set()

    async def receive(self) -> list[TextDelta]:
        """Wait for deltas and return them in order, at most one for each choice.

        Raises the exception that ended the stream, once the deltas before it were returned.
        """
        await self._arrival.wait()
        if isinstance(self._items[0], Exception):
            raise self._items[0]
        ended = [item for item in self._items if isinstance(item, Exception)]
        deltas = _merge(item for item in self._items if isinstance(item, TextDelta))
        self._items = [*ended]
        if not ended:
            self._arrival.clear()
        return deltas


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
        stream.put(item)


def _merge(deltas: Iterable[TextDelta]) -> list[TextDelta]:
    of_choice: defaultdict[int, list[TextDelta]] = defaultdict(list)
    for delta in deltas:
        of_choice[delta.index].append(delta)
    return [
        TextDelta(
            index,
            "".join(delta.text for delta in each),
            each[-1].completion_tokens,
            each[-1].finish_reason,
            tuple(chain.from_iterable(delta.logprobs for delta in each)),
            each[-1].cached_tokens,
        )
        for index, each in of_choice.items()
    ]
