"""A model server whose answers depend on question and tenant alone, and that fails as it is told.

A mood decides what becomes of a request. Each writes raw bytes, because no HTTP library would send
most of them.
"""

import asyncio
import hashlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import orjson

from scripted_upstream import completion, stream_of

GARBAGE = "grbg"
"""Stands in bytes that are no answer: who gets them unchanged sees that they are none."""

_WORDS = (  # noqa: SIM905 - thirty-two lines of one word each read worse
    "amber basil cedar dune ember fern grove heath iris jade kelp lark maple nettle oak pine quartz"
    " reed sage thyme umber vine willow yarrow zinnia clover birch aspen holly ivy lotus moss"
).split()


def words(number: int, count: int) -> str:
    """Return words that stand for a number: no digits, which might look like personal data."""
    found = []
    for _ in range(count):
        number, at = divmod(number, len(_WORDS))
        found.append(_WORDS[at])
    return " ".join(found)


def answer(question: str, tenant: str) -> str:
    """Return the only right answer; the two ways to ask the same question have the same one."""
    asked = question.replace("How can I ", "How do I ")
    digest = hashlib.sha256(f"{tenant}\0{asked}".encode()).digest()
    return f"For {tenant}, {asked} {words(int.from_bytes(digest, 'big'), 50)}."


@dataclass(frozen=True)
class Request:
    """One request, and where its reply is written."""

    body: dict[str, Any]
    tenant: str
    writer: asyncio.StreamWriter

    @property
    def streams(self) -> bool:
        """Whether the client asked for a stream."""
        return bool(self.body.get("stream"))

    @property
    def pieces(self) -> list[bytes]:
        """The right answer: the events of a stream, or one body."""
        text = answer(self.body["messages"][-1]["content"], self.tenant)
        if self.streams:
            return stream_of(text)
        return [orjson.dumps(completion(text))]

    def head(self, status: str = "200 OK", length: int | None = None, fields: str = "") -> None:
        """Write a head; without a length, the body comes in chunks."""
        kind = "text/event-stream" if self.streams and status == "200 OK" else "application/json"
        framing = "Transfer-Encoding: chunked" if length is None else f"Content-Length: {length}"
        head = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\n{framing}\r\n{fields}\r\n"
        self.writer.write(head.encode())

    def chunk(self, data: bytes) -> None:
        """Write a piece of a body; an empty one ends it."""
        self.writer.write(b"%x\r\n%b\r\n" % (len(data), data))

    def refuse(self, status: str, fields: str = "") -> None:
        """Write an error in OpenAI's form."""
        error = {"message": status, "type": "server_error", "param": None, "code": None}
        body = orjson.dumps({"error": error})
        self.head(status, len(body), fields)
        self.writer.write(body)


Mood = Callable[[Request], Awaitable[None]]


async def healthy(request: Request) -> None:
    """Answer whole."""
    request.head()
    for piece in request.pieces:
        request.chunk(piece)
        await request.writer.drain()
    request.chunk(b"")


def late(seconds: float) -> Mood:
    """Answer whole, after a while."""

    async def mood(request: Request) -> None:
        await asyncio.sleep(seconds)
        await healthy(request)

    return mood


async def stalls(request: Request) -> None:
    """Say nothing at all."""
    del request
    await asyncio.Event().wait()


def _half(request: Request) -> bytes:
    whole = b"".join(request.pieces)
    return whole[: len(whole) // 2]


async def stalls_midway(request: Request) -> None:
    """Send half of the answer, then nothing."""
    request.head()
    request.chunk(_half(request))
    await asyncio.Event().wait()


async def resets_midway(request: Request) -> None:
    """Send half of the answer, then break the connection."""
    request.head()
    request.chunk(_half(request))
    await request.writer.drain()
    request.writer.transport.abort()


async def closes_early(request: Request) -> None:
    """End a stream half-way as if it were whole; close a plain reply before its length."""
    half = _half(request)
    if request.streams:
        request.head()
        request.chunk(half)
        request.chunk(b"")
        return
    request.head(length=2 * len(half))
    request.writer.write(half)
    await request.writer.drain()
    request.writer.close()


async def drips(request: Request) -> None:
    """Answer whole, a few bytes at a time."""
    request.head()
    whole = b"".join(request.pieces)
    for at in range(0, len(whole), 97):
        request.chunk(whole[at : at + 97])
        await request.writer.drain()
        await asyncio.sleep(0.001)
    request.chunk(b"")


def refuses(*statuses: str, fields: str = "") -> Mood:
    """Refuse with each status in turn."""
    turn = 0

    async def mood(request: Request) -> None:
        nonlocal turn
        turn += 1
        request.refuse(statuses[turn % len(statuses)], fields)

    return mood


async def babbles(request: Request) -> None:
    """Say what is not HTTP."""
    request.writer.write(f"{GARBAGE} \x00\x01 {GARBAGE}\r\n\r\n".encode())
    await request.writer.drain()
    request.writer.close()


async def answers_garbage(request: Request) -> None:
    """Say what is HTTP, and neither JSON nor events."""
    body = f'{{"{GARBAGE}": [,,'.encode()
    request.head()
    request.chunk(body)
    request.chunk(b"")


class FaultyUpstream:
    """Serves on a port of its own, which it keeps when it goes and comes back."""

    def __init__(self) -> None:
        self.mood: Mood = healthy
        self.port = 0
        self.calls = 0
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        """Where it is."""
        return f"http://127.0.0.1:{self.port}/v1"

    async def start(self) -> None:
        """Listen."""
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Go, with all connections."""
        assert self._server is not None
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            while not writer.is_closing():
                await self._serve(reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        except asyncio.CancelledError:
            writer.transport.abort()
        finally:
            self._tasks.discard(task)
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        first, *lines = head.split("\r\n")
        fields = {name.lower(): text for name, _, text in (line.partition(": ") for line in lines)}
        body = await reader.readexactly(int(fields.get("content-length", "0")))
        tenant = fields.get("authorization", "nobody").removeprefix("Bearer ")
        request = Request(orjson.loads(body or b"{}"), tenant, writer)
        if not first.startswith("POST"):  # a probe: many servers answer it while all else fails
            request.head(length=2)
            writer.write(b"{}")
            return
        self.calls += 1
        mood = asyncio.ensure_future(self.mood(request))
        # Who says nothing learns only so that the gateway has left.
        left = asyncio.ensure_future(reader.read(1))
        await asyncio.wait({mood, left}, return_when=asyncio.FIRST_COMPLETED)
        ended = mood.done()
        for each in (mood, left):
            each.cancel()
        told, _ = await asyncio.gather(mood, left, return_exceptions=True)
        if not ended or isinstance(told, ConnectionError):
            raise ConnectionResetError
        if isinstance(told, Exception):
            raise told
