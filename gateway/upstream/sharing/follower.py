"""One request that reads a shared response: its reply, in the form that the request needs.

Laws:
- A follower gets the whole answer in its own wire mode, or the failure. If the response cannot take
  that form, the request goes to another call at once.
- A refusal (4xx) is shared like an answer, with one exception: the upstream got the credential of
  the leader, and the follower has another. An account's rights may decide even a 400 or a 404. So
  that follower leaves, and the followers with one other credential share one more call. After a 429
  nobody calls again: more calls are what the upstream refuses.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from enum import Enum, auto
from functools import partial
from http import HTTPStatus
from typing import NamedTuple

import orjson

from gateway.cache.key import identify
from gateway.prompts.outcome import COMPRESS, REWRITE, format_rewrites
from gateway.protocol import exact_json
from gateway.protocol.endpoints.registry import SPECS
from gateway.protocol.errors import RequestError
from gateway.protocol.http.cache_status import ForwardStatus, Reason
from gateway.protocol.http.headers import Fields, shared_fields, with_cache_status, without
from gateway.protocol.http.messages import Reply
from gateway.telemetry.observation import CallShare
from gateway.upstream.request import Exchange, Served
from gateway.upstream.sharing.answer_log import TooSlowError
from gateway.upstream.sharing.shared_response import Head, SharedResponse, reason_of

JSON_TYPE = ("Content-Type", "application/json")
SSE_TYPE = ("Content-Type", "text/event-stream; charset=utf-8")


class Sharing(Enum):
    """Which call a request may join: any, one with the same wire mode or credential, or none."""

    ANY_WIRE = auto()
    SAME_WIRE = auto()
    SAME_CREDENTIAL = auto()
    ALONE = auto()


class Answered(NamedTuple):
    """A reply of the upstream, and what telemetry says of it.

    ``status`` says why the request was forwarded, and whether it joined the call of another.
    ``call`` is what counts of the call, None while the reply comes.
    """

    reply: Reply
    status: ForwardStatus
    call: CallShare | None


class Follower(AsyncIterator[bytes]):
    """Reads one shared response for one request; iterating yields the body of a stream."""

    def __init__(self, shared: SharedResponse, exchange: Exchange, sharing: Sharing) -> None:
        self.shared = shared
        self._exchange = exchange
        self._other = Sharing.SAME_WIRE if sharing is Sharing.ANY_WIRE else Sharing.ALONE
        """Which call to join if this response cannot take the form that the request needs."""
        shares = sharing in (Sharing.ANY_WIRE, Sharing.SAME_WIRE)
        self._other_credential = Sharing.SAME_CREDENTIAL if shares else Sharing.ALONE
        """Which call to join if the leader's credential was refused."""
        self._leads = shared.leader is exchange
        self._without_usage = False
        self._fault: Reason | None = None
        """Why the stream failed that was read to its end."""
        shared.followers[exchange] = 0
        status = exchange.state.status
        self.status = status if self._leads else replace(status, collapsed=True)
        exchange.observation.follow(self)

    async def reply(self) -> Reply | Sharing:
        """Return the reply as soon as it can begin, or which call to join in place of this one.

        Raises UpstreamError if the call failed before its head.
        """
        shared, exchange = self.shared, self._exchange
        if self._leads:
            while shared.head is None and not shared.over:
                await shared.news.wait()
        elif not await self._wait_for_start():
            return Sharing.ALONE
        head = shared.head
        if head is None:
            raise shared.fault_again()
        if _may_depend_on_credential(head.status, shared.served) and not self._same_tenant():
            return self._other_credential
        streamed = exchange.request.streamed
        other_wire = shared.leader.request.streamed is not streamed
        if head.body is not None:
            return self._whole(head, head.body, renders=other_wire and streamed)
        if other_wire and head.events and not streamed:
            return await self._assemble(head)
        wants_usage = exchange.request.wants_usage
        if other_wire or (head.events and wants_usage and not head.usage):
            return self._other
        self._without_usage = head.usage and not wants_usage
        # When a stream's head is sent, it is not known yet whether its answer will be stored.
        declined = None if head.events else shared.facts.declined
        fields = self._fields(head, self.status.header(declined=declined))
        return Reply(head.status, fields, self, partial(shared.leave, exchange))

    async def _wait_for_start(self) -> bool:
        """Wait for the response's first piece; tell whether it arrived in time."""
        shared, plan = self.shared, self._exchange.state.store
        try:
            async with asyncio.timeout(plan.decision.follow_seconds if plan else None):
                while not (shared.over or shared.log.end):
                    if shared.head is not None and shared.head.body is not None:
                        break
                    await shared.news.wait()
        except TimeoutError:
            return False
        return True

    def _same_tenant(self) -> bool:
        mine, theirs = self._exchange.request.headers, self.shared.leader.request.headers
        return self._leads or identify(mine) == identify(theirs)

    def _whole(self, head: Head, body: bytes, *, renders: bool) -> Reply | Sharing:
        """Return a plain reply; an answer as a stream, if it ``renders``."""
        if head.status == HTTPStatus.TOO_MANY_REQUESTS and not self._same_tenant():
            return self._plain(head, _limit(self._exchange.request.endpoint), JSON_TYPE)
        if renders and head.status == HTTPStatus.OK:
            return self._render(head, body)
        return self._plain(head, body)

    def _render(self, head: Head, body: bytes) -> Reply | Sharing:
        """Return a plain answer as a stream."""
        shared, usage = self.shared, self._exchange.request.wants_usage
        streaming = SPECS[self._exchange.request.endpoint].streaming
        if streaming is None:
            return self._other
        if usage not in shared.rendered:
            try:
                result = exact_json.loads(body)
                stream = streaming.render(result, include_usage=usage)
            except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
                # An upstream's answer may have any shape, and not each can be a stream.
                return self._other
            shared.rendered[usage] = stream
        return self._plain(head, shared.rendered[usage], SSE_TYPE)

    async def _assemble(self, head: Head) -> Reply | Sharing:
        """Return a streamed answer in its plain form, once it is complete."""
        shared = self.shared
        shared.want_whole()
        await shared.settled.wait()
        if shared.error is not None:
            return self._plain(replace(head, status=502), shared.error, JSON_TYPE)
        if shared.fault is not None:
            raise shared.fault_again()
        if shared.plain is None or shared.facts.declined is Reason.UNKNOWN_SHAPE:
            return self._other
        return self._plain(head, shared.plain, JSON_TYPE)

    def _plain(self, head: Head, body: bytes, content_type: tuple[str, str] | None = None) -> Reply:
        facts = self.shared.facts
        if self.shared.elsewhere:
            self.status = replace(self.status, collapsed=True)
        stored = self._leads and facts.stored
        fields = self._fields(head, self.status.header(stored=stored, declined=facts.declined))
        if content_type is not None:
            fields = (content_type, *without(fields, "content-type"))
        return Reply(head.status, fields, body)

    def _fields(self, head: Head, cache_status: str) -> Fields:
        fields = head.fields
        if not self._leads:
            fields = shared_fields(fields, same_tenant=self._same_tenant())
        fields = with_cache_status(fields, cache_status)
        sent = self.shared.leader
        if self.shared.elsewhere:
            return fields
        if sent.rewrites or sent.not_rewritten:
            fields = (*fields, (REWRITE, format_rewrites(sent.rewrites, sent.not_rewritten)))
        if sent.compression is not None:
            fields = (*fields, (COMPRESS, str(sent.compression)))
        return fields

    def share(self, then: Callable[[], None] | None = None) -> CallShare | None:
        """Return what counts for the request, see ``CallSource``."""
        shared, exchange = self.shared, self._exchange
        if then is not None and shared.left is exchange and not shared.over:
            shared.on_over = then
            return None
        share = shared.share(exchange, leads=self._leads)
        return share if self._fault is None else share._replace(fault=self._fault)

    async def __anext__(self) -> bytes:
        """Return all that is new, in one piece; wait if nothing is.

        Raises TimeoutError if the client has fallen too far behind.
        """
        shared = self.shared
        while True:
            try:
                piece = shared.read(self._exchange, without_usage=self._without_usage)
            except TooSlowError:
                raise TimeoutError from None
            if piece:
                return piece
            if shared.over:
                if shared.fault is not None:
                    # A stream's failure has been its last event.
                    if shared.head is None or not shared.head.events:
                        raise shared.fault_again()
                    self._fault = reason_of(shared.fault)
                raise StopAsyncIteration
            await shared.news.wait()


def _limit(endpoint: str) -> bytes:
    """Return what a limit says to those whom the upstream did not answer: nothing of an account."""
    message = "The upstream has reached a limit. Please try again later."
    kind, code = "rate_limit_error", "rate_limit_exceeded"
    return orjson.dumps(RequestError(429, message, kind=kind, code=code).body(endpoint))


def _may_depend_on_credential(status: int, served: Served | None) -> bool:
    """Tell whether a follower with another credential may get another reply than this one."""
    if served is not None and not served.passes_credentials:
        return False
    is_refusal = HTTPStatus.BAD_REQUEST <= status < HTTPStatus.INTERNAL_SERVER_ERROR
    return is_refusal and status != HTTPStatus.TOO_MANY_REQUESTS
