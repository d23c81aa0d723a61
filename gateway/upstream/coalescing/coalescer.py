"""Runs upstream calls, each in a task of its own, and finds the call that answers a request.

Laws:
- Identical concurrent misses make one call. It belongs to no client: it ends with its last
  follower, and at once. A call that never had one (a refresh) ends by itself or with the gateway.
- Across processes, sharing is never worse than a call of one's own. A plain request waits for the
  process that makes the call, and takes the entry which that process stored. A streamed request
  does not wait: its first token would come only with the end of the other call. If claims fail, or
  nothing was stored in time, the call is made here, and nobody waits a second time.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import KW_ONLY, dataclass, field
from typing import Any

from gateway.cache.lookup import Hit, judged
from gateway.cache.plan import Plan
from gateway.cache.ports import Claims, Entry, StoreError
from gateway.cache.writer import CacheWriter
from gateway.protocol.cache_status import Forwarded, Reason
from gateway.protocol.endpoints.table import SPECS
from gateway.protocol.errors import UpstreamError
from gateway.protocol.messages import Reply
from gateway.upstream.call import Answered, UpstreamCall
from gateway.upstream.coalescing.flight import FlightTable
from gateway.upstream.coalescing.shared_response import (
    JSON_TYPE,
    Follower,
    Head,
    SharedResponse,
    Sharing,
)
from gateway.upstream.comparisons import Checks
from gateway.upstream.pool.retry import Budget
from gateway.upstream.request import Accepts, Exchange, Upstream
from gateway.upstream.routing.prefix_chain import PromptChains

LINGER_SECONDS = 2.0

LINGER_BYTES = 16 * 2**20
MAX_BACKGROUND_CALLS = {"refresh": 256, "sample": 16}
"""Calls at a time for which no client waits: a flood of hits must not reach the upstream."""

POLL_SECONDS = 0.1


@dataclass(eq=False)
class Coalescer:
    """Sends misses and bypasses to the upstream. ``max_answer_bytes`` bounds what is stored.

    ``claims`` are those of the processes that share the store, if any. ``checks`` compares answers.
    ``chains`` makes the prefix chains by which one of several upstreams is chosen. ``answered`` is
    called for each storable request that was answered. ``accepts`` says which additions each
    upstream accepts. A pool shares its ``retry_budget``.
    """

    upstream: Upstream
    writer: CacheWriter
    max_answer_bytes: int
    _: KW_ONLY
    clock: Callable[[], float] = time.perf_counter
    claims: Claims | None = None
    checks: Checks | None = None
    chains: PromptChains | None = None
    answered: Answered | None = None
    accepts: Accepts = field(default_factory=dict)
    retry_budget: Budget = field(default_factory=Budget)
    calls: set[asyncio.Task[None]] = field(default_factory=set, init=False)
    """Those under way."""
    _background: Counter[str] = field(default_factory=Counter, init=False)
    _forgetting: asyncio.TimerHandle | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self._upstream_call = UpstreamCall(
            self.upstream,
            self.writer,
            self.max_answer_bytes,
            self.retry_budget,
            checks=self.checks,
            chains=self.chains,
            answered=self.answered,
            accepts=self.accepts,
        )
        self._table = FlightTable[SharedResponse](linger=LINGER_SECONDS, linger_bytes=LINGER_BYTES)

    async def forward(self, exchange: Exchange) -> Reply:
        """Return the reply of a call that another request made, or of the request's own.

        It is streamed if the upstream streams it. Raises UpstreamError if there is none.
        """
        plan = exchange.plan
        alone = plan is None or plan.decision.max_followers <= 0
        sharing = Sharing.ALONE if alone else Sharing.ANY_WIRE
        while True:
            reply = await self._follow(exchange, sharing).reply()
            if isinstance(reply, Reply):
                return reply
            sharing = reply

    def refresh(self, exchange: Exchange) -> bool:
        """Begin a call to which no client listens: its answer is only stored.

        Return False if one for the same key is under way, nothing may be stored, or there are too
        many. The exchange's observation is finished here, when the call has ended.
        """
        plan = exchange.plan
        outcome = "refresh" if exchange.state.check is None else "sample"
        if (
            plan is None
            or self._background[outcome] >= MAX_BACKGROUND_CALLS[outcome]
            or self._table.under_way(plan.coalescing_key)
        ):
            return False
        exchange.observation.outcome = outcome
        shared = SharedResponse(
            self._table, plan.coalescing_key, exchange, self.max_answer_bytes, attended=False
        )
        self._background[outcome] += 1
        self._run(self._refresh(exchange, shared, outcome), shared)
        return True

    def has_missed(self, plan: Plan) -> bool:
        """Tell whether a call under way can be joined whose leader looked and found no entry."""
        call = self._table.under_way(plan.coalescing_key)
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

    def _follow(self, exchange: Exchange, sharing: Sharing) -> Follower:
        """Join the call under the request's slot, or make one."""
        plan = exchange.plan
        slot = None
        if plan is not None and sharing is not Sharing.ALONE:
            key = plan.coalescing_key
            slot = key if sharing is Sharing.ANY_WIRE else (key, exchange.request.streamed)
            # `no-cache` also rules out answers to calls that began earlier.
            if not plan.directives.no_cache:
                most, since = plan.decision.max_followers, exchange.observation.started
                shared = self._table.follow(slot, most=most, since=since)
                if shared is not None:
                    return Follower(shared, exchange, sharing)
        shared = SharedResponse(self._table, slot, exchange, self.max_answer_bytes)
        follower = Follower(shared, exchange, sharing)
        shared.task = self._run(self._call(exchange, shared), shared)
        return follower

    def _call(self, exchange: Exchange, shared: SharedResponse) -> Coroutine[Any, Any, None]:
        """Return the work of a call, which other processes may share."""
        plan, slot, claims = exchange.plan, shared.slot, self.claims
        if (
            claims is None
            or plan is None
            or not isinstance(slot, bytes)
            or SPECS[exchange.request.endpoint].render is not None
            or plan.directives.no_cache
        ):
            return self._upstream_call.call(exchange, shared)
        return self._claim_and_call(exchange, shared, claims, plan, slot)

    async def _claim_and_call(
        self, exchange: Exchange, shared: SharedResponse, claims: Claims, plan: Plan, slot: bytes
    ) -> None:
        """Make the call, or take the entry that another process stores meanwhile."""
        claimed, entry = False, None
        try:
            claimed = await claims.take(slot)
            if not claimed and shared.attended and not exchange.request.streamed:
                entry = await self._stored_elsewhere(claims, plan, slot)
        except (StoreError, TimeoutError):
            pass
        if entry is not None:
            shared.elsewhere = shared.complete = True
            shared.open(Head(200, (JSON_TYPE,), entry.result))
            shared.close()
            return
        try:
            await self._upstream_call.call(exchange, shared)
        finally:
            if claimed:
                claims.release(slot)

    async def _stored_elsewhere(self, claims: Claims, plan: Plan, slot: bytes) -> Entry | None:
        """Wait until no other process claims the slot, and return the entry it stored, if any.

        Raises StoreError and TimeoutError.
        """
        async with asyncio.timeout(plan.decision.follow_seconds):
            while not await claims.take(slot):  # noqa: ASYNC110 - another process ends it
                await asyncio.sleep(POLL_SECONDS)
        try:
            found = judged(plan, await self.writer.entries.get(plan.key), self.writer.now())
        finally:
            # Others wait for the claim too, and the next answer may be no better.
            claims.release(slot)
        return found.entry if isinstance(found, Hit) and not found.status.stale else None

    def _run(self, call: Coroutine[Any, Any, None], shared: SharedResponse) -> asyncio.Task[None]:
        task = asyncio.create_task(call)
        self.calls.add(task)

        def ended(_: asyncio.Task[None]) -> None:
            self.calls.discard(task)
            if not shared.over:
                # It was cancelled, perhaps before it began: its followers must not wait.
                message = "The gateway was stopped before the answer was complete."
                shared.close(UpstreamError(502, message, Reason.UPSTREAM_BROKE))
            self._forget()

        task.add_done_callback(ended)
        return task

    async def _refresh(self, exchange: Exchange, shared: SharedResponse, outcome: str) -> None:
        observation = exchange.observation
        try:
            await self._call(exchange, shared)
        finally:
            self._background[outcome] -= 1
            shared.note_call(observation)
            observation.status = shared.head.status if shared.head is not None else 0
            if (fault := shared.fault) is not None:
                observation.outcome = "error"
                observation.reason = (
                    fault.reason if isinstance(fault, UpstreamError) else Reason.INTERNAL
                )
            observation.finish()

    def _forget(self) -> None:
        """Drop what landed some time ago, now and again when the next of it is due."""
        if self._forgetting is not None:
            self._forgetting.cancel()
            self._forgetting = None
        now = self.clock()
        if (again := self._table.forget(now)) is not None:
            loop = asyncio.get_running_loop()
            self._forgetting = loop.call_later(again - now, self._forget)
