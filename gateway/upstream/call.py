"""One call to the upstream: send, read to the end, store, and tell a ``LiveAnswer`` what comes.

Law: the upstream's bytes go on as they come; storing never changes or delays one except the last,
which waits until the entry can be hit.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from http import HTTPStatus
from typing import Any

import orjson

from gateway.cache.writer import CacheWriter
from gateway.protocol import exact_json
from gateway.protocol.endpoint import Endpoint
from gateway.protocol.endpoints.spec import Followed, Streaming
from gateway.protocol.endpoints.table import SPECS
from gateway.protocol.errors import UpstreamError
from gateway.protocol.headers import end_to_end, request_fields, without
from gateway.protocol.messages import ALL_ADDITIONS
from gateway.protocol.reasons import Reason
from gateway.protocol.streaming import sse
from gateway.protocol.tokens import prompt_usage
from gateway.telemetry.observation import Observation
from gateway.upstream.coalescing.shared_response import Head, LiveAnswer
from gateway.upstream.exchange import (
    REFUSALS,
    Accepts,
    Exchange,
    Variant,
    Variants,
    as_asked,
    variants,
)
from gateway.upstream.pool.affinity import named_in
from gateway.upstream.ports import Upstream, UpstreamReply
from gateway.upstream.request import Outgoing, Served, with_upstream
from gateway.upstream.routing.prefix_chain import PromptChains
from gateway.upstream.shadow_eval import Checks

log = logging.getLogger(__name__)

DRAIN_SECONDS = 1.0
"""How long an upstream may keep a stream open after its last event."""

WARN_SECONDS = 60.0
"""Between two warnings of one upstream that additions are refused there."""

_OURS = ("accept-encoding", "content-encoding")
"""Request headers that are about our own call, whose body is decoded and read here."""


Answered = Callable[[Endpoint, dict[str, Any], Mapping[str, str]], None]
"""Is told of each request that was answered and may be kept: its body as sent, the headers that
came."""


@dataclass(frozen=True, slots=True)
class Refused:
    """A request that an upstream has refused, perhaps for what the gateway added."""

    served: Served
    status: int
    variant: Variant


@dataclass(slots=True)
class Caller:
    """Makes calls. ``max_answer_bytes`` bounds what is stored, and what is held for readers."""

    upstream: Upstream
    writer: CacheWriter
    max_answer_bytes: int
    checks: Checks | None = None
    chains: PromptChains | None = None
    answered: Answered | None = None
    accepts: Accepts = field(default_factory=dict)
    _quiet_until: dict[str, float] = field(default_factory=dict)
    """Of each upstream: when it may be warned of again."""

    async def call(self, exchange: Exchange, answer: LiveAnswer) -> None:
        """Make the call and write all that comes of it into ``answer``, its end always.

        But for a cancellation: who cancels it closes the answer.
        """
        try:
            await self._call(exchange, answer)
        except UpstreamError as error:
            answer.close(error)
        except Exception as error:
            log.exception("a call to the upstream failed")
            answer.close(error)
        else:
            answer.close()

    async def _call(self, exchange: Exchange, answer: LiveAnswer) -> None:
        """Make the call, and once more as the client sent it where additions may be refused."""
        refused = await self._attempt(variants(exchange, self.accepts), answer)
        if refused is not None:
            await self._attempt(as_asked(exchange), answer, refused)

    async def _attempt(
        self, sent: Variants, answer: LiveAnswer, before: Refused | None = None
    ) -> Refused | None:
        """Make one call; ``before`` is the refusal after which it is made once more.

        Return what an upstream has refused, where that may be for what the gateway has added.
        """
        exchange, raw = sent.usual.exchange, sent.usual.raw
        inbound, seen = exchange.inbound, exchange.seen
        model = exchange.body.get("model") or ""
        # The answer is read here, so it must come unencoded; our span stands for the client's.
        headers = without(request_fields(inbound.fields), *_OURS, *seen.trace_headers)
        headers += (("Accept-Encoding", "identity"), *seen.trace_headers.items())
        prefix: tuple[int, ...] = ()
        if self.chains is not None:
            prefix = self.chains.of(exchange.endpoint, exchange.body, inbound.headers, len(raw))
        outgoing = Outgoing(
            inbound.target,
            headers,
            raw,
            model,
            prefix,
            exchange.streamed,
            sent.instead,
            exchange.client,
            named_in(exchange.endpoint, exchange.body),
            "" if before is None else before.served.upstream,
        )
        answer.upstream_started = seen.clock()
        async with self.upstream.send(outgoing) as upstream:
            answer.upstream_head = seen.clock()
            served = upstream.served
            if before is not None:
                served = replace(served, tried=before.served.tried + served.tried)
            answer.served, variant = served, sent.to(served.upstream)
            exchange = variant.exchange
            if upstream.status == HTTPStatus.OK:
                self._note_answered(exchange)
            fields = with_upstream(end_to_end(upstream.headers), served)
            streaming = SPECS[exchange.endpoint].streaming
            if streaming is not None and upstream.content_type == "text/event-stream":
                self._settle(exchange, upstream.status, answer, before)
                answer.open(Head(upstream.status, fields, events=True, usage=variant.usage))
                await self._relay(upstream, exchange, answer, streaming)
                return None
            chunks = upstream.chunks()
            whole = await _read(chunks, self.max_answer_bytes)
            if before is None and variant.may_be_refused and upstream.status in REFUSALS:
                return Refused(served, upstream.status, variant)
            self._settle(exchange, upstream.status, answer, before)
            if len(whole) > self.max_answer_bytes:
                if exchange.plan is not None:
                    _decline(Reason.TOO_LARGE, answer)
                await _pass_on(Head(upstream.status, fields), whole, chunks, answer)
                return None
        answer.complete = True
        await self._store_plain(upstream, whole, exchange, answer)
        answer.open(Head(upstream.status, fields, whole))
        answer.land(seen.clock())
        return None

    def _note_answered(self, exchange: Exchange) -> None:
        # What may not be stored (no-store, personal data) is not to be kept in another way.
        if self.answered is not None and exchange.plan is not None:
            self.answered(exchange.endpoint, exchange.body, exchange.inbound.headers)

    def _settle(
        self, exchange: Exchange, status: int, answer: LiveAnswer, before: Refused | None
    ) -> None:
        """Note which form of the request is answered; warn where that took a second call."""
        if answer.leader is not exchange:
            answer.leader = exchange
            exchange.note_rewrites()
        # A request that is refused as the client sent it, too, says nothing of the additions.
        if before is None or status >= HTTPStatus.BAD_REQUEST:
            return
        name, now = before.served.upstream, exchange.seen.clock()
        if now < self._quiet_until.get(name, now):
            return
        self._quiet_until[name] = now + WARN_SECONDS
        remedy = before.variant.remedy(self.accepts.get(name, ALL_ADDITIONS))
        log.warning(
            "upstream %s refuses what the gateway adds (status %d): such requests are sent twice;"
            " set %s",
            name,
            before.status,
            remedy,
        )

    async def _relay(
        self,
        upstream: UpstreamReply,
        exchange: Exchange,
        answer: LiveAnswer,
        streaming: Streaming,
    ) -> None:
        """Pass events on as they end, until the upstream's stream does."""
        answered = streaming.follow(
            assemble=exchange.plan is not None, max_bytes=self.max_answer_bytes
        )
        decoder = sse.Decoder()
        try:
            async with asyncio.timeout(None) as limit:
                async for chunk in upstream.chunks():
                    await self._follow(decoder.feed(chunk), answered, exchange, answer)
                    if answered.over and limit.when() is None:
                        limit.reschedule(asyncio.get_running_loop().time() + DRAIN_SECONDS)
            if (last := decoder.end()) is not None:
                await self._follow([last], answered, exchange, answer)
                if answered.failed or not answered.ended:  # what is told next is no part of it
                    await answer.add(sse.END_OF_EVENT, sse.END_OF_EVENT)
        except (UpstreamError, sse.EventTooLargeError, TimeoutError) as error:
            if not answered.over:
                raise _broken(str(error)) from error
        _note_cached(upstream, answered.usage)
        _note_made(upstream, answered.made, exchange)
        if answered.failed:
            answer.error = answered.error
            raise _broken("The upstream broke its answer off with an error.")
        if not answered.ended:
            raise _broken("The upstream ended the stream before the answer's end.")

    async def _follow(
        self,
        events: Iterable[sse.Event],
        answered: Followed,
        exchange: Exchange,
        answer: LiveAnswer,
    ) -> None:
        """Pass on what the events of one read come to; the last ones once the entry is there."""
        pieces: list[tuple[bytes, bytes]] = []
        for event in events:
            was_done = answered.done
            piece = answered.pass_on(event)
            if answered.done and not was_done:
                await answer.add(*_joined(pieces))
                pieces.clear()
                answer.complete = True
                await self._store_streamed(answered, exchange, answer)
            pieces.append(piece)
        await answer.add(*_joined(pieces))
        if answered.done and not answered.failed:
            answer.land(exchange.seen.clock())

    async def _store_plain(
        self, upstream: UpstreamReply, whole: bytes, exchange: Exchange, answer: LiveAnswer
    ) -> None:
        try:
            result = exact_json.loads(whole)
        except orjson.JSONDecodeError:
            result = None
        if isinstance(result, dict):
            usage = SPECS[exchange.endpoint].usage(result)
            _note_usage(answer.payer, usage)
            _note_cached(upstream, usage)
            _note_made(upstream, result.get("id"), exchange)
        await self._store(upstream.status, result, whole, exchange, answer)

    async def _store_streamed(
        self, answered: Followed, exchange: Exchange, answer: LiveAnswer
    ) -> None:
        _note_usage(answer.payer, answered.usage)
        if exchange.plan is None or answer.head is None:
            return
        result = answered.result()
        if isinstance(result, Reason):
            _decline(result, answer)
            return
        try:
            answer.result = exact_json.dumps(result)
        except TypeError:  # nested deeper than can be printed
            _decline(Reason.UNKNOWN_SHAPE, answer)
            return
        await self._store(answer.head.status, result, answer.result, exchange, answer)

    async def _store(
        self, status: int, result: Any, plain: bytes, exchange: Exchange, answer: LiveAnswer
    ) -> None:
        if exchange.plan is None:
            return
        declined: Reason | None = Reason.UPSTREAM_STATUS
        if status == HTTPStatus.OK:
            declined = await self.writer.store(exchange.plan, result, plain, exchange.scanner)
        if declined is not None:
            _decline(declined, answer)
            return
        answer.stored = True
        if self.checks is not None and (check := exchange.state.check) is not None:
            self.checks.begin(check, exchange.plan, plain, exchange.inbound.fields)
        if (payer := answer.payer) is not None:
            payer.stored = True


async def _pass_on(
    head: Head, first: bytes, chunks: AsyncIterator[bytes], answer: LiveAnswer
) -> None:
    """Pass a plain answer on that is too large to be held."""
    answer.open(head)
    await answer.add(first, first)
    async for chunk in chunks:
        await answer.add(chunk, chunk)


async def _read(chunks: AsyncIterator[bytes], limit: int) -> bytes:
    """Read to the end, or until more than ``limit`` bytes have come."""
    parts = []
    size = 0
    async for chunk in chunks:
        parts.append(chunk)
        size += len(chunk)
        if size > limit:
            break
    return b"".join(parts)


def _joined(pieces: list[tuple[bytes, bytes]]) -> tuple[bytes, bytes]:
    """Join pieces in both their forms; one object where the forms are the same."""
    full = b"".join([full for full, _ in pieces])
    if all(bare is full for full, bare in pieces):
        return full, full
    return full, b"".join([bare for _, bare in pieces])


def _broken(message: str) -> UpstreamError:
    return UpstreamError(502, message, Reason.UPSTREAM_BROKE)


def _decline(reason: Reason, answer: LiveAnswer) -> None:
    answer.declined = reason
    if (payer := answer.payer) is not None:
        payer.declined = reason
        if payer.streamed:
            # The head of a stream is sent before this is known.
            log.info(
                "%s rule=%s: a streamed answer was not stored: %s",
                payer.endpoint,
                payer.rule,
                reason,
            )


def _note_usage(payer: Observation | None, usage: Any) -> None:
    if payer is not None:
        payer.note_usage(prompt_usage(usage))


def _note_cached(upstream: UpstreamReply, usage: Any) -> None:
    if (cached := prompt_usage(usage).cached) is not None:
        upstream.served.note_cached(cached)


def _note_made(upstream: UpstreamReply, made: Any, exchange: Exchange) -> None:
    kept = SPECS[exchange.endpoint].keeps_by_id and exchange.body.get("store") is not False
    if kept and isinstance(made, str):
        upstream.served.note_made(made)
