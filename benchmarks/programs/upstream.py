"""The upstream of the HTTP benchmarks: a chat server without a model, so cheap that it is no limit.

The request's ``metadata`` scripts the answer: ``seconds`` until the first token, ``tokens``,
``gap`` seconds after each, and ``id``, which the answer begins with. Without ``metadata`` the
answer comes at once: 120 words, or a stream of 40 tokens. ``GET /calls`` tells how many answers
were begun. It is written on an asyncio protocol: aiohttp would cost as much as what is measured.
"""

import asyncio
import sys
from functools import lru_cache
from typing import Any, cast

import orjson
import uvloop

_STREAM = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
)
_END = b"0\r\n\r\n"
_calls = 0


class Upstream(asyncio.Protocol):
    """One connection; a request ends before the next one begins."""

    def __init__(self) -> None:
        self._buffer = b""
        self._writable = asyncio.Event()
        self._writable.set()
        self._answer: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        if self._answer is not None:
            self._answer.cancel()

    def data_received(self, data: bytes) -> None:
        global _calls  # noqa: PLW0603 - one count for the process
        self._buffer += data
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0:
            return
        head = self._buffer[:end].lower()
        length = head.partition(b"content-length:")[2].partition(b"\r\n")[0]
        stop = end + 4 + int(length or 0)
        if len(self._buffer) < stop:
            return
        body, self._buffer = self._buffer[end + 4 : stop], self._buffer[stop:]
        if not head.startswith(b"post"):
            found = head.startswith(b"get /calls ")
            self._transport.write(_plain(str(_calls).encode(), 200 if found else 404))
            return
        _calls += 1
        request = orjson.loads(body)
        script = request.get("metadata") or {}
        if request.get("stream"):
            usage = bool((request.get("stream_options") or {}).get("include_usage"))
            self._answer = asyncio.create_task(self._write_stream(script, usage=usage))
        elif wait := _seconds(script):
            self._answer = asyncio.create_task(self._write_later(script, wait))
        else:
            self._transport.write(_answer(script.get("id", ""), int(script.get("tokens", 120))))

    async def _write_later(self, script: dict[str, str], wait: float) -> None:
        await asyncio.sleep(wait)
        self._transport.write(_answer(script.get("id", ""), int(script.get("tokens", 120))))

    async def _write_stream(self, script: dict[str, str], *, usage: bool) -> None:
        tokens, gap = int(script.get("tokens", 40)), float(script.get("gap", 0))
        if seconds := float(script.get("seconds", 0)):
            await asyncio.sleep(seconds)
        self._transport.write(_STREAM + _event(script.get("id", ""), role=True))
        for number in range(tokens):
            self._transport.write(_event(f" token{number}"))
            await self._writable.wait()
            await asyncio.sleep(gap)
        last = _event("", finish="stop") + (_usage(tokens) if usage else b"")
        self._transport.write(last + _chunk(b"data: [DONE]\n\n") + _END)


def _seconds(script: dict[str, str]) -> float:
    """Return how long a plain answer takes, in seconds."""
    return float(script.get("seconds", 0)) + int(script.get("tokens", 0)) * float(
        script.get("gap", 0)
    )


def _plain(body: bytes, status: int = 200) -> bytes:
    head = f"HTTP/1.1 {status} X\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
    return head.encode() + b"\r\n\r\n" + body


@lru_cache(4096)
def _answer(name: str, words: int) -> bytes:
    """Return a plain reply."""
    message = {"role": "assistant", "content": name + " answer" * words}
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}
    body = _common("chat.completion") | {"choices": [choice], "usage": _tokens(words)}
    return _plain(orjson.dumps(body))


@lru_cache(16_384)
def _event(content: str, *, role: bool = False, finish: str | None = None) -> bytes:
    """Return a chunk of a stream, as a chunk of HTTP."""
    delta: dict[str, str] = {"role": "assistant"} if role else {}
    if content or role:
        delta["content"] = content
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
    return _data(_common("chat.completion.chunk") | {"choices": [choice]})


@lru_cache(4096)
def _usage(tokens: int) -> bytes:
    return _data(_common("chat.completion.chunk") | {"choices": [], "usage": _tokens(tokens)})


def _common(kind: str) -> dict[str, Any]:
    return {"id": "chatcmpl-bench", "object": kind, "created": 1_700_000_000, "model": "bench"}


def _tokens(count: int) -> dict[str, int]:
    return {"prompt_tokens": 20, "completion_tokens": count, "total_tokens": 20 + count}


def _data(event: dict[str, Any]) -> bytes:
    return _chunk(b"data: " + orjson.dumps(event) + b"\n\n")


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


async def serve(port: int) -> asyncio.Server:
    """Return the upstream, which listens on 127.0.0.1:port."""
    return await asyncio.get_running_loop().create_server(Upstream, "127.0.0.1", port, backlog=2048)


async def _serve_forever(port: int) -> None:
    async with await serve(port) as server:
        await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(_serve_forever(int(sys.argv[1])))
