"""Reads the changes of files in a data directory, in a thread; requests see what it has found.

Laws: no request waits for the disk. An edit counts within a second. If a file was not looked at for
``KNOWN_SECONDS``, its content is not known: a directory that hangs costs semantic hits alone.
"""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Protocol

from gateway import background

LOOK_SECONDS = 0.25
KNOWN_SECONDS = 5.0

Deliver = Callable[..., object]
"""Calls a function with arguments where requests are answered: on the loop."""


def at_once(call: Callable[..., object], *arguments: object) -> None:
    """Deliver to the thread that looks: for commands, which have one thread."""
    call(*arguments)


class Followed(Protocol):
    """A file that is looked at in a thread."""

    is_known: Callable[[], bool]
    """Tells whether what was found is recent; by default a look."""

    def look(self, deliver: Deliver = at_once) -> bool:
        """Read what is new; tell whether the file could be read."""


class FolderWatch:
    """Follows files until the end of ``lifespan``."""

    def __init__(
        self, files: Sequence[Followed], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._files = files
        self._clock = clock
        self._looked_at = float("-inf")
        self._readable: list[bool] = [False] * len(files)
        self._stopped = threading.Event()

    @asynccontextmanager
    async def lifespan(self) -> AsyncIterator[None]:
        """Look once before the first request, and again and again until the end."""
        loop = asyncio.get_running_loop()

        def deliver(call: Callable[..., object], *arguments: object) -> None:
            with suppress(RuntimeError):  # on a closed loop there are no requests
                loop.call_soon_threadsafe(call, *arguments)

        await asyncio.to_thread(self._look, deliver)
        for number, file in enumerate(self._files):
            file.is_known = self._is_known(number)

        def follow() -> None:
            while not self._stopped.wait(LOOK_SECONDS):
                self._look(deliver)

        background.start_thread("watch of the data directory", follow)
        try:
            yield
        finally:
            self._stopped.set()

    def _is_known(self, number: int) -> Callable[[], bool]:
        return lambda: self._readable[number] and self._clock() - self._looked_at < KNOWN_SECONDS

    def _look(self, deliver: Deliver) -> None:
        began = self._clock()
        for number, file in enumerate(self._files):
            self._readable[number] = file.look(deliver)
        self._looked_at = began
