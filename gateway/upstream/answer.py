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
from gateway.upstream.sharing.shared_response import CallResult, Head, SharedResponse
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

    async def call(self, exchange: Exchange, shared: SharedResponse) -> CallResult:
        """Make the call, and write its reply into ``shared``; return its end."""
        facts, seen = shared.facts, exchange.observation
        result, sent = CallResult(exchange), exchange
        try:
            make = partial(Variants, exchange, adds=self.retry_budget.earn())
            is_large = len(exchange.request.raw) > LARGE_BYTES
            variants = await asyncio.to_thread(make) if is_large else make()
            facts.started = seen.clock()
            async with self.upstream.send(self._outgoing(variants, facts)) as reply:
                variant = reply.served.variant or variants.usual
                sent = variant.exchange
                result = await self._read(reply, variant, shared)
            if result.head is not None:
                await self._end_plain(result.head, result.sent, reply.served, shared)
        except UpstreamError as error:
            if facts.head is None:
                facts.tried = error.tried
            result = CallResult(sent, fault=error)
        except Exception as error:
            log.exception("a call to the upstream failed")
            result = CallResult(sent, fault=error)
        finally:
            if seen.trace is not None:
                fault = result.fault
                reason = fault.reason if isinstance(fault, UpstreamError) else None
                seen.trace.end_call(facts, exchange.request, reason, dict(facts.tried))
        return result

    async def _read(
        self, reply: UpstreamReply, variant: Variant, shared: SharedResponse
    ) -> CallResult:
        """Read a reply to its end. A whole body is returned; all else is passed on."""
        exchange, facts = variant.exchange, shared.facts
        request, served, status = exchange.request, reply.served, reply.status
        facts.head = exchange.observation.clock()
        if served.several:
            facts.upstream, facts.tried = served.upstream, served.tried
        # A request that may not be stored (no-store, personal data) is not recorded elsewhere.
        if (
            self.on_answer is not None
            and status == HTTPStatus.OK
            and exchange.state.store is not None
        ):
            scope = exchange.scopes()[0]
            self.on_answer(request.endpoint, request.body, request.headers, scope)
        streaming, fields = SPECS[request.endpoint].streaming, _fields(reply)
        if streaming is not None and reply.content_type == "text/event-stream":
            learner = _learner(served, exchange)
            stream = streaming.follow(
                assemble=exchange.observation.trace is not None or exchange.state.store is not None,
                max_bytes=self.max_answer_bytes,
                on_event=None if learner is None else learner.take,
            )
            head = Head(status, fields, events=True, usage=variant.usage)
            shared.began(head, exchange, served, stream)
            plain = await self._relay(reply, stream, learner, exchange, shared)
            return CallResult(exchange, served, plain=plain)
        body = await read_up_to(reply.read, self.max_answer_bytes)
        if len(body) <= self.max_answer_bytes:
            return CallResult(exchange, served, Head(status, fields, body))
        if exchange.state.store is not None:
            _decline(Reason.TOO_LARGE, exchange, facts)
        shared.began(Head(status, fields), exchange, served)
        waits = shared.add((body, body))
        del body
        while True:
            if waits is not None:
                await waits
            if not (chunk := await reply.read()):
                return CallResult(exchange, served)
            waits = shared.add((chunk, chunk))

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
        stream: StreamedAnswer,
        learner: Learner | None,
        exchange: Exchange,
        shared: SharedResponse,
    ) -> bytes | None:
        """Pass events on as they end, until the upstream's stream does.

        Return the plain form of the answer, if it is understood.
        """
        facts, plain = shared.facts, None
        try:
            async with asyncio.timeout(None) as limit:
                more = True
                while more:
                    chunk = await upstream.read()
                    more = bool(chunk)
                    facts.received += len(chunk)
                    now, once_stored = stream.feed(chunk) if more else stream.end()
                    if (waits := shared.add(now)) is not None:
                        await waits
                    if once_stored is not None:
                        if learner is not None:
                            await learner.told()
                        plain = await self._end_streamed(
                            once_stored, upstream, stream, exchange, shared
                        )
                    if stream.over and limit.when() is None:
                        limit.reschedule(asyncio.get_running_loop().time() + DRAIN_SECONDS)
                    if shared.left is not None and stream.ended and stream.usage is not None:
                        break  # nobody reads the rest
        except (UpstreamError, EventTooLargeError, TimeoutError) as error:
            if not stream.over:
                raise error if isinstance(error, UpstreamError) else _broken(str(error)) from error
        if not stream.done or stream.error is not None:
            _end_early(stream, upstream.served, shared, exchange.observation.clock())
        return plain

    async def _end_streamed(
        self,
        last: Piece,
        upstream: UpstreamReply,
        stream: StreamedAnswer,
        exchange: Exchange,
        shared: SharedResponse,
    ) -> bytes | None:
        """Store an answer that is whole, and then pass on the last of it.

        Return its plain form, if it is understood.
        """
        usage, clock = prompt_usage(stream.usage), exchange.observation.clock
        _report(upstream.served, usage)
        shared.completed(usage, clock())
        plain = await self._store_streamed(upstream.status, stream, exchange, shared.facts)
        if stream.error is None and upstream.status == HTTPStatus.OK:
            shared.landed(clock())
        if (waits := shared.add(last)) is not None:
            await waits
        return plain

    async def _end_plain(
        self, head: Head, exchange: Exchange, served: Served, shared: SharedResponse
    ) -> None:
        """Store a plain reply that is whole."""
        status, body, clock = head.status, head.body or b"", exchange.observation.clock
        try:
            result = exact_json.loads(body)
        except orjson.JSONDecodeError:
            result = None
        usage = NOTHING_SAID
        if isinstance(result, dict):
            usage = prompt_usage(SPECS[exchange.request.endpoint].usage(result))
            _report(served, usage)
            if status < HTTPStatus.BAD_REQUEST and (learner := _learner(served, exchange)):
                learner.take(result)
                await learner.told()
        shared.completed(usage, clock())
        await self._store(status, result, body, exchange, shared.facts)
        if status == HTTPStatus.OK:
            shared.landed(clock(), size=len(body))

    async def _store_streamed(
        self, status: int, stream: StreamedAnswer, exchange: Exchange, facts: CallFacts
    ) -> bytes | None:
        if exchange.state.store is None:
            seen = exchange.observation
            if self.on_step is not None and seen.trace is not None:
                self.on_step(Admission(facts, stream.result()), seen.clock(), seen, None)
            return None
        result = stream.result()
        if isinstance(result, Reason):
            _decline(result, exchange, facts)
            return None
        try:
            plain = exact_json.dumps(result)
        except TypeError:  # nested deeper than can be printed
            _decline(Reason.UNKNOWN_SHAPE, exchange, facts)
            return None
        await self._store(status, result, plain, exchange, facts)
        return plain

    async def _store(
        self, status: int, result: Any, plain: bytes, exchange: Exchange, facts: CallFacts
    ) -> None:
        """Store an answer if it may be."""
        plan, seen = exchange.state.store, exchange.observation
        began = seen.clock()
        declined: Reason | None = Reason.UPSTREAM_STATUS
        if plan is None:
            declined = None
        elif status == HTTPStatus.OK and _has_error(result):
            declined = Reason.UNCLEAN
        elif status == HTTPStatus.OK:
            declined = await self.writer.store(plan, result, plain, exchange.scanner)
        facts.stored = plan is not None and declined is None
        if declined is not None:
            _decline(declined, exchange, facts)
        elif plan and self.comparisons and (candidate := exchange.state.to_compare):
            self.comparisons.begin(candidate, plan, plain, exchange.request.fields)
        if self.on_step is not None:
            outcome = None if plan is None else declined or facts.stored
            self.on_step(Admission(facts, result), began, seen, outcome)


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


def _decline(reason: Reason, exchange: Exchange, facts: CallFacts) -> None:
    """Note why an answer is not stored."""
    facts.declined = reason
    # The head of a stream is sent before this is known. A store that fails has its own line.
    if exchange.request.streamed and reason is not Reason.STORE_FAULT:
        rule = exchange.observation.asked.rule
        text = "%s rule=%s: a streamed answer was not stored: %s"
        log.info(text, exchange.request.endpoint.value, rule, reason)


def _end_early(stream: StreamedAnswer, served: Served, shared: SharedResponse, now: float) -> None:
    """Note the end of a stream without its last event. Raises UpstreamError unless it is whole."""
    if not stream.done:
        usage = prompt_usage(stream.usage)
        _report(served, usage)
        if stream.ended and stream.error is None:
            shared.completed(usage, now)
    if stream.error is not None:
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
