"""One call to the upstream: send, read to the end, store, and write all into a shared response.

Law: the upstream's bytes go on as they come. Storing never changes or delays one except the last,
which waits until the entry can be hit.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import partial
from http import HTTPStatus
from typing import Any

import orjson

from gateway.cache.writer import CacheWriter
from gateway.protocol import exact_json
from gateway.protocol.cache_status import Reason
from gateway.protocol.endpoints.registry import SPECS
from gateway.protocol.endpoints.spec import Streaming
from gateway.protocol.errors import UpstreamError
from gateway.protocol.headers import Fields, reply_fields, request_fields
from gateway.protocol.messages import ALL_ADDITIONS, declared_name, read_up_to
from gateway.protocol.request import LARGE_BYTES
from gateway.protocol.streaming.decode import EventTooLargeError, Piece, StreamedAnswer
from gateway.protocol.tokens import NOTHING_SAID, PromptUsage, prompt_usage
from gateway.telemetry.observation import CallFacts
from gateway.upstream.comparisons import Checks
from gateway.upstream.pool.affinity import Learner
from gateway.upstream.pool.prefix_chain import PromptChains
from gateway.upstream.pool.retry import NOT_KEPT, Budget
from gateway.upstream.request import (
    PRIORITY,
    SALT,
    Accepts,
    Exchange,
    Outgoing,
    Served,
    Upstream,
    UpstreamReply,
    Variant,
    as_client_sent,
    variants,
    with_upstream,
)
from gateway.upstream.shared_response import Head, SharedResponse
from policies.decision import Endpoint, Priority

log = logging.getLogger(__name__)

DRAIN_SECONDS = 1.0
"""The time for which an upstream may keep a stream open after its last event."""

WARN_SECONDS = 60.0
"""Between two warnings that one upstream refuses additions."""

_REPLACED_FIELDS = ("accept-encoding", "content-encoding", PRIORITY.lower())
"""The answer is read here, so it must come unencoded; the priority is the policy's."""

_BODY_FIELDS = ("content-length", "content-encoding")
"""Reply headers of a body as it was sent: here it is decoded."""

OnAnswer = Callable[[Endpoint, dict[str, Any], Mapping[str, str], bytes], None]
"""Called after each answer to a storable request, with the body as sent, the headers, the scope."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """The whole reply of an upstream that refuses a request, perhaps due to our additions."""

    reply: UpstreamReply
    body: bytes
    variant: Variant


@dataclass(eq=False)
class UpstreamCall:
    """Makes calls. ``max_answer_bytes`` bounds what is stored, and what is held for followers.

    ``checks`` compares answers. ``chains`` makes the prefix chains by which one of several
    upstreams is chosen. ``on_answer`` is called after each answer to a storable request.
    ``accepts`` says which additions each upstream accepts. A pool shares its ``retry_budget``.
    """

    upstream: Upstream
    writer: CacheWriter
    max_answer_bytes: int
    _: KW_ONLY
    retry_budget: Budget = field(default_factory=Budget)
    checks: Checks | None = None
    chains: PromptChains | None = None
    on_answer: OnAnswer | None = None
    accepts: Accepts = field(default_factory=dict)
    _quiet_until: dict[str, float] = field(default_factory=dict, init=False)
    """When the log may warn of an upstream again, by its name."""

    async def call(self, exchange: Exchange, shared: SharedResponse) -> None:
        """Make the call, and write its reply and its end into ``shared``.

        There is one exception: after a cancellation, the canceller writes the end.
        """
        may_retry = self.retry_budget.earn()
        try:
            make = partial(variants, exchange, self.accepts, may_retry=may_retry)
            is_large = len(exchange.request.raw) > LARGE_BYTES
            usual, others = await asyncio.to_thread(make) if is_large else make()
            refusal = await self._attempt(usual, others, shared)
            if refusal is not None and not await self._retry(exchange, shared, refusal):
                await self._pass_refusal(refusal, shared)
        except UpstreamError as error:
            shared.close(error)
        except Exception as error:
            log.exception("a call to the upstream failed")
            shared.close(error)
        else:
            shared.close()

    async def _retry(self, exchange: Exchange, shared: SharedResponse, refusal: Refusal) -> bool:
        """Make the call once more as the client sent it; tell whether that gave an answer.

        A refusal with 400 or 422 costs no generation. So it is retried even if others have emptied
        the retry budget since the request was sent: no addition fails a request.
        """
        paid = self.retry_budget.spend()
        if not paid and refusal.reply.status == HTTPStatus.INTERNAL_SERVER_ERROR:
            return False
        try:
            await self._attempt(as_client_sent(exchange), {}, shared, refusal)
        except UpstreamError as error:
            if shared.head is not None:
                raise
            log.info("a refused request was sent again, and failed: %s", error.reason)
            return False
        return True

    async def _pass_refusal(self, refusal: Refusal, shared: SharedResponse) -> None:
        """Send the first answer to the client unchanged."""
        reply, exchange = refusal.reply, refusal.variant.exchange
        shared.served = reply.served
        shared.set_leader(exchange)
        await self._end_plain(reply, refusal.body, exchange, shared)

    async def _attempt(
        self,
        usual: Variant,
        others: Mapping[str, Variant],
        shared: SharedResponse,
        before: Refusal | None = None,
    ) -> Refusal | None:
        """Make one call; ``before`` is the refusal after which it is made once more.

        Return the refusal of an upstream, if it may be due to the gateway's additions.
        """
        clock = usual.exchange.observation.clock
        if before is None:
            shared.upstream_started = clock()
        outgoing = self._outgoing(usual, others, before, shared.facts)
        async with self.upstream.send(outgoing) as upstream:
            shared.upstream_head = clock()
            served, status = upstream.served, upstream.status
            if before is not None:
                served = replace(served, tried=before.reply.served.tried + served.tried)
            shared.served, variant = served, usual
            if others:
                variant = others.get(declared_name(served.upstream), usual)
            exchange, request = variant.exchange, variant.exchange.request
            # A request that may not be stored (no-store, personal data) is not recorded elsewhere.
            if (
                self.on_answer is not None
                and status == HTTPStatus.OK
                and exchange.state.store is not None
            ):
                scope = exchange.scopes()[0]
                self.on_answer(request.endpoint, request.body, request.headers, scope)
            streaming = SPECS[request.endpoint].streaming
            if streaming is not None and upstream.content_type == "text/event-stream":
                self._note_variant(exchange, status, shared, before)
                fields = _fields(upstream, served)
                shared.open(Head(status, fields, events=True, usage=variant.usage))
                await self._relay(upstream, exchange, shared, streaming)
                return None
            body = await read_up_to(upstream.read, self.max_answer_bytes)
            is_whole = len(body) <= self.max_answer_bytes
            if before is None and is_whole and variant.may_explain(status):
                return Refusal(upstream, body, variant)
            self._note_variant(exchange, status, shared, before)
            if not is_whole:
                if exchange.state.store is not None:
                    shared.decline(Reason.TOO_LARGE)
                shared.open(Head(status, _fields(upstream, served)))
                shared.add_long(body)
                del body
                while chunk := await upstream.read():
                    await shared.add(chunk, chunk)
                return None
        await self._end_plain(upstream, body, exchange, shared)
        return None

    def _outgoing(
        self,
        usual: Variant,
        others: Mapping[str, Variant],
        before: Refusal | None,
        call: CallFacts,
    ) -> Outgoing:
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
            instead={name: (variant.raw, variant.body) for name, variant in others.items()},
            salt=exchange.salt,
            client=exchange.client,
            sticky_id=_sticky_id(request.endpoint, request.body),
            scopes=exchange.scopes,
            pinned="" if before is None else _pin(before.reply.served),
            attempt=None if trace is None else partial(trace.attempt, call),
        )

    def _note_variant(
        self, exchange: Exchange, status: int, shared: SharedResponse, before: Refusal | None
    ) -> None:
        """Note which form of the request is answered; warn if that took a second call."""
        if shared.leader is not exchange:
            shared.set_leader(exchange)
        # If the request is refused as the client sent it, too, the additions are not the reason.
        if before is None or status >= HTTPStatus.BAD_REQUEST:
            return
        name, now = declared_name(before.reply.served.upstream), exchange.observation.clock()
        if now < self._quiet_until.get(name, now):
            return
        self._quiet_until[name] = now + WARN_SECONDS
        remedy = before.variant.remedy(self.accepts.get(name, ALL_ADDITIONS))
        log.warning(
            "upstream %s refuses what the gateway adds (status %d): such requests are sent twice;"
            " set %s",
            name,
            before.reply.status,
            remedy,
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
        shared.open(Head(status, _fields(upstream, shared.served), body))

    async def _store_streamed(
        self, status: int, stream: StreamedAnswer, exchange: Exchange, shared: SharedResponse
    ) -> bool:
        if exchange.state.store is None:
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
        plan = exchange.state.store
        if plan is None:
            return False
        declined: Reason | None = Reason.UPSTREAM_STATUS
        if status == HTTPStatus.OK and isinstance(result, dict) and result.get("error") is not None:
            declined = Reason.UNCLEAN
        elif status == HTTPStatus.OK:
            declined = await self.writer.store(plan, result, plain, exchange.scanner)
        if declined is not None:
            shared.decline(declined)
            return False
        if self.checks is not None and (check := exchange.state.check) is not None:
            self.checks.begin(check, plan, plain, exchange.request.fields)
        return True


def _sticky_id(endpoint: Endpoint, body: Mapping[str, Any]) -> str:
    """Return the id of the response or conversation that a request continues, if any."""
    if not SPECS[endpoint].keeps_by_id:
        return ""
    for value in (body.get("previous_response_id"), body.get("conversation")):
        match value:
            case str(sticky_id) | {"id": str(sticky_id)} if sticky_id:
                return sticky_id
    return ""


def _pin(served: Served) -> str:
    """Return the upstream that gets a refused request once more.

    If several were tried for a sticky id, none is pinned: another one may keep it.
    """
    searched = any(reason is NOT_KEPT.reason for _, reason in served.tried)
    return "" if searched else served.upstream


def _fields(upstream: UpstreamReply, served: Served | None) -> Fields:
    """Return the headers of a reply that clients get."""
    return with_upstream(reply_fields(upstream.headers, *_BODY_FIELDS), served)


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
