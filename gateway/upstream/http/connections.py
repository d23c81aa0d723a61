"""Connections to upstreams on which one request gets one reply, and nothing besides.

HTTP/1.1 tells by order alone which reply belongs to which request (RFC 9112, 9.3). Bytes that come
before they are asked for would become the next request's reply, which may be another client's.
"""

import asyncio
import select
from functools import partial
from typing import Any, cast

from aiohttp import EMPTY_PAYLOAD, StreamReader, TCPConnector
from aiohttp.client_proto import ResponseHandler
from aiohttp.http import RawResponseMessage

_HEAD_END = b"\r\n\r\n"
_CHUNKS_END = b"\r\n\r\n"
_INTERIM = range(100, 200)
_SWITCHING = 101


class OneReplyConnector(TCPConnector):
    """A connection pool that reuses a connection only where it holds nothing unasked."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._factory = cast("partial[ResponseHandler]", partial(OneReply, loop=self._loop))


class OneReply(ResponseHandler):
    """Closes a connection on which anything comes that no request asked for.

    That is what comes while the connection is idle, what follows a complete reply, and a second
    reply.
    """

    _poll: "select.poll | None" = None
    _asked = False
    """Whether a request is under way whose reply is not complete."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin to watch the socket."""
        super().connection_made(transport)
        if (opened := transport.get_extra_info("socket")) is not None:
            self._poll = select.poll()
            self._poll.register(opened.fileno(), select.POLLIN)

    def set_response_params(self, **options: Any) -> None:
        """Begin to wait for one reply."""
        self._asked = True
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
            if not self._asked:
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
        if self._asked and self._reply is not None and self._reply[1].is_eof():
            self._asked = False
            if self._excess or not self._ends_with(*self._reply):
                self._close_transport()

    def is_connected(self) -> bool:
        """Tell whether the connection can be used: open, and where idle, with nothing to read."""
        if not super().is_connected():
            return False
        if self._asked or not self._holds_bytes():
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
