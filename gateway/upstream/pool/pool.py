"""Requests that wait until another has computed what they begin with.

Law: every wait is bounded; who waits is woken by the first byte or the end of whom it waits for.

Several upstreams as one: the only driver of the pool's decisions.

Law: what is to be done is decided by ``core.pool``; here it is awaited, and what came of it handed
back. A reply is passed on once its first word is here, and from then on nothing is sent again.
Every call that was begun is ended, also where its client leaves.
"""

import asyncio
import logging
import random
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from functools import partial
from http import HTTPStatus
from types import TracebackType
from typing import Protocol

from gateway.protocol.errors import UpstreamError
from gateway.protocol.headers import bears_credential
from gateway.protocol.reasons import Reason
from gateway.upstream.pool.affinity import NOT_KEPT, Kept, may_be_elsewhere
from gateway.upstream.pool.health import State
from gateway.upstream.pool.reply import Opened
from gateway.upstream.pool.retry import Budget, Failure, Tries, failure_of, refusal_of
from gateway.upstream.pool.table import Call, Change, PoolTable
from gateway.upstream.pool.waiting_queue import Bounds, PoolQueue
from gateway.upstream.ports import Upstream
from gateway.upstream.request import Outgoing
from gateway.upstream.routing.routing import Route, Sent, Wait


class Turns:
    """Who waits for whom; decided is that by ``held_back`` of the routing."""

    def __init__(self) -> None:
        self._behind: dict[Sent, list[asyncio.Future[None]]] = {}

    async def come(
        self, held_back: Callable[[float], Wait | None], clock: Callable[[], float]
    ) -> None:
        """Return when it is the request's turn."""
        now = clock()
        while (wait := held_back(now)) is not None:
            woken = asyncio.get_running_loop().create_future()
            self._behind.setdefault(wait.leader, []).append(woken)
            try:
                async with asyncio.timeout(wait.until - now):
                    await woken
                now = clock()
            except TimeoutError:
                now = wait.until

    def wake(self, leader: Sent) -> None:
        """Let those go who wait for this one."""
        for woken in self._behind.pop(leader, ()):
            if not woken.done():
                woken.set_result(None)


log = logging.getLogger(__name__)


class Figures(Protocol):
    """Counts what goes to the upstreams."""

    def asked(self, name: str, route: Route) -> None:
        """Count a request, by why it goes there."""
        ...

    def failed(self, name: str, reason: Reason) -> None:
        """Count a failure."""
        ...


@dataclass(frozen=True, slots=True)
class Failed:
    """No reply, or one that broke before its first word."""

    error: UpstreamError
    failure: Failure


class UpstreamPool:
    """See the port ``Upstream``; ``name`` is what keys say of all of them together."""

    def __init__(
        self,
        name: str,
        upstreams: Mapping[str, Upstream],
        table: PoolTable,
        bounds: Bounds,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        drawn: Callable[[], float] = random.random,
        figures: Figures | None = None,
        passes_credentials: bool = False,
        kept: Kept | None = None,
    ) -> None:
        """``drawn`` gives random numbers from 0 to 1; ``figures`` counts.

        ``passes_credentials`` says that upstreams get those of the clients.
        """
        self.name = name
        self.table = table
        self._upstreams = upstreams
        self._clock = clock
        self._wall = wall
        self._drawn = drawn
        self._figures = figures
        self._passes_credentials = passes_credentials
        self._queue = PoolQueue(table, bounds, clock, self.ended)
        self._kept = kept or Kept()
        self._budget = Budget()
        self._turns = Turns()

    @property
    def waiting(self) -> int:
        """How many requests wait for room."""
        return len(self._queue)

    def overloaded(self, model: str) -> bool:
        """Tell whether a request for the model could not be sent at once."""
        return self._queue.has((model, "")) or self.table.overloaded(model, self._clock())

    def send(self, outgoing: Outgoing) -> "Sending":
        """POST to whoever is best; see the port."""
        return Sending(self, outgoing)

    async def opened(self, outgoing: Outgoing) -> Opened:
        """Return a reply whose first word is here. Raises UpstreamError where nobody gives one."""
        tries = Tries()
        self._budget.earn()
        if outgoing.named:
            outgoing = replace(outgoing, at=self._kept.at(outgoing.named))
        call: Call | None = await self._queue.call(outgoing)
        while call is not None:
            got = await self._attempt(call, outgoing)
            failure = got.failure
            if failure is None:
                break
            tries = tries.after(call.name, failure)
            call = None
            if failure.risky and tries.may_go_on and not self._budget.spend():
                break
            call = self._other(outgoing, tries)
            if isinstance(got, Opened):
                if call is None:
                    break
                await self._replaced(got, call)
            elif call is None and tries.may_ask_again(failure):
                await asyncio.sleep(tries.pause(self._drawn()))
                call = self.table.again(tries.last, outgoing, self._clock())
                tries = tries.asking_again()
        if isinstance(got, Opened):
            if got.failure is NOT_KEPT and (why := self._out_of_reach(outgoing, tries)):
                await got.close()
                raise self._perhaps_kept(outgoing, tries, why)
            got.tried = tries.failed[:-1] if got.failure else tries.failed
            got.come_back = self._back_in(outgoing) if got.failure else None
            return got
        error = got.error.again()
        error.tried, error.retry_after = tries.failed, self._back_in(outgoing)
        raise error

    def note_failure(self, call: Call, failure: Failure) -> None:
        """Count a failure."""
        if self._figures is not None:
            self._figures.failed(call.name, failure.reason)
        self.table.failed(call, failure, self._clock())

    def note_cached(self, call: Call, tokens: int) -> None:
        """Note how much of the prompt the upstream says that it had."""
        self.table.note_cached(call, tokens, self._clock())

    def note_made(self, call: Call, made: str) -> None:
        """Note what the upstream has made and keeps."""
        self._kept.note(made, call.name)

    def ended(self, call: Call) -> None:
        """Note the end of a call, and let in who waits."""
        self.table.end(call, self._clock())
        self._turns.wake(call.sent)
        self.admit()

    def admit(self) -> None:
        """Begin the calls of those who wait and for whom there is room."""
        self._queue.admit()

    def close(self) -> None:
        """Stop the timer; whoever waits is cancelled by who made the call."""
        self._queue.close()

    async def _attempt(self, call: Call, outgoing: Outgoing) -> Opened | Failed:
        """Send to one upstream and wait for the first word."""
        context = self._upstreams[call.name].send(outgoing)
        opened: Opened | None = None
        try:
            await self._turns.come(partial(self.table.held_back, call), self._clock)
            if (why := self.table.left_alone_since(call)) is not None:
                self.ended(call)
                return _not_asked(why)
            if self._figures is not None:
                self._figures.asked(call.name, call.route)
            reply = await context.__aenter__()
            opened = Opened(self, call, context, reply)
            personal = self._passes_credentials and bears_credential(outgoing.fields)
            opened.failure = refusal_of(
                reply.status, reply.headers, self._wall(), personal=personal
            )
            if opened.failure is None:
                await opened.read_first(self._clock)
                self._find_kept(outgoing, opened)
        except UpstreamError as error:
            failure = failure_of(error, head=opened is not None)
            self.note_failure(call, failure)
            await self._left(opened, call)
            return Failed(error, failure)
        except BaseException:
            await self._left(opened, call)
            raise
        if opened.failure is None:
            self.table.first_byte(call, self._clock(), refused=opened.refused)
            self._turns.wake(call.sent)
        else:
            self.note_failure(call, opened.failure)
        return opened

    def _find_kept(self, outgoing: Outgoing, opened: Opened) -> None:
        """Note who keeps what the request names, or that another is to be asked for it."""
        if opened.failure is not None or not outgoing.named:
            return
        if opened.status < HTTPStatus.BAD_REQUEST:
            self._kept.note(outgoing.named, opened.served.upstream)
        elif not outgoing.at and may_be_elsewhere(opened.status):
            opened.failure = NOT_KEPT

    def _out_of_reach(self, outgoing: Outgoing, tries: Tries) -> Reason | None:
        """Return why somebody who may keep it could not be asked for it, if so."""
        failed = next((why for _, why in tries.failed if why is not Reason.NOT_KEPT), None)
        busy = self.table.unasked(outgoing, tries.names)
        return failed or (Reason.UPSTREAM_BUSY if busy else None)

    def _perhaps_kept(self, outgoing: Outgoing, tries: Tries, why: Reason) -> UpstreamError:
        message = "Who may keep what this request names cannot be asked at the moment."
        wait = self._back_in(outgoing) or 1.0
        return UpstreamError(503, message, why, tried=tries.failed, retry_after=wait)

    async def _left(self, opened: Opened | None, call: Call) -> None:
        if opened is None:
            self.ended(call)
        else:
            await opened.close()

    async def _replaced(self, got: Opened, call: Call) -> None:
        """Leave a refusal for the call that takes its place."""
        try:
            await got.close()
        except BaseException:
            self.ended(call)
            raise

    def _other(self, outgoing: Outgoing, tries: Tries) -> Call | None:
        """Begin the next try elsewhere, if there is to be one."""
        if not tries.may_go_on:
            return None
        other = self.table.begin(outgoing, self._clock(), tries.names)
        return other if isinstance(other, Call) else None

    def _back_in(self, outgoing: Outgoing) -> float | None:
        now = self._clock()
        at = self.table.resting_until(outgoing, now)
        return None if at is None else max(1.0, at - now)


def _not_asked(why: Reason) -> Failed:
    message = "The upstream failed a moment ago and is not asked yet."
    error = UpstreamError(503, message, why, sent=False)
    return Failed(error, failure_of(error))


class Sending(AbstractAsyncContextManager[Opened]):
    """One request to the pool; see the port."""

    def __init__(self, pool: UpstreamPool, outgoing: Outgoing) -> None:
        self._pool = pool
        self._outgoing = outgoing
        self._opened: Opened | None = None

    async def __aenter__(self) -> Opened:
        """Wait for a reply."""
        self._opened = await self._pool.opened(self._outgoing)
        return self._opened

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Leave it."""
        if self._opened is not None:
            await self._opened.close(kind, error, traceback)


def log_change(change: Change) -> None:
    """Write a line about an upstream that came into another state."""
    why = "" if change.why is None else f" ({change.why})"
    match change.after:
        case State.UP:
            log.info("upstream %s is up", change.name)
        case State.RESTING:
            log.warning("upstream %s rests for %.1f s%s", change.name, change.seconds, why)
        case State.TRIAL:
            log.info("upstream %s answers probes again: the next call tries it", change.name)
        case State.OPEN:
            log.warning(
                "upstream %s fails%s: left alone for %.1f s", change.name, why, change.seconds
            )
