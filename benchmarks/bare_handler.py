"""The floor for a Python gateway: aiohttp on uvloop, orjson; parse, hash, look up, reply."""

import hashlib
import sys

import orjson
import uvloop
from aiohttp import web


def application(answer: bytes) -> web.Application:
    """Return the smallest cache there is: every question has ``answer`` from the second time."""
    stored: dict[bytes, bytes] = {}

    async def handle(request: web.Request) -> web.Response:
        body = orjson.loads(await request.read())
        key = hashlib.sha256(orjson.dumps(body, option=orjson.OPT_SORT_KEYS)).digest()
        if (hit := stored.get(key)) is None:
            hit = stored[key] = answer
        return web.Response(body=hit, content_type="application/json")

    app = web.Application()
    app.router.add_post("/v1/chat/completions", handle)
    return app


def main() -> None:
    """Serve on the port given until killed; every answer has the size given."""
    port, size = int(sys.argv[1]), int(sys.argv[2])
    uvloop.install()
    web.run_app(application(b"x" * size), host="127.0.0.1", port=port, access_log=None, print=None)


if __name__ == "__main__":
    main()
