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
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus

from aiohttp import web
from aiohttp.http import StreamWriter
from aiohttp.typedefs import Handler, Middleware
from multidict import CIMultiDict

from gateway.protocol.errors import ClientError, UpstreamError, is_anthropic
from gateway.protocol.http.cache_status import Reason
from gateway.protocol.http.messages import Parts
from gateway.protocol.http.paths import ApiPath
from gateway.server.http.cors import CORS, OWN_ERROR
from gateway.server.http.http_server import Refuse, is_websocket, refusal
from gateway.server.http.unread import PIECE, UNREAD, Sink, Unread, send_whole, split
from gateway.server.keys.key_line import Key
from gateway.server.keys.limiter import Permit
from gateway.telemetry import request_id
from gateway.telemetry.observation import Observation
from gateway.upstream.wire.http_client import has_passed_here
from policies.decision import Endpoint

log = logging.getLogger(__name__)

METHOD = "QUERY"
_JSON = "application/json"
_HIT = re.compile(r"refrain; hit; ttl=(-?\d+)(?:;[^,]*)?")
_WHO = "Authorization, api-key, x-api-key, OpenAI-Organization, OpenAI-Project"
"""Request headers that identify the client."""

_PATHS = frozenset(Endpoint)
SUBPROTOCOLS = "Sec-WebSocket-Protocol"
_BROWSER_KEY = "openai-insecure-api-key."


def check_query(request: web.Request) -> None:
    """Raise ClientError if the body of a QUERY is not JSON."""
    if request.content_type != _JSON:
        message = f"A QUERY request must be of the Content-Type {_JSON}."
        raise ClientError(415, message, code="unsupported_media_type")


def fault_of_body(error: Exception) -> ClientError:
    """Return what a client gets whose body cannot be read."""
    match error:
        case web.HTTPRequestEntityTooLarge():
            message = "The body of your request is larger than this gateway accepts."
            return ClientError(413, message, code="request_too_large")
        case TimeoutError():
            return ClientError(408, "Your request's body did not come in time.")
        case _:
            return ClientError(400, "The body of your request could not be decoded.")


def _set_cache_headers(request: web.Request, response: web.StreamResponse) -> None:
    """Add to the reply to a QUERY which caches may keep it, and for how long."""
    if PATH not in request or request[PATH].path not in _PATHS:
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

REPLACED: web.AppKey[asyncio.Event] = web.AppKey("replaced")
"""Set before STOPPING if another process goes on in its place: the gateway stays ready."""

KEY = web.RequestKey("key", Key)
"""The gateway key of a request, if gateway keys are in use."""

PATH = web.RequestKey("path", ApiPath)
"""What the path of a request means, if it is one of the API."""

PERMIT = web.RequestKey("permit", Permit)
"""Of a request whose key has limits."""

_LOOP = "This gateway has sent this request to itself: its upstream is the gateway."


def new_app(refuse: Refuse, unread: Unread, *, client_max_size: int) -> web.Application:
    """Return an application with this middleware in front."""
    app = web.Application(client_max_size=client_max_size, middlewares=[_middleware(refuse)])
    app[UNREAD] = unread
    app[STOPPING], app[REPLACED] = asyncio.Event(), asyncio.Event()
    return app


def with_key_of_browser(request: web.Request) -> web.Request:
    """Return a request with the key that a subprotocol has in ``Authorization``, if there is none.

    Browsers cannot send another header with a WebSocket. The subprotocol goes no further.
    """
    offered = subprotocols(request)
    keys = [each.removeprefix(_BROWSER_KEY) for each in offered if each.startswith(_BROWSER_KEY)]
    if not keys:
        return request
    headers = request.headers.copy()
    headers.popall(SUBPROTOCOLS)
    if kept := [each for each in offered if not each.startswith(_BROWSER_KEY)]:
        headers[SUBPROTOCOLS] = ", ".join(kept)
    headers.setdefault("Authorization", f"Bearer {keys[0]}")
    return request.clone(headers=headers)


def subprotocols(request: web.Request) -> list[str]:
    """Return what a handshake offers."""
    lines = request.headers.getall(SUBPROTOCOLS, ())
    return [each.strip() for line in lines for each in line.split(",")]


def _middleware(refuse: Refuse) -> Middleware:
    @web.middleware
    async def front(request: web.Request, handler: Handler) -> web.StreamResponse:
        if is_websocket(request):
            request = with_key_of_browser(request)
        headers = request.headers
        request_id.begin(headers)
        own = partial(refuse, path=request.path) if is_anthropic(request.path) else refuse
        refused = refusal(request, own)
        if (
            refused is None
            and "Via" in headers
            and any(map(has_passed_here, headers.getall("Via")))
        ):
            refused = own(508, _LOOP, "loop_detected")
        if refused is not None:
            request[OWN_ERROR] = True
        response = await handler(request) if refused is None else refused
        if response.prepared:
            return response
        if "Origin" in headers and (cors := request.app.get(CORS)) is not None:
            await cors.complete(request, response)
        body = response.body if isinstance(response, web.Response) else None
        if isinstance(body, bytes) and len(body) > PIECE and request.method != "HEAD":
            return await _send_long(request, response, body)
        _complete_head(request, response)
        return response

    return front


async def _send_long(
    request: web.Request, response: web.StreamResponse, body: bytes
) -> web.StreamResponse:
    """Send a reply in pieces, and return it."""
    sent = web.StreamResponse(
        status=response.status, reason=response.reason, headers=response.headers
    )
    sent.content_length = len(body)
    if response.keep_alive is False:
        sent.force_close()
    await send_whole(ResponseSink(request, sent), body, request.app[UNREAD])
    return sent


@dataclass(frozen=True, slots=True, eq=False)
class ResponseSink:
    """Writes by aiohttp's response."""

    request: web.Request
    response: web.StreamResponse

    @property
    def unread(self) -> Unread:
        return self.request.app[UNREAD]

    async def begin(self) -> None:
        if "Origin" in self.request.headers and (cors := self.request.app.get(CORS)) is not None:
            cors.complete_stream(self.request, self.response)
        _complete_head(self.request, self.response)
        await self.response.prepare(self.request)

    async def write(self, data: bytes | memoryview) -> None:
        async with asyncio.timeout(self.unread.seconds):
            await self.response.write(data)
        self.unread.note_progress(self)

    async def end(self) -> None:
        async with asyncio.timeout(self.unread.seconds):
            await self.response.write_eof()

    def abort(self) -> None:
        if self.request.transport is not None:
            self.request.transport.abort()


async def send_stream(
    sink: Sink, body: AsyncIterator[bytes], seen: Observation
) -> UpstreamError | None:
    """Send a streamed reply. Return the fault with which the upstream broke off."""
    fault: UpstreamError | None = None
    try:
        await sink.begin()
        async for chunk in body:
            seen.note_sent(len(chunk))
            await sink.write(chunk)
        await sink.end()
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
    sink.abort()
    return fault


async def send_long(sink: Sink, body: bytes | Parts, seen: Observation, unread: Unread) -> None:
    """Send a long reply that is whole."""
    if isinstance(body, bytes):
        seen.note_sent(0, whole=True)
        body = Parts(split(body))
    unread.hold(sink, body.held)
    try:
        await send_stream(sink, body, seen)
    finally:
        unread.release(sink)


class _ByteWriter(StreamWriter):
    """Writes the bytes of header values as they came; aiohttp leaves out invalid UTF-8."""

    async def write_headers(self, status_line: str, headers: CIMultiDict[str]) -> None:
        await super().write_headers(status_line, headers)
        lines = (f"{name}: {value}" for name, value in headers.items())
        head = "\r\n".join((status_line, *lines, "", ""))
        self._headers_buf = head.encode(errors="surrogateescape")


def _complete_head(request: web.Request, response: web.StreamResponse) -> None:
    headers = response.headers
    if not "".join(headers.values()).isascii():
        request._payload_writer = _ByteWriter(request.protocol, asyncio.get_running_loop())  # noqa: SLF001 - there is no other way
    if request.method == METHOD:
        _set_cache_headers(request, response)
    if is_websocket(request):
        if response.status != HTTPStatus.SWITCHING_PROTOCOLS:  # as ``is_websocket`` says
            response.force_close()
    elif request.app[STOPPING].is_set():
        response.force_close()
        headers["Connection"] = "close"
    if (permit := request.get(PERMIT)) is not None:
        fields = permit.label(tuple(headers.items()))
        headers.clear()
        headers.extend(fields)
    if request_id.HEADER not in headers or request_id.HEADER in request.headers:
        headers[request_id.HEADER] = request_id.CURRENT.get()
    else:
        # The upstream's own, by which its operators find the request.
        request_id.adopt(headers)
