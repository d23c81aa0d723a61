"""Bytes of header values outside ASCII arrive as they came, both ways and on every path."""

import asyncio
from contextlib import asynccontextmanager

import orjson
import pytest

from scripted_upstream import completion

ODD = b"Caf\xe9 Z\xc3\xbcrich \xff\x80 \xed\xb3\xa9"
EVENT = {
    "id": "c",
    "object": "chat.completion.chunk",
    "created": 1,
    "model": "m",
    "choices": [
        {"index": 0, "delta": {"role": "assistant", "content": "hi"}, "finish_reason": "stop"}
    ],
}
EVENTS = b"data: " + orjson.dumps(EVENT) + b"\n\ndata: [DONE]\n\n"
REQUESTS = {
    "chat": (b"POST", b"/v1/chat/completions", b""),
    "stream": (b"POST", b"/v1/chat/completions", b"stream"),
    "odd": (b"POST", b"/v1/chat/completions?a=b", b"Expect: 100-continue\r\n"),
    "passed": (b"GET", b"/v1/files", b""),
    "posted": (b"POST", b"/v1/moderations", b""),
}


class OddUpstream:
    """Answers with an odd header, and keeps the heads that it got."""

    def __init__(self):
        self.heads = []

    async def __call__(self, reader, writer):
        while (head := await head_of(reader)) is not None:
            body = await reader.readexactly(length_of(head))
            if b"/v1/chat" in head or b"/v1/files" in head or b"/v1/moderations" in head:
                self.heads.append(head)
            kind, reply = b"application/json", orjson.dumps(completion("hi"))
            if b'"stream":true' in body:
                kind, reply = b"text/event-stream", EVENTS
            head = b"HTTP/1.1 200 OK\r\nContent-Type: %b\r\nX-Title: %b\r\n" % (kind, ODD)
            writer.write(head + b"Content-Length: %d\r\n\r\n%b" % (len(reply), reply))
        writer.close()


async def head_of(reader):
    try:
        return await reader.readuntil(b"\r\n\r\n")
    except (asyncio.IncompleteReadError, ConnectionError):
        return None


def length_of(head):
    lines = head.lower().split(b"\r\n")
    return next((int(line[15:]) for line in lines if line.startswith(b"content-length:")), 0)


@asynccontextmanager
async def served(upstream):
    server = await asyncio.start_server(upstream, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"


async def ask(gateway, name):
    """Return the head of the reply to a request with an odd header."""
    method, path, more = REQUESTS[name]
    fields = {"model": "m", "messages": [{"role": "user", "content": name}]}
    fields |= {"stream": True} if more == b"stream" else {}
    body = orjson.dumps(fields) if method == b"POST" else b""
    more = b"" if more == b"stream" else more
    host, port = gateway.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(
        b"%b %b HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nX-Title: %b\r\n"
        b"Connection: close\r\n%bContent-Length: %d\r\n\r\n%b"
        % (method, path, ODD, more, len(body), body)
    )
    reply = await reader.read()
    writer.close()
    return reply


@pytest.mark.parametrize("count", [1, 2], ids=["only", "pool"])
@pytest.mark.parametrize("name", REQUESTS)
async def test_the_bytes_of_a_header_arrive_as_they_came(start_gateway, name, count):
    upstream = OddUpstream()
    async with served(upstream) as one, served(upstream) as other:
        gateway = await start_gateway(upstream=(one, other)[:count])
        reply = await ask(gateway, name)
        assert b"\r\nX-Title: " + ODD + b"\r\n" in upstream.heads[-1]
        assert b"\r\nx-title: " + ODD + b"\r\n" in reply.replace(b"X-Title", b"x-title")
        if name in ("chat", "stream"):
            assert b"hit" in await ask(gateway, name)
        await gateway.stop()
