"""Forward a request, pass the answer on as it arrives, and store it if it ended cleanly.

Law: the client gets what the upstream sent, whoever made the call; a miss is forwarded once for
all who ask the same at the same time.
"""

import time
from collections.abc import Callable

from gateway.admitting import Admitter
from gateway.checking import Checks
from gateway.coalescing import Coalescer
from gateway.core.plan import Plan
from gateway.core.prefix_blocks import PromptChains
from gateway.exchange import Exchange, Reply
from gateway.ports import Claims, Upstream
from gateway.shared_call import SharedCaller
from gateway.upstream_call import Answered, Caller

__all__ = ["Exchange", "Forwarder"]


class Forwarder:
    """Sends misses and bypasses to the upstream. ``max_answer_bytes`` bounds what is stored."""

    def __init__(
        self,
        upstream: Upstream,
        admitter: Admitter,
        max_answer_bytes: int,
        *,
        clock: Callable[[], float] = time.perf_counter,
        claims: Claims | None = None,
        checks: Checks | None = None,
        chains: PromptChains | None = None,
        answered: Answered | None = None,
    ) -> None:
        """``claims`` are those of the processes that share the store, if any.

        ``checks`` takes the answers that are to be compared; ``chains`` makes what several
        upstreams are chosen by; ``answered`` is told of what was.
        """
        self.upstream = upstream
        self.admitter = admitter
        own = Caller(upstream, admitter, max_answer_bytes, checks, chains, answered)
        caller: Caller | SharedCaller = own
        if claims is not None:
            caller = SharedCaller(own, claims, admitter.entries, admitter.now)
        self._coalescer = Coalescer(caller, clock)

    async def forward(self, exchange: Exchange) -> Reply:
        """Return the upstream's reply, streamed where the upstream streams it.

        Raises UpstreamError when there is no reply to return.
        """
        return await self._coalescer.answer(exchange)

    def has_missed(self, plan: Plan) -> bool:
        """Tell whether a request with this plan may follow a call whose maker found no entry."""
        return self._coalescer.has_missed(plan)

    def refresh(self, exchange: Exchange) -> bool:
        """Begin a call to which no client listens: its answer is only stored.

        Return False where one for the same key is under way, nothing may be stored, or there are
        too many. The exchange's observation is finished here, when the call has ended.
        """
        return self._coalescer.refresh(exchange)

    async def close(self) -> None:
        """End what is under way."""
        await self._coalescer.close()
