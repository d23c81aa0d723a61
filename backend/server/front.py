"""What every request meets first and every reply last: its id, and refusals by the head alone."""

import asyncio

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from backend import request_id
from backend.server.http_server import Refuse, leave_unread, refusal

STOPPING: web.AppKey[asyncio.Event] = web.AppKey("stopping")
"""Set once the server is to stop: it still answers, and asks its clients to go elsewhere."""


def new_app(refuse: Refuse, *middlewares: Middleware, client_max_size: int) -> web.Application:
    """Return an application whose requests meet this, and then ``middlewares``."""
    app = web.Application(
        client_max_size=client_max_size, middlewares=[_middleware(refuse), *middlewares]
    )
    app[STOPPING] = asyncio.Event()
    app.on_response_prepare.append(_complete_head)
    return app


def _middleware(refuse: Refuse) -> Middleware:
    @web.middleware
    async def front(request: web.Request, handler: Handler) -> web.StreamResponse:
        request_id.begin(request.headers)
        refused = refusal(request, refuse)
        if refused is not None:
            return refused
        response = await handler(request)
        leave_unread(request, response)
        return response

    return front


async def _complete_head(request: web.Request, response: web.StreamResponse) -> None:
    headers = response.headers
    if request.app[STOPPING].is_set():
        response.force_close()
        headers["Connection"] = "close"
    # The upstream's own, by which its operators find the request.
    request_id.adopt(headers)
    if request_id.HEADER not in headers or request_id.HEADER in request.headers:
        headers[request_id.HEADER] = request_id.current()
