"""A client's connection that answers plain requests by itself; see ``server.hot_path``."""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from contextvars import Context, copy_context
from functools import partial
from http import HTTPStatus
from typing import Any

from aiohttp import web
from aiohttp.helpers import rfc822_formatted_time
from aiohttp.http import SERVER_SOFTWARE
from multidict import CIMultiDict

from gateway.protocol.http.headers import Fields
from gateway.protocol.http.messages import Reply
from gateway.server.hot_path import HOLD_SECONDS, HotPath, PlainRequest, Reader
from gateway.server.http.http_server import Connection, NewConnection, format_refusal
from gateway.server.http.unread import PIECE, UNREAD, Unread, send_whole
from gateway.telemetry import request_id

JOINED_BYTES = 16_384
"""Up to here, one buffer is written faster than two."""

MAX_EARLY_BYTES = 65_536
"""Of the next requests, while one is served. Above it nothing is read, so no hang-up is seen."""

log = logging.getLogger(__name__)

Serve = Callable[[PlainRequest, "HotConnection"], Coroutine[Any, Any, None]]
"""Answers a plain request on its connection."""

HOT_PATH: web.AppKey[HotPath] = web.AppKey("hot_path")
"""What the connections of an application know in common."""

SERVE: web.AppKey[Serve] = web.AppKey("serve")

NO_BODY = frozenset({HTTPStatus.NO_CONTENT, HTTPStatus.NOT_MODIFIED})
"""Replies with such a status end with their head (RFC 9112, 6.3)."""

DEFAULT_TYPE = ("Content-Type", "application/octet-stream")
"""Of a body without a type (RFC 9110, 8.3)."""


def new_connection(app: web.Application) -> NewConnection:
    """Return what makes the connections of an application."""
    return partial(HotConnection, app[HOT_PATH], app[SERVE], app[UNREAD])


class HotConnection(Connection):
    """One client's connection.

    While a plain request is served, nothing reaches aiohttp's own loop of requests: further bytes
    wait until the reply is sent.
    """

    def __init__(
        self, hot: HotPath, serve: Serve, unread: Unread, *given: Any, **options: Any
    ) -> None:
        super().__init__(*given, **options)
        self.hot = hot
        self.unread = unread
        self._serve = serve
        self.reader = Reader(hot)
        self._release_timer: asyncio.TimerHandle | None = None
        self._served: asyncio.Task[None] | None = None
        self._early = bytearray()
        self._closes = False
        """Whether the connection is to end after the present reply."""
        self._context = Context()
        """Where the present request runs: it has the request's id."""
        self._writes = 0
        """How often something of the present reply was written."""

    def data_received(self, data: bytes) -> None:
        """Answer a repeated request at once, and serve a plain one; hand all others on."""
        if not data:
            super().data_received(data)  # aiohttp itself calls so, to go on with what it has
            return
        if not (self._served is not None or self._early):
            if self._waiter is not None or self._is_serving:
                self._take(data)
                return
            # aiohttp's own loop has just begun, or answered a request: in a moment it waits.
            self._loop.call_soon(self._take_early)
        self._early += data
        if len(self._early) > MAX_EARLY_BYTES and self.transport is not None:
            self.transport.pause_reading()

    def _take(self, data: bytes) -> None:
        waiter, transport = self._waiter, self.transport
        waiting = (
            waiter is not None
            and not waiter.done()
            and transport is not None
            and transport.get_write_buffer_size() == 0
        )
        found = self.reader.feed(data, waiting=waiting)
        if self._release_timer is not None and not self.reader.holds:
            self._stop_release_timer()
        if isinstance(found, PlainRequest):
            self._start(self._serve(found, self))
        elif isinstance(found, tuple):
            if len(found[1]) > PIECE:
                self._start(self._repeat(*found))
                return
            self.write(*found)
            self._note_idle()
        elif found:
            self._parse(found)
        elif self._release_timer is None:
            self._release_timer = self._loop.call_later(HOLD_SECONDS, self._release)

    def eof_received(self) -> bool:  # type: ignore[override] # as asyncio has it
        """Hand on the bytes that were held back: no more data comes."""
        self._release()
        return super().eof_received()

    def connection_lost(self, exc: BaseException | None) -> None:
        self._stop_release_timer()
        self.unread.release(self)
        if self._served is not None:
            self._served.cancel()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        if self.transport is not None:
            self.unread.hold(self, size=self.transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        self.unread.release(self)
        super().resume_writing()

    def close(self) -> None:
        """Take no more requests; one that is held back or served has begun."""
        self._release()
        if self._served is None:
            super().close()
        self._closes = True

    async def shutdown(self, timeout: float | None = 15.0) -> None:  # noqa: ASYNC109 - aiohttp's
        """Wait for the request that is served, cancel it after ``timeout``, and close."""
        if self._served is not None:
            await asyncio.wait([self._served], timeout=timeout)
        if self._served is not None:
            self._served.cancel()
        await super().shutdown(timeout)

    @property
    def busy(self) -> bool:
        return self.reader.holds or bool(self._early) or super().busy

    @property
    def _is_serving(self) -> bool:
        return self._served is not None or super()._is_serving

    @property
    def _written(self) -> int:
        return super()._written if self._served is None else self._writes

    def write(self, head: bytes, body: bytes | memoryview) -> None:
        transport = self.transport
        if transport is None:
            return
        self._writes += 1
        if len(body) <= JOINED_BYTES:
            transport.write(head + body)
        else:
            transport.write(head) if head else None
            transport.write(body)

    def send(self, reply: Reply, body: bytes, *, given_id: bool, closes: bool) -> None:
        """Write a reply that is not long. For ``given_id`` and ``closes`` see ``format_head``."""
        framing: tuple[tuple[str, str], ...] = ()
        if reply.status not in NO_BODY:
            framing = (("Content-Length", str(len(body))),)
            if body:
                framing = (*framing, DEFAULT_TYPE)
        self._closes = self._closes or closes
        head = format_head(reply, framing, given_id=given_id, closes=closes)
        self.write(head, body if framing else b"")

    def sink(
        self, reply: Reply, *, given_id: bool, closes: bool, length: int | None = None
    ) -> "ReplySink":
        """Return where a reply is written piece by piece, in chunks if its length is not known."""
        self._closes = self._closes or closes
        framing = ("Transfer-Encoding", "chunked")
        if length is not None:
            framing = ("Content-Length", str(length))
        head = format_head(reply, (framing, DEFAULT_TYPE), given_id=given_id, closes=closes)
        return ReplySink(self, head, chunked=length is None)

    async def _repeat(self, head: bytes, body: bytes) -> None:
        await send_whole(ReplySink(self, head, chunked=False), body, self.unread)

    def abort(self) -> None:
        """End the connection at once: the reply breaks off."""
        if self.transport is not None:
            self.transport.abort()

    async def drain(self) -> bool:
        """Wait until the client has read enough of what was written; tell whether that took time.

        Raises TimeoutError.
        """
        if self.transport is None:
            raise ConnectionResetError("the client has left")
        if not self._paused:
            return False
        async with asyncio.timeout(self.unread.seconds):
            await self._drain_helper()
        return True

    def _start(self, reply: Coroutine[Any, Any, None]) -> None:
        if self._head_timer is not None:
            self._stop_timer()
        self._writes, self._context = 0, copy_context()
        self._served = self._loop.create_task(reply, context=self._context)
        self._served.add_done_callback(self._end)

    def _end(self, served: asyncio.Task[None]) -> None:
        """Go on with what came meanwhile. From now on the connection is idle."""
        self._served = None
        error = None if served.cancelled() else served.exception()
        if error is not None:
            self._context.run(self._fail, error)
        if self.transport is None:
            return
        if served.cancelled() or error is not None or self._closes:
            self._early.clear()
        if served.cancelled() or error is not None:
            self.force_close()
        elif self._closes:
            # The transport stays known: until all is written, the connection is busy.
            web.RequestHandler.close(self)
            self.transport.close()
        else:
            self._note_idle()
            self._take_early()

    def _take_early(self) -> None:
        """Go on with what has come too early; what is served comes first."""
        if not self._early or self._served is not None:
            return
        early, self._early = bytes(self._early), bytearray()
        if len(early) > MAX_EARLY_BYTES and self.transport is not None:
            self.transport.resume_reading()
        self._take(early)

    def _fail(self, error: BaseException) -> None:
        """Log a defect, and tell the client of it where its reply has not begun."""
        log.error("a request failed", exc_info=error)
        if not self._writes:
            why = HTTPStatus.INTERNAL_SERVER_ERROR, "The server had an internal error."
            self.write(format_refusal(self._refuse(*why, "internal_error")), b"")

    def _note_idle(self) -> None:
        if self._head_timer is not None:
            self._stop_timer()
        self._next_keepalive_close_time = self._loop.time() + self._keepalive_timeout

    def _process_keepalive(self) -> None:
        if self._served is not None:
            self._next_keepalive_close_time = self._loop.time() + self._keepalive_timeout
        super()._process_keepalive()

    def _parse(self, data: bytes) -> None:
        read_before = self._request_count
        super().data_received(data)
        if self._request_count > read_before + 1:
            self.reader.give_up()  # the parser found more requests than the reader

    def _release(self) -> None:
        """Hand on the bytes that were held back of a request with a late body."""
        self._stop_release_timer()
        self._take_early()
        if self.reader.holds:
            self._parse(self.reader.release())

    def _stop_release_timer(self) -> None:
        if self._release_timer is not None:
            self._release_timer.cancel()
            self._release_timer = None


class ReplySink:
    """Writes the head of one reply, and then its body, in chunks (RFC 9112, 7.1) or as it is."""

    def __init__(self, connection: HotConnection, head: bytes, *, chunked: bool) -> None:
        self._connection, self._head, self._chunked = connection, head, chunked

    async def begin(self) -> None:
        """Write the head: a client may wait for it alone."""
        self._connection.write(self._head, b"")

    async def write(self, data: bytes | memoryview) -> None:
        if data:
            if self._chunked:
                data = b"%x\r\n%b\r\n" % (len(data), bytes(data))
            self._connection.write(b"", data)
        if await self._connection.drain():
            self._connection.unread.note_progress(self)

    async def end(self) -> None:
        if self._chunked:
            self._connection.write(b"0\r\n\r\n", b"")
        await self._connection.drain()

    def abort(self) -> None:
        """End the connection: only so the client learns that the body is not whole."""
        self._connection.abort()


def format_head(reply: Reply, framing: Fields, *, given_id: bool, closes: bool) -> bytes:
    """Return the bytes of a reply's head, as ``middleware`` completes the heads of other replies.

    ``framing`` are the headers that the body needs. ``given_id`` tells whether the client has sent
    a request id, which then counts and not the upstream's. ``closes`` says that the connection ends
    with this reply.
    """
    status = reply.status
    names = {name.lower() for name, _ in reply.headers}
    fields = (*reply.headers, ("Connection", "close")) if closes else reply.headers
    if request_id.HEADER not in names:
        fields = (*fields, (request_id.HEADER, request_id.CURRENT.get()))
    elif given_id:
        instead = CIMultiDict(fields)
        instead[request_id.HEADER] = request_id.CURRENT.get()
        fields = tuple(instead.items())
    else:
        request_id.adopt({name.lower(): value for name, value in fields})
    try:
        phrase = HTTPStatus(status).phrase
    except ValueError:
        phrase = ""
    lines = [f"HTTP/1.1 {status} {phrase}"]
    if "content-type" in names:
        framing = tuple(field for field in framing if field is not DEFAULT_TYPE)
    lines += [f"{name}: {value}" for name, value in (*fields, *framing)]
    if "date" not in names:
        lines.append(f"Date: {rfc822_formatted_time()}")
    if "server" not in names:
        lines.append(f"Server: {SERVER_SOFTWARE}")
    return "\r\n".join((*lines, "", "")).encode("utf-8", "surrogateescape")
