"""The method QUERY (RFC 10008): the request of a POST, and caches on the way may keep its reply.

Law: a reply may be kept by its client alone, and only if it was found in the store here.
"""

import re

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from gateway.protocol.endpoint import Endpoint
from gateway.server.http.http_server import Refuse

_METHOD = "QUERY"
_JSON = "application/json"
_PATHS = frozenset(endpoint.value for endpoint in Endpoint)
_HIT = re.compile(r"refrain; hit; ttl=(-?\d+)(?:;[^,]*)?")
_WHO = "Authorization, api-key, x-api-key, OpenAI-Organization, OpenAI-Project"
"""Request headers that say whose answer it is."""


def serve_query(app: web.Application, refuse: Refuse) -> web.Application:
    """Return ``app``, which then takes QUERY on each path whose answers are cached."""
    app.middlewares.append(_middleware(refuse))
    # The head of a stream is out before a middleware gets the reply.
    app.on_response_prepare.append(_tell_caches)
    return app


def _middleware(refuse: Refuse) -> Middleware:
    @web.middleware
    async def as_post(request: web.Request, handler: Handler) -> web.StreamResponse:
        if not _is_query(request):
            return await handler(request)
        if request.content_type != _JSON:
            message = f"A QUERY request must be of the Content-Type {_JSON}."
            return refuse(415, message, "unsupported_media_type")
        post = await request.app.router.resolve(request.clone(method="POST"))
        return await post.handler(request)

    return as_post


def _is_query(request: web.BaseRequest) -> bool:
    return request.method == _METHOD and request.path in _PATHS


async def _tell_caches(request: web.Request, response: web.StreamResponse) -> None:
    if not _is_query(request):
        return
    headers = response.headers
    for name in ("Cache-Control", "Expires", "Pragma", "Accept-Query"):
        headers.popall(name, None)
    headers["Accept-Query"] = _JSON
    hit = _HIT.fullmatch(", ".join(headers.getall("Cache-Status", ())))
    if hit is None:
        headers["Cache-Control"] = "no-store"
        return
    # A cache on the way counts Age against it.
    lifetime = int(headers["Age"]) + int(hit[1])
    headers["Cache-Control"] = f"private, max-age={max(0, lifetime)}"
    headers.add("Vary", _WHO)
