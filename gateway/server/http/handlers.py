"""aiohttp's side of the gateway: requests in, replies out, every fault in OpenAI's error form."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from http import HTTPStatus
from math import ceil
from time import perf_counter
from typing import Any

import orjson
from aiohttp import web
from multidict import CIMultiDict

from gateway.protocol.endpoints.registry import SPECS
from gateway.protocol.errors import ClientError, RequestError, UnauthorizedError, UpstreamError
from gateway.protocol.http.cache_status import Forwarded, ForwardStatus, Reason, refused_header
from gateway.protocol.http.headers import Fields, as_json, fold_fields
from gateway.protocol.http.messages import Parts, Reply, declared_name
from gateway.protocol.http.paths import ApiPath, read_path
from gateway.protocol.named_models import models_in, models_in_head
from gateway.protocol.request import LARGE_BYTES, CacheRequest, read_request
from gateway.server.hot_path import PlainRequest
from gateway.server.http.cors import CORS, OWN_ERROR, Cors, is_preflight
from gateway.server.http.hot_connection import NO_BODY, HotConnection
from gateway.server.http.http_server import read_body
from gateway.server.http.middleware import (
    KEY,
    METHOD,
    PATH,
    PERMIT,
    REPLACED,
    STOPPING,
    ResponseSink,
    check_query,
    fault_of_body,
    send_long,
    send_stream,
)
from gateway.server.http.pass_through import PassThrough
from gateway.server.http.pings import (
    PATIENCE,
    LateReply,
    Patience,
    PingedSink,
    message_start,
    reply_in_time,
)
from gateway.server.http.unread import PIECE, Sink
from gateway.server.keys.auth import Access
from gateway.server.keys.key_line import Key
from gateway.server.keys.limiter import LimitError, Permit
from gateway.server.keys.usage_sync import UsageSync
from gateway.server.open.telemetry import Trace
from gateway.server.pipeline import Pipeline
from gateway.telemetry import request_id
from gateway.telemetry.observation import Observation, Outcome
from gateway.telemetry.observation import Sink as Telemetry
from gateway.upstream.request import UPSTREAM, format_upstream_header, with_model
from policies.decision import Endpoint

log = logging.getLogger(__name__)

OTHER_PATHS = "/v1/*"
"""Stands for the paths that are passed through."""

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
    was written. ``stopping`` tells whether clients are to leave. ``names`` are the upstreams'
    names in errors.
    """

    pipeline: Pipeline
    pass_through: PassThrough
    readiness: Readiness
    metrics: Callable[[], Awaitable[tuple[bytes, str]]]
    sinks: tuple[Telemetry, ...]
    trace: Trace | None
    access: Access
    usage_sync: UsageSync
    stopping: Callable[[], bool]
    client_seconds: float
    names: Mapping[str, str]
    default_model: str = ""
    """The model of requests that name none, empty if they stay as they are."""
    patience: Patience = PATIENCE

    def add_routes(self, app: web.Application) -> None:
        app[CORS] = Cors(self.pass_through.ask_options, perf_counter)
        router = app.router
        router.add_get("/healthz", _healthz)
        router.add_get("/readyz", self._readyz)
        router.add_get("/metrics", self._metrics_page)
        router.add_route("*", r"/{tail:[\s\S]*}", self._api(app[CORS]))

    def _api(self, cors: Cors) -> Handler:
        other = self._observe(OTHER_PATHS, self.pass_through.handle)
        preflight = self._observe(OTHER_PATHS, cors.preflight, is_open=True)
        cached = {
            each.value: self._observe(each.value, self._endpoint_handler(each)) for each in Endpoint
        }

        async def handler(request: web.Request) -> web.StreamResponse:
            raw = request.path_qs.partition("?")[0]
            try:
                path = request[PATH] = read_path(raw)
            except ClientError as error:
                request[OWN_ERROR] = True
                if not raw.startswith("/v1/") or is_preflight(request):
                    return _response(refusal_of(error, raw))
                request[PATH] = ApiPath(raw)
                return await self._observe(OTHER_PATHS, _raising(error))(request)
            if is_preflight(request):
                return await preflight(request)
            asks = request.method in ("POST", METHOD)
            return await (cached.get(path.path, other) if asks else other)(request)

        return handler

    def _observe(
        self,
        endpoint: str,
        handle: Callable[[web.Request, Observation], Awaitable[web.StreamResponse]],
        *,
        is_open: bool = False,
    ) -> Handler:
        """Wrap a handler: each outcome is observed, and each error has OpenAI's form.

        If it ``is_open``, no key is needed.
        """

        async def handler(request: web.Request) -> web.StreamResponse:
            seen = self._begin(endpoint, request.headers, request.method)
            permit: Permit | None = None
            try:
                if self.access.restricted and not is_open:
                    key = self.access.key(fold_fields(request.headers.items()))
                    if key is not None:
                        request[KEY] = key
                        if endpoint == OTHER_PATHS:
                            key.check_other_path(request.method, request[PATH].path)
                        if (permit := self.usage_sync.begin(key)) is not None:
                            request[PERMIT] = permit
                return await handle(request, seen)
            except asyncio.CancelledError:
                seen.end("error", Reason.CLIENT_GONE)
                raise
            except Exception as error:  # noqa: BLE001 - each becomes a reply
                request[OWN_ERROR] = True
                return _response(_failure(error, seen, self.names, request[PATH].path))
            finally:
                _finish(seen, permit)

        return handler

    def _begin(
        self, endpoint: str, headers: Mapping[str, str], method: str, size: int = 0
    ) -> Observation:
        started = perf_counter()
        trace = None if self.trace is None else self.trace(started, perf_counter, headers)
        return Observation(endpoint, started, perf_counter, self.sinks, method, trace, size)

    async def serve(self, plain: PlainRequest, connection: HotConnection) -> None:
        """Answer a plain request on its connection."""
        headers = plain.headers
        request_id.begin(headers)
        seen = self._begin(plain.endpoint.value, headers, "POST", len(plain.body))
        permit: Permit | None = None
        try:
            try:
                key = self.access.key(headers) if self.access.restricted else None
                if key is not None:
                    permit = self.usage_sync.begin(key)
                read = partial(
                    _read_request,
                    (plain.endpoint, plain.body, headers, plain.fields, plain.head.target),
                    key,
                    self.default_model,
                )
                is_large = len(plain.body) > LARGE_BYTES
                request = await asyncio.to_thread(read) if is_large else read()
                reply, outcome = await self._answer(request, key, permit, seen)
                if outcome is not None and outcome.hit and isinstance(reply.body, bytes):
                    gate = None if key is None else self.usage_sync.gate(key)
                    connection.hot.remember(plain, seen, outcome.hit, reply, gate)
            except Exception as error:  # noqa: BLE001 - each becomes a reply
                reply = _failure(error, seen, self.names, plain.endpoint.value)
            if permit is not None:
                reply = replace(reply, headers=permit.label(reply.headers))
            given_id, closes = request_id.HEADER in headers, self.stopping()
            if isinstance(reply.body, bytes) and len(reply.body) <= PIECE:
                connection.send(reply, reply.body, given_id=given_id, closes=closes)
                return
            if reply.status in NO_BODY:  # whatever follows is no part of the reply
                reply.close()
                connection.send(reply, b"", given_id=given_id, closes=True)
                return
            length = len(reply.body) if isinstance(reply.body, bytes) else None
            sink: Sink = connection.sink(reply, given_id=given_id, closes=closes, length=length)
            pings = length is None and request.streamed and SPECS[request.endpoint].has_pings
            sink = self._pinged(request, sink, reply) if pings else sink
            try:
                await (
                    send_long(sink, reply.body, seen, connection.unread)
                    if isinstance(reply.body, bytes | Parts)
                    else send_stream(sink, reply.body, seen)
                )
            finally:
                reply.close()
        except asyncio.CancelledError:
            seen.end("error", Reason.CLIENT_GONE)
            raise
        finally:
            _finish(seen, permit)

    async def _answer(
        self, request: CacheRequest, key: Key | None, permit: Permit | None, seen: Observation
    ) -> tuple[Reply, Outcome | None]:
        """Return the reply, and its outcome unless the reply has begun without it."""
        if key is not None:
            key.check_model(request.model)
            if key.is_restricted:
                body = request.asked
                key.check_models(
                    [*models_in(body), *models_in_head(request.query, request.headers)]
                )
                request = replace(request, fields=as_json(request.fields))
        if permit is not None:
            request = permit.note(request)
        answer = self.pipeline.answer(request, seen)
        outcome: Outcome | None
        if request.streamed and SPECS[request.endpoint].has_pings:
            path = request.endpoint.value
            reply, outcome = await reply_in_time(
                answer,
                fault=lambda error: _failure(error, seen, self.names, path),
                seen=seen,
                seconds=self.patience.head,
            )
        else:
            reply, outcome = await answer
        if isinstance(reply.body, bytes):
            seen.note_sent(len(reply.body), whole=True)
            if permit is not None:
                permit.charge(seen)
        return reply, outcome

    def _pinged(self, request: CacheRequest, sink: Sink, reply: Reply) -> PingedSink:
        """Return a sink that keeps the stream alive."""
        start = message_start(f"msg_{request_id.current()}", request.model)
        is_late = isinstance(reply.body, LateReply)
        return PingedSink(sink, start, self.patience.silence, at_once=is_late)

    def _endpoint_handler(
        self, endpoint: Endpoint
    ) -> Callable[[web.Request, Observation], Awaitable[web.StreamResponse]]:
        async def handle(request: web.Request, seen: Observation) -> web.StreamResponse:
            if request.method == METHOD:
                check_query(request)
            raw = await self._read(request)
            seen.note_body(len(raw))
            headers, key = request.headers.items(), request.get(KEY)
            _, mark, query = request.path_qs.partition("?")
            target = endpoint.value + mark + query
            model = request[PATH].deployment or self.default_model
            read = partial(
                _read_request, (endpoint, raw, fold_fields(headers), headers, target), key, model
            )
            parsed = await asyncio.to_thread(read) if len(raw) > LARGE_BYTES else read()
            reply, _ = await self._answer(parsed, key, request.get(PERMIT), seen)
            if isinstance(reply.body, bytes):
                response: web.StreamResponse = _response(reply)
                if request_id.HEADER not in request.headers:
                    request_id.adopt(response.headers)  # now, since the access line follows
                return response
            response = web.StreamResponse(status=reply.status, headers=CIMultiDict(reply.headers))
            sink = ResponseSink(request, response)
            try:
                pings = parsed.streamed and SPECS[endpoint].has_pings
                if isinstance(reply.body, Parts):
                    await send_long(sink, reply.body, seen, sink.unread)
                else:
                    out = self._pinged(parsed, sink, reply) if pings else sink
                    await send_stream(out, reply.body, seen)
            finally:
                reply.close()
            return response

        return handle

    async def _read(self, request: web.Request) -> bytes:
        try:
            return await read_body(request, self.client_seconds)
        except (TimeoutError, web.RequestPayloadError, web.HTTPRequestEntityTooLarge) as error:
            raise fault_of_body(error) from None

    async def _readyz(self, request: web.Request) -> web.Response:
        report = await self.readiness.report()
        if request.app[STOPPING].is_set() and not request.app[REPLACED].is_set():
            report |= {"status": "stopping", "reasons": ["the gateway was told to stop"]}
        return _json(200 if report["status"] == "ready" else 503, report)

    async def _metrics_page(self, _request: web.Request) -> web.Response:
        page, content_type = await self.metrics()
        return web.Response(body=page, headers={"Content-Type": content_type})


def _read_request(
    came: tuple[Endpoint, bytes, Mapping[str, str], Iterable[tuple[str, str]], str],
    key: Key | None,
    model: str,
) -> CacheRequest:
    """Read what came: endpoint, body, headers by lower-case name, header lines and target.

    The request is for ``model`` if the client named neither a model nor a template.
    """
    endpoint, raw, headers, fields, target = came
    read = partial(
        read_request,
        endpoint,
        headers=headers,
        fields=fields,
        target=target,
        holder=None if key is None else key.name,
        team=None if key is None else key.team,
    )
    request = read(raw)
    names = ("model", SPECS[endpoint].template_field)
    if not model or any(request.asked.get(name) is not None for name in names if name):
        return request
    return read(with_model(request.raw, model))


def _response(reply: Reply) -> web.Response:
    headers = CIMultiDict(reply.headers)
    return web.Response(body=reply.body, status=reply.status, headers=headers)


def _json(status: int, value: dict[str, Any], cache_status: str | None = None) -> web.Response:
    headers = {"Cache-Status": cache_status} if cache_status is not None else None
    body = orjson.dumps(value)
    return web.Response(body=body, status=status, content_type="application/json", headers=headers)


def refuse(status: int, message: str, code: str, path: str = "") -> web.Response:
    """Return the reply to a request that no handler sees, see ``http_server``."""
    kind = "invalid_request_error" if status < HTTPStatus.INTERNAL_SERVER_ERROR else "server_error"
    error = RequestError(status, message, kind=kind, code=code)
    body = error.body(path, request_id.current())
    reply = _json(status, body, refused_header(Reason.INVALID_REQUEST))
    reply.headers[request_id.HEADER] = request_id.current()
    return reply


def _failure(error: Exception, seen: Observation, names: Mapping[str, str], path: str) -> Reply:
    """Note why a request failed, and return the error in the form of the path's clients."""
    if not isinstance(error, RequestError):
        # A defect of the gateway: the client still gets an error that it understands.
        log.error("a request failed", exc_info=error)
        seen.end("error", Reason.INTERNAL, 500)
        message = "The gateway had an internal error while processing your request."
        defect = RequestError(500, message, kind="server_error", code=Reason.INTERNAL.value)
        body = defect.body(path, request_id.current())
        return _error(500, body, refused_header(Reason.INTERNAL))
    body = error.body(path, request_id.current())
    if not isinstance(error, UpstreamError):
        reason = error.reason if isinstance(error, ClientError) else Reason.INVALID_REQUEST
        faulty = error.status < HTTPStatus.INTERNAL_SERVER_ERROR
        seen.end("invalid" if faulty else "error", reason, error.status)
        shown: Fields = ()
        if isinstance(error, UnauthorizedError):
            shown = (("WWW-Authenticate", "Bearer"),)
        elif isinstance(error, LimitError):
            shown = error.fields
        return _error(error.status, body, refused_header(reason), *shown)
    forward = seen.forward or ForwardStatus(Forwarded.BYPASS)
    seen.end("error", error.reason, error.status)
    seen.note_tried(error.tried)
    fields = []
    if error.retry_after is not None:
        fields.append(("Retry-After", str(ceil(error.retry_after))))
    if error.tried:
        tried = tuple(
            (names.get(declared_name(name), name), reason) for name, reason in error.tried
        )
        fields.append((UPSTREAM, format_upstream_header("", tried)))
    return _error(error.status, body, forward.header(declined=error.reason), *fields)


def _finish(seen: Observation, permit: Permit | None) -> None:
    """End a request. The use of its call counts once it is known."""
    if permit is None:
        seen.finish()
    else:
        seen.finish(permit.charge)
        permit.end()


def refusal_of(error: ClientError, path: str) -> Reply:
    """Return the reply to a request that no handler observes."""
    body = error.body(path, request_id.current())
    return _error(error.status, body, refused_header(error.reason))


def _raising(error: ClientError) -> Callable[..., Awaitable[web.StreamResponse]]:
    async def handle(_request: web.Request, _seen: Observation) -> web.StreamResponse:
        raise error

    return handle


async def not_found(request: web.Request) -> web.Response:
    """Return the reply to a path that nobody serves."""
    message = f"Unknown request URL: {request.method} {request.path}."
    return _response(refusal_of(ClientError(404, message, code="unknown_url"), request.path))


def _error(status: int, body: dict[str, Any], cache_status: str, *fields: tuple[str, str]) -> Reply:
    headers = (("Cache-Status", cache_status), ("Content-Type", "application/json"), *fields)
    return Reply(status, headers, orjson.dumps(body))


async def _healthz(_request: web.Request) -> web.Response:
    return _json(200, {"status": "alive"})
