"""What the gateway needs of an upstream; tests may fake it."""

from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from gateway.upstream.request import Outgoing, Served


class UpstreamReply(Protocol):
    """The head of an upstream's reply, and its body as it arrives."""

    @property
    def served(self) -> Served:
        """Which upstream this is, if one name stands for several."""
        ...

    @property
    def status(self) -> int:
        """HTTP status code."""
        ...

    @property
    def headers(self) -> Sequence[tuple[str, str]]:
        """End-to-end headers; the body is already decoded, so no Content-Encoding or -Length."""
        ...

    @property
    def content_type(self) -> str:
        """Media type without parameters, lower case."""
        ...

    def chunks(self) -> AsyncIterator[bytes]:
        """Yield the body. Raises UpstreamError when it breaks off or stalls."""
        ...


class Upstream(Protocol):
    """An OpenAI-compatible server."""

    @property
    def name(self) -> str:
        """Base URL without credentials; part of every key."""
        ...

    def send(self, outgoing: Outgoing) -> AbstractAsyncContextManager[UpstreamReply]:
        """POST the request; leaving the context cancels the rest of the reply.

        Raises UpstreamError when it cannot be reached or sends no head in time.
        """
        ...
