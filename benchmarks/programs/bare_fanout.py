"""The floor for a fan-out in Python: aiohttp on uvloop, one call, a list of pieces, one event.

It parses and hashes the request as a cache must, and does nothing else: no policy, no scan, no
store, no parsing of the stream, no bound of any wait.
"""

import asyncio
import hashlib
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import orjson
import uvloop
from aiohttp import ClientSession, web


@dataclass
class _Flight:
    pieces: list[bytes] = field(default_factory=list)
    over: bool = False
    news: asyncio.Event = field(default_factory=asyncio.Event)

    def tell(self) -> None:
        news, self.news = self.news, asyncio.Event()
        news.set()


def application(upstream: str) -> web.Application:
    """Return a server that makes one call for all who ask the same at the same time."""
    flights: dict[bytes, _Flight] = {}
    calls: set[asyncio.Task[None]] = set()

    async def call(key: bytes, body: bytes, flight: _Flight, session: ClientSession) -> None:
        async with session.post(upstream, data=body) as reply:
            async for piece in reply.content.iter_any():
                flight.pieces.append(piece)
                flight.tell()
        flight.over = True
        flight.tell()
        del flights[key]

    async def handle(request: web.Request) -> web.StreamResponse:
        body = await request.read()
        asked = orjson.loads(body)
        key = hashlib.sha256(orjson.dumps(asked, option=orjson.OPT_SORT_KEYS)).digest()
        flight = flights.get(key)
        if flight is None:
            flight = flights[key] = _Flight()
            task = asyncio.create_task(call(key, body, flight, request.app[_SESSION]))
            calls.add(task)
            task.add_done_callback(calls.discard)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        position = 0
        while True:
            if position < len(flight.pieces):
                piece = b"".join(flight.pieces[position:])
                position = len(flight.pieces)
                await response.write(piece)
            elif flight.over:
                return response
            else:
                await flight.news.wait()

    async def session(app: web.Application) -> AsyncIterator[None]:
        async with ClientSession() as session:
            app[_SESSION] = session
            yield

    app = web.Application()
    app.cleanup_ctx.append(session)
    app.router.add_post("/v1/chat/completions", handle)
    return app


_SESSION = web.AppKey("session", ClientSession)


def main() -> None:
    """Serve on the port given, in front of the upstream's URL, until killed."""
    uvloop.install()
    url = f"{sys.argv[2]}/chat/completions"
    port = int(sys.argv[1])
    web.run_app(application(url), host="127.0.0.1", port=port, access_log=None, print=None)


if __name__ == "__main__":
    main()
