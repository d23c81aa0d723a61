"""The upstream's end of a WebSocket that passes through (RFC 6455): whole messages, within bounds.

aiohttp's client opens connections itself, so only its parser and its writer are used here.
"""

import asyncio
import hashlib
import hmac
import secrets
from base64 import b64encode
from contextlib import suppress
from typing import cast

from aiohttp import EofStream, WebSocketError, WSCloseCode, WSMessage, WSMsgType
from aiohttp._websocket.reader import WebSocketDataQueue
from aiohttp.base_protocol import BaseProtocol
from aiohttp.http import WS_KEY, WebSocketReader, WebSocketWriter

from gateway.protocol.errors import UpstreamError
from gateway.protocol.http.cache_status import Reason
from gateway.protocol.http.headers import Fields, without
from gateway.upstream.request import SALT_HEADER
from gateway.upstream.wire.coding import odd_reply
from gateway.upstream.wire.connection import HttpReply, OneReply

MESSAGE_BYTES = 16 * 2**20
"""Of one message, in either direction: OpenAI takes 15 MiB of audio."""

HEARTBEAT_SECONDS = 30.0
"""Of silence until a ping; as long again, and the peer has left."""

CLOSE_SECONDS = 5.0
"""The longest wait for the peer's word on a close."""

_QUEUED_BYTES = 2**16
_CLIENTS = ("origin", *(f"sec-websocket-{name}" for name in ("key", "version", "extensions")))
"""The origin was checked against the gateway's own address, which is not the upstream's."""


class Handshake:
    """One handshake of ours: what asks for a WebSocket, and whether the answer is to that."""

    def __init__(self) -> None:
        self._key = b64encode(secrets.token_bytes(16)).decode()

    def fields(self, fields: Fields, salt: str) -> Fields:
        """Return the headers with our handshake in place of the client's.

        ``salt`` keeps the client apart in the upstream's prefix cache, if it is not empty.
        """
        ours = (("Connection", "Upgrade"), ("Upgrade", "websocket"))
        version, key = ("Sec-WebSocket-Version", "13"), ("Sec-WebSocket-Key", self._key)
        salted = ((SALT_HEADER, salt),) if salt else ()
        return (*without(fields, *_CLIENTS), *ours, version, key, *salted)

    def check(self, reply: HttpReply) -> None:
        """Raise UpstreamError unless a 101 answers this handshake, without extensions."""
        headers = {name.lower(): value.strip() for name, value in reply.headers}
        wanted = b64encode(hashlib.sha1(self._key.encode() + WS_KEY).digest())  # noqa: S324 - RFC 6455
        given = headers.get("sec-websocket-accept", "").encode(errors="surrogateescape")
        if not hmac.compare_digest(given, wanted) or "sec-websocket-extensions" in headers:
            raise odd_reply("a 101 that does not answer the handshake of a WebSocket")


class UpstreamSocket(BaseProtocol):
    """A connection behind its 101; the context of its reply closes it."""

    def __init__(self, reply: HttpReply) -> None:
        """Take the connection over; its pool still learns of its end."""
        loop = asyncio.get_running_loop()
        super().__init__(loop)
        self._upgraded = True  # there is no HTTP parser to be paused
        connection = reply._connection  # noqa: SLF001 - it has no other use
        if connection is None or (transport := connection.transport) is None:
            raise _broke()
        self._before = cast("OneReply", connection.protocol)
        self.transport = transport
        self._queue = WebSocketDataQueue(self, _QUEUED_BYTES, loop=loop)
        self._reader = WebSocketReader(self._queue, MESSAGE_BYTES, compress=False, decode_text=True)
        self._writer = WebSocketWriter(self, transport, use_mask=True)
        self._pinged = self._closing = self._has_closed = False
        transport.set_protocol(self)
        if tail := self._before.tail:
            self.data_received(tail)

    def data_received(self, data: bytes) -> None:
        self._reader.feed_data(data)

    def connection_lost(self, exc: BaseException | None) -> None:
        super().connection_lost(exc)
        self._reader.feed_eof()
        self._before.connection_lost(exc)

    async def receive(self) -> WSMessage:
        """Return the next message: text, binary or close.

        A peer that breaks the protocol, or sends too much at once, gets a close, which is returned.
        Raises UpstreamError if the connection broke, or the upstream is silent.
        """
        while True:
            try:
                async with asyncio.timeout(HEARTBEAT_SECONDS):
                    message = cast("WSMessage", await self._queue.read())
            except TimeoutError:
                if self._pinged:
                    fault = "The upstream did not answer a ping."
                    raise UpstreamError(504, fault, Reason.UPSTREAM_TIMEOUT) from None
                self._pinged = True
                await self._writer.send_frame(b"", WSMsgType.PING)
                continue
            except EofStream:
                raise _broke() from None
            except WebSocketError as error:
                await self.close(error.code, b"")
                return WSMessage(WSMsgType.CLOSE, error.code, "")
            self._pinged, self._has_closed = False, message.type is WSMsgType.CLOSE
            if message.type is WSMsgType.PING:
                await self._writer.send_frame(message.data, WSMsgType.PONG)
            elif message.type is not WSMsgType.PONG:
                return message

    async def send(self, message: WSMessage, seconds: float) -> None:
        """Send a message of the client's; the upstream has ``seconds`` to take it.

        Raises UpstreamError.
        """
        data = message.data.encode() if message.type is WSMsgType.TEXT else message.data
        try:
            async with asyncio.timeout(seconds):
                await self._writer.send_frame(data, message.type)
        except TimeoutError:
            fault = "The upstream did not read in time."
            raise UpstreamError(504, fault, Reason.UPSTREAM_TIMEOUT) from None
        except ConnectionResetError:
            raise _broke() from None

    async def close(self, code: int, reason: bytes) -> None:
        """Send a close, unless one was sent or the connection is gone."""
        if self._closing:
            return
        self._closing = True
        with suppress(ConnectionResetError):
            await self._writer.close(code, reason)

    async def closed(self) -> None:
        """Wait a while for the upstream's word on a close."""
        if self._has_closed:
            return
        with suppress(TimeoutError, UpstreamError):
            async with asyncio.timeout(CLOSE_SECONDS):
                while (await self.receive()).type is not WSMsgType.CLOSE:
                    pass


def _broke() -> UpstreamError:
    return UpstreamError(502, "The upstream closed the connection.", Reason.UPSTREAM_BROKE)


def sendable(code: int | None) -> int:
    """Return a close code that may be sent: some only say that none came (RFC 6455, 7.4.1)."""
    if code is None or code in (0, 1005):
        return WSCloseCode.OK
    return WSCloseCode.GOING_AWAY if code in (1006, 1015) else code
