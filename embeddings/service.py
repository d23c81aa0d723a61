"""The embeddings service process: a unix socket in front of the text index.

It listens at once and answers "unavailable" until the encoder is loaded and warm and the vectors
are read back; `status` says which. It ends on SIGTERM, SIGINT, or when its parent is gone.
"""

import asyncio
import ctypes
import gc
import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Final, assert_never, cast

from embeddings.batching import OverloadedError
from embeddings.index.text_index import TextIndex, TextIndexSettings, open_text_index
from embeddings.index.vector_index import VectorIndexError
from embeddings.messages import (
    Add,
    AskStatus,
    Cancel,
    Done,
    Embed,
    IndexStatus,
    Message,
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
from embeddings.scoring import PairScores, open_pair_scores
from embeddings.wire import MAX_FRAME_BYTES, FrameReader, ProtocolError, decode, encode

MAX_IN_FLIGHT: Final = 1024
"""Requests of one connection."""

_SWEEP_PERIOD_S: Final = 30.0
# Names of glibc's.
_M_MMAP_THRESHOLD: Final = -3
_LARGE_BYTES: Final = 1 << 20
_NOT_READY: Final = IndexStatus()

_log = logging.getLogger(__name__)

Answer = Callable[[Request], Awaitable[Reply]]


class SocketError(Exception):
    """The service cannot listen where it was told to. One line, for people."""


class EmbeddingsService:
    """Answers requests with the text index and the verifier, once they are loaded."""

    def __init__(self) -> None:
        self._loaded: tuple[TextIndex, PairScores] | None = None

    def ready(self, texts: TextIndex, pairs: PairScores) -> None:
        """From now on answer from these."""
        self._loaded = texts, pairs
        loaded = texts.status()
        _log.info(
            "embeddings ready: %s, %d vectors in %s", loaded.encoder, loaded.vectors, loaded.index
        )

    async def answer(self, request: Request) -> Reply:
        """Carry out one request. Raises nothing but its own cancellation."""
        if self._loaded is None:
            if isinstance(request, AskStatus):
                return _NOT_READY
            return Refused(Reason.UNAVAILABLE, "the encoder is loading")
        try:
            return await _carry_out(*self._loaded, request)
        except OverloadedError as error:
            return Refused(Reason.OVERLOADED, str(error))
        except VectorIndexError as error:
            return Refused(error.reason, str(error))
        except Exception:  # noqa: BLE001 - this one request fails, the next is served
            _log.exception("%s failed", type(request).__name__)
            return Refused(Reason.ERROR, "internal error, see the log of the embeddings service")


async def _carry_out(texts: TextIndex, pairs: PairScores, request: Request) -> Reply:
    match request:
        case Search(partition, text, k):
            found = await texts.search(partition, text, k)
            return _no_vector(found) if isinstance(found, Reason) else found
        case Add(partition, key, text, expires_at):
            refusal = await texts.add(partition, key, text, expires_at)
            return Done() if refusal is None else _no_vector(refusal)
        case Embed(wanted):
            vectors = await texts.embed(wanted)
            return _no_vector(vectors) if isinstance(vectors, Reason) else Vectors.packed(vectors)
        case Verify(asked):
            scores = await pairs.score(asked)
            return _no_score(scores) if isinstance(scores, Reason) else Scores(pairs.digest, scores)
        case Remove(keys):
            await texts.remove(keys)
            return Done()
        case AskStatus():
            return replace(
                texts.status(),
                verifier=pairs.name,
                verifier_digest=pairs.digest,
                verifier_fault=pairs.fault,
            )
        case Cancel():
            return Done()
        case _:
            assert_never(request)


def _no_vector(reason: Reason) -> Refused:
    return Refused(reason, "the text has no vector")


def _no_score(reason: Reason) -> Refused:
    return Refused(reason, "the pair has no score")


class Connection(asyncio.Protocol):
    """Serves one client with `answer`, which must not raise; it is in `connections` while open.

    Laws: every request gets one reply unless its client cancelled it or went away; the requests in
    flight are bounded; a client that breaks the protocol is told once and cut off; a client that
    does not read its replies is not read from.
    """

    def __init__(self, answer: Answer, connections: "set[Connection]") -> None:
        self._answer = answer
        self._connections = connections
        self._frames = FrameReader(MAX_FRAME_BYTES)
        self._running: dict[int, asyncio.Task[None]] = {}

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._connections.add(self)

    def data_received(self, data: bytes) -> None:
        if self._transport.is_closing():
            return
        try:
            for request_id, message in map(decode, self._frames.feed(data)):
                self._take(request_id, message)
        except ProtocolError as error:
            _log.warning("client cut off: %s", error)
            self._reply(0, Refused(Reason.ERROR, str(error)))
            self._cancel()
            self._transport.close()

    def pause_writing(self) -> None:
        self._transport.pause_reading()

    def resume_writing(self) -> None:
        if not self._transport.is_closing():
            self._transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        if exc is not None:
            _log.debug("client gone: %s", exc)
        self._connections.discard(self)
        self._cancel()

    async def close(self) -> None:
        """Cut the client off; then nothing of the connection is left running."""
        self._transport.abort()
        self._cancel()
        await asyncio.gather(*self._running.values(), return_exceptions=True)

    def _cancel(self) -> None:
        for task in self._running.values():
            task.cancel()

    def _take(self, request_id: int, message: Message) -> None:
        if isinstance(message, Cancel):
            if (running := self._running.get(request_id)) is not None:
                running.cancel()
        elif not isinstance(message, Request):
            raise ProtocolError(f"{type(message).__name__} is no request")
        elif request_id in self._running:
            raise ProtocolError(f"request id {request_id} is in use")
        elif len(self._running) >= MAX_IN_FLIGHT:
            refused = Refused(Reason.OVERLOADED, f"{MAX_IN_FLIGHT} requests in flight")
            self._reply(request_id, refused)
        else:
            task = asyncio.create_task(self._serve_one(request_id, message))
            self._running[request_id] = task
            task.add_done_callback(lambda _: self._running.pop(request_id))

    async def _serve_one(self, request_id: int, request: Request) -> None:
        self._reply(request_id, await self._answer(request))

    def _reply(self, request_id: int, reply: Reply) -> None:
        if self._transport.is_closing():
            return
        try:
            frame = encode(request_id, reply)
        except ProtocolError as error:
            _log.error("a reply cannot be sent: %s", error)
            frame = encode(request_id, Refused(Reason.ERROR, "internal error"))
        self._transport.write(frame)


async def serve(
    path: Path, settings: TextIndexSettings, verifier: Path, *, leave_with_parent: bool
) -> None:
    """Serve on the unix socket `path` until told to stop; `verifier` is the directory of one.

    `leave_with_parent`: stop when stdin ends, which tells that the parent process is gone. Raises
    SocketError, ModelError, StoreError. Stopped while the encoder loads, it leaves that thread
    behind: an import cannot be interrupted.
    """
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    if leave_with_parent:
        _watch_parent(loop, stop)
    stopped = asyncio.create_task(stop.wait())
    service = EmbeddingsService()
    async with _listening(path, service):
        loading = asyncio.create_task(_load(settings, verifier))
        await asyncio.wait({loading, stopped}, return_when=asyncio.FIRST_COMPLETED)
        if not loading.done():
            return
        texts, pairs = loading.result()
        await asyncio.to_thread(give_free_memory_back)
        service.ready(texts, pairs)
        sweeping = asyncio.create_task(_sweep_for_ever(texts))
        await asyncio.wait({sweeping, stopped}, return_when=asyncio.FIRST_COMPLETED)
    sweeping.cancel()
    await texts.close()


async def _load(settings: TextIndexSettings, verifier: Path) -> tuple[TextIndex, PairScores]:
    texts, pairs = await asyncio.gather(
        open_text_index(settings, time.time),
        open_pair_scores(verifier, settings.encoder.lanes),
    )
    tell_verifier(pairs)
    return texts, pairs


def tell_verifier(pairs: PairScores) -> None:
    """Log which verifier is in use. To run without one is a misconfiguration."""
    if pairs.name:
        _log.info("verifier: %s", pairs.name)
        return
    _log.warning(
        "verifier: none, %s: there are no semantic hits; install Refrain anew, with its verifier",
        pairs.fault,
    )


async def _sweep_for_ever(texts: TextIndex) -> None:
    while True:
        await asyncio.sleep(_SWEEP_PERIOD_S)
        try:
            await texts.sweep()
        except (OverloadedError, VectorIndexError) as error:
            _log.warning("sweep put off: %s", error)
        except Exception:  # noqa: BLE001 - the service would end with this task
            _log.exception("sweep failed, and is tried again in %g s", _SWEEP_PERIOD_S)


def _watch_parent(loop: asyncio.AbstractEventLoop, stop: asyncio.Event) -> None:
    def wait_for_end() -> None:
        # A stdin that cannot be read, because it was closed, has ended as well.
        with suppress(OSError, ValueError):
            while os.read(sys.stdin.fileno(), 1024):
                pass
        loop.call_soon_threadsafe(stop.set)

    # A thread, since stdin may be a file that an event loop cannot wait on.
    threading.Thread(target=wait_for_end, name="parent-watch", daemon=True).start()


@asynccontextmanager
async def _listening(path: Path, service: EmbeddingsService) -> AsyncIterator[None]:
    connections: set[Connection] = set()
    server = await asyncio.get_running_loop().create_unix_server(
        lambda: Connection(service.answer, connections), sock=_bound(path)
    )
    try:
        yield
    finally:
        server.close()
        path.unlink(missing_ok=True)  # noqa: ASYNC240 - one system call, when all is over
        await asyncio.gather(*(connection.close() for connection in connections))


def _bound(path: Path) -> socket.socket:
    """Return a socket bound to `path`, for the owner only; a dead one's file is replaced."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_socket():
            _remove_dead(path)
        listener.bind(str(path))
        path.chmod(0o600)
    except OSError as error:
        listener.close()
        raise SocketError(f"cannot listen on {path}: {error.strerror or error}") from error
    return listener


def _remove_dead(path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink(missing_ok=True)
            return
    raise SocketError(f"another process listens on {path}")


def give_large_blocks_back() -> bool:
    """Have freed blocks from 1 MB on returned to the system. Return whether this C library does.

    glibc takes the first large block that is freed as a sign to keep all later ones. Vectors are
    copied when their partition outgrows its memory: what was kept of that took 3,840 bytes a
    vector instead of 1,850.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return False
    return bool(mallopt(_M_MMAP_THRESHOLD, _LARGE_BYTES))


def give_free_memory_back() -> bool:
    """Return what is free between blocks in use to the system. Return whether anything was.

    Each thread has memory of its own. Weights that were read, joined and packed in threads leave
    some 50 MB free there, which nothing would use again.
    """
    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):
        return False
    gc.collect()
    return bool(trim(0))
