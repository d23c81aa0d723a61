"""What clients have not read of their replies yet, bounded for all connections together.

Law: a reply is written piece by piece, each after its client has read enough of the earlier ones.
All that is unread has one bound. Above it, the client that has read nothing for the longest time is
disconnected. So clients that do not read cannot take the memory of the others.
"""

import logging
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from aiohttp import web

log = logging.getLogger(__name__)

PIECE = 65_536
"""Bytes of a body that are written at once."""

QUIET_SECONDS = 60.0
"""Between two warnings."""


class Client(Protocol):
    """Who is to read a reply."""

    def abort(self) -> None:
        """End the connection: only so the client learns that the body is not whole."""


class Sink(Client, Protocol):
    """Where a reply is written. ``write`` and ``end`` wait for the client.

    These raise ConnectionResetError if the client has left, TimeoutError if it reads too slowly.
    """

    async def begin(self) -> None: ...
    async def write(self, data: bytes | memoryview) -> None: ...
    async def end(self) -> None: ...


class _Held(NamedTuple):
    parts: Sequence[bytes]
    size: int
    """Of what is held beside the parts."""


class Unread:
    """Counts the bytes that are held for clients; a part for several clients counts once.

    ``most`` bounds them. ``seconds`` bounds each wait for a client. ``now`` is a clock.
    """

    def __init__(self, most: int, seconds: float, now: Callable[[], float]) -> None:
        self.seconds = seconds
        self.bytes = 0
        self._most, self._now = most, now
        self._held: OrderedDict[Client, _Held] = OrderedDict()
        """The client that has read nothing for the longest time comes first."""
        self._holders = Counter[int]()
        """Number of clients by the id of a part."""
        self._quiet_until = 0.0

    def hold(self, client: Client, parts: Sequence[bytes] = (), size: int = 0) -> None:
        """Count what is sent to a client, in place of what was counted for it before."""
        self.release(client)
        self._held[client] = _Held(parts, size)
        self.bytes += size
        for part in parts:
            self.bytes += 0 if self._holders[id(part)] else len(part)
            self._holders[id(part)] += 1
        if self.bytes > self._most:
            self._make_room()

    def note_progress(self, client: Client) -> None:
        if client in self._held:
            self._held.move_to_end(client)

    def release(self, client: Client) -> None:
        held = self._held.pop(client, None)
        if held is None:
            return
        self.bytes -= held.size
        for part in held.parts:
            self._holders[id(part)] -= 1
            if not self._holders[id(part)]:
                del self._holders[id(part)]
                self.bytes -= len(part)

    def _make_room(self) -> None:
        for client in list(self._held)[:-1]:
            if self.bytes <= self._most:
                break
            self.release(client)
            client.abort()
            if self._now() >= self._quiet_until:
                self._quiet_until = self._now() + QUIET_SECONDS
                log.warning(
                    "clients leave over %d bytes of replies unread (max_unread_bytes):"
                    " the slowest are disconnected",
                    self._most,
                )


UNREAD: web.AppKey[Unread] = web.AppKey("unread")


def split(body: bytes) -> list[memoryview]:
    """Return a body in pieces, which are no copies."""
    return [memoryview(body)[start : start + PIECE] for start in range(0, len(body), PIECE)]


async def send_whole(sink: Sink, body: bytes, unread: Unread) -> None:
    """Send a long body piece by piece."""
    unread.hold(sink, (body,))
    try:
        await sink.begin()
        for piece in split(body):
            await sink.write(piece)
        await sink.end()
    except (ConnectionResetError, TimeoutError):
        sink.abort()
    finally:
        unread.release(sink)
