"""Messages between two processes of ours: a length, then a pickle, over a socket pair.

Law: the engine never waits for its reader. What the socket does not take is kept and grows into the
next message, so a reader that falls behind gets fewer and larger ones.
"""

import pickle
import select
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import suppress
from itertools import chain
from typing import Any, Final, TypeVar

from backend.engine.messages import Ended, FromEngine, Report, ToEngine

LENGTH: Final = struct.Struct("!I")
_CHUNK = 1 << 16
_LAST_SECONDS = 1.0

MessageT = TypeVar("MessageT")


class PeerGoneError(Exception):
    """The process at the other end has closed, or is no more."""


class ProtocolError(Exception):
    """The bytes are no frame that may be sent."""


def frame(body: bytes) -> bytes:
    """Return a body with its length in front."""
    return LENGTH.pack(len(body)) + body


class FrameReader:
    """Cuts a stream of bytes into the bodies of its frames."""

    def __init__(self, max_bytes: int = 2**32 - 1) -> None:
        self._max_bytes = max_bytes
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Add ``data`` and yield the bodies that are whole.

        Raises ProtocolError for a body of more than ``max_bytes``; the stream is then lost.
        """
        self._buffer += data
        start = 0
        try:
            while len(self._buffer) - start >= LENGTH.size:
                (size,) = LENGTH.unpack_from(self._buffer, start)
                if size > self._max_bytes:
                    raise ProtocolError(f"frame of {size} bytes, at most {self._max_bytes} allowed")
                stop = start + LENGTH.size + size
                if len(self._buffer) < stop:
                    return
                body = bytes(memoryview(self._buffer)[start + LENGTH.size : stop])
                start = stop
                yield body
        finally:
            del self._buffer[:start]


def encode(message: object) -> bytes:
    """Return a message's frame."""
    return frame(pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL))


def decode(body: bytes) -> Any:
    """Return the message in a frame's body."""
    # Both ends are processes that we started ourselves.
    return pickle.loads(body)  # noqa: S301


class SocketEndpoint:
    """The engine's end of a connection. Messages to it come in lists.

    Every method raises PeerGoneError when nobody is at the other end.
    """

    def __init__(self, sock: socket.socket) -> None:
        """Take over a connected stream socket."""
        sock.setblocking(False)
        self._socket = sock
        self._frames = FrameReader()
        self._woken, self._waker = socket.socketpair()
        self._woken.setblocking(False)
        self._waker.setblocking(False)
        self._poller = select.poll()
        self._poller.register(self._socket, select.POLLIN)
        self._poller.register(self._woken, select.POLLIN)
        self._unsent = b""
        self._held: Report | None = None
        self._sending = threading.Lock()

    def receive(self, *, wait: bool) -> list[ToEngine]:
        """Return what came, and send what was left unsent; ``wait`` if nothing came."""
        while True:
            self._flush()
            writes = select.POLLOUT if wait and self._unsent else 0
            self._poller.modify(self._socket, select.POLLIN | writes)
            if not self._poller.poll(None if wait else 0):
                return []
            woken = self._take_wakes()
            messages = list(chain.from_iterable(self._read()))
            if woken or messages or not wait:
                return messages

    def close(self) -> None:
        """Close all its sockets."""
        for each in (self._socket, self._woken, self._waker):
            each.close()

    def wake(self) -> None:
        """Let ``receive`` return, from any thread, though nothing came."""
        with suppress(BlockingIOError):  # full of wakes already
            self._waker.send(b"w")

    def _take_wakes(self) -> bool:
        try:
            return bool(self._woken.recv(4096))
        except BlockingIOError:
            return False

    def send(self, report: Report) -> None:
        """Send what the socket takes; the rest waits and grows into the next message."""
        if self._held is not None:
            self._held.add(report)
        elif self._unsent:
            self._held = report
        else:
            self._unsent = encode(report)
        self._flush()

    def await_message(self, kind: type[MessageT]) -> MessageT:
        """Wait for the one message that comes before the loop. Raises TypeError for another."""
        message: object = self.receive(wait=True)[0]
        if not isinstance(message, kind):
            raise TypeError(f"expected {kind.__name__}, got {type(message).__name__}")
        return message

    def send_now(self, message: FromEngine) -> None:
        """Send outside of the loop, and wait until it is sent."""
        self._unsent += encode(message)
        while self._unsent:
            select.select((), (self._socket,), ())
            self._flush()

    def send_last(self, message: Ended) -> None:
        """Send from another thread, behind what the loop's thread began, which sends no more.

        The process is to end after that. Raises OSError when it is not sent within a second.
        """
        self._sending.acquire()
        self._socket.settimeout(_LAST_SECONDS)
        self._socket.sendall(self._unsent + encode(message))

    def _flush(self) -> None:
        with self._sending:
            while self._unsent:
                try:
                    sent = self._socket.send(self._unsent)
                except BlockingIOError:
                    return
                except OSError as error:
                    raise PeerGoneError from error
                self._unsent = self._unsent[sent:]
                if not self._unsent and self._held is not None:
                    self._unsent, self._held = encode(self._held), None

    def _read(self) -> Iterator[list[Any]]:
        while True:
            try:
                data = self._socket.recv(_CHUNK)
            except BlockingIOError:
                return
            except OSError as error:
                raise PeerGoneError from error
            if not data:
                raise PeerGoneError
            yield from map(decode, self._frames.feed(data))
            if len(data) < _CHUNK:
                return
