"""HTTP/1.1 from clients: how long heads and bodies may be and take, and how they are refused.

aiohttp's own server answers in plain text what it cannot read, and waits for the rest of a head
for an hour. It inflates bodies on the event loop, so that is done here, within bounds.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from http import HTTPStatus
from math import inf
from typing import Any
from urllib.parse import urlsplit

from aiohttp import web
from aiohttp.http import HttpVersion11
from aiohttp.http_exceptions import BadHttpMessage, LineTooLong

from backend.server.codings import ACCEPTED, CodingError, Inflater, codings_of

MAX_TARGET_BYTES = 8190
MAX_HEADER_BYTES = 32 * 1024
"""One header has at most so many bytes: more than the tokens that identity providers issue."""

MAX_HEADERS = 128

HEAD_SECONDS = 30.0
"""From a connection's start, or a head's first byte, to the head's end."""

IDLE_SECONDS = 620.0
"""Between two requests: longer than load balancers keep connections, so that they close first."""

STALLED_SECONDS = 30.0
"""How long nothing may come of a body."""

LONGEST_SECONDS = 300.0

FIRST_LOOK_SECONDS = 0.1
"""Until the first look at a client that sends no more; each wait is twice the one before."""

LONGEST_LOOK_SECONDS = 1.0

MOST_QUIET = 4
"""After so many looks without a byte of a reply that has begun, such a client has left."""

MOST_CUTS = 64
"""Empty lines at which one read is cut where no head or body ends: each costs as much as a read.

Behind them it is cut at as many that look like the end of a body in chunks.
"""

_LOOK_SECONDS = 0.05

_INTERIM = b"HTTP/1.1 100 Continue\r\n\r\n"
_EMPTY_LINE = re.compile(rb"(?<=\r\n)\r\n|\A\r?\n")
_LAST_CHUNK = re.compile(rb"(?<=\n0\r\n)\r\n")
_UPGRADE = re.compile(rb"\n[Uu][Pp][Gg][Rr][Aa][Dd][Ee]:")

STEP_BYTES = 2**16
"""What is inflated at once on the event loop."""

LARGE_BYTES = 2**20
"""Behind so many bytes, a body is inflated in a thread, as many bytes at once."""

Refuse = Callable[..., web.Response]
"""Makes the reply of a refusal: (status, message, code), and ``path`` if the path is known."""

REALTIME = "/v1/realtime"
"""The one path of WebSockets."""

_NEVER_SERVED = frozenset({"CONNECT", "TRACE"})
_SERVED = "GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS"


class Connection(web.RequestHandler):
    """One client's connection."""

    def __init__(self, server: web.Server, refuse: Refuse, **options: Any) -> None:
        super().__init__(server, **options)
        self._refuse = refuse
        self._head_timer: asyncio.TimerHandle | None = None
        self._head_begun = False
        self._last: tuple[Any, Any] | None = None
        """The last head that was parsed, and its body."""
        self._cuts = False
        """Whether a request may have offered another protocol."""
        self._uncut = b""
        """What came of such a connection, and waits for the parser."""
        self._half_closed: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._await_head()

    def connection_lost(self, exc: BaseException | None) -> None:
        self._stop_timer()
        if self._half_closed is not None:
            self._half_closed.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Read heads and bodies; a head that has begun must end in time."""
        if self._upgraded:  # frames of a WebSocket
            super().data_received(data)
            return
        read_before = self._request_count
        if self._cuts or _UPGRADE.search(data) is not None:
            self._cuts = True
            self._feed_cut(data)
        else:
            self._feed(data)
        if self._request_count != read_before:
            self._head_begun = False
            if self._head_timer is not None:
                self._stop_timer()
        elif not self._request_in_progress:
            self._head_begun = True
            if self._head_timer is None:
                self._await_head()

    def _feed(self, data: bytes) -> None:
        count = self._request_count
        web.RequestHandler.data_received(self, data)  # called for each read: half the way of super
        if self._request_count != count and self._messages:
            self._last = self._messages[-1]

    def _feed_cut(self, data: bytes) -> None:
        """Feed piece by piece. While the parser waits for a body's reader, so does the rest."""
        if not data:
            self._feed(data)  # it goes on with what it has
        data, self._uncut, at = self._uncut + data, b"", 0
        for piece in self._cut(data):
            if self._reading_paused:
                break
            self._feed(piece)
            at += len(piece)
        self._uncut = data[at:]

    def _cut(self, data: bytes) -> Iterator[bytes]:
        """Yield the bytes so that a piece ends where a request does.

        The parser loses what a piece holds behind a request that offers another protocol.
        """
        at = cuts = 0
        before = None
        while at < len(data):
            is_over = self._last is None or self._last[1].is_eof()
            if before != (place := (self._request_count, is_over)):
                before, cuts = place, 0
            marker = _EMPTY_LINE if cuts < MOST_CUTS else _LAST_CHUNK
            end = marker.search(data, at) if cuts < 2 * MOST_CUTS else None
            stop, cuts = len(data) if end is None else end.end(), cuts + 1
            if self._last is not None and not is_over:
                head, body = self._last
                if "Content-Length" in head.headers:
                    stop = at + int(head.headers["Content-Length"]) - body.total_bytes
            yield data[at:stop]
            at = stop

    def eof_received(self) -> bool:  # type: ignore[override] # as asyncio has it
        """Go on with the requests that came whole, though the client sends no more.

        Who ends in the middle of a reply has left: who only sends no more says so at once.
        """
        is_whole = self._last is None or self._last[1].is_eof()
        if self._is_waiting or not is_whole or self._written:
            return False
        self._watch_half_closed(-1, 0)
        return True

    def _watch_half_closed(self, before: int, quiet: int) -> None:
        """Find out whether a client that sends no more still reads.

        Only bytes show that it has left. Before a reply these are an interim one, which every
        client must expect (RFC 9110, 15.2). A reply that has begun must go on.
        """
        written = self._written
        quiet = quiet + 1 if written == before else 0
        knows_interim = self._last is None or self._last[0].version >= HttpVersion11
        if self._is_waiting:
            self.force_close()
        elif quiet > MOST_QUIET and (written or not knows_interim):
            if self.transport is not None:
                self.transport.abort()
        else:
            # The first one is refused by a client that has left, the second one fails here.
            if quiet and not written and knows_interim and self.transport is not None:
                self.transport.write(_INTERIM)
            pause = min(FIRST_LOOK_SECONDS * 2**quiet, LONGEST_LOOK_SECONDS)
            self._half_closed = self._loop.call_later(
                pause, self._watch_half_closed, written, quiet
            )

    @property
    def _is_waiting(self) -> bool:
        """Whether every request is answered that came; of a new one, aiohttp knows only later."""
        return self._waiter is not None and not self._is_serving

    @property
    def _is_serving(self) -> bool:
        return self._request_in_progress or bool(self._messages)

    @property
    def _written(self) -> int:
        """Tell how much of the present reply is written, 0 before it begins."""
        request = self._current_request
        return 0 if request is None else request.writer.output_size

    def close(self) -> None:
        """Take no more requests; without one under way, close at once.

        aiohttp keeps an idle connection open and reads nothing from it any more.
        """
        super().close()
        if not self._is_serving:
            self.force_close()

    @property
    def busy(self) -> bool:
        if self._is_serving:
            return True
        return self.transport is not None and self.transport.get_write_buffer_size() > 0

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,  # noqa: ARG002 - it quotes what was sent
    ) -> web.StreamResponse:
        """Return the reply to what could not be read, or what failed; the connection ends."""
        if request.writer.output_size > 0:
            raise ConnectionError("a reply has begun already")
        why = _describe(status, exc)
        response = self._refuse(*why)
        response.force_close()
        return response

    def _await_head(self) -> None:
        self._head_timer = self._loop.call_later(HEAD_SECONDS, self._head_is_late)

    def _stop_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _head_is_late(self) -> None:
        # Without any bytes no client waits for a reply.
        if self.transport is not None and self._head_begun:
            reply = self._refuse(408, "The head of your request did not come in time.", "timeout")
            self.transport.write(format_refusal(reply))
        self.force_close()


NewConnection = Callable[..., Connection]
"""``Connection``, or what makes another kind of it."""


class Server(web.Server):
    """Makes connections."""

    def __init__(self, like: web.Server, connection: NewConnection) -> None:
        super().__init__(
            like.request_handler,
            request_factory=like.request_factory,
            handler_cancellation=like.handler_cancellation,
            **like._kwargs,  # noqa: SLF001 - aiohttp has no other way to them
        )
        self._connection = connection

    def __call__(self) -> Connection:
        return self._connection(self, loop=self._loop, **self._kwargs)


class Runner(web.AppRunner):
    """Serves an application on such connections; takes AppRunner's options."""

    def __init__(
        self,
        app: web.Application,
        refuse: Refuse,
        *,
        connection: NewConnection = Connection,
        **options: Any,
    ) -> None:
        super().__init__(
            app,
            access_log=None,
            handler_cancellation=True,
            auto_decompress=False,
            keepalive_timeout=IDLE_SECONDS,
            max_line_size=MAX_TARGET_BYTES,
            max_field_size=MAX_HEADER_BYTES,
            max_headers=MAX_HEADERS,
            **options,
        )
        self._connection = partial(connection, refuse=refuse)

    async def _make_server(self) -> web.Server:
        return Server(await super()._make_server(), self._connection)

    async def idle(self, seconds: float, *, quiet: float = 0.0) -> None:
        """Wait until no request is under way and all replies are sent, or for so long.

        Also wait until each connection that is still open was idle for ``quiet`` seconds. aiohttp's
        own shutdown reads nothing more of bodies, and does not wait for replies.
        """
        loop = asyncio.get_running_loop()
        began = loop.time()
        idle_since: dict[object, float] = {}
        while self.server is not None and (now := loop.time()) < began + seconds:
            open_ones = [one for one in self.server.connections if isinstance(one, Connection)]
            idle_since = {
                one: idle_since.get(one, began) if not one.busy else now for one in open_ones
            }
            if not any(one.busy or idle_since[one] + quiet > now for one in open_ones):
                return
            await asyncio.sleep(_LOOK_SECONDS)


def refusal(request: web.BaseRequest, refuse: Refuse) -> web.Response | None:
    """Return the reply to a request that is refused by its head alone, or None.

    TRACE would show a client the headers that the upstream gets, a credential among them.
    """
    if request.method in _NEVER_SERVED:
        response = refuse(405, f"{request.method} is not served here.", "method_not_supported")
        response.headers["Allow"] = _SERVED
        response.force_close()
        return response
    headers = request.headers
    if "Upgrade" not in headers and "Content-Encoding" not in headers:
        return None
    if is_websocket(request) and (request.method != "GET" or request.path != REALTIME):
        message = f"WebSocket is served at {REALTIME} alone; send the request over HTTP."
        response = refuse(501, message, "websocket_not_supported")
        response.force_close()
        return response
    if codings_of(_content_encoding(request)) is None:
        return _unknown_coding(refuse)
    return None


def is_websocket(request: web.BaseRequest) -> bool:
    """Whether a request wants a WebSocket.

    Without one the connection ends: the parser takes what follows for another protocol.
    """
    return "websocket" in request.headers.get("Upgrade", "").lower()


def is_foreign(request: web.BaseRequest) -> bool:
    """Whether a page of another origin asks: no browser asks a server before it lets one."""
    if "Origin" not in request.headers:
        return False
    try:
        origin = urlsplit(request.headers["Origin"])
    except ValueError:
        return True
    is_here = origin.netloc.lower() == request.headers.get("Host", "").lower()
    return origin.scheme not in ("http", "https") or not is_here


def _unknown_coding(refuse: Refuse) -> web.Response:
    message = f"The Content-Encoding of your request is not supported: use {ACCEPTED} or none."
    response = refuse(415, message, "unsupported_content_encoding")
    response.headers["Accept-Encoding"] = ACCEPTED
    return response


def _describe(status: int, error: BaseException | None) -> tuple[int, str, str]:
    """Return status, message and code; nothing of what was sent is quoted."""
    match error:
        case LineTooLong(args=(_, limit, *_)) if limit == MAX_TARGET_BYTES:
            message = f"The URL of your request is longer than {MAX_TARGET_BYTES} bytes."
            return 414, message, "url_too_long"
        case LineTooLong():
            message = f"A header of your request is longer than {MAX_HEADER_BYTES} bytes."
            return 431, message, "headers_too_large"
        case BadHttpMessage() if "Too many headers" in error.message:
            message = f"Your request has more than {MAX_HEADERS} headers."
            return 431, message, "headers_too_large"
        case _ if status < HTTPStatus.INTERNAL_SERVER_ERROR:
            return status, "Your request is not valid HTTP/1.1.", "invalid_http"
        case _:
            return status, "The server had an internal error.", "internal_error"


def format_refusal(response: web.Response) -> bytes:
    """Return a reply's bytes, for a connection that has no request."""
    body = bytes(response.body) if isinstance(response.body, bytes) else b""
    fields = {**response.headers, "Content-Length": str(len(body)), "Connection": "close"}
    head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    phrase = HTTPStatus(response.status).phrase
    return f"HTTP/1.1 {response.status} {phrase}\r\n{head}\r\n".encode() + body


async def read_body(request: web.Request, seconds: float = LONGEST_SECONDS) -> bytes:
    """Return the body, which must come within ``seconds`` and without a long pause.

    Raises as ``read_pieces``, and HTTPRequestEntityTooLarge.
    """
    if request.content.is_eof() and "Content-Encoding" not in request.headers:
        return await request.read()  # it came with the head
    body = bytearray()
    async with asyncio.timeout(seconds):
        async for piece in read_pieces(request, seconds):
            body += piece
            if len(body) > request.client_max_size:
                raise web.HTTPRequestEntityTooLarge(request.client_max_size)
    return bytes(body)


async def read_pieces(request: web.Request, seconds: float) -> AsyncIterator[bytes]:
    """Yield the body, inflated. Raises RequestPayloadError, TimeoutError.

    Raises HTTPRequestEntityTooLarge for what inflates to more than the application takes.
    """
    codings = codings_of(_content_encoding(request)) or ()
    most = request.client_max_size if codings else inf
    pieces = _bounded(_raw_pieces(request, min(seconds, STALLED_SECONDS)), most)
    for coding in codings:
        pieces = _inflated(pieces, Inflater(coding))
    try:
        async for piece in _bounded(pieces, most):
            yield piece
    except CodingError as error:
        raise web.RequestPayloadError(str(error)) from None


def _content_encoding(request: web.BaseRequest) -> str:
    return ",".join(request.headers.getall("Content-Encoding", ()))


async def _raw_pieces(request: web.Request, seconds: float) -> AsyncIterator[bytes]:
    while True:
        async with asyncio.timeout(seconds):
            piece = await request.content.readany()
        if not piece:
            return
        yield piece


async def _bounded(pieces: AsyncIterator[bytes], most: float) -> AsyncIterator[bytes]:
    size = 0
    async for piece in pieces:
        size += len(piece)
        if size > most:
            raise web.HTTPRequestEntityTooLarge(int(most))
        yield piece


async def _inflated(pieces: AsyncIterator[bytes], inflater: Inflater) -> AsyncIterator[bytes]:
    """Undo a coding: in short steps, and in a thread once it is clear that the body is large."""
    size = 0
    async for piece in pieces:
        data = piece
        while True:
            if size < LARGE_BYTES:
                inflated = inflater.step(data, STEP_BYTES)
            else:
                inflated = await asyncio.to_thread(inflater.step, data, LARGE_BYTES)
            if not inflated:
                break
            data, size = b"", size + len(inflated)
            yield inflated
            await asyncio.sleep(0)  # the next step can be taken at once
    inflater.finish()
