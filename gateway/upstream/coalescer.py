"""Runs upstream calls, each in its own task, and answers a request by the call that fits.

Laws:
- Identical concurrent misses make one call. It belongs to no client: it ends with its last
  follower, and at once. A call that never had one (a refresh) ends by itself or with the gateway.
- The cancellation of one follower touches no other.
- A follower gets the whole answer in its own wire mode, or the failure. If the response cannot take
  that form, the request goes to another call at once.
- A refusal (4xx) is shared like an answer, with one exception: the upstream got the credential of
  the leader, and the follower has another. An account's rights may decide even a 400 or a 404. So
  that follower leaves, and the followers with one other credential share one more call. After a 429
  nobody calls again: more calls are what the upstream refuses.
- A stale entry is refreshed once, and prepared once, however many clients and gateways are served
  it. A gateway that cannot claim a refresh leaves it to the one that can.
- Across processes, sharing is never worse than a call of one's own. A plain request waits for the
  process that makes the call, and takes the entry which that process stored. A streamed request
  does not wait: its first token would come only with the end of the other call. If claims fail, or
  nothing was stored in time, the call is made here, and no request waits a second time.
"""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Hashable
from dataclasses import KW_ONLY, dataclass, field, replace
from enum import Enum, auto
from functools import partial
from http import HTTPStatus
from typing import Any, Protocol

import orjson

from gateway.cache.key import identify
from gateway.cache.lookup import Hit, evaluate_entry
from gateway.cache.plan import Plan
from gateway.cache.ports import Entry, StoreError
from gateway.prompts.outcome import COMPRESS, REWRITE, format_rewrites
from gateway.protocol import exact_json
from gateway.protocol.endpoints.registry import SPECS
from gateway.protocol.errors import RequestError, UpstreamError
from gateway.protocol.http.cache_status import Forwarded, Reason
from gateway.protocol.http.headers import Fields, shared_fields, with_cache_status, without
from gateway.protocol.http.messages import Reply
from gateway.telemetry.observation import Observation
from gateway.telemetry.savings import entry_usage
from gateway.upstream.answer import AnsweredCall
from gateway.upstream.request import Exchange, Served
from gateway.upstream.shared_response import (
    FlightTable,
    Head,
    Holder,
    SharedResponse,
    TooSlowError,
)

log = logging.getLogger(__name__)

LINGER_SECONDS = 2.0

LINGER_BYTES = 16 * 2**20
MAX_BACKGROUND_CALLS = {"refresh": 256, "sample": 16}
"""Calls at a time for which no client waits: a flood of hits must not reach the upstream."""

POLL_SECONDS = 0.1

JSON_TYPE = ("Content-Type", "application/json")
SSE_TYPE = ("Content-Type", "text/event-stream; charset=utf-8")


class Sharing(Enum):
    """Which call a request may join: any, one with the same wire mode or credential, or none."""

    ANY_WIRE = auto()
    SAME_WIRE = auto()
    SAME_CREDENTIAL = auto()
    ALONE = auto()


class Claims(Protocol):
    """Which of several gateway processes makes the upstream call for a miss that they share."""

    async def take(self, slot: bytes) -> bool:
        """Claim the slot unless it is claimed; tell whether it was not. Raises StoreError.

        A claim lapses soon after its holder's end.
        """

    def release(self, slot: bytes) -> None: ...


@dataclass(eq=False)
class Coalescer:
    """Sends misses and bypasses to the upstream; identical ones share a call of ``caller``.

    ``claims`` belong to the processes that share the store, if there are several.
    """

    caller: AnsweredCall
    _: KW_ONLY
    clock: Callable[[], float] = time.perf_counter
    claims: Claims | None = None
    unread: Holder | None = None
    calls: set[asyncio.Task[None]] = field(default_factory=set, init=False)
    """Those under way."""
    _background: Counter[str] = field(default_factory=Counter, init=False)
    _forgetting: asyncio.TimerHandle | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.table = FlightTable[SharedResponse](linger=LINGER_SECONDS, linger_bytes=LINGER_BYTES)

    async def forward(self, exchange: Exchange) -> Reply:
        """Return the reply of a call that another request made, or of the request's own.

        It is streamed if the upstream streams it. Raises UpstreamError if there is none.
        """
        plan = exchange.state.store
        alone = plan is None or plan.decision.max_followers <= 0
        sharing = Sharing.ALONE if alone else Sharing.ANY_WIRE
        while True:
            follower = self._follow(exchange, plan, sharing)
            reply: Reply | Sharing | None = None
            try:
                reply = await follower.reply()
            finally:
                if not isinstance(reply, Reply) or reply.body is not follower:
                    follower.shared.leave(exchange)
            if isinstance(reply, Reply):
                return reply
            sharing = reply

    def refresh(self, exchange: Exchange, prepare: Callable[[], Awaitable[Exchange]]) -> bool:
        """Begin a call to which no client listens: its answer is only stored.

        Return False if one for the same key is under way, nothing may be stored, or there are too
        many. The ``exchange`` is the request as it came. The one to send is prepared in the
        background, and only if a call is made. Then its observation is finished here.
        """
        plan = exchange.state.store
        outcome = "refresh" if exchange.state.to_compare is None else "sample"
        if (
            plan is None
            or self._background[outcome] >= MAX_BACKGROUND_CALLS[outcome]
            or self.table.under_way(plan.coalescing_key)
        ):
            return False
        exchange.observation.outcome = outcome
        shared = SharedResponse(
            *(self.table, plan.coalescing_key, exchange, self.caller.max_answer_bytes),
            attended=False,
            unread=self.unread,
        )
        self._background[outcome] += 1
        self._run(self._refresh(exchange, prepare, shared, plan), shared)
        return True

    def has_missed(self, plan: Plan) -> bool:
        """Tell whether a call of a leader that found no entry is under way and can be joined."""
        call = self.table.under_way(plan.coalescing_key)
        return (
            call is not None
            and call.attended
            and call.reading <= plan.decision.max_followers
            and call.leader.state.status.forwarded is Forwarded.MISS
            and not plan.directives.no_cache
        )

    async def close(self) -> None:
        """End the calls under way."""
        if self._forgetting is not None:
            self._forgetting.cancel()
        calls = list(self.calls)
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)

    def _follow(self, exchange: Exchange, plan: Plan | None, sharing: Sharing) -> "Follower":
        """Join the call under the request's slot, or make one."""
        slot: Hashable | None = None
        observation = exchange.observation
        if exchange.forwarding.is_looking:
            exchange.forwarding.is_looking = False
            self.table.looking -= 1
        if plan is not None and sharing is not Sharing.ALONE:
            slot = _slot(plan.coalescing_key, exchange, sharing)
            # `no-cache` also rules out answers to calls that began earlier.
            if not plan.directives.no_cache:
                most, since = plan.decision.max_followers, observation.started
                shared = self.table.follow(slot, most=most, since=since)
                if shared is not None:
                    return Follower(shared, exchange, sharing)
        shared = SharedResponse(
            self.table, slot, exchange, self.caller.max_answer_bytes, unread=self.unread
        )
        follower = Follower(shared, exchange, sharing)
        shared.task = self._run(self._call(exchange, shared), shared)
        return follower

    def _call(self, exchange: Exchange, shared: SharedResponse) -> Coroutine[Any, Any, None]:
        """Return the work of a call, which other processes may share."""
        slot, claims = shared.slot, self.claims
        if claims is None or not isinstance(slot, bytes):
            return self.caller.call(exchange, shared)
        plan = exchange.state.store
        is_batch = SPECS[exchange.request.endpoint].render is not None
        if plan is None or is_batch or plan.directives.no_cache:
            return self.caller.call(exchange, shared)
        return self._claim_and_call(exchange, shared, claims, plan, slot)

    async def _claim_and_call(
        self, exchange: Exchange, shared: SharedResponse, claims: Claims, plan: Plan, slot: bytes
    ) -> None:
        """Make the call, or take the entry that another process stores meanwhile."""
        claimed, entry = False, None
        try:
            claimed = await claims.take(slot)
            if not claimed and not exchange.request.streamed:
                entry = await self._wait_for_entry(claims, plan, slot)
        except (StoreError, TimeoutError):
            pass
        except Exception:
            log.exception("a claim failed: the call is made without it")
        if entry is not None:
            shared.take_over(Head(200, (JSON_TYPE,), entry.result), entry_usage(entry))
            return
        try:
            await self.caller.call(exchange, shared)
        finally:
            if claimed:
                claims.release(slot)

    async def _wait_for_entry(self, claims: Claims, plan: Plan, slot: bytes) -> Entry | None:
        """Wait until no other process claims the slot, and return the entry it stored, if any.

        Raises StoreError and TimeoutError.
        """
        async with asyncio.timeout(plan.decision.follow_seconds):
            while not await claims.take(slot):  # noqa: ASYNC110 - another process ends it
                await asyncio.sleep(POLL_SECONDS)
        try:
            found = evaluate_entry(
                plan, await self.caller.writer.entries.get(plan.key), self.caller.writer.now()
            )
        finally:
            # Others wait for the claim too, and the next answer may be no better.
            claims.release(slot)
        return found.entry if isinstance(found, Hit) and not found.status.stale else None

    def _run(self, call: Coroutine[Any, Any, None], shared: SharedResponse) -> asyncio.Task[None]:
        task = asyncio.create_task(call)
        self.calls.add(task)

        def on_end(_: asyncio.Task[None]) -> None:
            self.calls.discard(task)
            shared.task = None  # a cycle: it has the frames in which it ended
            defect = None if task.cancelled() else task.exception()
            if isinstance(defect, Exception):
                log.error("a call to the upstream failed", exc_info=defect)
                shared.close(defect)
            if not shared.over:
                # The call was cancelled, perhaps before it began: its followers must not wait.
                message = "The gateway was stopped before the answer was complete."
                shared.close(UpstreamError(502, message, Reason.UPSTREAM_BROKE))
            if self._forgetting is None and self.table.landed:
                self._forget()

        task.add_done_callback(on_end)
        return task

    async def _refresh(
        self,
        exchange: Exchange,
        prepare: Callable[[], Awaitable[Exchange]],
        shared: SharedResponse,
        plan: Plan,
    ) -> None:
        observation, claims = exchange.observation, self.claims
        outcome = observation.outcome
        claimed = False
        try:
            if claims is not None:
                claimed = await self._claim_refresh(claims, plan)
                # Who followed meanwhile needs an answer, whichever process refreshes.
                if not (claimed or shared.followers):
                    shared.close()
                    return
            try:
                sent = await prepare()
                shared.set_leader(sent)
                await self.caller.call(sent, shared)
            except Exception as defect:
                shared.close(defect)
                raise
            finally:
                _note_call(shared, observation)
                observation.status = shared.head.status if shared.head is not None else 0
                _note_fault(shared, observation)
                observation.finish()
        finally:
            self._background[outcome] -= 1
            if claims is not None and claimed:
                claims.release(plan.coalescing_key)

    async def _claim_refresh(self, claims: Claims, plan: Plan) -> bool:
        """Claim a refresh; tell whether this process makes it.

        A claim that fails leaves the refresh to the next stale hit: its answer is for this store.
        """
        slot, is_due = plan.coalescing_key, False
        try:
            if not await claims.take(slot):
                return False
        except (StoreError, TimeoutError):
            return False
        try:
            entry = await self.caller.writer.entries.get(plan.key, touch=False)
            found = evaluate_entry(plan, entry, self.caller.writer.now())
            # Another process may have just refreshed it.
            is_due = not isinstance(found, Hit) or found.status.stale is not None
        except StoreError:
            pass
        finally:
            if not is_due:
                claims.release(slot)
        return is_due

    def _forget(self) -> None:
        """Drop calls that landed some time ago, and schedule the next such drop."""
        self._forgetting = None
        now = self.clock()
        if (again := self.table.forget(now)) is not None:
            loop = asyncio.get_running_loop()
            self._forgetting = loop.call_later(again - now, self._forget)


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
        self._observation = observation = exchange.observation
        shared.followers[exchange] = 0
        status = exchange.state.status
        self._status = status if self._leads else replace(status, collapsed=True)
        observation.forward = self._status
        observation.reason = status.reason if self._leads else Reason.COLLAPSED
        observation.followed = None if self._leads else shared.facts
        observation.billed = self._leads

    async def reply(self) -> Reply | Sharing:
        """Return the reply as soon as it can begin, or which call to join in place of this one.

        Raises UpstreamError if the call failed before its head.
        """
        shared, exchange = self.shared, self._exchange
        if self._leads:
            while shared.head is None and not shared.over:
                await shared.news.wait()
            _note_call(shared, self._observation)
        elif not await self._wait_for_start():
            return Sharing.ALONE
        head = shared.head
        if head is None:
            shared.raise_fault()
            raise AssertionError("a call without head or fault")
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
        self._observation.status = head.status
        # When a stream's head is sent, it is not known yet whether its answer will be stored.
        declined = None if head.events else shared.declined
        fields = self._fields(head, self._status.header(declined=declined))
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
        shared.raise_fault()
        if shared.result is None or shared.declined is Reason.UNKNOWN_SHAPE:
            return self._other
        return self._plain(head, shared.result, JSON_TYPE)

    def _plain(self, head: Head, body: bytes, content_type: tuple[str, str] | None = None) -> Reply:
        shared, observation = self.shared, self._observation
        if shared.elsewhere:
            self._status = replace(self._status, collapsed=True)
            observation.forward = self._status
            observation.reason, observation.followed = Reason.COLLAPSED, shared.facts
            observation.billed = False
        stored = self._leads and shared.stored
        fields = self._fields(head, self._status.header(stored=stored, declined=shared.declined))
        if content_type is not None:
            fields = (content_type, *without(fields, "content-type"))
        observation.status = head.status
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
                # A stream's failure has been its last event.
                if shared.head is None or not shared.head.events:
                    shared.raise_fault()
                _note_fault(shared, self._observation)
                raise StopAsyncIteration
            await shared.news.wait()


def _slot(key: bytes, exchange: Exchange, sharing: Sharing) -> Hashable:
    """Return what the calls share that a request may join."""
    if sharing is Sharing.ANY_WIRE:
        return key
    same_wire = key, exchange.request.streamed
    if sharing is Sharing.SAME_WIRE:
        return same_wire
    return same_wire, identify(exchange.request.headers)


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


def _note_call(shared: SharedResponse, observation: Observation) -> None:
    """Tell an observation which upstream was called, and when."""
    observation.upstream_started = shared.upstream_started
    observation.upstream_head = shared.upstream_head
    if (served := shared.served) is not None and served.several:
        observation.upstream, observation.tried = served.upstream, served.tried


def _note_fault(shared: SharedResponse, observation: Observation) -> None:
    """Tell an observation why the call failed, if it did."""
    if (fault := shared.fault) is not None:
        reason = fault.reason if isinstance(fault, UpstreamError) else Reason.INTERNAL
        observation.end("error", reason)
