"""Any OpenAI-compatible server over HTTP, with every wait bounded and every fault named.

Requests carry the name of this installation in ``Via``, so that a loop is recognised.
"""

import asyncio
import os
import secrets
import select
import zlib
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import cache, partial
from http import HTTPStatus
from typing import Any, cast

from aiohttp import (
    EMPTY_PAYLOAD,
    ClientError,
    ClientResponse,
    ClientSession,
    ClientTimeout,
    DummyCookieJar,
    StreamReader,
    TCPConnector,
)
from aiohttp.client_proto import ResponseHandler
from aiohttp.http import RawResponseMessage
from yarl import URL

from gateway.protocol.cache_status import Reason
from gateway.protocol.errors import UpstreamError
from gateway.telemetry import request_id
from gateway.upstream.http_faults import FailureLog, fault_of
from gateway.upstream.pool.first_token import FirstToken, FirstTokenDetector
from gateway.upstream.request import Outgoing, Served, with_key

VARIABLE = "REFRAIN_INSTANCE"
"""Carries the name from parent to child."""


@cache
def instance() -> str:
    """Return the name: what the parent says, or a new one."""
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

_BODY_HEADERS = frozenset({"content-length", "content-encoding"})

PIECE = 65_536
"""Bytes inflated at a time, if an upstream compresses against the request."""

_GZIP = zlib.MAX_WBITS | 16
_WINDOWS = {"gzip": _GZIP, "x-gzip": _GZIP, "deflate": zlib.MAX_WBITS}
_COMPRESSED = 8
"""The lower half of a zlib stream's first byte; some servers leave out the head."""


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
        """What keys say of it: a name given, else the URL (which holds no credentials)."""
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
        longest = max(read_seconds, self._first_token, self._between_tokens)
        self._timeout = ClientTimeout(total=None, connect=connect_seconds, sock_read=longest)
        self._session: ClientSession | None = None

    async def open(self) -> None:
        """Make the connection pool; belongs to the running loop."""
        self._session = ClientSession(
            # Shorter than the 5 s after which uvicorn and others close an idle connection: a POST
            # sent into that moment is lost, and may not be sent again.
            connector=OneReplyConnector(limit=0, keepalive_timeout=4.0),
            timeout=self._timeout,
            max_line_size=_LARGEST_HEADER,
            max_field_size=_LARGEST_HEADER,
            max_headers=_MOST_HEADERS,
            # Cookies belong to clients, and are kept there.
            cookie_jar=DummyCookieJar(),
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
    async def send(self, outgoing: Outgoing) -> AsyncIterator["HttpReply"]:
        """POST; see the port. A failure leaves a line in the log."""
        target, fields = outgoing.target, outgoing.fields
        raw = outgoing.instead.get(self.name, outgoing.raw)
        by = None
        if outgoing.streamed and self._times_streams:
            by = asyncio.get_running_loop().time() + self._first_token
        sending = self.request("POST", target, fields, raw, decode=False, head_by=by)
        try:
            async with sending as response:
                body = self.body(response)
                encoding = response.headers.get("Content-Encoding")
                if encoding and (coding := coding_of(encoding)):
                    body = inflated(body, coding)
                if by is not None:
                    body = self._timed(body, by)
                if response.status != HTTPStatus.OK or response.content_type == "text/html":
                    self.failures.answered(
                        response.status, response.content_type, own_credential=self.own_credential
                    )
                yield HttpReply(
                    Served(self.name),
                    response.status,
                    [
                        (name, value)
                        for name, value in response.headers.items()
                        if name.lower() not in _BODY_HEADERS
                    ],
                    response.content_type.lower(),
                    body,
                )
        except UpstreamError as error:
            self.failures.failed(error)
            raise

    @asynccontextmanager
    async def request(
        self,
        method: str,
        path_qs: str,
        headers: Sequence[tuple[str, str]],
        body: bytes | AsyncIterator[bytes] | None,
        *,
        decode: bool = True,
        head_by: float | None = None,
        logged: Callable[[], bool] = lambda: False,
    ) -> AsyncIterator[ClientResponse]:
        """Send any request. Raises UpstreamError; redirects are not followed.

        ``head_by`` is when the head must have come, by the loop's clock; ``logged`` tells
        whether a request without a reply leaves a line in the log.
        """
        if self._session is None:
            raise RuntimeError("the upstream is not open")
        if self._drops_credentials:
            headers = with_key(headers, self._api_key)
        headers = (*headers, ("Via", via()))
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
                    headers=headers,
                    data=body if upload is None else upload.chunks(limit),
                    allow_redirects=False,
                    auto_decompress=decode,
                )
                if upload is not None:
                    upload.answered = True
        except (ClientError, TimeoutError, OSError) as error:
            fault = fault_of(error, self._url)
            if logged():
                self.failures.failed(fault)
            raise fault from error
        request_id.adopt(response.headers)
        try:
            _check(response)
            yield response
        finally:
            # A body that was read to its end has given its connection back. Any other is closed,
            # so that the upstream sees that the client has left.
            response.close()

    def note_failure(self, response: ClientResponse, error: UpstreamError) -> None:  # noqa: ARG002
        """Log that a reply broke off."""
        self.failures.failed(error)

    def served(self, response: ClientResponse) -> Served | None:  # noqa: ARG002 - always this one
        """Return which of several upstreams sent a reply: None, for this is one alone."""
        return None

    async def body(self, response: ClientResponse) -> AsyncIterator[bytes]:
        """Yield a reply's body as it arrives. Raises UpstreamError."""
        try:
            async for chunk in response.content.iter_any():
                yield chunk
        except (ClientError, TimeoutError, OSError) as error:
            raise fault_of(error, self._url) from error

    async def _timed(self, chunks: AsyncIterator[bytes], by: float) -> AsyncIterator[bytes]:
        """Yield a stream's body, whose first token must come ``by`` then. Raises UpstreamError."""
        clock = asyncio.get_running_loop().time
        detector, begun = FirstTokenDetector(events=True), False
        try:
            while True:
                async with asyncio.timeout_at(by):
                    chunk = await anext(chunks, b"")
                if not chunk:
                    return
                begun = begun or detector.add(chunk, 0.0) is not FirstToken.PENDING
                yield chunk
                if begun:
                    by = clock() + self._between_tokens
        except TimeoutError as error:
            raise fault_of(error, self._url) from error


@dataclass(frozen=True, slots=True)
class HttpReply:
    """An upstream's reply; see the port. The headers are without those of the encoded body."""

    served: Served
    status: int
    headers: list[tuple[str, str]]
    content_type: str
    body: AsyncIterator[bytes]

    def chunks(self) -> AsyncIterator[bytes]:
        """Yield the body as it arrives."""
        return self.body


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


def coding_of(written: str) -> str:
    """Return the coding that a Content-Encoding names, empty for none. Raises UpstreamError."""
    named = [token.strip().lower() for token in written.split(",")]
    codings = [coding for coding in named if coding not in ("", "identity")]
    if len(codings) > 1 or any(coding not in _WINDOWS for coding in codings):
        raise _odd(f"the unasked Content-Encoding {', '.join(codings)[:40]}")
    return codings[0] if codings else ""


async def inflated(chunks: AsyncIterator[bytes], coding: str) -> AsyncIterator[bytes]:
    """Yield a body decoded; an incomplete one is an error. Raises UpstreamError."""
    inflater = None
    async for chunk in chunks:
        rest, more = chunk, bool(chunk)
        while more:
            if inflater is None or inflater.eof:
                inflater = _inflater(coding, rest)
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


def _inflater(coding: str, data: bytes) -> "zlib._Decompress":
    window = _WINDOWS[coding]
    bare = coding == "deflate" and data[0] & 0xF != _COMPRESSED
    return zlib.decompressobj(-window if bare else window)


_HEAD_END = b"\r\n\r\n"
_CHUNKS_END = b"\r\n\r\n"
_INTERIM = range(100, 200)
_SWITCHING = 101


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
    """Whether a request is under way whose reply is not complete."""

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
        if message.code in _INTERIM and message.code != _SWITCHING:
            self._interim += 1
        else:
            self._reply = data
        super().feed_data(data, size)

    def data_received(self, data: bytes) -> None:
        """Read what came; close the connection where not all of it belongs to the reply."""
        if data:
            if not self._awaits_reply:
                self._close_transport()
                return
            if self._reply is None:
                self._heads += data
            else:
                self._body_bytes += len(data)
            end = len(_CHUNKS_END)
            self._last = data[-end:] if len(data) >= end else (self._last + data)[-end:]
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
        if self._awaits_reply or not self._holds_bytes():
            return True
        self._close_transport()
        return False

    def _ends_with(self, message: RawResponseMessage, payload: StreamReader) -> bool:
        """Tell whether the bytes read so far end where the reply ends."""
        if message.chunked and payload is not EMPTY_PAYLOAD:
            return self._last == _CHUNKS_END
        end = 0
        for _ in range(self._interim + 1):
            end = self._heads.find(_HEAD_END, end) + len(_HEAD_END)
            if end < len(_HEAD_END):
                return False
        length = 0 if payload is EMPTY_PAYLOAD else int(message.headers.get("Content-Length", 0))
        return end + length == len(self._heads) + self._body_bytes

    def _holds_bytes(self) -> bool:
        """Tell whether the socket has bytes, or its end, that the loop has not read yet."""
        return self._poll is not None and bool(self._poll.poll(0))

    def _close_transport(self) -> None:
        self.force_close()
        if self.transport is not None:
            self.transport.close()
