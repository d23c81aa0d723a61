"""Any OpenAI-compatible server over HTTP, with every wait bounded and every fault named.

Laws:
- Requests carry the name of this installation in ``Via``, so that a loop is recognised.
- An error that a client gets names no upstream and no address. The log names both, and what an
  operator can do.
"""

import asyncio
import errno
import logging
import os
import secrets
import select
import time
import zlib
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import cache, partial
from http import HTTPStatus
from typing import Any, cast

from aiohttp import (
    EMPTY_PAYLOAD,
    ClientConnectionError,
    ClientConnectorCertificateError,
    ClientConnectorDNSError,
    ClientConnectorError,
    ClientConnectorSSLError,
    ClientError,
    ClientResponse,
    ClientResponseError,
    ClientSession,
    ClientTimeout,
    ConnectionTimeoutError,
    DummyCookieJar,
    ServerTimeoutError,
    StreamReader,
    TCPConnector,
)
from aiohttp.client_proto import ResponseHandler
from aiohttp.http import RawResponseMessage
from yarl import URL

from gateway.protocol.cache_status import Reason
from gateway.protocol.errors import UpstreamError
from gateway.telemetry import request_id
from gateway.upstream.pool.retry import FirstToken, FirstTokenDetector
from gateway.upstream.request import Outgoing, Served, with_key

log = logging.getLogger(__name__)

VARIABLE = "REFRAIN_INSTANCE"
"""Carries the name from parent to child."""


@cache
def instance() -> str:
    """Return the name of this installation: what the parent says, or a new one."""
    return os.environ.get(VARIABLE) or secrets.token_hex(6)


@cache
def via() -> str:
    """Return the member that requests to upstreams have in ``Via`` (RFC 9110, 7.6.3)."""
    return f"1.1 refrain-{instance()}"


def has_passed_here(via_header: str) -> bool:
    """Tell whether a ``Via`` names this installation: the request is in a loop."""
    return via() in via_header


_LARGEST_HEADER = 64 * 1024
_MOST_HEADERS = 512
"""Bounds of a reply's head, above what servers send."""

PIECE = 65_536
"""Bytes inflated at a time, if an upstream compresses against the request."""

_CODINGS = ("gzip", "x-gzip", "deflate")

EVERY_SECONDS = 10.0
"""Between two lines of one kind about one upstream."""

_TLS_RECORDS = ("\\x15\\x03", "\\x16\\x03")
"""How a TLS record begins, as a parser's message quotes it."""


@dataclass(frozen=True, slots=True)
class HttpReply:
    """The reply of ``upstream``; see the port."""

    upstream: "HttpUpstream"
    response: ClientResponse
    served: Served
    status: int
    headers: Sequence[tuple[str, str]]
    content_type: str
    chunks: Callable[[], AsyncIterator[bytes]]
    """Yields the body as it arrives. Raises UpstreamError."""


class HttpUpstream:
    """Sends requests to ``base_url``, which ends in ``/v1``.

    ``connect_seconds`` bounds connecting. ``read_seconds`` bounds sending and the wait for the
    whole head, and each read of the body. If they are given, a stream has its own bounds:
    ``first_token_seconds`` until its first token, and ``between_tokens_seconds`` for each read
    after that. Clients' credentials are passed on unless ``own_credential`` is set: then
    ``api_key`` takes their place, or nothing.
    """

    def __init__(
        self,
        base_url: str,
        *,
        name: str | None = None,
        connect_seconds: float = 10.0,
        read_seconds: float = 600.0,
        first_token_seconds: float | None = None,
        between_tokens_seconds: float | None = None,
        own_credential: bool = False,
        api_key: str | None = None,
    ) -> None:
        self.name = name or base_url
        """Its part of cache keys: a given name, else the URL (which holds no credentials)."""
        self._origin = base_url.removesuffix("/v1")
        self._url = URL(base_url)
        self.failures = FailureLog(self.name)
        self._drops_credentials = own_credential
        self._api_key = api_key
        self.own_credential = own_credential and api_key is not None
        """Whether the upstream gets a key of the gateway's, and none of the clients'."""
        self._first_token = first_token_seconds or read_seconds
        self._between_tokens = between_tokens_seconds or read_seconds
        self._times_streams = bool(first_token_seconds or between_tokens_seconds)
        self._connect_seconds, self._read_seconds = connect_seconds, read_seconds
        self._session: ClientSession | None = None

    async def open(self) -> None:
        """Make the connection pool; belongs to the running loop."""
        longest = max(self._read_seconds, self._first_token, self._between_tokens)
        self._session = ClientSession(
            # Shorter than the 5 s after which uvicorn and others close an idle connection: a POST
            # sent into that moment is lost, and may not be sent again.
            connector=OneReplyConnector(limit=0, keepalive_timeout=4.0),
            timeout=ClientTimeout(total=None, connect=self._connect_seconds, sock_read=longest),
            max_line_size=_LARGEST_HEADER,
            max_field_size=_LARGEST_HEADER,
            max_headers=_MOST_HEADERS,
            cookie_jar=DummyCookieJar(),  # cookies belong to clients, and are kept there
            skip_auto_headers=("User-Agent", "Accept", "Accept-Encoding", "Content-Type"),
        )

    async def close(self) -> None:
        """Close all connections."""
        if self._session is not None:
            await self._session.close()

    def url(self, path_qs: str) -> URL:
        """Return the upstream's URL of a gateway path such as ``/v1/models?limit=2``."""
        return URL(self._origin + path_qs, encoded=True)

    @asynccontextmanager
    async def send(self, outgoing: Outgoing) -> AsyncIterator[HttpReply]:
        """POST; see the port. A failure leaves a line in the log."""
        raw = outgoing.instead.get(self.name, outgoing.raw)
        by = None
        if outgoing.streamed and self._times_streams:
            by = asyncio.get_running_loop().time() + self._first_token
        response: ClientResponse | None = None
        try:
            response = await self._open(
                "POST", outgoing.target, outgoing.fields, raw, decode=False, head_by=by
            )
            chunks = partial(self._body, response)
            encoding = response.headers.get("Content-Encoding")
            if encoding and is_coded(encoding):
                chunks = partial(inflate, chunks())
            if by is not None:
                chunks = partial(self._bound_tokens, chunks(), by)
            reply = self._reply(response, chunks)
            if reply.status != HTTPStatus.OK or reply.content_type == "text/html":
                self.failures.note_reply(
                    reply.status, reply.content_type, own_credential=self.own_credential
                )
            yield reply
        except UpstreamError as error:
            self.failures.note_failure(error)
            raise
        finally:
            if response is not None:
                response.close()

    @asynccontextmanager
    async def request(
        self,
        method: str,
        path_qs: str,
        headers: Sequence[tuple[str, str]],
        body: AsyncIterator[bytes] | None,
        *,
        decode: bool = True,
        logged: Callable[[], bool] = lambda: False,
    ) -> AsyncIterator[HttpReply]:
        """Send any request. Raises UpstreamError; redirects are not followed.

        ``logged`` tells whether a request without a reply leaves a line in the log.
        """
        try:
            response = await self._open(method, path_qs, headers, body, decode=decode)
        except UpstreamError as error:
            if logged():
                self.failures.note_failure(error)
            raise
        try:
            yield self._reply(response, partial(self._body, response))
        finally:
            response.close()

    async def _open(
        self,
        method: str,
        path_qs: str,
        headers: Sequence[tuple[str, str]],
        body: bytes | AsyncIterator[bytes] | None,
        *,
        decode: bool,
        head_by: float | None = None,
    ) -> ClientResponse:
        """Send a request, and return the reply once its head is there. Raises UpstreamError.

        ``head_by`` is when the head must have come, by the loop's clock. The caller closes the
        reply: a body that was read to its end has given its connection back. Any other connection
        is closed, so that the upstream sees that the client has left.
        """
        if self._session is None:
            raise RuntimeError("the upstream is not open")
        if self._drops_credentials:
            headers = with_key(headers, self._api_key)
        upload: _Upload | None = None
        if not (body is None or isinstance(body, bytes)):
            upload = _Upload(body, self._read_seconds)
        elif head_by is None:
            head_by = asyncio.get_running_loop().time() + self._connect_seconds + self._read_seconds
        try:
            async with asyncio.timeout_at(head_by) as limit:
                response = await self._session.request(
                    method,
                    self.url(path_qs),
                    headers=(*headers, ("Via", via())),
                    data=body if upload is None else upload.chunks(limit),
                    allow_redirects=False,
                    auto_decompress=decode,
                )
                if upload is not None:
                    upload.answered = True
        except (ClientError, TimeoutError, OSError) as error:
            raise fault_of(error, self._url) from error
        if request_id.HEADER in response.headers:
            request_id.adopt(response.headers)
        try:
            _check(response)
        except UpstreamError:
            response.close()
            raise
        return response

    def _reply(
        self, response: ClientResponse, chunks: Callable[[], AsyncIterator[bytes]]
    ) -> HttpReply:
        return HttpReply(
            self,
            response,
            Served(self.name),
            response.status,
            tuple(response.headers.items()),
            response.content_type.lower(),
            chunks,
        )

    async def _body(self, response: ClientResponse) -> AsyncIterator[bytes]:
        try:
            async for chunk in response.content.iter_any():
                yield chunk
        except (ClientError, TimeoutError, OSError) as error:
            raise fault_of(error, self._url) from error

    async def _bound_tokens(self, chunks: AsyncIterator[bytes], by: float) -> AsyncIterator[bytes]:
        """Yield a stream's body; its first token must arrive by ``by``. Raises UpstreamError."""
        clock = asyncio.get_running_loop().time
        detector, has_token = FirstTokenDetector(events=True), False
        try:
            while True:
                async with asyncio.timeout_at(by):
                    chunk = await anext(chunks, b"")
                if not chunk:
                    return
                has_token = has_token or detector.add(chunk, 0.0) is not FirstToken.PENDING
                yield chunk
                if has_token:
                    by = clock() + self._between_tokens
        except TimeoutError as error:
            raise fault_of(error, self._url) from error


def _check(response: ClientResponse) -> None:
    """Raise UpstreamError for a head that cannot be an answer to such a request."""
    if response.status < HTTPStatus.OK:
        raise _odd(f"the status {response.status} in place of an answer")
    for coding in response.headers.getall("Transfer-Encoding", ()):
        if coding.strip().lower() not in ("chunked", "identity"):
            raise _odd(f"the unasked Transfer-Encoding {coding[:40]}")


def _odd(what: str) -> UpstreamError:
    message = f"The upstream sent {what}.".encode("ascii", "replace").decode()
    return UpstreamError(502, message, Reason.UPSTREAM_BROKE, answered=True)


class _Upload:
    """A body that comes from a client while it is sent on.

    While the client is waited for, the upstream is not. Otherwise the upstream has to take each
    piece, and after the last to answer, within ``seconds``. ``answered`` is set once the head of a
    reply is there.
    """

    def __init__(self, body: AsyncIterator[bytes], seconds: float) -> None:
        self.answered = False
        self._body = body
        self._seconds = seconds

    async def chunks(self, limit: asyncio.Timeout) -> AsyncIterator[bytes]:
        """Yield the body; each piece has to be taken, and the head to come, in ``seconds``."""
        async for chunk in self._body:
            self._bound(limit, self._seconds)
            yield chunk
            self._bound(limit, None)
        self._bound(limit, self._seconds)

    def _bound(self, limit: asyncio.Timeout, seconds: float | None) -> None:
        if not self.answered:  # an upstream may answer before it has read all
            now = asyncio.get_running_loop().time()
            limit.reschedule(None if seconds is None else now + seconds)


def is_coded(encoding: str) -> bool:
    """Tell whether a Content-Encoding names one that is inflated. Raises UpstreamError."""
    named = [token.strip().lower() for token in encoding.split(",")]
    codings = [coding for coding in named if coding not in ("", "identity")]
    if len(codings) > 1 or any(coding not in _CODINGS for coding in codings):
        raise _odd(f"the unasked Content-Encoding {', '.join(codings)[:40]}")
    return bool(codings)


async def inflate(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Yield a gzip or deflate body decoded; an incomplete one is an error. Raises UpstreamError."""
    inflater = None
    async for chunk in chunks:
        rest, more = chunk, bool(chunk)
        while more:
            if inflater is None or inflater.eof:
                inflater = zlib.decompressobj(zlib.MAX_WBITS | 32)  # gzip or zlib, by its head
            try:
                piece = inflater.decompress(rest, PIECE)
            except zlib.error:
                raise _odd("a body that could not be decoded") from None
            rest = inflater.unused_data if inflater.eof else inflater.unconsumed_tail
            more = bool(rest) or (len(piece) == PIECE and not inflater.eof)
            if piece:
                yield piece
            if more:
                await asyncio.sleep(0)  # others come between two pieces
    if inflater is not None and not inflater.eof:
        raise _odd("a body that was cut short")


def fault_of(error: BaseException, url: URL) -> UpstreamError:
    """Return what a failed call to ``url`` is for clients; ``detail`` is what the log says."""
    place = f"{url.host}:{url.port}"
    match error:
        case ConnectionTimeoutError() | ServerTimeoutError() | TimeoutError():
            sent = not isinstance(error, ConnectionTimeoutError)
            detail = f"no connection to {place} within connect_timeout"
            if sent:
                detail = f"{place} did not answer within the time that the settings give it"
            message = "The upstream did not answer in time."
            return UpstreamError(504, message, Reason.UPSTREAM_TIMEOUT, sent=sent, detail=detail)
        case ClientConnectorError() | ClientConnectorCertificateError():
            message = "The upstream could not be reached."
            detail = _unreachable(error, url.host, place)
            reason = Reason.UPSTREAM_UNREACHABLE
            return UpstreamError(502, message, reason, sent=False, detail=detail)
        case ClientConnectionError() | OSError():
            message = "The upstream closed the connection."
            detail = f"{place} closed the connection before its reply was complete"
            return UpstreamError(502, message, Reason.UPSTREAM_BROKE, detail=detail)
        case _:
            message = "The upstream sent a reply that could not be read."
            detail = f"{place} sent a reply that is not valid HTTP ({type(error).__name__})"
            text = error.message if isinstance(error, ClientResponseError) else ""
            if url.scheme == "http" and any(record in text for record in _TLS_RECORDS):
                detail = f"{place} speaks TLS; is https:// meant?"
            reason = Reason.UPSTREAM_BROKE
            return UpstreamError(502, message, reason, answered=True, detail=detail)


def _unreachable(error: BaseException, host: str | None, place: str) -> str:
    match error:
        case ClientConnectorDNSError():
            return f"the host name {host} is not known; is it spelt correctly?"
        case ClientConnectorCertificateError():
            return f"the certificate of {place} is not trusted; is its authority installed?"
        case ClientConnectorSSLError():
            return f"{place} speaks no TLS that is understood here; is http:// meant?"
        case ClientConnectorError(os_error=OSError(errno=errno.ECONNREFUSED)):
            return f"nothing listens on {place}; is the server started?"
        case ClientConnectorError(os_error=OSError(strerror=str(text))):
            return f"no connection to {place}: {text}"
        case _:
            return f"no connection to {place}"


class FailureLog:
    """A line for each failed call to one upstream, at most one of a kind in some seconds."""

    def __init__(self, name: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._name = name
        self._clock = clock
        self._last: dict[Reason, float] = {}
        self._suppressed: dict[Reason, int] = {}

    def note_failure(self, error: UpstreamError) -> None:
        """Log a call that failed."""
        self._warn(error.reason, error.detail or error.message)

    def note_reply(self, status: int, content_type: str, *, own_credential: bool) -> None:
        """Log a reply that shows a fault of the upstream or of its settings."""
        if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            self._warn(Reason.UPSTREAM_STATUS, f"it answered with status {status}")
        elif own_credential and status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
            text = f"it refuses the key that the gateway has for it (status {status})"
            self._warn(Reason.UPSTREAM_STATUS, text)
        elif status == HTTPStatus.OK and content_type == "text/html":
            text = "it answered with a web page; is its URL that of an API?"
            self._warn(Reason.UPSTREAM_STATUS, text)

    def _warn(self, reason: Reason, what: str) -> None:
        now = self._clock()
        if (last := self._last.get(reason)) is not None and now - last < EVERY_SECONDS:
            self._suppressed[reason] = self._suppressed.get(reason, 0) + 1
            return
        self._last[reason] = now
        suppressed = self._suppressed.pop(reason, 0)
        more = f" ({suppressed} more since the last line)" if suppressed else ""
        log.warning("upstream %s: %s%s", self._name, what, more)


_END = b"\r\n\r\n"
"""How a head ends, and a chunked body."""


class OneReplyConnector(TCPConnector):
    """A connection pool that reuses a connection only if it holds nothing unsolicited.

    HTTP/1.1 tells by order alone which reply belongs to which request (RFC 9112, 9.3). Bytes that
    come too early would become the next request's reply, which may be another client's.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._factory = cast("partial[ResponseHandler]", partial(OneReply, loop=self._loop))


class OneReply(ResponseHandler):
    """Closes a connection on which unsolicited bytes come.

    Such bytes come while the connection is idle, after a complete reply, or as a second reply.
    """

    _poll: "select.poll | None" = None
    _awaits_reply = False
    """Whether a request is under way with an incomplete reply."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin to watch the socket."""
        super().connection_made(transport)
        if (opened := transport.get_extra_info("socket")) is not None:
            self._poll = select.poll()
            self._poll.register(opened.fileno(), select.POLLIN)

    def set_response_params(self, **options: Any) -> None:
        """Begin to wait for one reply."""
        self._awaits_reply = True
        self._heads = b""
        self._body_bytes = 0
        self._last = b""
        self._interim = 0
        self._excess = False
        self._reply: tuple[RawResponseMessage, StreamReader] | None = None
        super().set_response_params(**options)

    def feed_data(self, data: tuple[RawResponseMessage, StreamReader], size: int = 0) -> None:
        """Take the head of a reply; the first final one is the reply, any other is dropped."""
        message, _ = data
        if self._reply is not None:
            self._excess = True
            return
        if 100 <= message.code < 200 and message.code != HTTPStatus.SWITCHING_PROTOCOLS:
            self._interim += 1
        else:
            self._reply = data
        super().feed_data(data, size)

    def data_received(self, data: bytes) -> None:
        """Read the data; close the connection if some of the data is not part of the reply."""
        if data:
            if not self._awaits_reply:
                self._close_transport()
                return
            if self._reply is None:
                self._heads += data
            else:
                self._body_bytes += len(data)
            self._last = (self._last + data[-len(_END) :])[-len(_END) :]
        super().data_received(data)
        # A head that could not be read closes the connection by itself.
        if self._awaits_reply and self._reply is not None and self._reply[1].is_eof():
            self._awaits_reply = False
            if self._excess or not self._ends_with(*self._reply):
                self._close_transport()

    def is_connected(self) -> bool:
        """Tell whether the connection can be used: open, and where idle, with nothing to read."""
        if not super().is_connected():
            return False
        # The socket may have bytes, or its end, that the loop has not read yet.
        if self._awaits_reply or self._poll is None or not self._poll.poll(0):
            return True
        self._close_transport()
        return False

    def _ends_with(self, message: RawResponseMessage, payload: StreamReader) -> bool:
        """Tell whether the bytes read so far end where the reply ends."""
        if message.chunked and payload is not EMPTY_PAYLOAD:
            return self._last == _END
        end = 0
        for _ in range(self._interim + 1):
            end = self._heads.find(_END, end) + len(_END)
            if end < len(_END):
                return False
        length = 0 if payload is EMPTY_PAYLOAD else int(message.headers.get("Content-Length", 0))
        return end + length == len(self._heads) + self._body_bytes

    def _close_transport(self) -> None:
        self.force_close()
        if self.transport is not None:
            self.transport.close()
