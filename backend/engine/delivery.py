"""From the engine to the event loops of those who wait.

One wake-up of an event loop delivers everything that a step made for it. A reader who is slower
than the engine gets what has gathered as one delta, so falling behind makes its work less.
"""

import asyncio
from collections import defaultdict
from collections.abc import Iterable

from backend.engine.messages import Item
from backend.scheduler.request import TokenDelta


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

    async def receive(self) -> list[TokenDelta]:
        """Wait for deltas and return them in order, at most one for each choice.

        Raises the exception that ended the stream, once the deltas before it were returned. That
        an engine which hangs ends its streams too is its host's to see to.
        """
        await self._arrival.wait()
        items = self._items
        if isinstance(items[0], Exception):
            raise items[0]
        ended = any(isinstance(item, Exception) for item in items)
        self._items = [item for item in items if isinstance(item, Exception)]
        if not ended:
            self._arrival.clear()
        if len(items) == 1:
            return [items[0]]
        return _merge(item for item in items if isinstance(item, TokenDelta))


def deliver(items: Iterable[tuple[Stream, Item]]) -> list[Stream]:
    """Hand ``items`` over, from any thread. Returns streams whose event loop is closed.

    Those have no reader any more, which is no fault.
    """
    of_loop: defaultdict[asyncio.AbstractEventLoop, list[tuple[Stream, Item]]] = defaultdict(list)
    for stream, item in items:
        of_loop[stream.loop].append((stream, item))
    deserted: list[Stream] = []
    here = _running_loop()
    for loop, batch in of_loop.items():
        if loop is here:
            _put(batch)
            continue
        try:
            loop.call_soon_threadsafe(_put, batch)
        except RuntimeError:
            if not loop.is_closed():
                raise
            deserted += [stream for stream, _ in batch]
    return deserted


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def _put(items: list[tuple[Stream, Item]]) -> None:
    for stream, item in items:
        stream.put(item)


def _merge(deltas: Iterable[TokenDelta]) -> list[TokenDelta]:
    of_choice: defaultdict[int, list[TokenDelta]] = defaultdict(list)
    for delta in deltas:
        of_choice[delta.index].append(delta)
    return [
        each[0]
        if len(each) == 1
        else TokenDelta(
            index,
            tuple(token for delta in each for token in delta.tokens),
            tuple(logprobs for delta in each for logprobs in delta.logprobs),
            each[-1].finish_reason,
            each[-1].cached_tokens,
            each[0].prompt_logprobs,
        )
        for index, each in of_choice.items()
    ]
