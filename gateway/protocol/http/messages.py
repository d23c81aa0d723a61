"""Replies as the pipeline sees them, free of any HTTP library."""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from gateway.protocol.http.headers import Fields

Read = Callable[[], Awaitable[bytes]]
"""Returns the next piece of a body, nothing at its end."""


async def read_up_to(read: Read, limit: int) -> bytes:
    """Read to the end, or until more than ``limit`` bytes have come."""
    body = await read()
    if not body:
        return body
    parts = [body]
    size = len(body)
    while size <= limit and (piece := await read()):
        parts.append(piece)
        size += len(piece)
    return body if len(parts) == 1 else b"".join(parts)


async def read_whole(read: Read, most: int) -> bytes | None:
    """Return a whole body, None where it has more than ``most`` bytes."""
    body = await read_up_to(read, most)
    return body if len(body) <= most else None


PART_BYTES = 65_536
"""Small parts of a body are sent together, up to so many bytes."""

MOST_JOINED = 1 << 20
"""A longer body stays in its parts."""


class Parts(AsyncIterator[bytes]):
    """A long body in parts, some of them views of entries: it is never whole in memory."""

    def __init__(self, parts: Sequence[bytes | memoryview]) -> None:
        self._parts = parts
        self._next = 0

    @property
    def held(self) -> list[bytes]:
        """The bytes of which some parts are views."""
        views = [part.obj for part in self._parts if isinstance(part, memoryview)]
        return [*{id(whole): whole for whole in views if isinstance(whole, bytes)}.values()]

    async def __anext__(self) -> bytes:
        start, size = self._next, 0
        while self._next < len(self._parts) and size < PART_BYTES:
            size += len(self._parts[self._next])
            self._next += 1
        if start == self._next:
            raise StopAsyncIteration
        return b"".join(self._parts[start : self._next])


def body_of(parts: Sequence[bytes | memoryview]) -> bytes | Parts:
    """Return a body that was made in parts."""
    return b"".join(parts) if sum(map(len, parts)) <= MOST_JOINED else Parts(parts)


def _do_nothing() -> None: ...


@dataclass(frozen=True, slots=True)
class Reply:
    """Status and headers, and the body: whole, or as it comes.

    Who takes the reply calls ``close``, whether or not the body was read: it leaves the upstream
    call.
    """

    status: int
    headers: Fields
    body: bytes | AsyncIterator[bytes]
    close: Callable[[], None] = _do_nothing
    fresh_until: float | None = None
    """Until when the same request gets this reply, but for its age, in seconds since the epoch.

    None where that is not sure."""


class Addition(StrEnum):
    """The gateway's own additions to requests, which a server may refuse."""

    STREAM_USAGE = "stream-usage"
    """``stream_options.include_usage``."""
    HINTS = "hints"
    """The policy's hints for the provider's prefix cache."""


ALL_ADDITIONS = frozenset(Addition)

_REPLICA_MARK = "#"
"""No name of an upstream, and no URL of one, may hold it."""


def replica_name(declared: str, address: str) -> str:
    """Return the name of a replica that was found for an upstream."""
    return f"{declared}{_REPLICA_MARK}{address}"


def declared_name(upstream: str) -> str:
    """Return the name of the upstream as it is declared, of which this may be a replica."""
    return upstream.partition(_REPLICA_MARK)[0]
