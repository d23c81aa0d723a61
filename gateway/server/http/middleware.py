"""The first step of every request and the last of every reply.

A request gets its id, and may be refused by its head. A reply's head is completed, and its body is
sent as it comes.

The method QUERY (RFC 10008) is a POST whose reply caches on the way may keep. Law: only its client
may keep a reply, and only if it was found in the store here.
"""

import asyncio
import logging
import re
from collections.abc import AsyncIterator

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from gateway.protocol.cache_status import Reason
from gateway.protocol.errors import ClientError, UpstreamError
from gateway.server.http.http_server import Refuse, leave_unread, refusal
from gateway.telemetry import request_id
from gateway.telemetry.observation import Observation
from gateway.upstream.http_client import has_passed_here
from policies.decision import Endpoint

log = logging.getLogger(__name__)

WRITTEN_AT_ONCE = 16_384
"""Bytes; a transport's buffer takes four times as many before it makes a writer wait."""

METHOD = "QUERY"
_JSON = "application/json"
_HIT = re.compile(r"refrain; hit; ttl=(-?\d+)(?:;[^,]*)?")
_WHO = "Authorization, api-key, x-api-key, OpenAI-Organization, OpenAI-Project"
"""Request headers that identify the client."""

_PATHS = frozenset(Endpoint)


def check_query(request: web.Request) -> None:
    """Raise ClientError if the body of a QUERY is not JSON."""
    if request.content_type != _JSON:
        message = f"A QUERY request must be of the Content-Type {_JSON}."
        raise ClientError(415, message, code="unsupported_media_type")


def _set_cache_headers(request: web.Request, response: web.StreamResponse) -> None:
    """Add to the reply to a QUERY which caches may keep it, and for how long."""
    if request.path not in _PATHS:
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
"""Set once the server is to stop: it still answers, and tells clients to close connections."""

_LOOP = "This gateway has sent this request to itself: its upstream is the gateway."


def new_app(refuse: Refuse, *, client_max_size: int) -> web.Application:
    """Return an application with this middleware in front."""
    app = web.Application(client_max_size=client_max_size, middlewares=[_middleware(refuse)])
    app[STOPPING] = asyncio.Event()
    return app


def _middleware(refuse: Refuse) -> Middleware:
    @web.middleware
    async def front(request: web.Request, handler: Handler) -> web.StreamResponse:
        headers = request.headers
        request_id.begin(headers)
        refused = refusal(request, refuse)
        if (
            refused is None
            and "Via" in headers
            and any(map(has_passed_here, headers.getall("Via")))
        ):
            refused = refuse(508, _LOOP, "loop_detected")
        response = await handler(request) if refused is None else refused
        if "Content-Encoding" in headers:
            leave_unread(request, response)
        if not response.prepared:
            _complete_head(request, response)
        return response

    return front


async def send_stream(
    request: web.Request,
    response: web.StreamResponse,
    body: AsyncIterator[bytes],
    seen: Observation,
    client_seconds: float,
) -> UpstreamError | None:
    """Send a reply with a streamed body. Return the fault with which the upstream broke off.

    ``client_seconds`` bounds each wait for the client. Once the head is out, only a connection that
    ends too early tells the client that the body is not whole.
    """
    fault: UpstreamError | None = None
    try:
        _complete_head(request, response)
        await response.prepare(request)
        async for chunk in body:
            seen.answer_bytes += len(chunk)
            if seen.first_token is None:
                seen.first_token = seen.clock()
            if _takes_at_once(request, chunk):
                await response.write(chunk)
                continue
            async with asyncio.timeout(client_seconds):
                await response.write(chunk)
        async with asyncio.timeout(client_seconds):
            await response.write_eof()
    except ConnectionResetError:
        reason = Reason.CLIENT_GONE
    except TimeoutError:
        reason = Reason.CLIENT_TIMEOUT
    except UpstreamError as error:
        reason, fault = error.reason, error
    except Exception:
        log.exception("a stream failed")
        reason = Reason.INTERNAL
    else:
        return None
    seen.end("error", reason)
    if request.transport is not None:
        request.transport.abort()
    return fault


def _takes_at_once(request: web.BaseRequest, chunk: bytes) -> bool:
    """Tell whether writing cannot wait: all written before has left, and this fits the buffer.

    A timer for each event costs half as much again as sending it.
    """
    transport = request.transport
    return (
        transport is not None
        and len(chunk) <= WRITTEN_AT_ONCE
        and transport.get_write_buffer_size() == 0
    )


def _complete_head(request: web.Request, response: web.StreamResponse) -> None:
    """Add what the head of every reply has."""
    headers = response.headers
    if request.method == METHOD:
        _set_cache_headers(request, response)
    if request.app[STOPPING].is_set():
        response.force_close()
        headers["Connection"] = "close"
    if request_id.HEADER not in headers or request_id.HEADER in request.headers:
        headers[request_id.HEADER] = request_id.CURRENT.get()
    else:
        # The upstream's own, by which its operators find the request.
        request_id.adopt(headers)
