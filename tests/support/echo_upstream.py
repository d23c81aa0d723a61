"""A process that is an OpenAI-compatible upstream: every answer repeats the question.

Prints its port on a line of its own once it listens, and counts its calls at GET /calls.
"""

import asyncio

from aiohttp import web

from scripted_upstream import ScriptedUpstream


async def serve() -> None:
    scripted = ScriptedUpstream()

    async def calls(_request: web.Request) -> web.Response:
        return web.json_response(scripted.calls)

    app = web.Application()
    app.router.add_post("/v1/chat/completions", scripted.handle)
    app.router.add_post("/v1/completions", scripted.handle)
    app.router.add_get("/calls", calls)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    print(runner.addresses[0][1], flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(serve())
