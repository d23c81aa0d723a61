"""HTTP/1.1 from clients: how long heads and bodies may be and take, and how they are refused.

aiohttp's own server answers in plain text what it cannot read, and waits for the rest of a head
for an hour. It inflates on the event loop, and once it is answered it would go on to a body's end,
however large that is: a quarter of a megabyte on the wire can be a second of everybody's time.
"""

import asyncio
from collections.abc import Callable
from functools import partial
from http import HTTPStatus
from typing import Any

from aiohttp import web
from aiohttp.http_exceptions import BadHttpMessage, ContentEncodingError, LineTooLong

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

_LOOK_SECONDS = 0.05

CODINGS = frozenset({"", "identity", "gzip", "deflate", "br", "zstd"})
"""The codings of bodies. The parser has refused before what cannot be decoded here."""

Refuse = Callable[..., web.Response]
"""Makes the reply of a refusal: (status, message, code), and ``path`` if the path is known."""

_NEVER_SERVED = frozenset({"CONNECT", "TRACE"})
_SERVED = "GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS"


class Connection(web.RequestHandler):
    """One client's connection."""

    def __init__(self, server: web.Server, refuse: Refuse, **options: Any) -> None:
        super().__init__(server, **options)
        self._refuse = refuse
        self._head_timer: asyncio.TimerHandle | None = None
        self._head_begun = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin to wait for the first head."""
        super().connection_made(transport)
        self._await_head()

    def connection_lost(self, exc: BaseException | None) -> None:
        """Wait no longer."""
        self._stop_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Read heads and bodies; a head that has begun must end in time."""
        read_before = self._request_count
        web.RequestHandler.data_received(self, data)  # called for each read: half the way of super
        if self._request_count != read_before:
            self._head_begun = False
            if self._head_timer is not None:
                self._stop_timer()
        elif not self._request_in_progress:
            self._head_begun = True
            if self._head_timer is None:
                self._await_head()

    def close(self) -> None:
        """Take no more requests; without one under way, close at once.

        aiohttp keeps an idle connection open and reads nothing from it any more.
        """
        super().close()
        if not self._request_in_progress and not self._messages:
            self.force_close()

    @property
    def busy(self) -> bool:
        """Whether a request is under way, or a reply is not sent."""
        if self._request_in_progress or self._messages:
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
        response = _unknown_coding(self._refuse) if why is _UNKNOWN_CODING else self._refuse(*why)
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
        """Return the protocol of a new connection."""
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
    if "Upgrade" in headers and "websocket" in headers["Upgrade"].lower():
        message = "WebSocket is not served here; send the request over HTTP."
        response = refuse(501, message, "websocket_not_supported")
        response.force_close()  # the parser takes what follows for another protocol
        return response
    if headers.get("Content-Encoding", "").strip().lower() not in CODINGS:
        return _unknown_coding(refuse)
    return None


def _unknown_coding(refuse: Refuse) -> web.Response:
    response = refuse(*_UNKNOWN_CODING)
    response.headers["Accept-Encoding"] = "gzip, deflate"
    return response


_UNKNOWN_CODING = (
    415,
    "The Content-Encoding of your request's body is not supported: use gzip, deflate or none.",
    "unsupported_content_encoding",
)


def _describe(status: int, error: BaseException | None) -> tuple[int, str, str]:
    """Return status, message and code; nothing of what was sent is quoted."""
    match error:
        case ContentEncodingError():
            return _UNKNOWN_CODING
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

    Raises HTTPRequestEntityTooLarge, RequestPayloadError, TimeoutError.
    """
    if request.content.is_eof() and not _is_compressed(request):  # it came with the head
        return await request.read()
    body = bytearray()
    async with asyncio.timeout(seconds):
        while piece := await next_piece(request, seconds):
            body += piece
            if len(body) > request.client_max_size:
                raise web.HTTPRequestEntityTooLarge(request.client_max_size)
            await asyncio.sleep(0)  # of a compressed one, the next piece may be there at once
    return bytes(body)


async def next_piece(request: web.Request, seconds: float) -> bytes:
    """Return what comes next of the body, nothing at its end. Raises as ``read_body``."""
    async with asyncio.timeout(min(seconds, STALLED_SECONDS)):
        return await request.content.readany()


def leave_unread(request: web.Request, response: web.StreamResponse) -> None:
    """Let nothing more be inflated after the answer; the connection closes where more would be."""
    if _is_compressed(request) and not request.content.is_eof():
        response.force_close()
        # What ends aiohttp's wait for the rest of a body.
        request.content.set_exception(TimeoutError("nobody reads the rest"))


def _is_compressed(request: web.Request) -> bool:
    return "Content-Encoding" in request.headers
