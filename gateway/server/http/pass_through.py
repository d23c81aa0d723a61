"""Any other path below /v1: to the upstream and back as it is, streaming in both directions."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from urllib.parse import unquote

from aiohttp import web

from gateway.protocol.cache_status import Forwarded, ForwardStatus
from gateway.protocol.errors import ClientError, UpstreamError
from gateway.protocol.headers import (
    Fields,
    reply_fields,
    request_fields,
    with_cache_status,
    without,
)
from gateway.protocol.messages import Read
from gateway.server.http.http_server import read_pieces
from gateway.server.http.middleware import ResponseSink, fault_of_body, send_stream
from gateway.telemetry.observation import Observation
from gateway.upstream.connection import HttpReply
from gateway.upstream.http_client import HttpUpstream
from gateway.upstream.pool.pass_through import PoolRequests
from gateway.upstream.request import OF_A_TRACE, PRIORITY, with_upstream


@dataclass(frozen=True, slots=True)
class PassThrough:
    """Forwards untouched; ``client_seconds`` bounds each wait for the client."""

    upstream: HttpUpstream | PoolRequests
    client_seconds: float

    async def handle(self, request: web.Request, seen: Observation) -> web.StreamResponse:
        """Answer one request. Raises ClientError and UpstreamError before the head is out."""
        _refuse_dot_segments(request)
        seen.outcome = "pass"
        faults: list[ClientError] = []
        body = self._body(request, faults) if request.can_read_body else None
        seen.upstream_started = seen.clock()
        lists_models = (request.method, request.path) == ("GET", "/v1/models")
        if lists_models and isinstance(self.upstream, PoolRequests):
            response = await self.upstream.list_models(request.path_qs, _fields(request, seen))
            seen.status = response.status
            return response
        try:
            async with self.upstream.request(
                request.method,
                request.path_qs,
                _fields(request, seen),
                body,
                decode=False,
                logged=lambda: not faults,
            ) as upstream:
                seen.upstream_head = seen.clock()
                seen.status = upstream.status
                if upstream.served.several:
                    seen.upstream, seen.tried = upstream.served.upstream, upstream.served.tried
                return await self._copy(request, upstream, seen)
        except UpstreamError:
            if faults:
                raise faults[0] from None
            raise

    async def _body(self, request: web.Request, faults: list[ClientError]) -> AsyncIterator[bytes]:
        """Yield the client's body; a fault of the client's is noted, since aiohttp hides it."""
        try:
            async for piece in read_pieces(request, self.client_seconds):
                yield piece
        except (TimeoutError, web.RequestPayloadError, web.HTTPRequestEntityTooLarge) as error:
            faults.append(fault_of_body(error))
            raise

    async def _copy(
        self, request: web.Request, upstream: HttpReply, seen: Observation
    ) -> web.StreamResponse:
        reason = upstream.reason if upstream.reason.isprintable() else None
        response = web.StreamResponse(status=upstream.status, reason=reason)
        fields = reply_fields(upstream.headers, "content-length")
        fields = with_cache_status(fields, ForwardStatus(Forwarded.BYPASS).header())
        response.headers.extend(with_upstream(fields, upstream.served))
        response.content_length = upstream.content_length
        body = _pieces(upstream.read)
        sink = ResponseSink(request, response, self.client_seconds)
        fault = await send_stream(sink, body, seen)
        if fault is not None:
            upstream.upstream.failures.note_failure(fault)
        return response


async def _pieces(read: Read) -> AsyncIterator[bytes]:
    while piece := await read():
        yield piece


def _fields(request: web.Request, seen: Observation) -> Fields:
    trace = () if seen.trace is None else seen.trace.fields
    replaced = OF_A_TRACE if trace else ()
    fields = request_fields(request.headers.items(), PRIORITY.lower(), *replaced) + trace
    if "Content-Encoding" in request.headers:
        # aiohttp has decoded the body: neither its coding nor its length is true any more.
        return without(fields, "content-encoding")
    if (length := request.headers.get("Content-Length")) is not None:
        fields += (("Content-Length", length),)  # some servers refuse a chunked upload
    return fields


def _refuse_dot_segments(request: web.Request) -> None:
    """Keep requests below the upstream's base URL, wherever the dots are resolved."""
    path = request.path_qs.partition("?")[0]
    segments = unquote(unquote(path)).replace("\\", "/").split("/")
    # A segment may carry parameters after a semicolon, which some servers strip first.
    if any(segment.partition(";")[0] in (".", "..") for segment in segments):
        raise ClientError(404, f"Unknown request URL: {request.method}.", code="unknown_url")
