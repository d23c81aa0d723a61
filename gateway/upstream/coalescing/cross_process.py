"""Calls that several gateway processes would make at the same time: one of them makes it.

Law: it is never worse than a call of one's own. A plain request waits for the process that makes
the call, and takes the entry that process stored. A streamed request does not wait: its first token
would come only with the end of the other call. If claims fail, or nothing was stored in time, the
call is made here, and nobody waits a second time.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto

from gateway.cache.lookup import Hit, LookUpExact
from gateway.cache.plan import Plan
from gateway.cache.ports import Claims, Store, StoreError
from gateway.protocol.endpoints.table import SPECS
from gateway.upstream.call import Caller
from gateway.upstream.coalescing.shared_response import Head, LiveAnswer
from gateway.upstream.exchange import Exchange

POLL_SECONDS = 0.1
JSON_FIELDS = (("Content-Type", "application/json"),)


class Turn(Enum):
    """Whose turn it is to call the upstream."""

    OURS = auto()
    OURS_WITHOUT_CLAIM = auto()
    ANSWERED = auto()


@dataclass(slots=True)
class SharedCaller:
    """See ``Caller``, which it uses."""

    caller: Caller
    claims: Claims
    store: Store
    now: Callable[[], float]

    async def call(self, exchange: Exchange, answer: LiveAnswer) -> None:
        plan, slot = exchange.plan, answer.slot
        if (
            plan is None
            or not isinstance(slot, bytes)
            or SPECS[exchange.endpoint].render is not None
            or plan.directives.no_cache
        ):
            await self.caller.call(exchange, answer)
            return
        match await self._turn(exchange, plan, slot, answer):
            case Turn.OURS:
                try:
                    await self.caller.call(exchange, answer)
                finally:
                    self.claims.release(slot)
            case Turn.OURS_WITHOUT_CLAIM:
                await self.caller.call(exchange, answer)
            case Turn.ANSWERED:
                pass

    async def _turn(self, exchange: Exchange, plan: Plan, slot: bytes, answer: LiveAnswer) -> Turn:
        try:
            if await self.claims.take(slot):
                return Turn.OURS
            if exchange.streamed or not answer.attended:
                return Turn.OURS_WITHOUT_CLAIM
            async with asyncio.timeout(plan.decision.follow_seconds):
                while not await self.claims.take(slot):  # noqa: ASYNC110 - another process ends it
                    await asyncio.sleep(POLL_SECONDS)
        except (StoreError, TimeoutError):
            return Turn.OURS_WITHOUT_CLAIM
        try:
            found = LookUpExact(plan).next(await self.store.get(plan.key), self.now())
        except StoreError:
            return Turn.OURS_WITHOUT_CLAIM
        finally:
            self.claims.release(slot)
        if not isinstance(found, Hit) or found.status.stale:
            # The next answer may be no better: those who wait with us are not to wait once more.
            return Turn.OURS_WITHOUT_CLAIM
        answer.elsewhere = answer.complete = True
        answer.open(Head(200, JSON_FIELDS, found.entry.result))
        answer.close()
        return Turn.ANSWERED
