"""One request to an upstream and its reply, over HTTP/1.1.

Laws:
- Order alone tells which reply belongs to which request (RFC 9112, 9.3). Bytes that come too early
  would become the next request's reply, which may be another client's. So a connection is closed if
  bytes come while it is idle, after a complete reply, or as a second reply.
- Leaving a reply closes its connection, unless the reply was read to its end. So the upstream sees
  that the client has left.
- A wait has a deadline, and a connection has one timer: it looks at the deadline when it fires.
"""

import asyncio
import select
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from types import TracebackType
from typing import TYPE_CHECKING, Self, cast

from aiohttp import (
    EMPTY_PAYLOAD,
    ClientConnectionError,
    ClientError,
    ClientOSError,
    ClientPayloadError,
    ClientTimeout,
    ConnectionTimeoutError,
    ServerDisconnectedError,
    StreamReader,
    hdrs,
)
from aiohttp.base_protocol import BaseProtocol
from aiohttp.connector import Connection
from aiohttp.http import HttpProcessingError, HttpResponseParser, RawResponseMessage

from gateway.protocol.errors import UpstreamError
from gateway.protocol.http.cache_status import Reason
from gateway.protocol.http.headers import media_type
from gateway.telemetry import request_id
from gateway.telemetry.observation import Attempt
from gateway.upstream.request import Served
from gateway.upstream.tries import Failure
from gateway.upstream.wire.coding import EndlessReplyError, inflate, is_coded, odd_reply
from gateway.upstream.wire.first_token import FirstToken, FirstTokenDetector

if TYPE_CHECKING:
    from gateway.upstream.wire.http_client import HttpUpstream

_LARGEST_HEADER = 64 * 1024
_MOST_HEADERS = 512
_LARGEST_HEAD = 512 * 1024
"""Bounds of a reply's head, above what servers send. The last one also bounds all interim heads
(1xx) of a reply together. It bounds a body's framing, too, as long as no byte of the body comes."""

_MOST_INTERIM = 256
"""Interim heads of one reply, one every few seconds while a slow answer is made."""

_HEAD_PIECE = 4096
"""Bytes parsed at once before the reply's head is there: a read may hold 10,000 interim heads."""

_BUFFERED = 256 * 1024
"""Bytes of a body that are held before the socket is left unread."""

_EVENT_BYTES = 8 * 1024

_NO_BODY = frozenset({HTTPStatus.NO_CONTENT, HTTPStatus.NOT_MODIFIED})

_END = b"\r\n\r\n"
"""How a head ends, and a chunked body."""

_RESOLUTION = 0.001
"""Seconds by which the loop's timer may fire too early."""


FAULTS = (ClientError, HttpProcessingError, EndlessReplyError, OSError)
"""What a connection raises; OSError covers TimeoutError."""


class OneReply(BaseProtocol):
    """One connection: ``begin`` sends a request, ``head`` and ``read`` return its reply."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop)
        self.now = loop.time
        self.should_close = False
        """Whether the connection is of no use after this reply."""
        self._poll: select.poll | None = None
        self._closed: asyncio.Future[None] | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._deadline: float | None = None
        self._fault: Exception | None = None
        self._awaits_reply = False
        self._message: RawResponseMessage | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin to watch the socket."""
        super().connection_made(transport)
        if (opened := transport.get_extra_info("socket")) is not None:
            self._poll = select.poll()
            self._poll.register(opened.fileno(), select.POLLIN)

    def begin(self, request: bytes, *, with_body: bool = True, upgrades: bool = False) -> None:
        """Send a request whose reply may have a body, or be a 101, as the two flags tell.

        Raises ServerDisconnectedError if the connection is closed already.
        """
        if self.transport is None or self.transport.is_closing():
            raise ServerDisconnectedError
        self._awaits_reply, self._upgrades = True, upgrades
        self._message = None
        self._body: StreamReader = EMPTY_PAYLOAD
        self._heads = bytearray()
        self._last = b""
        self._received = self._interim = self._bare = self._body_bytes = 0
        self._parser = HttpResponseParser(
            self,
            self._loop,
            _BUFFERED,
            response_with_body=with_body,
            read_until_eof=True,
            auto_decompress=False,
            max_line_size=_LARGEST_HEADER,
            max_field_size=_LARGEST_HEADER,
            max_headers=_MOST_HEADERS,
        )
        if request:
            self.transport.write(request)

    async def head(self, by: float | None) -> RawResponseMessage:
        """Return the head of the reply. Raises as ``read`` does."""
        self._expect_by(by)
        while self._message is None:
            await self._wait()
        self._deadline = None
        return self._message

    async def read(self, by: float, most: int = -1) -> bytes:
        """Return what has come of the body, and wait for it until ``by``; nothing at its end.

        It is ``most`` bytes at most. What came before a fault is returned before it is raised.
        Raises TimeoutError, ClientConnectionError if the connection broke, ClientPayloadError or
        HttpProcessingError if the reply is not whole or not valid.
        """
        body = self._body
        while True:
            data = b"" if body.exception() is not None else body.read_nowait(most)
            if data or body.is_eof():
                self._deadline = None
                return data
            if self._fault is None:
                self._expect_by(by)
            await self._wait()

    @property
    def tail(self) -> bytes:
        """What has come behind a 101: it is of another protocol."""
        return bytes(self._heads).split(_END, self._interim + 1)[-1]

    @property
    def is_complete(self) -> bool:
        """Tell whether the whole reply is there."""
        return self._message is not None and self._body.is_eof()

    async def send_body(
        self, head: bytes, body: AsyncIterator[bytes], length: int | None, seconds: float
    ) -> None:
        """Send ``head`` and a body of ``length`` bytes, in chunks if that is not known.

        While ``body`` is waited for, nothing is expected of the upstream. It has ``seconds`` to
        take each piece, and to answer after the last. A fault of ``body`` ends the wait for a head.
        """
        try:
            async for piece in body:
                if length is None:
                    data = b"%x\r\n%b\r\n" % (len(piece), piece) if piece else b""
                else:
                    data = piece[:length]
                    length -= len(data)
                self._write(head + data)
                head = b""
                if self.writing_paused:
                    self._expect_answer(seconds)
                    await self._drain_helper()
                    self._expect_answer(None)
            self._write(head + (b"0\r\n\r\n" if length is None else b""))
            self._expect_answer(seconds)
        except Exception as error:  # noqa: BLE001 - the body is another's
            self.should_close = True
            if self._message is None:
                self._fail(ClientConnectionError(f"the body was not sent: {error!r}"))

    def _expect_by(self, by: float | None) -> None:
        """Set the deadline of the wait, by the loop's clock; None if nothing is expected yet."""
        self._deadline = by
        if by is None or (self._timer is not None and self._timer_at <= by):
            return
        self._drop_timer()
        self._timer, self._timer_at = self._loop.call_at(by, self._on_timer), by

    def _fail(self, error: Exception) -> None:
        """End the wait for the reply with an error; the first one counts."""
        self.should_close = True
        self._fault = self._fault or error
        self._wake()

    def _expect_answer(self, seconds: float | None) -> None:
        """Set the deadline, unless an upstream has answered before it has read all."""
        if self._message is None:
            self._expect_by(None if seconds is None else self.now() + seconds)

    def _write(self, data: bytes) -> None:
        if self.transport is None or self.transport.is_closing():
            raise ServerDisconnectedError
        if data:
            self.transport.write(data)

    async def _wait(self) -> None:
        """Wait until something has changed. Raises the fault of the reply, and TimeoutError."""
        if self._fault is None:
            self._waiter = self._loop.create_future()
            await self._waiter
        if self._fault is not None:
            raise self._fault

    def _wake(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    def _on_timer(self) -> None:
        self._timer = None
        if self._deadline is None:
            return
        if self.now() < self._deadline - _RESOLUTION:
            self._expect_by(self._deadline)
        else:
            self._fail(TimeoutError())

    def data_received(self, data: bytes) -> None:
        """Read the data; close the connection if some of the data is not part of the reply."""
        while len(data) > _HEAD_PIECE and self._awaits_reply and self._message is None:
            self._read(data[:_HEAD_PIECE])
            data = data[_HEAD_PIECE:]
        self._read(data)

    def resume_reading(self, resume_parser: bool = True) -> None:
        """Go on reading; aiohttp calls so for each piece that is taken, paused or not."""
        if self._reading_paused:
            super().resume_reading(resume_parser)

    def _read(self, data: bytes) -> None:
        if self._upgraded:
            self._heads += data
            return
        if data:
            if not self._awaits_reply:
                self._close_transport()
                return
            if self._message is None:
                self._heads += data
            else:
                self._received += len(data)
            self._last = data if len(data) >= len(_END) else (self._last + data)[-len(_END) :]
        if self._parser is None:
            return
        try:
            messages, _, _ = self._parser.feed_data(data)
            excess = self._take_heads(messages)
            self._check_progress(len(data))
        except Exception as error:  # noqa: BLE001 - whatever it is, the reply cannot be read
            self._awaits_reply = False
            self._parser = None
            self._close_transport()
            self._fail(error if isinstance(error, HttpProcessingError) else HttpProcessingError())
            return
        if self._message is not None and self._awaits_reply and self._body.is_eof():
            self._awaits_reply = False
            self._parser = self._deadline = None
            if not self._upgraded and (excess or not self._ends_with(self._message)):
                self._close_transport()
        self._wake()

    def _check_progress(self, more: int) -> None:
        """Raise EndlessReplyError if the upstream sends on and on, and nothing of an answer."""
        if self._body.total_bytes != self._body_bytes:
            self._bare, self._body_bytes = 0, self._body.total_bytes
            return
        self._bare += more
        if self._bare > _LARGEST_HEAD or self._interim > _MOST_INTERIM:
            part = "head" if self._message is None else "framing"
            message = f"sent a {part} of over {_LARGEST_HEAD} bytes or {_MOST_INTERIM} replies 1xx"
            raise EndlessReplyError(message)

    def _take_heads(self, messages: Sequence[tuple[RawResponseMessage, StreamReader]]) -> bool:
        """Note the heads that have come; tell whether one is of no request."""
        excess = False
        for message, body in messages:
            excess = excess or self._message is not None
            self._take_head(message, body)
        return excess

    def _take_head(self, message: RawResponseMessage, body: StreamReader) -> None:
        """Note a head. The first final one is the reply's; any after it is of no request."""
        self.should_close = self.should_close or message.should_close
        if self._message is not None:
            return
        if 100 <= message.code < 200 and message.code != HTTPStatus.SWITCHING_PROTOCOLS:
            self._interim += 1
            return
        self._message = message
        # After 101 the upstream may take the connection for one of another protocol.
        self.should_close = self.should_close or message.code < HTTPStatus.OK
        self._upgraded = self._upgrades and message.code == HTTPStatus.SWITCHING_PROTOCOLS
        if message.code != HTTPStatus.SWITCHING_PROTOCOLS and message.code not in _NO_BODY:
            self._body = body

    def _ends_with(self, message: RawResponseMessage) -> bool:
        """Tell whether the bytes read so far end where the reply ends."""
        if message.chunked and self._body is not EMPTY_PAYLOAD:
            return self._last[-len(_END) :] == _END
        end = 0
        for _ in range(self._interim + 1):
            end = self._heads.find(_END, end) + len(_END)
            if end < len(_END):
                return False
        is_empty = self._body is EMPTY_PAYLOAD
        length = 0 if is_empty else int(message.headers.get("Content-Length", 0))
        return end + length == len(self._heads) + self._received

    def connection_lost(self, exc: BaseException | None) -> None:
        """End the reply: a body without a length is whole now, any other one is cut short."""
        parser, self._parser = self._parser, None
        super().connection_lost(exc)
        fault: Exception | None = None
        if self._awaits_reply:
            fault = ClientOSError(*exc.args) if isinstance(exc, OSError) else None
            if self._message is None:
                fault = fault or ServerDisconnectedError()
            elif parser is not None:
                try:
                    parser.feed_eof()
                except HttpProcessingError as error:
                    fault = ClientPayloadError(f"the body is not complete: {error!r}")
        self._awaits_reply = False
        if fault is not None:
            self._fail(fault)
        self.should_close = True
        self._wake()
        self._drop_timer()
        if self._closed is not None and not self._closed.done():
            self._closed.set_result(None)

    @property
    def closed(self) -> asyncio.Future[None] | None:
        """The future of the connection's end, None if it has ended."""
        if self._closed is None and self.transport is not None:
            self._closed = self._loop.create_future()
        return self._closed

    def is_connected(self) -> bool:
        """Tell whether the connection can be used: open, and where idle, with nothing to read."""
        if self.transport is None or self.transport.is_closing():
            return False
        # The socket may have bytes, or its end, that the loop has not read yet.
        if self._awaits_reply or self._poll is None or not self._poll.poll(0):
            return True
        self._close_transport()
        return False

    def close(self) -> None:
        """Close the connection at once; what the upstream has not taken is dropped."""
        if self.transport is not None:
            if self.transport.get_write_buffer_size():
                self.transport.abort()
            else:
                self.transport.close()
        self._drop_timer()

    def abort(self) -> None:
        """Close the connection without a farewell."""
        if self.transport is not None:
            self.transport.abort()

    def _close_transport(self) -> None:
        self.should_close = True
        if self.transport is not None:
            self.transport.close()

    def _drop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


@dataclass(eq=False, repr=False, slots=True)
class HttpReply:
    """One request to ``upstream`` and its reply, which is there inside the context; see the port.

    ``request`` is the request as it is sent, or its head if ``content`` comes meanwhile: ``length``
    bytes, or chunks if that is None. ``decodes`` tells whether a compressed body is inflated,
    ``logs`` whether a request without a reply leaves a line in the log; if it is None, each fault
    leaves one, also of the body. ``first_token_by`` is set for a stream whose tokens have bounds.
    A ``judged`` reply that is no answer is a fault; if ``pages``, a web page may be one, and if it
    ``upgrades``, a 101. ``model`` is the one of the request. ``held`` was read to judge the reply,
    ``late`` is a fault behind it.
    """

    upstream: "HttpUpstream"
    method: str
    request: bytes
    content: AsyncIterator[bytes] | None = None
    length: int | None = None
    decodes: bool = True
    logs: Callable[[], bool] | None = None
    first_token_by: float | None = None
    attempt: Attempt | None = None
    """What its trace says of it, if the call is traced."""
    judged: bool = False
    pages: bool = False
    upgrades: bool = False
    model: str = ""
    held: bytes = b""
    late: UpstreamError | None = None
    served: Served = field(init=False)
    status: int = field(init=False)
    reason: str = field(init=False)
    headers: Sequence[tuple[str, str]] = field(init=False)
    content_type: str = field(init=False)
    content_length: int | None = field(init=False)
    most: int = field(init=False, default=-1)
    """Bytes of a stream that are read at once: it may have many events in few bytes."""
    _connection: Connection | None = None
    _upload: asyncio.Task[None] | None = None
    _inflated: AsyncIterator[bytes] | None = None
    _detector: FirstTokenDetector | None = None

    async def __aenter__(self) -> Self:
        """Send the request, and wait for the head of the reply. Raises UpstreamError."""
        self.upstream.in_use += 1
        try:
            self._take_head(await self._exchange())
            if self.judged and (self.most < 0 or self.status >= HTTPStatus.BAD_REQUEST):
                await self.upstream.judge(self)
        except BaseException as error:
            self.upstream.in_use -= 1
            self._close()
            if self.attempt is not None:
                self.attempt.end(error)
            if isinstance(error, UpstreamError) and (self.logs is None or self.logs()):
                self.upstream.failures.note(error)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        """Leave the reply; a fault of a call leaves a line in the log."""
        self.upstream.in_use -= 1
        self._close()
        self._inflated = None  # it refers to this reply
        if self.attempt is not None:
            self.attempt.end(error)
        if self.logs is None and isinstance(error, UpstreamError):
            self.upstream.failures.note(error)

    async def read(self) -> bytes:
        """Return the next piece of the body, none at its end. Raises UpstreamError."""
        if self.held:
            held, self.held = self.held, b""
            return held
        if self.late is not None:
            raise self.late
        piece = await (self._receive() if self._inflated is None else anext(self._inflated, b""))
        if piece and self._detector is not None:
            found = self._detector.add(piece, 0.0)
            self._detector = self._detector if found is FirstToken.PENDING else None
            if isinstance(found, Failure) and found.reason is Reason.UPSTREAM_REFUSED:
                raise self.upstream.refused()
        if piece and self.attempt is not None:
            self.attempt.note_chunk()
        return piece

    async def _receive(self) -> bytes:
        """Return the next bytes of the body as they were sent, none at its end."""
        if self._connection is None:
            return b""
        upstream, protocol = self.upstream, cast("OneReply", self._connection.protocol)
        bound = "read_timeout"
        if self.first_token_by is None:
            by = protocol.now() + upstream.longest_read
        elif self._detector is None:
            bound, by = "between_tokens_timeout", protocol.now() + upstream.between_tokens
        else:
            bound, by = "first_token_timeout", self.first_token_by
        try:
            data = await protocol.read(by, self.most)
        except FAULTS as error:
            raise upstream.fault_of(error, bound) from error
        if not data:
            self._close()
        elif len(data) == self.most:
            await asyncio.sleep(0)  # more may be there, and others come between
        return data

    async def _encoded(self) -> AsyncIterator[bytes]:
        while data := await self._receive():
            yield data

    async def _exchange(self) -> RawResponseMessage:
        """Send the request; return the head of the reply. Raises UpstreamError."""
        upstream = self.upstream
        try:
            self._connection = await self._connect()
            protocol = cast("OneReply", self._connection.protocol)
            by = self.first_token_by
            if by is None:
                by = protocol.now() + upstream.read_seconds
            return await self._ask(protocol, by)
        except FAULTS as error:
            bound = "read_timeout" if self.first_token_by is None else "first_token_timeout"
            raise upstream.fault_of(error, bound) from error

    async def _connect(self) -> Connection:
        """Return a connection, an idle one if there is one. Raises ClientError, TimeoutError."""
        upstream, by = self.upstream, self.first_token_by
        if upstream.connector is None:
            raise RuntimeError("the upstream is not open")
        timeout = upstream.timeout
        if by is not None:
            left = by - asyncio.get_running_loop().time()
            if left < upstream.connect_seconds:
                timeout = ClientTimeout(total=None, connect=max(left, _RESOLUTION))
        try:
            return await upstream.connector.connect(upstream.place, [], timeout)
        except TimeoutError as error:
            if timeout is upstream.timeout:
                raise ConnectionTimeoutError from error
            raise

    async def _ask(self, protocol: OneReply, by: float) -> RawResponseMessage:
        """Send the request, and its content meanwhile; return the head of the reply."""
        with_body = self.method != "HEAD"
        if self.content is None:
            protocol.begin(self.request, with_body=with_body, upgrades=self.upgrades)
            return await protocol.head(by)
        protocol.begin(b"", with_body=with_body)
        sending = protocol.send_body(
            self.request, self.content, self.length, self.upstream.read_seconds
        )
        self._upload = asyncio.create_task(sending)
        return await protocol.head(None)

    def _take_head(self, message: RawResponseMessage) -> None:
        """Note the head of the reply. Raises UpstreamError if it can be no answer."""
        headers, upstream = message.headers, self.upstream
        if request_id.HEADER in headers:
            request_id.adopt(headers)
        if message.code < (HTTPStatus.SWITCHING_PROTOCOLS if self.upgrades else HTTPStatus.OK):
            raise odd_reply(f"the status {message.code} in place of an answer")
        for coding in headers.getall(hdrs.TRANSFER_ENCODING, ()):
            if coding.strip().lower() not in ("chunked", "identity"):
                raise odd_reply(f"the unasked Transfer-Encoding {coding[:40]}")
        encoding = headers.get(hdrs.CONTENT_ENCODING)
        if encoding and self.decodes and is_coded(encoding):
            self._inflated = inflate(self._encoded())
        self.served = upstream.served
        self.status, self.reason = message.code, message.reason
        if self.attempt is not None:
            self.attempt.status = message.code
        self.headers = tuple(headers.items())
        self.content_type = media_type(headers.get(hdrs.CONTENT_TYPE, ""))
        self.most = _EVENT_BYTES if self.content_type == "text/event-stream" else -1
        may_refuse = self.judged and upstream.own_account and (self.most > 0 or self.logs is None)
        if self.first_token_by is not None or may_refuse:
            self._detector = FirstTokenDetector(events=True, own=upstream.own_account)
        length = headers.get(hdrs.CONTENT_LENGTH)
        self.content_length = None if length is None else int(length)
        if self.status >= HTTPStatus.INTERNAL_SERVER_ERROR and self.logs is None:
            upstream.failures.note_status(self.status)

    def _close(self) -> None:
        """Give the connection back if the reply is complete, else close it."""
        connection, self._connection = self._connection, None
        if connection is None:
            return
        if self._upload is not None and not self._upload.done():
            self._upload.cancel()
            connection.close()
        elif cast("OneReply", connection.protocol).is_complete:
            connection.release()
        else:
            connection.close()
