"""Replies as the pipeline sees them, free of any HTTP library."""

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from enum import StrEnum

from gateway.protocol.headers import Fields

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


def _do_nothing() -> None:
    """No call is to be left."""


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
