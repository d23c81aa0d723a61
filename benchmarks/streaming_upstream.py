"""An upstream that streams: it thinks for a while, then sends a token at a time.

``seconds`` and ``tokens`` in the request's metadata say how long and how many; ``GET /calls`` tells
how many generations were asked for.
"""

import asyncio
import sys
from itertools import count

import orjson
import uvloop
from aiohttp import web

GAP_SECONDS = 0.02


def _event(delta: dict[str, str], finish: str | None = None) -> bytes:
    chunk = {
        "id": "chatcmpl-bench",
        "object": "chat.completion.chunk",
        "created": 1_700_000_000,
        "model": "bench",
        "choices": [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}],
    }
    return b"data: " + orjson.dumps(chunk) + b"\n\n"


def application() -> web.Application:
    """Return the upstream."""
    calls = count()
    made = 0

    async def handle(request: web.Request) -> web.StreamResponse:
        nonlocal made
        made = next(calls) + 1
        asked = orjson.loads(await request.read())["metadata"]
        await asyncio.sleep(float(asked["seconds"]))
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(_event({"role": "assistant", "content": ""}))
        for number in range(int(asked["tokens"])):
            await response.write(_event({"content": f" token{number}"}))
            await asyncio.sleep(GAP_SECONDS)
        await response.write(_event({}, "stop"))
        await response.write(b"data: [DONE]\n\n")
        return response

    async def told(_request: web.Request) -> web.Response:
        return web.json_response(made)

    app = web.Application()
    app.router.add_post("/v1/chat/completions", handle)
    app.router.add_get("/calls", told)
    return app


def main() -> None:
    """Serve on the port given until killed."""
    uvloop.install()
    web.run_app(application(), host="127.0.0.1", port=int(sys.argv[1]), access_log=None, print=None)


if __name__ == "__main__":
    main()
