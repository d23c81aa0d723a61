"""An upstream that says any bytes: what no HTTP library would send."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import orjson

from scripted_upstream import completion

Says = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]

JSON = b"Content-Type: application/json\r\n"
EVENTS = b"Content-Type: text/event-stream\r\n"


class RawUpstream:
    """Does what ``says`` does after each request, or ``at_once``; counts requests but for lists."""

    def __init__(self, says: Says, *, at_once: bool = False) -> None:
        self.says = says
        self.at_once = at_once
        self.calls = 0
        self.url = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            if self.at_once:
                await self.says(reader, writer)
            while head := (await reader.readuntil(b"\r\n\r\n")).lower():
                length = head.partition(b"content-length:")[2].partition(b"\r\n")[0]
                await reader.readexactly(int(length or b"0"))
                self.calls += b"/models " not in head  # a pool reads the lists at start
                await self.says(reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


StartRaw = Callable[..., Awaitable[RawUpstream]]


@asynccontextmanager
async def raw_servers() -> AsyncIterator[StartRaw]:
    """Start upstreams, and close all their connections at the end."""
    servers: list[asyncio.Server] = []
    tasks: set[asyncio.Task[None]] = set()

    async def start(says: Says, *, at_once: bool = False) -> RawUpstream:
        upstream = RawUpstream(says, at_once=at_once)

        def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.create_task(upstream.serve(reader, writer))
            tasks.add(task)
            task.add_done_callback(tasks.discard)

        server = await asyncio.start_server(connected, "127.0.0.1", 0, limit=2**26)
        servers.append(server)
        upstream.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
        return upstream

    yield start
    for server in servers:
        server.close()
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def whole(
    body: bytes, fields: bytes = b"", *, status: bytes = b"200 OK", kind: bytes = JSON
) -> bytes:
    """Return a reply with its length."""
    length = b"Content-Length: %d\r\n" % len(body)
    return b"HTTP/1.1 " + status + b"\r\n" + kind + length + fields + b"\r\n" + body


def answer(text: str) -> bytes:
    """Return the body of a plain answer."""
    return orjson.dumps(completion(text))


def sends(reply: bytes) -> Says:
    """Send a reply as it is."""

    async def says(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(reply)

    return says
