"""The gateway's side of the embeddings service. Imports no torch, faiss or numpy.

Laws: every exchange ends within its timeout, with a result or EmbeddingsUnavailable; calls in
flight and bytes waiting to be sent are bounded; a cancelled call leaves nothing behind, and its
late reply is dropped. A service that is down or stalled costs a call nothing after the first that
noticed: until the next attempt is due, calls fail at once.
"""

import asyncio
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, TypeVar

from embeddings.fields import ProtocolError
from embeddings.link import Link, LinkCongestedError, LinkLostError, open_link
from embeddings.messages import (
    Add,
    AskStatus,
    Done,
    Embed,
    IndexStatus,
    Match,
    Matches,
    Reason,
    Refused,
    Remove,
    Reply,
    Request,
    Scores,
    Search,
    Vectors,
    Verify,
)
from embeddings.protocol import MAX_PAIRS, MAX_TEXTS

__all__ = ["EmbeddingsClient", "EmbeddingsUnavailable", "IndexStatus", "Match", "Reason"]

_FIRST_BACKOFF_S: Final = 0.05
_LONGEST_BACKOFF_S: Final = 2.0
# Such a text fits a frame whatever its characters, and no encoder takes one as long.
_MOST_CHARACTERS: Final = 200_000
# Two such texts fit a frame together, and no verifier takes ones as long.
_MOST_CHARACTERS_OF_PAIR: Final = _MOST_CHARACTERS // 2
_KEYS_A_FRAME: Final = 512

R = TypeVar("R")
T = TypeVar("T")


class EmbeddingsUnavailable(Exception):  # noqa: N818 - the word of the gateway's interface
    """The call brought no result; the lookup is a miss. `reason` is the word to show and count."""

    def __init__(self, reason: Reason, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class EmbeddingsClient:
    """Calls the service over its unix socket; belongs to one event loop.

    `timeout` bounds each call in seconds, connecting included; `embed_timeout` does so for each
    frame of texts that only want their vectors; `max_in_flight` bounds the calls at a time.
    Connects when first called and again after a failure, with a growing pause between attempts.
    """

    def __init__(
        self,
        socket: Path | str,
        *,
        timeout: float = 1.0,
        embed_timeout: float = 30.0,
        max_in_flight: int = 256,
    ) -> None:
        self._socket = Path(socket)
        self._timeout = timeout
        self._embed_timeout = embed_timeout
        self._max_in_flight = max_in_flight
        self._in_flight = 0
        self._link: Link | None = None
        self._connecting: asyncio.Task[Link | OSError] | None = None
        self._backoff = _FIRST_BACKOFF_S
        self._retry_at = 0.0
        self._closed = False
        self._verifier_digest = ""

    @property
    def verifier_digest(self) -> str:
        """The verifier that made the latest scores or was in the latest status; "" for none."""
        return self._verifier_digest

    async def search(self, partition: bytes, text: str, k: int) -> list[Match]:
        """Return the up to `k` stored texts of `partition` nearest to `text`, nearest first."""
        reply = await self._call(Search(partition, _checked(text), k), Matches)
        return list(reply.matches)

    async def add(self, partition: bytes, key: bytes, text: str, expires_at: float) -> None:
        """Make `text` findable as `key` until `expires_at` (epoch seconds), in place of a former.

        Returns when the vector is on disk.
        """
        await self._call(Add(partition, key, _checked(text), expires_at), Done)

    async def embed(self, texts: Sequence[str]) -> list[Sequence[float]]:
        """Return the unit-length vector of each text, in order; nothing is stored.

        A text without a vector fails them all. Many texts go in several frames, one at a time: as
        few as may wait in front of somebody's search.
        """
        vectors: list[Sequence[float]] = []
        checked = [_checked(text) for text in texts]
        for frame in _frames(checked, list(map(len, checked)), MAX_TEXTS):
            reply = await self._call(Embed(frame), Vectors, self._embed_timeout)
            if len(reply.vectors) != len(frame):
                raise EmbeddingsUnavailable(Reason.ERROR, "not one vector for each text")
            vectors += reply.vectors
        return vectors

    async def score(self, pairs: Sequence[tuple[str, str]]) -> tuple[float, ...]:
        """Return for each pair the verifier's score, 0 to 1, that one answer fits both texts.

        A pair without a score fails them all: ask for one at a time where some may be without.
        """
        scores: list[float] = []
        checked = [(_checked(a, of_pair=True), _checked(b, of_pair=True)) for a, b in pairs]
        for frame in _frames(checked, [len(a) + len(b) for a, b in checked], MAX_PAIRS):
            reply = await self._call(Verify(frame), Scores)
            if len(reply.scores) != len(frame):
                raise EmbeddingsUnavailable(Reason.ERROR, "not one score for each pair")
            self._verifier_digest = reply.verifier_digest
            scores += reply.scores
        return tuple(scores)

    async def remove(self, keys: Sequence[bytes]) -> None:
        """Forget these keys; unknown ones are no error."""
        for start in range(0, len(keys), _KEYS_A_FRAME):
            await self._call(Remove(tuple(keys[start : start + _KEYS_A_FRAME])), Done)

    async def status(self) -> IndexStatus:
        """Return what the service has loaded; `ready` is False until it can answer."""
        status = await self._call(AskStatus(), IndexStatus)
        self._verifier_digest = status.verifier_digest
        return status

    async def close(self) -> None:
        """Close the connection; calls in flight and later ones raise EmbeddingsUnavailable."""
        self._closed = True
        if self._connecting is not None:
            await asyncio.wait([self._connecting])
        if self._link is not None:
            await self._link.close("the client was closed")

    async def _call(self, request: Request, expected: type[R], seconds: float | None = None) -> R:
        if self._in_flight >= self._max_in_flight:
            raise EmbeddingsUnavailable(Reason.OVERLOADED, f"{self._in_flight} calls in flight")
        self._in_flight += 1
        try:
            reply = await self._ask(request, self._timeout if seconds is None else seconds)
        except LinkCongestedError as error:
            raise EmbeddingsUnavailable(Reason.OVERLOADED, str(error)) from error
        except (ProtocolError, UnicodeEncodeError) as error:
            # Not `from error`: that one quotes the user's text.
            raise EmbeddingsUnavailable(
                Reason.ERROR, f"cannot be sent: {type(error).__name__}"
            ) from None
        finally:
            self._in_flight -= 1
        if isinstance(reply, Refused):
            raise EmbeddingsUnavailable(reply.reason, reply.message)
        if not isinstance(reply, expected):
            raise EmbeddingsUnavailable(Reason.ERROR, f"unexpected {type(reply).__name__}")
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
            raise EmbeddingsUnavailable(Reason.TIMEOUT, f"no reply within {seconds} s") from None
        except LinkLostError as error:
            self._pause(link)
            raise EmbeddingsUnavailable(Reason.UNAVAILABLE, str(error)) from error
        self._backoff = _FIRST_BACKOFF_S
        return reply

    async def _connected(self) -> Link:
        if self._closed:
            raise EmbeddingsUnavailable(Reason.UNAVAILABLE, "the client is closed")
        if self._link is not None and self._link.alive:
            return self._link
        if self._connecting is None:
            if asyncio.get_running_loop().time() < self._retry_at:
                raise EmbeddingsUnavailable(
                    Reason.UNAVAILABLE, "not connected, and the next attempt is not due yet"
                )
            self._connecting = asyncio.create_task(self._connect())
        # Shielded: a cancelled call must not take the attempt from the others that wait for it.
        connected = await asyncio.shield(self._connecting)
        if isinstance(connected, Link):
            return connected
        raise EmbeddingsUnavailable(
            Reason.UNAVAILABLE, f"cannot connect: {connected.strerror or connected}"
        )

    async def _connect(self) -> Link | OSError:
        try:
            async with asyncio.timeout(self._timeout):
                self._link = await open_link(self._socket)
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


def _frames(items: Sequence[T], sizes: Sequence[int], most: int) -> Iterator[tuple[T, ...]]:
    """Yield the items in groups of at most `most` that fit a frame; sizes are in characters."""
    frame: list[T] = []
    characters = 0
    for item, size in zip(items, sizes, strict=True):
        if frame and (len(frame) == most or characters + size > _MOST_CHARACTERS):
            yield tuple(frame)
            frame, characters = [], 0
        frame.append(item)
        characters += size
    if frame:
        yield tuple(frame)


def _checked(text: str, *, of_pair: bool = False) -> str:
    if not text.strip():
        raise EmbeddingsUnavailable(Reason.EMPTY_TEXT, "the text is empty")
    most = _MOST_CHARACTERS_OF_PAIR if of_pair else _MOST_CHARACTERS
    if len(text) > most:
        raise EmbeddingsUnavailable(Reason.TEXT_TOO_LONG, f"over {most} characters")
    return text
