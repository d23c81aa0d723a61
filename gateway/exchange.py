"""Requests and replies as the pipeline sees them, free of any HTTP library."""

from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass

Headers = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Inbound:
    """A request to a cached endpoint. ``headers`` look-ups ignore case."""

    path: str
    headers: Mapping[str, str]
    raw: bytes


@dataclass(frozen=True, slots=True)
class Reply:
    """Status and headers, and the body: whole, or as it comes.

    Who takes the reply closes ``resources``, whether or not the body was read: they hold the
    upstream call.
    """

    status: int
    headers: Headers
    body: bytes | AsyncIterator[bytes]
    resources: AsyncExitStack | None = None
