"""The fake at the upstream's port: every call waits for the test to say what comes next."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any, Self

import orjson

from gateway.protocol.errors import UpstreamError
from gateway.upstream.call import PooledUpstream
from gateway.upstream.pool.pool import UpstreamPool
from gateway.upstream.pool.routing import LeastLoaded
from gateway.upstream.pool.table import PoolTable
from gateway.upstream.pool.upstream_state import Member
from gateway.upstream.pool.waiting_queue import Bounds
from gateway.upstream.request import Outgoing, Served

JSON = "application/json"
EVENTS = "text/event-stream"

Fields = Sequence[tuple[str, str]]


class Call:
    """One call as the upstream sees it: what was asked, and the reply's head and body."""

    served = Served("upstream")

    def __init__(self, headers: Fields, body: bytes) -> None:
        self.headers: Fields = ()
        self.asked = headers
        self.raw = body
        self.status = 0
        self.content_type = JSON
        self.ended = asyncio.Event()
        """Set when the caller has left, whether or not the body was read to its end."""
        self.read_to_the_end = False
        self._said: asyncio.Queue[bytes | UpstreamError | None] = asyncio.Queue()
        self._taken = False
        self._head: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def body(self) -> Any:
        """The request's body, parsed."""
        return orjson.loads(self.raw)

    @property
    def lacks_a_head(self) -> bool:
        """Tell whether the caller may still wait for a reply's head."""
        return not self._head.done()

    def head(self, status: int = 200, content_type: str = EVENTS, headers: Fields = ()) -> None:
        """Send the reply's head."""
        self.status, self.content_type = status, content_type
        self.headers = (("Content-Type", content_type), *headers)
        self._head.set_result(None)

    def say(self, *pieces: bytes) -> None:
        """Send pieces of the body, a read each."""
        for piece in pieces:
            self._said.put_nowait(piece)

    async def taken(self) -> None:
        """Wait until all that was said was read, and passed on."""
        async with asyncio.timeout(60):
            await self._said.join()

    def end(self) -> None:
        """End the body."""
        self._said.put_nowait(None)

    def fail(self, error: UpstreamError) -> None:
        """Break off: before the head, or in the body."""
        if self._head.done():
            self._said.put_nowait(error)
        else:
            self._head.set_exception(error)
            self._head.exception()  # seen, also where the caller has just left

    def plain(self, result: Any, status: int = 200, headers: Fields = ()) -> None:
        """Send a whole plain reply."""
        self.head(status, JSON, headers)
        self.say(result if isinstance(result, bytes) else orjson.dumps(result))
        self.end()

    async def __aenter__(self) -> Self:
        """Wait for the head."""
        try:
            await self._head
        except BaseException:
            self.ended.set()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        """Note that the caller has left."""
        self.ended.set()

    async def read(self) -> bytes:
        """Return what the test says next."""
        if self.read_to_the_end:
            return b""
        if self._taken:
            self._taken = False
            self._said.task_done()  # who asks for more has passed on what was there
        said = await self._said.get()
        self._taken = True
        match said:
            case None:
                self.read_to_the_end = True
                return b""
            case bytes() as piece:
                return piece
            case UpstreamError() as error:
                raise error

    async def chunks(self) -> AsyncIterator[bytes]:
        """Yield what the test says."""
        while piece := await self.read():
            yield piece


class GatedUpstream:
    """Hands each call to the test by ``next_call``."""

    name = "http://upstream/v1"

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self._new: asyncio.Queue[Call] = asyncio.Queue()

    def send(self, outgoing: Outgoing) -> Call:
        call = Call(outgoing.fields, outgoing.raw)
        self.calls.append(call)
        self._new.put_nowait(call)
        return call

    async def next_call(self) -> Call:
        """Wait for the next call to be made."""
        async with asyncio.timeout(60):
            return await self._new.get()


def pooled(upstream: Any, name: str = "upstream") -> PooledUpstream:
    """Return a pool of this upstream alone, which has any clock and no limit."""
    table = PoolTable([Member(name)], LeastLoaded(), 0.0)
    pool = UpstreamPool(upstream.name, {name: upstream}, table, Bounds(), several=False)
    return PooledUpstream(pool)
