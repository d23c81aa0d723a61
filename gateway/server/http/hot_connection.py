"""A client's connection that answers repeated requests by itself; see ``server.hot_path``."""

from functools import partial
from typing import TYPE_CHECKING, Any

from aiohttp import web

from gateway.server.hot_path import HOLD_SECONDS, HotPath, Reader
from gateway.server.http.http_server import Connection, NewConnection

if TYPE_CHECKING:
    from asyncio import TimerHandle

JOINED_BYTES = 16_384
"""Up to here, one buffer is written faster than two."""

HOT_PATH: web.AppKey[HotPath] = web.AppKey("hot_path")
"""What the connections of an application know in common, if anything."""


def new_connection(app: web.Application) -> NewConnection:
    """Return what makes the connections of an application."""
    return partial(HotConnection, app[HOT_PATH]) if HOT_PATH in app else Connection


class HotConnection(Connection):
    """One client's connection. ``reader`` tells where its requests begin and end."""

    def __init__(self, hot: HotPath, *given: Any, **options: Any) -> None:
        super().__init__(*given, **options)
        self.reader = Reader(hot)
        self._release_timer: TimerHandle | None = None

    def data_received(self, data: bytes) -> None:
        """Answer a repeated request at once; hand all others on."""
        if not data:
            super().data_received(data)  # aiohttp itself calls so, to go on with what it has
            return
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
        if isinstance(found, tuple):
            self._repeat(*found)
        elif found:
            self._parse(found)
        elif self._release_timer is None:
            self._release_timer = self._loop.call_later(HOLD_SECONDS, self._release)

    def eof_received(self) -> None:
        """Hand on the bytes that were held back: no more data comes."""
        self._release()
        super().eof_received()

    def connection_lost(self, exc: BaseException | None) -> None:
        """Wait no longer."""
        self._stop_release_timer()
        super().connection_lost(exc)

    def close(self) -> None:
        """Take no more requests; one that is held back has begun."""
        self._release()
        super().close()

    @property
    def busy(self) -> bool:
        """Whether a request is under way, or a reply is not sent."""
        return self.reader.holds or super().busy

    def _repeat(self, head: bytes, body: bytes) -> None:
        """Write a reply. From now on the connection is idle."""
        transport = self.transport
        if transport is None:
            return
        if len(body) <= JOINED_BYTES:
            transport.write(head + body)
        else:
            transport.writelines((head, body))
        if self._head_timer is not None:
            self._stop_timer()
        self._next_keepalive_close_time = self._loop.time() + self._keepalive_timeout

    def _parse(self, data: bytes) -> None:
        read_before = self._request_count
        super().data_received(data)
        if self._request_count > read_before + 1:
            self.reader.give_up()  # the parser found more requests than the reader

    def _release(self) -> None:
        """Hand on the bytes that were held back of a request with a late body."""
        self._stop_release_timer()
        if self.reader.holds:
            self._parse(self.reader.release())

    def _stop_release_timer(self) -> None:
        if self._release_timer is not None:
            self._release_timer.cancel()
            self._release_timer = None
