"""A reply of one of several upstreams, whose first word is here.

Law: from here on nothing is sent again. However the reply is left, its call is ended once.
"""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from http import HTTPStatus
from math import ceil
from types import TracebackType
from typing import Protocol

from gateway.protocol.errors import UpstreamError
from gateway.protocol.headers import without
from gateway.protocol.reasons import Reason
from gateway.upstream.pool.first_token import Beginning, Begun
from gateway.upstream.pool.retry import Failure, failure_of
from gateway.upstream.pool.table import Call
from gateway.upstream.ports import UpstreamReply
from gateway.upstream.request import Served, Tried


class CallOwner(Protocol):
    """Who has begun the call."""

    def note_failure(self, call: Call, failure: Failure) -> None:
        """Note that it broke off."""
        ...

    def note_cached(self, call: Call, tokens: int) -> None:
        """Note how much of the prompt the upstream says that it had."""
        ...

    def note_made(self, call: Call, made: str) -> None:
        """Note what the upstream has made and keeps."""
        ...

    def ended(self, call: Call) -> None:
        """Note its end."""
        ...


class Opened:
    """A reply whose first word is here; see the port ``UpstreamReply``."""

    def __init__(
        self,
        owner: "CallOwner",
        call: Call,
        context: AbstractAsyncContextManager[UpstreamReply],
        reply: UpstreamReply,
    ) -> None:
        self.failure: Failure | None = None
        """Why this is no answer, though it is passed on where nobody gives one."""
        self.come_back: float | None = None
        """In how many seconds somebody may answer."""
        self.tried: Tried = ()
        self.refused = reply.status >= HTTPStatus.BAD_REQUEST
        """Whether the answer is that the request is at fault."""
        self._owner = owner
        self._call = call
        self._context = context
        self._reply = reply
        self._body = reply.chunks()
        self._held: list[bytes] = []

    @property
    def served(self) -> Served:
        """Who answered, and who did not before."""
        return Served(
            self._call.name,
            self.tried,
            several=True,
            note_cached=partial(self._owner.note_cached, self._call),
            note_made=partial(self._owner.note_made, self._call),
        )

    @property
    def status(self) -> int:
        """HTTP status code."""
        return self._reply.status

    @property
    def headers(self) -> Sequence[tuple[str, str]]:
        """End-to-end headers; of a refusal with the time until the first of all comes back."""
        if self.come_back is None:
            return self._reply.headers
        kept = without(self._reply.headers, "retry-after", "retry-after-ms")
        return (*kept, ("Retry-After", str(ceil(self.come_back))))

    @property
    def content_type(self) -> str:
        """Media type without parameters, lower case."""
        return self._reply.content_type

    async def read_first(self, clock: Callable[[], float]) -> None:
        """Wait for the first word. Raises UpstreamError, also for an answer of nothing.

        A stream that begins with an error of the server's own is a failure, too.
        """
        beginning = Beginning(self.content_type == "text/event-stream", self._held)
        begun: Begun | Failure = Begun.NOT_YET
        while begun is Begun.NOT_YET:
            piece = await anext(self._body, b"")
            begun = beginning.add(piece, clock()) if piece else beginning.end()
        self.refused = self.refused or begun is Begun.REFUSED
        if isinstance(begun, Failure):
            self.failure = begun if self.status == HTTPStatus.OK else None
        elif begun is Begun.NOTHING and self.status == HTTPStatus.OK:
            message = "The upstream ended its answer before it began."
            raise UpstreamError(502, message, Reason.UPSTREAM_BROKE)

    async def chunks(self) -> AsyncIterator[bytes]:
        """Yield the body. Raises UpstreamError."""
        if self._held:
            yield b"".join(self._held)
            self._held.clear()
        try:
            async for chunk in self._body:
                yield chunk
        except UpstreamError as error:
            error.tried = (*self.tried, (self._call.name, error.reason))
            raise

    async def close(
        self,
        kind: type[BaseException] | None = None,
        error: BaseException | None = None,
        traceback: TracebackType | None = None,
    ) -> None:
        """Leave the reply and end the call.

        That the reader found the body broken, or no whole answer, counts against the upstream,
        unless its first word was judged already.
        """
        counted = self.failure is not None or self.refused
        if isinstance(error, UpstreamError) and not counted:
            self._owner.note_failure(self._call, failure_of(error, head=True))
        try:
            await self._context.__aexit__(kind, error, traceback)
        finally:
            self._owner.ended(self._call)
