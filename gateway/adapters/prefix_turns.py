"""Requests that wait until another has computed what they begin with.

Law: every wait is bounded; who waits is woken by the first byte or the end of whom it waits for.
"""

import asyncio
from collections.abc import Callable

from gateway.core.routing import Sent, Wait


class Turns:
    """Who waits for whom; decided is that by ``held_back`` of the routing."""

    def __init__(self) -> None:
        self._behind: dict[Sent, list[asyncio.Future[None]]] = {}

    async def come(
        self, held_back: Callable[[float], Wait | None], clock: Callable[[], float]
    ) -> None:
        """Return when it is the request's turn."""
        now = clock()
        while (wait := held_back(now)) is not None:
            woken = asyncio.get_running_loop().create_future()
            self._behind.setdefault(wait.leader, []).append(woken)
            try:
                async with asyncio.timeout(wait.until - now):
                    await woken
                now = clock()
            except TimeoutError:
                now = wait.until

    def wake(self, leader: Sent) -> None:
        """Let those go who wait for this one."""
        for woken in self._behind.pop(leader, ()):
            if not woken.done():
                woken.set_result(None)
