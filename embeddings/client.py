"""The gateway's side of the embeddings service. Imports no torch, faiss or numpy.

Laws: every exchange ends within its timeout, with a result or SemanticUnavailableError; calls in
flight and bytes waiting to be sent are bounded; a cancelled call leaves nothing behind, and its
late reply is dropped. A service that is down or stalled costs a call nothing after the first that
noticed: until the next attempt is due, calls fail at once. Where the encoder has too much to do, a
search is given up at once, and additions wait.
"""

import asyncio
import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, TypeVar, cast

from embeddings.load_limit import LoadLimit
from embeddings.messages import (
    MAX_KEYS,
    MAX_TEXTS,
    Add,
    AskStatus,
    Cancel,
    Done,
    Embed,
    IndexStatus,
    Match,
    Matches,
    Message,
    Reason,
    Refused,
    Remove,
    Reply,
    Request,
    Scores,
    Search,
    SemanticUnavailableError,
    Vectors,
    Verify,
)
from embeddings.wire import (
    MAX_FRAME_BYTES,
    MAX_REQUEST_ID,
    FrameReader,
    ProtocolError,
    decode,
    encode,
)

_FIRST_BACKOFF_S: Final = 0.05
_LONGEST_BACKOFF_S: Final = 2.0
# Such a text fits a frame whatever its characters, and no encoder takes one as long.
_MOST_CHARACTERS: Final = 200_000
# Two such texts fit a frame together, and no verifier takes ones as long.
_MOST_CHARACTERS_OF_PAIR: Final = _MOST_CHARACTERS // 2
_MOST_UNSENT_BYTES: Final = 1 << 22
# Additions at a time. A text whose search was given up has no vector yet and waits for a free
# encoder, so such texts have places of their own.
_MOST_ADDITIONS: Final = 32
_MOST_SLOW_ADDITIONS: Final = 8
_MOST_SKIPPED: Final = 4096

R = TypeVar("R")


class LinkLostError(Exception):
    """The connection ended, or the service broke the protocol."""


class Link(asyncio.Protocol):
    """One connection: many requests in flight, told apart by id.

    Once lost it stays lost: all that wait get LinkLostError.
    """

    def __init__(self) -> None:
        self._frames = FrameReader(MAX_FRAME_BYTES)
        self._ids = itertools.count(1)
        self._pending: dict[int, asyncio.Future[Reply]] = {}
        self._gone = asyncio.Event()
        self.lost: str | None = None
        """Why no request can be sent any more."""
        self.replies = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        try:
            for request_id, message in map(decode, self._frames.feed(data)):
                self._take(request_id, message)
        except ProtocolError as error:
            self.abort(f"ProtocolError: {error}")

    def connection_lost(self, exc: Exception | None) -> None:
        self.abort("the embeddings service closed the connection" if exc is None else str(exc))
        self._gone.set()

    async def ask(self, request: Request) -> Reply:
        """Send a request and return its reply.

        Cancelled, it tells the service that nobody waits. Raises LinkLostError, and ProtocolError
        for a request that may not be sent.
        """
        if self.lost is not None:
            raise LinkLostError(self.lost)
        if self._transport.get_write_buffer_size() > _MOST_UNSENT_BYTES:
            message = f"over {_MOST_UNSENT_BYTES} bytes wait to be sent"
            raise SemanticUnavailableError(Reason.OVERLOADED, message)
        request_id = next(self._ids) & MAX_REQUEST_ID
        frame = encode(request_id, request)
        answered: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self._pending[request_id] = answered
        self._transport.write(frame)
        try:
            return await answered
        finally:
            if self._pending.pop(request_id, None) is not None:
                self._transport.write(encode(request_id, Cancel()))

    def abort(self, why: str) -> None:
        """Give the connection up; those who wait get LinkLostError with `why`."""
        if self.lost is None:
            self.lost = why
            self._transport.abort()
            pending, self._pending = self._pending, {}
            for answered in pending.values():
                if not answered.done():
                    answered.set_exception(LinkLostError(why))

    async def close(self, why: str) -> None:
        """Abort, and return when nothing of the connection is left running."""
        self.abort(why)
        await self._gone.wait()

    def _take(self, request_id: int, message: Message) -> None:
        if isinstance(message, Request):
            raise ProtocolError("a request where replies are expected")
        self.replies += 1
        answered = self._pending.pop(request_id, None)
        if answered is not None and not answered.done():
            answered.set_result(message)


class EmbeddingsClient:
    """Calls the service over its unix socket; belongs to one event loop.

    `timeout` bounds each call in seconds, connecting included. `long_timeout` does so for texts
    that only want their vectors, and for additions, which wait for a free encoder. `max_in_flight`
    bounds the calls at a time; `max_wait` is how long a search may wait for others.
    Connects when first called and again after a failure, with a growing pause between attempts.
    """

    def __init__(
        self,
        socket: Path | str,
        *,
        timeout: float = 1.0,
        long_timeout: float = 30.0,
        max_in_flight: int = 256,
        max_wait: float = 0.05,
    ) -> None:
        self._socket = Path(socket)
        self._timeout = timeout
        self._long_timeout = long_timeout
        self._max_in_flight = max_in_flight
        self._in_flight = 0
        self._searches = LoadLimit(max_wait)
        self._skipped: dict[int, None] = {}
        """Hashes of the latest texts whose search was given up, with their partitions."""
        self._additions = asyncio.Semaphore(_MOST_ADDITIONS)
        self._slow_additions = asyncio.Semaphore(_MOST_SLOW_ADDITIONS)
        self._link: Link | None = None
        self._connecting: asyncio.Task[Link | OSError] | None = None
        self._backoff = _FIRST_BACKOFF_S
        self._retry_at = 0.0
        self._closed = False
        self.latest = IndexStatus()
        """The latest status of a service that was ready."""
        self.verifier: str | None = None
        """Digest of the verifier in the latest status or scores; "" for none, None until known."""

    @property
    def name(self) -> str:
        """The encoder's name; empty until it is loaded."""
        return self.latest.encoder

    @property
    def digest(self) -> str:
        """Digest of all that shapes a vector, hex; empty until the encoder is loaded."""
        return self.latest.digest

    @property
    def verifier_name(self) -> str:
        return self.latest.verifier

    @property
    def verifier_fault(self) -> str:
        return self.latest.verifier_fault

    async def search(self, partition: bytes, text: str, k: int) -> list[Match]:
        """Return the up to `k` stored texts of `partition` nearest to `text`, nearest first."""
        search, searches = Search(partition, _checked(text), k), self._searches
        if not searches.begin():
            self._skipped[hash((partition, text))] = None
            if len(self._skipped) > _MOST_SKIPPED:
                del self._skipped[next(iter(self._skipped))]
            raise SemanticUnavailableError(Reason.BUSY, f"{searches.under_way} searches under way")
        waited: float | None = None
        try:
            reply = await self._call(search, Matches)
            waited = reply.waited
        except SemanticUnavailableError as error:
            waited = self._timeout if error.reason == Reason.TIMEOUT else None
            raise
        finally:
            searches.end(waited)
        return list(reply.matches)

    async def add(self, partition: bytes, key: bytes, text: str, expires_at: float) -> None:
        """Make `text` findable as `key` until `expires_at` (epoch seconds), in place of a former.

        Returns when the vector is on disk.
        """
        add, skipped = Add(partition, key, _checked(text), expires_at), hash((partition, text))
        is_slow = skipped in self._skipped
        async with self._slow_additions if is_slow else self._additions:
            await self._call(add, Done, self._long_timeout)
        self._skipped.pop(skipped, None)

    async def embed(self, texts: Sequence[str]) -> list[Sequence[float]]:
        """Return the unit-length vector of each text, in order; nothing is stored.

        A text without a vector fails them all. Many texts go in several frames, one at a time: as
        few as may wait in front of somebody's search.
        """
        vectors: list[Sequence[float]] = []
        for frame in _frames([_checked(text) for text in texts]):
            reply = await self._call(Embed(frame), Vectors, self._long_timeout)
            if len(reply.rows) != len(frame):
                raise SemanticUnavailableError(Reason.ERROR, "not one vector for each text")
            try:
                vectors += reply.unpacked()
            except ValueError as error:
                raise SemanticUnavailableError(Reason.ERROR, str(error)) from error
        return vectors

    async def score(self, asked: str, stored: str) -> float:
        """Return the verifier's score, 0 to 1, that one answer fits both texts."""
        pair = _checked(asked, _MOST_CHARACTERS_OF_PAIR), _checked(stored, _MOST_CHARACTERS_OF_PAIR)
        reply = await self._call(Verify((pair,)), Scores)
        if len(reply.scores) != 1:
            raise SemanticUnavailableError(Reason.ERROR, "not one score for a pair")
        self.verifier = reply.verifier_digest
        return reply.scores[0]

    async def remove(self, keys: Sequence[bytes]) -> None:
        """Forget these keys; unknown ones are no error."""
        for start in range(0, len(keys), MAX_KEYS):
            await self._call(Remove(tuple(keys[start : start + MAX_KEYS])), Done)

    async def status(self) -> IndexStatus:
        """Return what the service has loaded; `ready` is False until it can answer."""
        status = await self._call(AskStatus(), IndexStatus)
        if status.ready:
            self.latest, self.verifier = status, status.verifier_digest
        return status

    async def not_ready(self) -> str | None:
        """Return why the encoder is not loaded and warm, None where it is."""
        try:
            return None if (await self.status()).ready else "encoder: loading"
        except SemanticUnavailableError as error:
            return f"encoder: {error.reason}"

    async def close(self) -> None:
        """Close the connection; calls in flight and later ones raise SemanticUnavailableError."""
        self._closed = True
        if self._connecting is not None:
            await asyncio.wait([self._connecting])
        if self._link is not None:
            await self._link.close("the client was closed")

    async def _call(self, request: Request, expected: type[R], seconds: float | None = None) -> R:
        if self._in_flight >= self._max_in_flight:
            raise SemanticUnavailableError(Reason.OVERLOADED, f"{self._in_flight} calls in flight")
        self._in_flight += 1
        try:
            reply = await self._ask(request, self._timeout if seconds is None else seconds)
        except ProtocolError as error:
            raise SemanticUnavailableError(Reason.ERROR, f"cannot be sent: {error}") from error
        finally:
            self._in_flight -= 1
        if isinstance(reply, Refused):
            raise SemanticUnavailableError(reply.reason, reply.message)
        if not isinstance(reply, expected):
            raise SemanticUnavailableError(Reason.ERROR, f"unexpected {type(reply).__name__}")
        return reply

    async def _ask(self, request: Request, seconds: float) -> Reply:
        link: Link | None = None
        replies = 0
        try:
            async with asyncio.timeout(seconds):
                link = await self._connected()
                replies = link.replies
                reply = await link.ask(request)
        except TimeoutError:
            if link is not None and link.replies == replies:
                # Not one reply to anybody all the while: it has stalled, and later calls need not
                # find out for themselves.
                link.abort("the embeddings service has stalled")
                self._pause(link)
            raise SemanticUnavailableError(Reason.TIMEOUT, f"no reply within {seconds} s") from None
        except LinkLostError as error:
            self._pause(link)
            raise SemanticUnavailableError(Reason.UNAVAILABLE, str(error)) from error
        self._backoff = _FIRST_BACKOFF_S
        return reply

    async def _connected(self) -> Link:
        if self._closed:
            raise SemanticUnavailableError(Reason.UNAVAILABLE, "the client is closed")
        if self._link is not None and self._link.lost is None:
            return self._link
        if self._connecting is None:
            if asyncio.get_running_loop().time() < self._retry_at:
                raise SemanticUnavailableError(
                    Reason.UNAVAILABLE, "not connected, and the next attempt is not due yet"
                )
            self._connecting = asyncio.create_task(self._connect())
        # Shielded: a cancelled call must not take the attempt from the others that wait for it.
        connected = await asyncio.shield(self._connecting)
        if isinstance(connected, Link):
            return connected
        raise SemanticUnavailableError(
            Reason.UNAVAILABLE, f"cannot connect: {connected.strerror or connected}"
        )

    async def _connect(self) -> Link | OSError:
        try:
            async with asyncio.timeout(self._timeout):
                loop = asyncio.get_running_loop()
                _, self._link = await loop.create_unix_connection(Link, str(self._socket))
        except OSError as error:  # TimeoutError is one
            self._pause(self._link)
            return error
        else:
            return self._link
        finally:
            self._connecting = None

    def _pause(self, failed: Link | None) -> None:
        """Put the next attempt off, once for each connection that failed."""
        if failed is not self._link:
            return
        self._link = None
        self._retry_at = asyncio.get_running_loop().time() + self._backoff
        self._backoff = min(2 * self._backoff, _LONGEST_BACKOFF_S)


def _frames(texts: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """Yield the texts in groups that fit a frame."""
    frame: list[str] = []
    characters = 0
    for text in texts:
        if frame and (len(frame) == MAX_TEXTS or characters + len(text) > _MOST_CHARACTERS):
            yield tuple(frame)
            frame, characters = [], 0
        frame.append(text)
        characters += len(text)
    if frame:
        yield tuple(frame)


def _checked(text: str, most: int = _MOST_CHARACTERS) -> str:
    if not text.strip():
        raise SemanticUnavailableError(Reason.EMPTY_TEXT, "the text is empty")
    if len(text) > most:
        raise SemanticUnavailableError(Reason.TEXT_TOO_LONG, f"over {most} characters")
    return text
