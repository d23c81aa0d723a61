"""The floor for a Python proxy: aiohttp on uvloop; read, parse, post to the upstream, reply."""

import sys
from collections.abc import AsyncIterator
from contextlib import suppress

import orjson
import uvloop
from aiohttp import ClientSession, TCPConnector, web

SESSION: web.AppKey[ClientSession] = web.AppKey("session")


def application(upstream: str) -> web.Application:
    """Return a proxy that forwards chat requests to ``upstream`` and looks at nothing."""

    async def handle(request: web.Request) -> web.StreamResponse:
        body = await request.read()
        streamed = orjson.loads(body).get("stream") is True
        headers = {"Content-Type": "application/json"}
        session = request.app[SESSION]
        async with session.post(upstream + request.path, data=body, headers=headers) as reply:
            if not streamed:
                answer = await reply.read()
                return web.Response(body=answer, content_type="application/json")
            response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
            with suppress(ConnectionResetError):  # the client has left
                await response.prepare(request)
                async for chunk in reply.content.iter_any():
                    await response.write(chunk)
                await response.write_eof()
            return response

    async def client(app: web.Application) -> AsyncIterator[None]:
        async with ClientSession(connector=TCPConnector(limit=0)) as session:
            app[SESSION] = session
            yield

    app = web.Application()
    app.router.add_post("/v1/chat/completions", handle)
    app.cleanup_ctx.append(client)
    return app


def main() -> None:
    """Serve on the port given, in front of the upstream given, until killed."""
    port, upstream = int(sys.argv[1]), sys.argv[2]
    uvloop.install()
    web.run_app(application(upstream), host="127.0.0.1", port=port, access_log=None, print=None)


if __name__ == "__main__":
    main()
