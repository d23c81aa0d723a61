"""Any other path below /v1: to the upstream and back as it is, streaming in both directions."""

import asyncio
import operator
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus

import orjson
from aiohttp import web

from gateway.protocol.errors import ClientError, UpstreamError
from gateway.protocol.http.cache_status import LEFT_BY_CLIENT, Forwarded, ForwardStatus
from gateway.protocol.http.headers import (
    Fields,
    as_json,
    fold_fields,
    reply_fields,
    with_cache_status,
)
from gateway.protocol.http.messages import Read
from gateway.protocol.http.paths import ApiPath
from gateway.protocol.reply_usage import ReplyUsage
from gateway.protocol.streaming.decode import Decoder, EventTooLargeError
from gateway.server.http.http_server import is_websocket, read_pieces
from gateway.server.http.middleware import (
    KEY,
    PATH,
    PERMIT,
    ResponseSink,
    fault_of_body,
    send_stream,
)
from gateway.server.http.passed_request import Passed, read_passed
from gateway.server.http.realtime import check_handshake, relay
from gateway.server.keys.key_line import Key, needs_model
from gateway.telemetry.observation import CallShare, Observation
from gateway.upstream.pool.affinity import Learner
from gateway.upstream.pool.pass_through import PassedRequest, PoolRequests, names_objects
from gateway.upstream.request import (
    OF_A_METHOD,
    OF_A_TRACE,
    passed_fields,
    unencoded_fields,
    with_upstream,
)
from gateway.upstream.sharing import shared_response
from gateway.upstream.wire.connection import HttpReply
from gateway.upstream.wire.websocket import Handshake

LEARNT_BYTES = 4 * 2**20
"""Bytes of a reply that is read for what it brings."""


@dataclass(frozen=True, slots=True)
class PassThrough:
    """Forwards untouched; ``client_seconds`` bounds each wait for the client.

    ``scopes_of`` returns the scopes within which a client knows state of upstreams, from its
    headers and its gateway key. ``salt_of`` returns the salt of its live sessions from the same,
    empty for none.
    """

    upstreams: PoolRequests
    client_seconds: float
    scopes_of: Callable[[Mapping[str, str], Key | None], Sequence[bytes]]
    salt_of: Callable[[Mapping[str, str], Key | None], str]

    async def handle(self, request: web.Request, seen: Observation) -> web.StreamResponse:
        """Answer one request. Raises ClientError and UpstreamError before the head is out."""
        path, fields = request[PATH], _fields(request, seen)
        seen.end("pass", None)
        is_live = is_websocket(request)
        if request.method == "GET" and not is_live:
            response = await self._listed(request, path, fields)
            if response is not None:
                seen.end("pass", None, response.status)
                return response
        faults: list[ClientError] = []
        passed = await self._read(request, path, faults)
        seen.note_passed(passed.model)
        if _is_restricted(request) and passed.body is not None and passed.body.is_json:
            fields = as_json(fields)
        learns = self.upstreams.several and names_objects(path.path)
        if _counts_tokens(request) or learns:  # the reply is read
            fields = unencoded_fields(fields)
        client = fold_fields(request.headers.items()), request.get(KEY)
        handshake = Handshake()
        if is_live:
            fields = handshake.fields(fields, self.salt_of(*client))
        call = CallShare(seen.clock())
        seen.note_call(call)
        scopes = self.scopes_of(*client)
        to_send = PassedRequest(
            request.method,
            path,
            _query(request),
            fields,
            passed.body,
            model=passed.model,
            decode=False,
            logged=partial(operator.not_, faults),
            scopes=scopes,
            named=passed.state,
            upgrades=is_live,
        )
        try:
            async with self.upstreams.request(to_send) as upstream:
                seen.end("pass", None, upstream.status)
                call, served = call._replace(head=seen.clock()), upstream.served
                if served.several:
                    call = call._replace(upstream=served.upstream, tried=served.tried)
                seen.note_call(call)
                if upstream.status == HTTPStatus.SWITCHING_PROTOCOLS:
                    handshake.check(upstream)
                    return await relay(request, upstream, seen, passed.model)
                return await self._copy(request, upstream, seen, scopes)
        except UpstreamError:
            if faults:
                raise faults[0] from None
            raise

    def ask_options(self, path: ApiPath, fields: Fields) -> AbstractAsyncContextManager[HttpReply]:
        """Send OPTIONS. The context raises UpstreamError."""
        return self.upstreams.request(PassedRequest("OPTIONS", path, "", fields))

    async def _listed(
        self, request: web.Request, path: ApiPath, fields: Fields
    ) -> web.Response | None:
        """Return the list of models, or an alias of it; None for another path."""
        if path.path == "/v1/models" and self.upstreams.lists_models:
            return await self.upstreams.list_models(path.path + _query(request), fields)
        return await self.upstreams.describe_alias(path.model, fields) if path.model else None

    async def _read(self, request: web.Request, path: ApiPath, faults: list[ClientError]) -> Passed:
        """Return what a request names. Raises ClientError for what may not be asked."""
        key, permit, method = request.get(KEY), request.get(PERMIT), request.method
        is_restricted = key is not None and key.is_restricted
        if is_live := is_websocket(request):
            check_handshake(request)
        asks = is_live or method not in ("GET", "HEAD")
        try:
            passed = await read_passed(
                request,
                path,
                _guarded(read_pieces(request, self.client_seconds), faults),
                whole=is_restricted and asks,
            )
        except (TimeoutError, web.RequestPayloadError, web.HTTPRequestEntityTooLarge) as error:
            raise fault_of_body(error) from None
        names_model = is_live or needs_model(method, path.path)
        if is_restricted and key is not None and asks:
            key.check_models(passed.models or ([""] if names_model else []))
            if permit is not None:
                permit.note_passed(passed.model, passed.tokens, needs_model=names_model)
        if self.upstreams.refuse_unknown is not None and passed.model and names_model:
            self.upstreams.refuse_unknown(passed.model)
        return passed

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
        is_learnt = names_objects(request[PATH].path) and upstream.status < HTTPStatus.BAD_REQUEST
        if learn is not None and is_learnt:
            learner = Learner(learn, lambda: scopes, keeps=True)
            if upstream.content_type == "text/event-stream":
                body = _with_events_learnt(body, learner)
            elif upstream.content_type.endswith("json"):
                body = _with_reply_learnt(body, learner)
        sink = ResponseSink(request, response)
        if _counts_tokens(request):
            fault = await _send_counted(sink, body, upstream, seen)
        else:
            fault = await send_stream(sink, body, seen)
        if fault is not None:
            upstream.upstream.failures.note(fault)
        return response


async def _pieces(read: Read) -> AsyncIterator[bytes]:
    while piece := await read():
        yield piece


async def _with_events_learnt(
    pieces: AsyncIterator[bytes], learner: Learner
) -> AsyncIterator[bytes]:
    """Yield the pieces of a stream, once it is noted who made what they bring."""
    decoder: Decoder | None = Decoder(max_event_bytes=LEARNT_BYTES)
    async for piece in pieces:
        try:
            for event in () if decoder is None else decoder.feed(piece):
                _learn(learner, event.data)
        except EventTooLargeError:
            decoder = None  # it holds what came of the event
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
        if len(whole) <= LEARNT_BYTES:
            whole += piece
    if len(whole) <= LEARNT_BYTES:
        _learn(learner, whole)
        await learner.told()
    if last:
        yield last


def _learn(learner: Learner, data: bytes | bytearray | None) -> None:
    with suppress(orjson.JSONDecodeError):
        if data and isinstance(result := orjson.loads(data), dict):
            learner.take(result)


async def _send_counted(
    sink: ResponseSink, pieces: AsyncIterator[bytes], upstream: HttpReply, seen: Observation
) -> UpstreamError | None:
    """Send a reply, and note its usage. A stream that its client leaves is read on for a while."""
    usage, has_left = ReplyUsage(upstream.content_type), True
    try:
        fault = await send_stream(sink, _fed_to(usage, pieces), seen)
        has_left = seen.reason in LEFT_BY_CLIENT
        return fault
    finally:
        if has_left and upstream.content_type == "text/event-stream":
            with suppress(TimeoutError, UpstreamError):
                async with asyncio.timeout(shared_response.ANSWER_SECONDS):
                    while piece := await upstream.read():
                        usage.feed(piece)
        seen.note_call(seen.call._replace(usage=usage.end()))


async def _fed_to(usage: ReplyUsage, pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    async for piece in pieces:
        usage.feed(piece)
        yield piece


async def _guarded(pieces: AsyncIterator[bytes], faults: list[ClientError]) -> AsyncIterator[bytes]:
    """Yield the client's body; a fault of the client's is noted, since the upstream's hides it."""
    try:
        async for piece in pieces:
            yield piece
    except (TimeoutError, web.RequestPayloadError, web.HTTPRequestEntityTooLarge) as error:
        faults.append(fault_of_body(error))
        raise


def _query(request: web.Request) -> str:
    """Return the query with its question mark, if there is one."""
    _, mark, query = request.path_qs.partition("?")
    return mark + query


def _is_restricted(request: web.Request) -> bool:
    key = request.get(KEY)
    return key is not None and key.is_restricted


def _counts_tokens(request: web.Request) -> bool:
    permit = request.get(PERMIT)
    return permit is not None and permit.limiter.counts_tokens


def _fields(request: web.Request, seen: Observation) -> Fields:
    trace = () if seen.trace is None else seen.trace.fields
    replaced = (*(OF_A_TRACE if trace else ()), *(OF_A_METHOD if _is_restricted(request) else ()))
    return passed_fields(request.headers.items(), *replaced) + trace
