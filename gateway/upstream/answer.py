"""The answer of one call: read to its end, stored, and written into a shared response.

Law: the upstream's bytes go on as they come. Storing never changes or delays one except the last,
which waits until the entry can be hit.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from http import HTTPStatus
from typing import Any, NamedTuple

import orjson

from gateway.cache.quality.comparisons import Comparisons
from gateway.cache.writer import CacheWriter
from gateway.protocol import exact_json
from gateway.protocol.endpoints.registry import SPECS
from gateway.protocol.endpoints.spec import Streaming
from gateway.protocol.errors import UpstreamError
from gateway.protocol.http.cache_status import Reason
from gateway.protocol.http.headers import Fields, reply_fields, request_fields
from gateway.protocol.http.messages import read_up_to
from gateway.protocol.request import LARGE_BYTES
from gateway.protocol.streaming.decode import EventTooLargeError, Piece, StreamedAnswer
from gateway.protocol.tokens import NOTHING_SAID, PromptUsage, prompt_usage
from gateway.telemetry.observation import CallFacts, OnStep
from gateway.upstream.additions import Variant, Variants
from gateway.upstream.pool.affinity import Learner
from gateway.upstream.pool.prefix_chain import PromptChains
from gateway.upstream.pool.retry_budget import Budget
from gateway.upstream.request import (
    PRIORITY,
    SALT,
    Exchange,
    Outgoing,
    Served,
    Upstream,
    UpstreamReply,
    with_upstream,
)
from gateway.upstream.shared_response import Head, SharedResponse
from policies.decision import Endpoint, Priority

log = logging.getLogger(__name__)

DRAIN_SECONDS = 1.0
"""The time for which an upstream may keep a stream open after its last event."""

_REPLACED_FIELDS = ("accept-encoding", "content-encoding", PRIORITY.lower())
"""The answer is read here, so it must come unencoded; the priority is the policy's."""

_BODY_FIELDS = ("content-length", "content-encoding")
"""Reply headers of a body as it was sent: here it is decoded."""

OnAnswer = Callable[[Endpoint, dict[str, Any], Mapping[str, str], bytes], None]
"""Called after each answer to a storable request, with the body as sent, the headers, the scope."""


class Admission(NamedTuple):
    """The step in which an answer is stored, or declined: the call, and its ``result``."""

    call: CallFacts
    result: Any


@dataclass(eq=False)
class AnsweredCall:
    """Makes calls. ``max_answer_bytes`` bounds what is stored, and what is held for followers.

    ``comparisons`` compares answers. ``chains`` makes the prefix chains by which one of several
    upstreams is chosen. ``on_answer`` is called after each answer to a storable request.
    ``retry_budget`` comes from the pool. ``on_step`` takes each step, if given.
    """

    upstream: Upstream
    writer: CacheWriter
    max_answer_bytes: int
    _: KW_ONLY
    retry_budget: Budget = field(default_factory=Budget)
    comparisons: Comparisons | None = None
    chains: PromptChains | None = None
    on_answer: OnAnswer | None = None
    on_step: OnStep | None = None

    async def call(self, exchange: Exchange, shared: SharedResponse) -> None:
        """Make the call, and write its reply and its end into ``shared``.

        There is one exception: after a cancellation, the canceller writes the end.
        """
        try:
            make = partial(Variants, exchange, adds=self.retry_budget.earn())
            is_large = len(exchange.request.raw) > LARGE_BYTES
            variants = await asyncio.to_thread(make) if is_large else make()
            shared.upstream_started = exchange.observation.clock()
            async with self.upstream.send(self._outgoing(variants, shared.facts)) as reply:
                variant = reply.served.variant or variants.usual
                body = await self._read(reply, variant, shared)
            if body is not None:
                await self._end_plain(reply, body, variant.exchange, shared)
        except UpstreamError as error:
            shared.close(error)
        except Exception as error:
            log.exception("a call to the upstream failed")
            shared.close(error)
        else:
            shared.close()
        finally:
            if (trace := exchange.observation.trace) is not None:
                fault, served = shared.fault, shared.served
                reason = fault.reason if isinstance(fault, UpstreamError) else None
                tried = served.tried if served is not None else getattr(fault, "tried", ())
                trace.end_call(shared.facts, exchange.request, reason, dict(tried))

    async def _read(
        self, reply: UpstreamReply, variant: Variant, shared: SharedResponse
    ) -> bytes | None:
        """Read a reply to its end. Return a whole plain body; all else is passed on."""
        exchange, request = variant.exchange, variant.exchange.request
        shared.upstream_head = exchange.observation.clock()
        shared.served, status = reply.served, reply.status
        if shared.leader is not exchange:
            shared.set_leader(exchange)
        # A request that may not be stored (no-store, personal data) is not recorded elsewhere.
        if (
            self.on_answer is not None
            and status == HTTPStatus.OK
            and exchange.state.store is not None
        ):
            scope = exchange.scopes()[0]
            self.on_answer(request.endpoint, request.body, request.headers, scope)
        streaming = SPECS[request.endpoint].streaming
        if streaming is not None and reply.content_type == "text/event-stream":
            fields = _fields(reply)
            shared.open(Head(status, fields, events=True, usage=variant.usage))
            await self._relay(reply, exchange, shared, streaming)
            return None
        body = await read_up_to(reply.read, self.max_answer_bytes)
        if len(body) <= self.max_answer_bytes:
            return body
        if exchange.state.store is not None:
            shared.decline(Reason.TOO_LARGE)
        shared.open(Head(status, _fields(reply)))
        shared.add_long(body)
        del body
        while chunk := await reply.read():
            await shared.add(chunk, chunk)
        return None

    def _outgoing(self, variants: Variants, call: CallFacts) -> Outgoing:
        usual = variants.usual
        exchange, raw = usual.exchange, usual.raw
        request, trace = exchange.request, exchange.observation.trace
        fields = request_fields(request.fields, *_REPLACED_FIELDS)
        fields = (*fields, ("Accept-Encoding", "identity"))
        if exchange.priority is not Priority.NORMAL:
            fields = (*fields, (PRIORITY, exchange.priority.value))
        prefix: tuple[int, ...] = ()
        if self.chains is not None:
            read = {**request.body, SALT: exchange.salt} if exchange.salt else request.body
            prefix = self.chains.of(
                *(request.endpoint, read, request.headers, len(raw)), scope=exchange.scopes()[0]
            )
        return Outgoing(
            request.target,
            fields,
            raw,
            request.model,
            prefix,
            streamed=request.streamed,
            body=usual.body,
            variants=variants,
            forwarding=exchange.forwarding,
            salt=exchange.salt,
            client=exchange.client,
            sticky_id=_sticky_id(request.endpoint, request.body),
            scopes=exchange.scopes,
            attempt=None if trace is None else partial(trace.attempt, call),
        )

    async def _relay(
        self,
        upstream: UpstreamReply,
        exchange: Exchange,
        shared: SharedResponse,
        streaming: Streaming,
    ) -> None:
        """Pass events on as they end, until the upstream's stream does."""
        traced = exchange.observation.trace is not None
        learner = _learner(upstream.served, exchange)
        stream = streaming.follow(
            assemble=traced or exchange.state.store is not None,
            max_bytes=self.max_answer_bytes,
            on_event=None if learner is None else learner.take,
        )
        shared.stream = stream
        try:
            async with asyncio.timeout(None) as limit:
                more = True
                while more:
                    chunk = await upstream.read()
                    more = bool(chunk)
                    shared.received += len(chunk)
                    now, once_stored = stream.feed(chunk) if more else stream.end()
                    if not shared.add_at_once(*now):
                        await _wait_to_add(now, shared, stream)
                    if once_stored is not None:
                        await self._end_streamed(
                            *(once_stored, upstream, stream, exchange, shared), learner=learner
                        )
                    if stream.over and limit.when() is None:
                        limit.reschedule(asyncio.get_running_loop().time() + DRAIN_SECONDS)
                    if shared.left is not None and stream.ended and stream.usage is not None:
                        break  # nobody reads the rest
        except (UpstreamError, EventTooLargeError, TimeoutError) as error:
            if not stream.over:
                raise error if isinstance(error, UpstreamError) else _broken(str(error)) from error
        if not stream.done or stream.error is not None:
            _end_early(stream, upstream.served, shared)

    async def _end_streamed(
        self,
        last: Piece,
        upstream: UpstreamReply,
        stream: StreamedAnswer,
        exchange: Exchange,
        shared: SharedResponse,
        *,
        learner: Learner | None,
    ) -> None:
        """Store an answer that is whole, and then pass on the last of it."""
        if learner is not None:
            await learner.told()
        usage = prompt_usage(stream.usage)
        _report(upstream.served, usage)
        shared.finish(usage)
        stored = await self._store_streamed(upstream.status, stream, exchange, shared)
        if stream.error is None:
            shared.land(upstream.status, exchange.observation.clock(), stored=stored)
        if not shared.add_at_once(*last):
            await shared.add(*last)

    async def _end_plain(
        self, upstream: UpstreamReply, body: bytes, exchange: Exchange, shared: SharedResponse
    ) -> None:
        """Store a plain reply that is whole, and pass it on."""
        try:
            result = exact_json.loads(body)
        except orjson.JSONDecodeError:
            result = None
        usage = NOTHING_SAID
        if isinstance(result, dict):
            usage = prompt_usage(SPECS[exchange.request.endpoint].usage(result))
            _report(upstream.served, usage)
            if upstream.status < HTTPStatus.BAD_REQUEST and (
                learner := _learner(upstream.served, exchange)
            ):
                learner.take(result)
                await learner.told()
        shared.finish(usage)
        status = upstream.status
        stored = await self._store(status, result, body, exchange, shared)
        shared.land(status, exchange.observation.clock(), size=len(body), stored=stored)
        shared.open(Head(status, _fields(upstream), body))

    async def _store_streamed(
        self, status: int, stream: StreamedAnswer, exchange: Exchange, shared: SharedResponse
    ) -> bool:
        if exchange.state.store is None:
            seen = exchange.observation
            if self.on_step is not None and seen.trace is not None:
                self.on_step(Admission(shared.facts, stream.result()), seen.clock(), seen, None)
            return False
        result = stream.result()
        if isinstance(result, Reason):
            shared.decline(result)
            return False
        try:
            shared.result = exact_json.dumps(result)
        except TypeError:  # nested deeper than can be printed
            shared.decline(Reason.UNKNOWN_SHAPE)
            return False
        return await self._store(status, result, shared.result, exchange, shared)

    async def _store(
        self, status: int, result: Any, plain: bytes, exchange: Exchange, shared: SharedResponse
    ) -> bool:
        """Store an answer if it may be; tell whether an entry is there."""
        plan, seen = exchange.state.store, exchange.observation
        began = seen.clock()
        declined: Reason | None = Reason.UPSTREAM_STATUS
        if plan is None:
            declined = None
        elif status == HTTPStatus.OK and _has_error(result):
            declined = Reason.UNCLEAN
        elif status == HTTPStatus.OK:
            declined = await self.writer.store(plan, result, plain, exchange.scanner)
        stored = plan is not None and declined is None
        if declined is not None:
            shared.decline(declined)
        elif plan and self.comparisons and (candidate := exchange.state.to_compare):
            self.comparisons.begin(candidate, plan, plain, exchange.request.fields)
        if self.on_step is not None:
            outcome = None if plan is None else declined or stored
            self.on_step(Admission(shared.facts, result), began, seen, outcome)
        return stored


def _has_error(result: Any) -> bool:
    return isinstance(result, dict) and result.get("error") is not None


def _sticky_id(endpoint: Endpoint, body: Mapping[str, Any]) -> str:
    """Return the id of the response or conversation that a request continues, if any."""
    if not SPECS[endpoint].keeps_by_id:
        return ""
    for value in (body.get("previous_response_id"), body.get("conversation")):
        match value:
            case str(sticky_id) | {"id": str(sticky_id)} if sticky_id:
                return sticky_id
    return ""


def _fields(reply: UpstreamReply) -> Fields:
    """Return the headers of a reply that clients get."""
    fields = reply_fields(reply.headers, *_BODY_FIELDS)
    return with_upstream(fields, reply.served) if reply.served.several else fields


async def _wait_to_add(piece: Piece, shared: SharedResponse, stream: StreamedAnswer) -> None:
    await shared.add(*piece)
    if shared.outgrown:
        stream.give_up()


def _end_early(stream: StreamedAnswer, served: Served, shared: SharedResponse) -> None:
    """Note the end of a stream without its last event. Raises UpstreamError unless it is whole."""
    if not stream.done:
        usage = prompt_usage(stream.usage)
        _report(served, usage)
        if stream.ended and stream.error is None:
            shared.finish(usage)
    if stream.error is not None:
        shared.error = stream.error
        raise _broken("The upstream broke its answer off with an error.")
    if not stream.ended:
        raise _broken("The upstream ended the stream before the answer's end.")


def _broken(message: str) -> UpstreamError:
    return UpstreamError(502, message, Reason.UPSTREAM_BROKE)


def _learner(served: Served, exchange: Exchange) -> Learner | None:
    """Return what notes the answer's state, if there are other upstreams that cannot read it."""
    if served.learn is None:
        return None
    request = exchange.request
    keeps = SPECS[request.endpoint].keeps_by_id and request.body.get("store") is not False
    return Learner(served.learn, exchange.scopes, keeps=keeps)


def _report(served: Served, usage: PromptUsage) -> None:
    """Report to the pool the upstream's cached tokens."""
    if served.report is not None:
        served.report(usage.cached)
