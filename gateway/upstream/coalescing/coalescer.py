"""Runs upstream calls, each in a task of its own, and finds the call that answers a request.

Law: identical concurrent misses make one call. It belongs to no client: it ends with its last
reader, and at once; where none ever was (a refresh) it ends by itself or with the gateway.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any

from gateway.cache.plan import Plan
from gateway.cache.ports import Claims
from gateway.cache.writer import CacheWriter
from gateway.protocol.cache_status import Forwarded
from gateway.protocol.errors import UpstreamError
from gateway.protocol.messages import Reply
from gateway.protocol.reasons import Reason
from gateway.upstream.call import Answered, Caller
from gateway.upstream.coalescing.cross_process import SharedCaller
from gateway.upstream.coalescing.flight import FlightTable
from gateway.upstream.coalescing.follower import Reader, Way
from gateway.upstream.coalescing.shared_response import LiveAnswer
from gateway.upstream.exchange import Accepts, Exchange
from gateway.upstream.ports import Upstream
from gateway.upstream.request import note_served
from gateway.upstream.routing.prefix_chain import PromptChains
from gateway.upstream.shadow_eval import Checks

LINGER_SECONDS = 2.0

LINGER_BYTES = 16 * 2**20
MOST_IN_BACKGROUND = {"refresh": 256, "sample": 16}
"""Calls at a time for which no client waits: a flood of hits is none of the upstream's."""


class Coalescer:
    """Sends misses and bypasses to the upstream. ``max_answer_bytes`` bounds what is stored."""

    def __init__(
        self,
        upstream: Upstream,
        writer: CacheWriter,
        max_answer_bytes: int,
        *,
        clock: Callable[[], float] = time.perf_counter,
        claims: Claims | None = None,
        checks: Checks | None = None,
        chains: PromptChains | None = None,
        answered: Answered | None = None,
        accepts: Accepts | None = None,
    ) -> None:
        """``claims`` are those of the processes that share the store, if any.

        ``checks`` takes the answers that are to be compared; ``chains`` makes what several
        upstreams are chosen by; ``answered`` is told of what was; ``accepts`` says which additions
        each upstream accepts.
        """
        self.upstream = upstream
        self.writer = writer
        caller = Caller(upstream, writer, max_answer_bytes, checks, chains, answered, accepts or {})
        self._call = caller.call
        if claims is not None:
            self._call = SharedCaller(caller, claims, writer.entries, writer.now).call
        self._max_answer_bytes = max_answer_bytes
        self._clock = clock
        self._table: FlightTable[LiveAnswer] = FlightTable(
            linger=LINGER_SECONDS, linger_bytes=LINGER_BYTES
        )
        self.calls: set[asyncio.Task[None]] = set()
        """Those under way."""
        self._background: Counter[str] = Counter()
        self._forgetting: asyncio.TimerHandle | None = None

    async def forward(self, exchange: Exchange) -> Reply:
        """Return the reply of a call that another request made, or of the request's own.

        It is streamed where the upstream streams it. Raises UpstreamError where there is none.
        """
        way = _first_way(exchange)
        while True:
            reply = await self._reader(exchange, way).reply()
            if isinstance(reply, Reply):
                return reply
            way = reply

    def refresh(self, exchange: Exchange) -> bool:
        """Begin a call to which no client listens: its answer is only stored.

        Return False where one for the same key is under way, nothing may be stored, or there are
        too many. The exchange's observation is finished here, when the call has ended.
        """
        plan = exchange.plan
        outcome = "refresh" if exchange.state.check is None else "sample"
        if (
            plan is None
            or self._background[outcome] >= MOST_IN_BACKGROUND[outcome]
            or self._table.under_way(plan.coalescing_key)
        ):
            return False
        exchange.seen.outcome = outcome
        exchange.note_rewrites()
        answer = self._answer(plan.coalescing_key, exchange, attended=False)
        self._background[outcome] += 1
        self._run(self._refresh(exchange, answer, outcome), answer)
        return True

    def has_missed(self, plan: Plan) -> bool:
        """Tell whether a call under way may be followed whose maker looked and found no entry."""
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

    def _reader(self, exchange: Exchange, way: Way) -> Reader:
        """Join the call under the request's slot, or make one."""
        plan = exchange.plan
        slot = None
        if plan is not None and way is not Way.ALONE:
            key = plan.coalescing_key
            slot = key if way is Way.ANY_WIRE else (key, exchange.streamed)
            # Who wants no stored answer wants none that was asked for before, either.
            if not plan.directives.no_cache:
                most, since = plan.decision.max_followers, exchange.seen.started
                answer = self._table.follow(slot, most=most, since=since)
                if answer is not None:
                    return Reader(answer, exchange, way)
        answer = self._answer(slot, exchange, attended=True)
        reader = Reader(answer, exchange, way)
        answer.task = self._run(self._call(exchange, answer), answer)
        return reader

    def _answer(self, slot: object, exchange: Exchange, *, attended: bool) -> LiveAnswer:
        bound = self._max_answer_bytes
        answer = LiveAnswer(self._table, slot, exchange, bound, attended=attended)
        self._table.lead(answer)
        return answer

    def _run(self, call: Coroutine[Any, Any, None], answer: LiveAnswer) -> asyncio.Task[None]:
        task = asyncio.create_task(call)
        self.calls.add(task)

        def ended(_: asyncio.Task[None]) -> None:
            self.calls.discard(task)
            # Where it was cancelled, perhaps before it began: nobody may wait for it any more.
            message = "The gateway was stopped before the answer was complete."
            answer.close(UpstreamError(502, message, Reason.UPSTREAM_BROKE))
            self._forget()

        task.add_done_callback(ended)
        return task

    async def _refresh(self, exchange: Exchange, answer: LiveAnswer, outcome: str) -> None:
        seen = exchange.seen
        try:
            await self._call(exchange, answer)
        finally:
            self._background[outcome] -= 1
            seen.upstream_started, seen.upstream_head = (
                answer.upstream_started,
                answer.upstream_head,
            )
            note_served(answer.served, seen)
            seen.status = answer.head.status if answer.head is not None else 0
            if answer.fault is not None:
                fault = answer.fault
                seen.outcome = "error"
                seen.reason = fault.reason if isinstance(fault, UpstreamError) else Reason.INTERNAL
            seen.finish()

    def _forget(self) -> None:
        """Let go of what landed some time ago, now and when the next of it has."""
        if self._forgetting is not None:
            self._forgetting.cancel()
            self._forgetting = None
        now = self._clock()
        if (again := self._table.forget(now)) is not None:
            loop = asyncio.get_running_loop()
            self._forgetting = loop.call_later(again - now, self._forget)


def _first_way(exchange: Exchange) -> Way:
    plan = exchange.plan
    return Way.ALONE if plan is None or plan.decision.max_followers <= 0 else Way.ANY_WIRE
