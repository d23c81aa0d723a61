"""Forward a request, pass the answer on as it arrives, and store it if it ended cleanly.

Law: the client gets what the upstream sent; storing never changes or delays a byte except the
last one, which waits until the entry can be hit.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

import orjson

from gateway.admitting import Admitter
from gateway.core import sse
from gateway.core.errors import UpstreamError, error_body
from gateway.core.headers import Fields, end_to_end, request_fields, without
from gateway.core.lookup import Forward
from gateway.core.plan import Plan
from gateway.core.status import joined
from gateway.core.streamed import StreamedAnswer
from gateway.core.types import Endpoint, Reason
from gateway.core.usage import ask_for_usage
from gateway.exchange import Inbound, Reply
from gateway.observation import Observation
from gateway.ports import Scanner, Upstream, UpstreamReply

log = logging.getLogger(__name__)

_OURS = ("accept-encoding", "content-encoding")
"""Request headers that are about our own call, whose body is decoded and read here."""


@dataclass(frozen=True, slots=True)
class Exchange:
    """One request on its way to the upstream."""

    endpoint: Endpoint
    inbound: Inbound
    body: dict[str, Any]
    state: Forward
    scanner: Scanner
    seen: Observation

    @property
    def plan(self) -> Plan | None:
        """The plan under which the answer may be admitted, if it may."""
        return self.state.store


@dataclass(slots=True)
class Forwarder:
    """Sends misses and bypasses to the upstream. ``max_answer_bytes`` bounds what is stored.

    ``asks_for_usage`` is dropped for good once the upstream has refused ``stream_options``:
    several OpenAI-compatible servers do.
    """

    upstream: Upstream
    admitter: Admitter
    max_answer_bytes: int
    asks_for_usage: bool = True
    _refreshing: dict[bytes, asyncio.Task[None]] = field(default_factory=dict)

    def refresh(self, exchange: Exchange) -> bool:
        """Begin a call to which no client listens: its answer is only stored.

        Return False where one for the same key is under way, or nothing may be stored. The
        exchange's observation is finished here, when the call has ended.
        """
        plan = exchange.plan
        if plan is None or plan.key in self._refreshing:
            return False
        exchange.seen.outcome = "refresh"
        task = asyncio.create_task(self._refresh(exchange))
        self._refreshing[plan.key] = task
        task.add_done_callback(lambda _: self._refreshing.pop(plan.key, None))
        return True

    async def close(self) -> None:
        """End the calls that no client waits for."""
        tasks = list(self._refreshing.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _refresh(self, exchange: Exchange) -> None:
        seen = exchange.seen
        try:
            reply = await self.forward(exchange)
            async with reply.resources or AsyncExitStack():
                if not isinstance(reply.body, bytes):
                    async for _ in reply.body:
                        pass
        except UpstreamError as error:
            seen.outcome, seen.reason = "error", error.reason
        except Exception:
            log.exception("a refresh failed")
            seen.outcome, seen.reason = "error", Reason.INTERNAL
        finally:
            seen.finish()

    async def forward(self, exchange: Exchange) -> Reply:
        """Return the upstream's reply, streamed where the upstream streams it.

        Raises UpstreamError when there is no reply to return.
        """
        as_asked = exchange.inbound.raw
        raw, added = ask_for_usage(exchange.body, as_asked)
        if not (added and self.asks_for_usage):
            return await self._attempt(exchange, as_asked, strip_usage=False)
        reply = await self._attempt(exchange, raw, strip_usage=True)
        if not _may_refuse_usage(reply) or "stream_options" in exchange.body:
            return reply
        reply = await self._attempt(exchange, as_asked, strip_usage=False)
        if reply.status < HTTPStatus.BAD_REQUEST:
            log.info("%s refuses stream_options: not asked for again", self.upstream.name)
            self.asks_for_usage = False
        return reply

    async def _attempt(self, exchange: Exchange, raw: bytes, *, strip_usage: bool) -> Reply:
        inbound, seen = exchange.inbound, exchange.seen
        seen.declined = None
        # The answer is read here, so it must come unencoded; our span stands for the client's.
        headers = without(request_fields(inbound.fields), *_OURS, *seen.trace_headers)
        headers += (("Accept-Encoding", "identity"), *seen.trace_headers.items())
        async with AsyncExitStack() as stack:
            seen.upstream_started = seen.clock()
            upstream = await stack.enter_async_context(
                self.upstream.send(inbound.target, headers, raw)
            )
            seen.upstream_head = seen.clock()
            seen.status = upstream.status
            if upstream.content_type == "text/event-stream":
                answer = StreamedAnswer(
                    exchange.endpoint,
                    assemble=exchange.plan is not None,
                    strip_usage=strip_usage,
                    max_bytes=self.max_answer_bytes,
                )
                stream = self._relay(upstream, exchange, answer)
                return self._reply(upstream, exchange, stream, stack.pop_all())
            chunks = upstream.chunks()
            whole = await _read(chunks, self.max_answer_bytes)
            seen.mark_first_token()
            if len(whole) > self.max_answer_bytes:
                seen.declined = Reason.TOO_LARGE
                return self._reply(upstream, exchange, _rest(whole, chunks), stack.pop_all())
            await self._store_plain(upstream.status, whole, exchange)
            return self._reply(upstream, exchange, whole)

    def _reply(
        self,
        upstream: UpstreamReply,
        exchange: Exchange,
        body: bytes | AsyncIterator[bytes],
        resources: AsyncExitStack | None = None,
    ) -> Reply:
        seen = exchange.seen
        ours = exchange.state.status.header(stored=seen.stored, declined=seen.declined)
        return Reply(upstream.status, _reply_headers(upstream, ours), body, resources)

    async def _relay(
        self,
        upstream: UpstreamReply,
        exchange: Exchange,
        answer: StreamedAnswer,
    ) -> AsyncIterator[bytes]:
        """Pass events on as they end; hold back the last until the entry is stored."""
        decoder = sse.Decoder()
        seen = exchange.seen
        try:
            async for chunk in upstream.chunks():
                async for piece in self._follow(decoder.feed(chunk), answer, upstream, exchange):
                    yield piece
            if (last := decoder.end()) is not None:
                async for piece in self._follow([last], answer, upstream, exchange):
                    yield piece
            if not answer.ended:
                yield _broken(seen, "The upstream ended the stream before the answer's end.")
        except (UpstreamError, sse.EventTooLargeError) as error:
            yield _broken(seen, str(error))
        if answer.failed:
            seen.outcome, seen.reason = "error", Reason.UPSTREAM_BROKE

    async def _follow(
        self,
        events: Iterable[sse.Event],
        answer: StreamedAnswer,
        upstream: UpstreamReply,
        exchange: Exchange,
    ) -> AsyncIterator[bytes]:
        """Yield what the events of one read come to; the last bytes once the entry is there."""
        out: list[bytes] = []
        for event in events:
            was_done = answer.done
            piece = answer.pass_on(event)
            if answer.done and not was_done:
                if out:
                    exchange.seen.mark_first_token()
                    yield b"".join(out)
                    out.clear()
                await self._store_streamed(upstream.status, answer, exchange)
            out.append(piece)
        if passed := b"".join(out):
            exchange.seen.mark_first_token()
            yield passed

    async def _store_plain(self, status: int, answer: bytes, exchange: Exchange) -> None:
        try:
            result = orjson.loads(answer)
        except orjson.JSONDecodeError:
            result = None
        if isinstance(result, dict):
            _note_usage(exchange.seen, result.get("usage"))
        await self._store(status, result, answer, exchange)

    async def _store_streamed(
        self, status: int, answer: StreamedAnswer, exchange: Exchange
    ) -> None:
        _note_usage(exchange.seen, answer.usage)
        if exchange.plan is None:
            return
        result = answer.result()
        if isinstance(result, Reason):
            exchange.seen.declined = result
            return
        try:
            plain = orjson.dumps(result)
        except TypeError:  # nested deeper than can be printed
            exchange.seen.declined = Reason.UNKNOWN_SHAPE
            return
        await self._store(status, result, plain, exchange)

    async def _store(self, status: int, result: Any, plain: bytes, exchange: Exchange) -> None:
        seen = exchange.seen
        if exchange.plan is None:
            return
        if status == HTTPStatus.OK:
            seen.declined = await self.admitter.store(
                exchange.plan, result, plain, exchange.scanner
            )
        else:
            seen.declined = Reason.UPSTREAM_STATUS
        seen.stored = seen.declined is None


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


async def _rest(first: bytes, chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    yield first
    async for chunk in chunks:
        yield chunk


def _may_refuse_usage(reply: Reply) -> bool:
    return (
        reply.status in (HTTPStatus.BAD_REQUEST, HTTPStatus.UNPROCESSABLE_ENTITY)
        and isinstance(reply.body, bytes)
        and b"stream_options" in reply.body
    )


def _reply_headers(upstream: UpstreamReply, ours: str) -> Fields:
    fields = end_to_end(upstream.headers)
    theirs = ", ".join(value for name, value in fields if name.lower() == "cache-status")
    return (*without(fields, "cache-status"), ("Cache-Status", joined(theirs, ours)))


def _note_usage(seen: Observation, usage: Any) -> None:
    match usage:
        case {"prompt_tokens": int(prompt), "completion_tokens": int(completion)}:
            seen.prompt_tokens = prompt
            seen.completion_tokens = completion
    match usage:
        case {"prompt_tokens_details": {"cached_tokens": int(cached)}}:
            seen.cached_tokens = cached


def _broken(seen: Observation, message: str) -> bytes:
    seen.outcome = "error"
    seen.reason = Reason.UPSTREAM_BROKE
    error = error_body(message, "upstream_error", None, Reason.UPSTREAM_BROKE.value)
    return sse.encode(orjson.dumps(error))
