"""The first step of every request and the last of every reply: its id, and refusals by the head.

The method QUERY (RFC 10008) is a POST whose reply caches on the way may keep. Law: only its client
may keep a reply, and only if it was found in the store here.
"""

import asyncio
import re

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from gateway.server.http.http_server import Refuse, leave_unread, refusal
from gateway.telemetry import request_id
from gateway.upstream.http_client import has_passed_here

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


STOPPING: web.AppKey[asyncio.Event] = web.AppKey("stopping")
"""Set once the server is to stop: it still answers, and asks its clients to go elsewhere."""

_LOOP = "This gateway has sent this request to itself: its upstream is the gateway."


def new_app(refuse: Refuse, *, client_max_size: int) -> web.Application:
    """Return an application whose requests meet this first."""
    app = web.Application(client_max_size=client_max_size, middlewares=[_middleware(refuse)])
    app[STOPPING] = asyncio.Event()
    return app


def _middleware(refuse: Refuse) -> Middleware:
    @web.middleware
    async def front(request: web.Request, handler: Handler) -> web.StreamResponse:
        headers = request.headers
        request_id.begin(headers)
        refused = refusal(request, refuse)
        if refused is None and "Via" in headers:
            refused = _loop(request, refuse)
        response = await handler(request) if refused is None else refused
        if "Content-Encoding" in headers:
            leave_unread(request, response)
        if not response.prepared:
            complete_head(request, response)
        return response

    return front


def _loop(request: web.Request, refuse: Refuse) -> web.Response | None:
    if any(map(has_passed_here, request.headers.getall("Via"))):
        return refuse(508, _LOOP, "loop_detected")
    return None


def complete_head(request: web.Request, response: web.StreamResponse) -> None:
    """Add what the head of every reply has. Who sends a stream calls it before the head is out."""
    headers = response.headers
    if request.method == METHOD:
        tell_caches(request, response)
    if request.app[STOPPING].is_set():
        response.force_close()
        headers["Connection"] = "close"
    if request_id.HEADER not in headers or request_id.HEADER in request.headers:
        headers[request_id.HEADER] = request_id.CURRENT.get()
    else:
        # The upstream's own, by which its operators find the request.
        request_id.adopt(headers)
