"""Runs upstream calls, each in its own task, and answers a request by the call that fits.

Laws:
- Identical concurrent misses make one call. It belongs to no client: it ends with its last
  follower, and at once. A call that never had one (a refresh) ends by itself or with the gateway.
- The cancellation of one follower touches no other.
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
from collections.abc import Awaitable, Callable, Coroutine, Hashable
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Protocol

from gateway.cache.key import identify
from gateway.cache.lookup import Hit, evaluate_entry
from gateway.cache.plan import Plan
from gateway.cache.ports import Entry, StoreError
from gateway.protocol.endpoints.registry import SPECS
from gateway.protocol.errors import UpstreamError
from gateway.protocol.http.cache_status import Forwarded, Reason
from gateway.protocol.http.messages import Reply
from gateway.telemetry.savings import entry_usage
from gateway.upstream.answer import AnsweredCall
from gateway.upstream.request import Exchange
from gateway.upstream.sharing.flight_table import FlightTable
from gateway.upstream.sharing.follower import JSON_TYPE, Answered, Follower, Sharing
from gateway.upstream.sharing.shared_response import (
    CallResult,
    Head,
    Holder,
    SharedResponse,
    reason_of,
)

log = logging.getLogger(__name__)

LINGER_SECONDS = 2.0

LINGER_BYTES = 16 * 2**20
MAX_BACKGROUND_CALLS = {"refresh": 256, "sample": 16}
"""Calls at a time for which no client waits: a flood of hits must not reach the upstream."""

POLL_SECONDS = 0.1


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
    calls: set[asyncio.Task[Any]] = field(default_factory=set, init=False)
    """Those under way."""
    _background: Counter[str] = field(default_factory=Counter, init=False)
    _forgetting: asyncio.TimerHandle | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.table = FlightTable[SharedResponse](linger=LINGER_SECONDS, linger_bytes=LINGER_BYTES)

    async def forward(self, exchange: Exchange) -> Answered:
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
                call = None if reply.body is follower else follower.share()
                return Answered(reply, follower.status, call)
            sharing = reply

    def refresh(self, exchange: Exchange, prepare: Callable[[], Awaitable[Exchange]]) -> bool:
        """Begin a call to which no client listens: its answer is only stored.

        Return False if one for the same key is under way, nothing may be stored, or there are too
        many. The ``exchange`` is the request as it came. The one to send is prepared in the
        background, and only if a call is made. Then its observation is finished here.
        """
        plan = exchange.state.store
        kind = _kind_of(exchange)
        if (
            plan is None
            or self._background[kind] >= MAX_BACKGROUND_CALLS[kind]
            or self.table.under_way(plan.coalescing_key)
        ):
            return False
        shared = SharedResponse(
            *(self.table, plan.coalescing_key, exchange, self.caller.max_answer_bytes),
            attended=False,
            unread=self.unread,
        )
        self._background[kind] += 1
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

    def _follow(self, exchange: Exchange, plan: Plan | None, sharing: Sharing) -> Follower:
        """Join the call under the request's slot, or make one."""
        slot: Hashable | None = None
        if exchange.forwarding.is_looking:
            exchange.forwarding.is_looking = False
            self.table.looking -= 1
        if plan is not None and sharing is not Sharing.ALONE:
            slot = _slot(plan.coalescing_key, exchange, sharing)
            # `no-cache` also rules out answers to calls that began earlier.
            if not plan.directives.no_cache:
                most, since = plan.decision.max_followers, exchange.observation.started
                shared = self.table.follow(slot, most=most, since=since)
                if shared is not None:
                    return Follower(shared, exchange, sharing)
        shared = SharedResponse(
            self.table, slot, exchange, self.caller.max_answer_bytes, unread=self.unread
        )
        follower = Follower(shared, exchange, sharing)
        shared.task = self._run(self._call(exchange, shared), shared)
        return follower

    def _call(
        self, exchange: Exchange, shared: SharedResponse
    ) -> Coroutine[Any, Any, CallResult | None]:
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
    ) -> CallResult | None:
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
            shared.took_over(Head(200, (JSON_TYPE,), entry.result), entry_usage(entry))
            return None
        try:
            return await self.caller.call(exchange, shared)
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

    def _run(
        self, call: Coroutine[Any, Any, CallResult | None], shared: SharedResponse
    ) -> asyncio.Task[CallResult | None]:
        task = asyncio.create_task(call)
        self.calls.add(task)

        def on_end(_: object) -> None:
            self.calls.discard(task)
            shared.task = None  # a cycle: it has the frames in which it ended
            if self._forgetting is None and self.table.landed:
                self._forget()
            defect = None if task.cancelled() else task.exception()
            if isinstance(defect, Exception):
                log.error("a call to the upstream failed", exc_info=defect)
                shared.end(CallResult(shared.leader, fault=defect))
            elif defect is not None or task.cancelled():
                # Perhaps before it began: its followers must not wait.
                message = "The gateway was stopped before the answer was complete."
                fault = UpstreamError(502, message, Reason.UPSTREAM_BROKE)
                shared.end(CallResult(shared.leader, fault=fault))
            elif (result := task.result()) is not None:
                shared.end(result)

        task.add_done_callback(on_end)
        return task

    async def _refresh(
        self,
        exchange: Exchange,
        prepare: Callable[[], Awaitable[Exchange]],
        shared: SharedResponse,
        plan: Plan,
    ) -> CallResult | None:
        claims, result, claimed = self.claims, None, False
        try:
            if claims is not None:
                claimed = await self._claim_refresh(claims, plan)
                # Who followed meanwhile needs an answer, whichever process refreshes.
                if not (claimed or shared.followers):
                    shared.end(CallResult(exchange))  # at once: nobody may join it
                    return None
            try:
                result = await self.caller.call(await prepare(), shared)
            except Exception as defect:
                result = CallResult(exchange, fault=defect)
                raise
            finally:
                if result is not None:
                    shared.end(result)
                _finish_background(exchange, shared)
            return result
        finally:
            self._background[_kind_of(exchange)] -= 1
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


def _slot(key: bytes, exchange: Exchange, sharing: Sharing) -> Hashable:
    """Return what the calls share that a request may join."""
    if sharing is Sharing.ANY_WIRE:
        return key
    same_wire = key, exchange.request.streamed
    if sharing is Sharing.SAME_WIRE:
        return same_wire
    return same_wire, identify(exchange.request.headers)


def _kind_of(exchange: Exchange) -> str:
    """Return what a call is for to which no client listens."""
    return "refresh" if exchange.state.to_compare is None else "sample"


def _finish_background(exchange: Exchange, shared: SharedResponse) -> None:
    """Hand over the observation of a call for which no client waits."""
    seen, fault = exchange.observation, shared.fault
    status = shared.head.status if shared.head is not None else 0
    if fault is None:
        seen.end(_kind_of(exchange), None, status)
    else:
        seen.end("error", reason_of(fault), status)
    seen.note_call(shared.share(exchange, leads=True))
    seen.finish()
