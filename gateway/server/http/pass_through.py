"""Any other path below /v1: to the upstream and back as it is, streaming in both directions."""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from urllib.parse import unquote

import orjson
from aiohttp import web

from gateway.protocol.cache_status import Forwarded, ForwardStatus
from gateway.protocol.errors import ClientError, UpstreamError
from gateway.protocol.headers import (
    Fields,
    fold_fields,
    reply_fields,
    request_fields,
    with_cache_status,
    without,
)
from gateway.protocol.messages import Read
from gateway.protocol.streaming.decode import Decoder, EventTooLargeError
from gateway.server.http.http_server import read_pieces
from gateway.server.http.middleware import KEY, ResponseSink, fault_of_body, send_stream
from gateway.server.keys.key_line import Key
from gateway.telemetry.observation import Observation
from gateway.upstream.connection import HttpReply
from gateway.upstream.http_client import HttpUpstream
from gateway.upstream.pool.affinity import Learner
from gateway.upstream.pool.pass_through import PoolRequests, names_objects
from gateway.upstream.request import OF_A_TRACE, PRIORITY, with_upstream

MOST_LEARNT = 4 * 2**20
"""Bytes of a reply that is read for what it brings."""


@dataclass(frozen=True, slots=True)
class PassThrough:
    """Forwards untouched; ``client_seconds`` bounds each wait for the client.

    ``scopes_of`` returns the scopes within which a client knows state of upstreams, from its
    headers and its gateway key.
    """

    upstream: HttpUpstream | PoolRequests
    client_seconds: float
    scopes_of: Callable[[Mapping[str, str], Key | None], Sequence[bytes]]

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
        fields, send = _fields(request, seen), self.upstream.request
        scopes: Sequence[bytes] = ()
        if isinstance(self.upstream, PoolRequests):
            scopes = self.scopes_of(fold_fields(request.headers.items()), request.get(KEY))
            send = partial(self.upstream.request, scopes=scopes)
            if names_objects(request.path_qs):  # what the reply brings is read here
                fields = (*without(fields, "accept-encoding"), ("Accept-Encoding", "identity"))
        try:
            async with send(
                request.method,
                request.path_qs,
                fields,
                body,
                decode=False,
                logged=lambda: not faults,
            ) as upstream:
                seen.upstream_head = seen.clock()
                seen.status = upstream.status
                if upstream.served.several:
                    seen.upstream, seen.tried = upstream.served.upstream, upstream.served.tried
                return await self._copy(request, upstream, seen, scopes)
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
        self, request: web.Request, upstream: HttpReply, seen: Observation, scopes: Sequence[bytes]
    ) -> web.StreamResponse:
        reason = upstream.reason if upstream.reason.isprintable() else None
        response = web.StreamResponse(status=upstream.status, reason=reason)
        fields = reply_fields(upstream.headers, "content-length")
        fields = with_cache_status(fields, ForwardStatus(Forwarded.BYPASS).header())
        response.headers.extend(with_upstream(fields, upstream.served))
        response.content_length = upstream.content_length
        body = _pieces(upstream.read)
        learn = upstream.served.learn
        if learn is not None and upstream.status < HTTPStatus.BAD_REQUEST:
            learner = Learner(learn, scopes[0], keeps=names_objects(request.path_qs))
            if upstream.content_type == "text/event-stream":
                body = _with_events_learnt(body, learner)
            elif upstream.content_type.endswith("json"):
                body = _with_reply_learnt(body, learner)
        sink = ResponseSink(request, response, self.client_seconds)
        fault = await send_stream(sink, body, seen)
        if fault is not None:
            upstream.upstream.failures.note_failure(fault)
        return response


async def _pieces(read: Read) -> AsyncIterator[bytes]:
    while piece := await read():
        yield piece


async def _with_events_learnt(
    pieces: AsyncIterator[bytes], learner: Learner
) -> AsyncIterator[bytes]:
    """Yield the pieces of a stream, once it is noted who made what they bring."""
    decoder = Decoder(max_event_bytes=MOST_LEARNT)
    async for piece in pieces:
        with suppress(EventTooLargeError):
            for event in decoder.feed(piece):
                _learn(learner, event.data)
        yield piece


async def _with_reply_learnt(
    pieces: AsyncIterator[bytes], learner: Learner
) -> AsyncIterator[bytes]:
    """Yield a reply's pieces. The last one waits until other gateways know what it brings."""
    whole, last = bytearray(), b""
    async for piece in pieces:
        if last:
            yield last
        last = piece
        if len(whole) <= MOST_LEARNT:
            whole += piece
    if len(whole) <= MOST_LEARNT:
        _learn(learner, whole)
        await learner.told()
    if last:
        yield last


def _learn(learner: Learner, data: bytes | bytearray | None) -> None:
    with suppress(orjson.JSONDecodeError):
        if data and isinstance(result := orjson.loads(data), dict):
            learner.take(result)


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
