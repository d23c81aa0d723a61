"""The method QUERY (RFC 10008): the request of a POST, and caches on the way may keep its reply.

Law: a reply may be kept by its client alone, and only if it was found in the store here.
"""

import re

from aiohttp import web
from aiohttp.typedefs import Handler

from gateway.server.http.http_server import Refuse

METHOD = "QUERY"
_JSON = "application/json"
_HIT = re.compile(r"refrain; hit; ttl=(-?\d+)(?:;[^,]*)?")
_WHO = "Authorization, api-key, x-api-key, OpenAI-Organization, OpenAI-Project"
"""Request headers that say whose answer it is."""

_ANSWERED = web.RequestKey("query", bool)


def as_query(post: Handler, refuse: Refuse) -> Handler:
    """Return the handler of QUERY on a path whose POST is handled by ``post``."""

    async def query(request: web.Request) -> web.StreamResponse:
        request[_ANSWERED] = True
        if request.content_type != _JSON:
            message = f"A QUERY request must be of the Content-Type {_JSON}."
            return refuse(415, message, "unsupported_media_type")
        return await post(request)

    return query


def tell_caches(request: web.Request, response: web.StreamResponse) -> None:
    """Say in the reply to a QUERY who may keep it, and for how long."""
    if _ANSWERED not in request:
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
