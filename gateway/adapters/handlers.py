"""aiohttp's side of the gateway: requests in, replies out, every fault in OpenAI's error form."""

import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, aclosing
from typing import Any, cast

import orjson
from aiohttp import ClientResponse, web
from multidict import CIMultiDict

from gateway.adapters.readiness import Readiness
from gateway.adapters.upstream_http import HttpUpstream
from gateway.core.errors import RequestError, UpstreamError, error_body
from gateway.core.status import Forwarded, ForwardStatus
from gateway.core.types import Endpoint, Reason
from gateway.exchange import Inbound, Reply
from gateway.forwarding import forwarded_headers
from gateway.observation import Observation
from gateway.pipeline import Pipeline

log = logging.getLogger(__name__)

Begin = Callable[[str, web.BaseRequest], Observation]
"""Starts the observation of one request: (endpoint, request)."""

_CONNECTION_HEADERS = frozenset({"transfer-encoding", "connection", "keep-alive", "content-length"})


class Handlers:
    """HTTP handlers; ``add_routes`` is their table."""

    def __init__(
        self,
        pipeline: Pipeline,
        upstream: HttpUpstream,
        readiness: Readiness,
        metrics: Callable[[], tuple[bytes, str]],
        begin: Begin,
    ) -> None:
        self._pipeline = pipeline
        self._upstream = upstream
        self._readiness = readiness
        self._metrics = metrics
        self._begin = begin

    def add_routes(self, app: web.Application) -> None:
        """Register every path the gateway answers."""
        router = app.router
        for endpoint in Endpoint:
            router.add_post(endpoint.value, self._cached(endpoint))
        router.add_get("/healthz", self._healthz)
        router.add_get("/readyz", self._readyz)
        router.add_get("/metrics", self._metrics_page)
        router.add_route("*", "/v1/{tail:.*}", self._pass_through)
        router.add_route("*", "/{tail:.*}", _not_found)

    def _cached(self, endpoint: Endpoint) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
        async def handle(request: web.Request) -> web.StreamResponse:
            seen = self._begin(endpoint.value, request)
            try:
                raw = await request.read()
                inbound = Inbound(request.path_qs, request.headers, raw)
                reply = await self._pipeline.answer(endpoint, inbound, seen)
                if isinstance(reply.body, bytes):
                    seen.mark_first_token()
                    return _whole(reply)
                async with reply.resources or AsyncExitStack():
                    return await _stream(request, reply, reply.body, seen)
            except web.HTTPRequestEntityTooLarge:
                seen.status = 413
                return _too_large()
            except RequestError as error:
                seen.status = error.status
                return _error(error, seen)
            finally:
                seen.finish()

        return handle

    async def _pass_through(self, request: web.Request) -> web.StreamResponse:
        """Forward anything else below /v1 as it is, in both directions."""
        headers = forwarded_headers(request.headers)
        if (encoding := request.headers.get("Accept-Encoding")) is not None:
            headers.append(("Accept-Encoding", encoding))
        body = _request_body(request) if request.can_read_body else None
        try:
            async with self._upstream.request(
                request.method, request.path_qs, headers, body, decode=False
            ) as upstream:
                return await self._copy(request, upstream)
        except UpstreamError as error:
            return _error(error, None)

    async def _copy(self, request: web.Request, upstream: ClientResponse) -> web.StreamResponse:
        response = web.StreamResponse(status=upstream.status, reason=upstream.reason)
        for name, value in upstream.headers.items():
            if name.lower() not in _CONNECTION_HEADERS:
                response.headers.add(name, value)
        response.content_length = upstream.content_length
        await response.prepare(request)
        try:
            async for chunk in self._upstream.body(upstream):
                await response.write(chunk)
            await response.write_eof()
        except UpstreamError as error:
            # The head is out: only a broken connection can tell the client.
            log.warning("%s", error)
            if request.transport is not None:
                request.transport.abort()
        return response

    async def _healthz(self, _request: web.Request) -> web.Response:
        return _json(200, {"status": "alive"})

    async def _readyz(self, _request: web.Request) -> web.Response:
        report = await self._readiness.report()
        return _json(200 if report["status"] == "ready" else 503, report)

    async def _metrics_page(self, _request: web.Request) -> web.Response:
        page, content_type = self._metrics()
        return web.Response(body=page, headers={"Content-Type": content_type})


async def _request_body(request: web.Request) -> AsyncIterator[bytes]:
    async for chunk in request.content.iter_any():
        yield chunk


def _whole(reply: Reply) -> web.Response:
    return web.Response(
        body=cast("bytes", reply.body), status=reply.status, headers=CIMultiDict(reply.headers)
    )


async def _stream(
    request: web.Request, reply: Reply, body: AsyncIterator[bytes], seen: Observation
) -> web.StreamResponse:
    response = web.StreamResponse(status=reply.status, headers=CIMultiDict(reply.headers))
    async with aclosing(cast("Any", body)):
        try:
            await response.prepare(request)
            async for chunk in body:
                await response.write(chunk)
            await response.write_eof()
        except ConnectionResetError:
            seen.outcome, seen.reason = "error", Reason.CLIENT_GONE
    return response


def _json(status: int, value: dict[str, Any]) -> web.Response:
    return web.Response(body=orjson.dumps(value), status=status, content_type="application/json")


def _error(error: RequestError, seen: Observation | None) -> web.Response:
    response = _json(error.status, error.body())
    if isinstance(error, UpstreamError) and seen is not None:
        forwarded = Forwarded.BYPASS if seen.outcome == "bypass" else Forwarded.MISS
        response.headers["Cache-Status"] = ForwardStatus(forwarded, error.reason).header()
        seen.outcome, seen.reason = "error", error.reason
    return response


def _too_large() -> web.Response:
    message = "The body of your request is larger than this gateway accepts."
    body = error_body(message, "invalid_request_error", None, "request_too_large")
    return _json(413, body)


async def _not_found(request: web.Request) -> web.Response:
    message = f"Unknown request URL: {request.method} {request.path}."
    return _json(404, error_body(message, "invalid_request_error", None, "unknown_url"))
