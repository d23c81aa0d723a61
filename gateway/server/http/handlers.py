"""aiohttp's side of the gateway: requests in, replies out, every fault in OpenAI's error form."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from math import ceil
from time import perf_counter
from typing import Any

import orjson
from aiohttp import web
from multidict import CIMultiDict

from gateway.protocol.cache_status import Forwarded, ForwardStatus, Reason, refused_header
from gateway.protocol.errors import (
    ClientError,
    RequestError,
    UnauthorizedError,
    UpstreamError,
    error_body,
)
from gateway.protocol.headers import fold_fields
from gateway.protocol.messages import Reply
from gateway.protocol.request import read_request
from gateway.server.auth import Access
from gateway.server.http.hot_connection import HotConnection
from gateway.server.http.http_server import read_body
from gateway.server.http.middleware import METHOD, STOPPING, check_query, send_stream
from gateway.server.http.pass_through import PassThrough
from gateway.server.pipeline import Pipeline
from gateway.telemetry import request_id
from gateway.telemetry.observation import Observation, Sink
from gateway.upstream.request import UPSTREAM, format_upstream_header
from policies.decision import Endpoint

log = logging.getLogger(__name__)

HOLDER = web.RequestKey("holder", str)
"""The holder of a request's gateway key, if gateway keys are in use."""

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass(frozen=True, slots=True)
class Readiness:
    """Asks every check; ``details`` are shown but do not make the gateway unready."""

    checks: Sequence[Callable[[], Awaitable[str | None]]]
    """Each returns why a part is not ready yet, or None."""
    details: Callable[[], dict[str, Any]]

    async def report(self) -> dict[str, Any]:
        """Return ``{"status": "ready" | "starting", "reasons": [...], ...details}``."""
        reasons = [reason for check in self.checks if (reason := await check()) is not None]
        status = "starting" if reasons else "ready"
        return {"status": status, "reasons": reasons, **self.details()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Handlers:
    """HTTP handlers; ``add_routes`` is their table.

    ``client_seconds`` bounds the wait for a client: for its whole body, and for it to read what
    was written. ``names`` are the upstreams' names in errors.
    """

    pipeline: Pipeline
    pass_through: PassThrough
    readiness: Readiness
    metrics: Callable[[], tuple[bytes, str]]
    sinks: tuple[Sink, ...]
    trace: Callable[[Observation, Mapping[str, str]], None] | None
    access: Access
    client_seconds: float
    names: Mapping[str, str]

    def add_routes(self, app: web.Application) -> None:
        """Register every path the gateway answers."""
        router = app.router
        for endpoint in Endpoint:
            post = self._observe(endpoint.value, self._endpoint_handler(endpoint))
            router.add_post(endpoint.value, post)
            router.add_route(METHOD, endpoint.value, post)
        router.add_get("/healthz", _healthz)
        router.add_get("/readyz", self._readyz)
        router.add_get("/metrics", self._metrics_page)
        other = self._observe("/v1/*", self.pass_through.handle)
        router.add_route("*", "/v1/{tail:.*}", other)
        router.add_route("*", "/{tail:.*}", _not_found)

    def _observe(
        self,
        endpoint: str,
        handle: Callable[[web.Request, Observation], Awaitable[web.StreamResponse]],
    ) -> Handler:
        """Wrap a handler: each outcome is observed, and each error has OpenAI's form."""

        async def handler(request: web.Request) -> web.StreamResponse:
            seen = Observation(endpoint, perf_counter(), perf_counter, self.sinks)
            if self.trace is not None:
                self.trace(seen, request.headers)
            try:
                self._authenticate(request)
                return await handle(request, seen)
            except RequestError as error:
                return _error_response(error, seen, self.names)
            except asyncio.CancelledError:
                seen.end("error", Reason.CLIENT_GONE)
                raise
            except Exception:
                # A defect of the gateway: the client still gets an error in OpenAI's form.
                log.exception("a request failed")
                seen.end("error", Reason.INTERNAL, 500)
                message = "The gateway had an internal error while processing your request."
                body = error_body(message, "server_error", None, Reason.INTERNAL.value)
                return _json(500, body, refused_header(Reason.INTERNAL))
            finally:
                seen.finish()

        return handler

    def _authenticate(self, request: web.Request) -> None:
        """Check the gateway key, if keys are in use. Raises UnauthorizedError."""
        if self.access.restricted:
            holder = self.access.holder(fold_fields(request.headers.items()))
            if holder is not None:
                request[HOLDER] = holder

    def _endpoint_handler(
        self, endpoint: Endpoint
    ) -> Callable[[web.Request, Observation], Awaitable[web.StreamResponse]]:
        async def handle(request: web.Request, seen: Observation) -> web.StreamResponse:
            if request.method == METHOD:
                check_query(request)
            raw = await self._read(request)
            seen.request_bytes = len(raw)
            headers = request.headers.items()
            parsed = read_request(
                endpoint,
                raw,
                headers=fold_fields(headers),
                fields=headers,
                target=request.path_qs,
                holder=request.get(HOLDER),
            )
            reply = await self.pipeline.answer(parsed, seen)
            if isinstance(reply.body, bytes):
                seen.answer_bytes = len(reply.body)
                if seen.first_token is None:
                    seen.first_token = seen.clock()
                if reply.fresh_until is not None:
                    _remember(request, reply, seen)
                return web.Response(
                    body=reply.body, status=reply.status, headers=CIMultiDict(reply.headers)
                )
            try:
                response = web.StreamResponse(
                    status=reply.status, headers=CIMultiDict(reply.headers)
                )
                await send_stream(request, response, reply.body, seen, self.client_seconds)
                return response
            finally:
                reply.close()

        return handle

    async def _read(self, request: web.Request) -> bytes:
        try:
            return await read_body(request, self.client_seconds)
        except web.HTTPRequestEntityTooLarge:
            message = "The body of your request is larger than this gateway accepts."
            raise ClientError(413, message, code="request_too_large") from None
        except TimeoutError:
            raise ClientError(408, "Your request's body did not come in time.") from None
        except web.RequestPayloadError:
            raise ClientError(400, "The body of your request could not be decoded.") from None

    async def _readyz(self, request: web.Request) -> web.Response:
        report = await self.readiness.report()
        if request.app[STOPPING].is_set():
            report |= {"status": "stopping", "reasons": ["the gateway was told to stop"]}
        return _json(200 if report["status"] == "ready" else 503, report)

    async def _metrics_page(self, _request: web.Request) -> web.Response:
        page, content_type = self.metrics()
        return web.Response(body=page, headers={"Content-Type": content_type})


def _remember(request: web.BaseRequest, reply: Reply, seen: Observation) -> None:
    """Let the connection answer the next request with the same bytes by itself."""
    connection = request.protocol
    if isinstance(connection, HotConnection) and seen.hit is not None:
        connection.reader.remember(seen.endpoint, seen.rule, seen.hit.entry, reply)


def _json(status: int, value: dict[str, Any], cache_status: str | None = None) -> web.Response:
    headers = {"Cache-Status": cache_status} if cache_status is not None else None
    body = orjson.dumps(value)
    return web.Response(body=body, status=status, content_type="application/json", headers=headers)


def refuse(status: int, message: str, code: str) -> web.Response:
    """Return the reply to a request that no handler sees, see ``http_server``."""
    kind = "invalid_request_error" if status < HTTPStatus.INTERNAL_SERVER_ERROR else "server_error"
    reply = _json(
        status,
        error_body(message, kind, None, code),
        refused_header(Reason.INVALID_REQUEST),
    )
    reply.headers[request_id.HEADER] = request_id.current()
    return reply


def _error_response(
    error: RequestError, seen: Observation, names: Mapping[str, str]
) -> web.Response:
    seen.status = error.status
    if isinstance(error, UpstreamError):
        forward = seen.forward or ForwardStatus(Forwarded.BYPASS)
        seen.end("error", error.reason)
        response = _json(error.status, error.body(), forward.header(declined=error.reason))
        if error.retry_after is not None:
            response.headers["Retry-After"] = str(ceil(error.retry_after))
        seen.tried = error.tried
        if error.tried:
            tried = tuple((names.get(name, name), reason) for name, reason in error.tried)
            response.headers[UPSTREAM] = format_upstream_header("", tried)
        return response
    reason = error.reason if isinstance(error, ClientError) else Reason.INVALID_REQUEST
    seen.end("invalid", reason)
    response = _json(error.status, error.body(), refused_header(reason))
    if isinstance(error, UnauthorizedError):
        response.headers["WWW-Authenticate"] = "Bearer"
    return response


async def _healthz(_request: web.Request) -> web.Response:
    return _json(200, {"status": "alive"})


async def _not_found(request: web.Request) -> web.Response:
    message = f"Unknown request URL: {request.method} {request.path}."
    body = error_body(message, "invalid_request_error", None, "unknown_url")
    return _json(404, body, refused_header(Reason.INVALID_REQUEST))
