"""One reader of a call: the client that made it, or one whose identical miss follows it.

Law: a reader gets the whole answer in the wire mode it asked for, or the failure in the form that
is right at that moment; what it cannot be given, it is told at once and asks for itself.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import replace
from enum import Enum, auto
from http import HTTPStatus

from gateway.cache.key import identify
from gateway.prompts.outcome import COMPRESS, REWRITE, rewrites_told
from gateway.protocol import exact_json
from gateway.protocol.cache_status import joined
from gateway.protocol.endpoints.table import SPECS
from gateway.protocol.errors import UpstreamError
from gateway.protocol.headers import Fields, shared_fields, without
from gateway.protocol.messages import Reply
from gateway.protocol.reasons import Reason
from gateway.upstream.coalescing.shared_response import Head, LiveAnswer, TooSlowError
from gateway.upstream.exchange import Exchange
from gateway.upstream.request import note_served

JSON_TYPE = ("Content-Type", "application/json")
SSE_TYPE = ("Content-Type", "text/event-stream; charset=utf-8")


class Way(Enum):
    """Whose call may answer a request: anybody's, that of a request of its wire mode, its own."""

    ANY_WIRE = auto()
    SAME_WIRE = auto()
    ALONE = auto()


class Reader(AsyncIterator[bytes]):
    """Reads one call's answer for one request; iterating yields its body where it is streamed."""

    def __init__(self, answer: LiveAnswer, exchange: Exchange, way: Way) -> None:
        self._answer = answer
        self._exchange = exchange
        self._way = way
        self._leads = answer.leader is exchange
        self._bare = False
        self._place = answer.join(exchange.seen)
        self._status = replace(exchange.state.status, collapsed=not self._leads)
        seen = exchange.seen
        seen.forward = self._status
        seen.reason = exchange.state.status.reason if self._leads else Reason.COLLAPSED
        if self._leads:
            exchange.note_rewrites()

    def leave(self) -> None:
        """Stop reading. The call ends with its last reader."""
        self._answer.leave(self._place)

    async def reply(self) -> Reply | Way:
        """Return the reply as soon as it can begin, or in which way to ask instead.

        Raises UpstreamError where the call failed before its head.
        """
        reply: Reply | Way | None = None
        try:
            reply = await self._reply()
        finally:
            if not (isinstance(reply, Reply) and reply.body is self):
                self.leave()
        return reply

    async def _reply(self) -> Reply | Way:
        answer, exchange = self._answer, self._exchange
        if self._leads:
            while answer.head is None and not answer.over:
                await answer.news()
            exchange.seen.upstream_started = answer.upstream_started
            exchange.seen.upstream_head = answer.upstream_head
            note_served(answer.served, exchange.seen)
        elif not await self._began():
            return Way.ALONE
        head = answer.head
        if head is None:
            answer.raise_fault()
            raise AssertionError("a call without head or fault")
        if self._is_of_another_credential(head):
            return Way.ALONE
        other_wire = answer.leader.streamed is not exchange.streamed
        if head.whole is not None:
            if other_wire and exchange.streamed and head.status == HTTPStatus.OK:
                return self._rendered(head)
            return self._made(head, head.whole)
        if other_wire and head.events and not exchange.streamed:
            return await self._assembled(head)
        if other_wire or (exchange.wants_usage and not head.usage):
            return self._instead()
        self._bare = head.usage and not exchange.wants_usage
        resources = AsyncExitStack()
        resources.callback(self.leave)
        exchange.seen.status = head.status
        # The fate of a stream is not known, or only by chance, when its head is sent.
        declined = None if head.events else answer.declined
        fields = self._fields(head, self._status.header(declined=declined))
        return Reply(head.status, fields, self, resources)

    async def _began(self) -> bool:
        """Wait for the answer's first piece; tell whether it came in time."""
        decision = self._exchange.plan.decision if self._exchange.plan is not None else None
        try:
            async with asyncio.timeout(decision.follow_seconds if decision else None):
                while not self._answer.started:
                    await self._answer.news()
        except TimeoutError:
            return False
        return True

    def _is_of_another_credential(self, head: Head) -> bool:
        """Tell whether the call was refused for a reason that may lie in who made it."""
        refused = HTTPStatus.BAD_REQUEST <= head.status < HTTPStatus.INTERNAL_SERVER_ERROR
        return refused and not self._same_tenant()

    def _same_tenant(self) -> bool:
        mine, theirs = self._exchange.inbound.headers, self._answer.leader.inbound.headers
        return self._leads or identify(mine) == identify(theirs)

    def _instead(self) -> Way:
        return Way.SAME_WIRE if self._way is Way.ANY_WIRE else Way.ALONE

    def _rendered(self, head: Head) -> Reply | Way:
        """Return a plain answer as a stream."""
        answer, usage = self._answer, self._exchange.wants_usage
        streaming = SPECS[self._exchange.endpoint].streaming
        if streaming is None:
            return self._instead()
        if usage not in answer.rendered:
            try:
                result = exact_json.loads(head.whole or b"")
                stream = streaming.render(result, include_usage=usage)
            except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
                # An upstream's answer may have any shape, and not each can be a stream.
                return self._instead()
            answer.rendered[usage] = stream
        return self._made(head, answer.rendered[usage], SSE_TYPE)

    async def _assembled(self, head: Head) -> Reply | Way:
        """Return a streamed answer in its plain form, once it is complete."""
        answer = self._answer
        await answer.end()
        if answer.error is not None:
            return self._made(replace(head, status=502), answer.error, JSON_TYPE)
        answer.raise_fault()
        if answer.result is None or answer.declined is Reason.UNKNOWN_SHAPE:
            return self._instead()
        return self._made(head, answer.result, JSON_TYPE)

    def _made(self, head: Head, body: bytes, content_type: tuple[str, str] | None = None) -> Reply:
        answer = self._answer
        if answer.elsewhere:
            self._status = replace(self._status, collapsed=True)
            self._exchange.seen.forward = self._status
            self._exchange.seen.reason = Reason.COLLAPSED
        stored = self._leads and answer.stored
        fields = self._fields(head, self._status.header(stored=stored, declined=answer.declined))
        if content_type is not None:
            fields = (content_type, *without(fields, "content-type"))
        self._exchange.seen.status = head.status
        return Reply(head.status, fields, body)

    def _fields(self, head: Head, ours: str) -> Fields:
        fields = head.fields
        if not self._leads:
            fields = shared_fields(fields, same_tenant=self._same_tenant())
        theirs = ", ".join(value for name, value in fields if name.lower() == "cache-status")
        fields = (
            *without(fields, "cache-status", REWRITE.lower(), COMPRESS.lower()),
            ("Cache-Status", joined(theirs, ours)),
        )
        if self._answer.elsewhere:
            return fields
        sent = self._answer.leader
        told = (
            (REWRITE, rewrites_told(sent.rewrites, sent.not_rewritten)),
            (COMPRESS, None if sent.compression is None else str(sent.compression)),
        )
        return (*fields, *((name, value) for name, value in told if value is not None))

    async def __anext__(self) -> bytes:
        """Return all that is new, in one piece; wait where nothing is.

        Raises TimeoutError where the client has fallen too far behind.
        """
        answer = self._answer
        while True:
            try:
                piece = answer.take(self._place, bare=self._bare)
            except TooSlowError:
                raise TimeoutError from None
            if piece:
                self._exchange.seen.mark_first_token()
                return piece
            if answer.over:
                self._note_fault()
                raise StopAsyncIteration
            await answer.news()

    def _note_fault(self) -> None:
        """Tell the sinks of a failure that the stream itself has told; raise what it has not."""
        answer, seen = self._answer, self._exchange.seen
        if answer.head is None or not answer.head.events:
            answer.raise_fault()
        elif isinstance(answer.fault, UpstreamError):
            seen.outcome, seen.reason = "error", answer.fault.reason
        elif answer.fault is not None:
            seen.outcome, seen.reason = "error", Reason.INTERNAL
