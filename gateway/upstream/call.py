"""Drives the machine of tries: sends a request until there is a reply for its client, or none.

Laws:
- This is the only driver. Whether, where and how a request is sent again is decided in ``tries``.
- Every call that was acquired is released once, also if its client leaves.
- Every wait is bounded.
"""

import asyncio
import logging
from dataclasses import replace
from functools import partial
from http import HTTPStatus
from math import ceil
from typing import Protocol, TypeVar

from gateway.protocol.errors import UpstreamError
from gateway.protocol.http.cache_status import Reason
from gateway.protocol.http.headers import without
from gateway.protocol.http.messages import declared_name
from gateway.protocol.request import LARGE_BYTES
from gateway.upstream.additions import NONE, REFUSED_SECONDS, USAGE, Variant
from gateway.upstream.one_try import OneTry
from gateway.upstream.pool.pool import UpstreamPool
from gateway.upstream.pool.retry_budget import Budget, Forwarding
from gateway.upstream.pool.table import Call
from gateway.upstream.request import Outgoing, Served, Tried
from gateway.upstream.tries import (
    ADDITION_REFUSED,
    NOT_KEPT,
    START,
    Deliver,
    Facts,
    Fail,
    Failure,
    Pays,
    Send,
    Tries,
    Wait,
    Where,
)
from gateway.upstream.wire.translated import MESSAGES, is_translatable

log = logging.getLogger(__name__)

_LONGEST_LOGGED = 80
"""Characters of a model's name, which clients choose."""
_OTHERS_KEY = frozenset({HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN})
"""The statuses for a key that is another upstream's."""


class Try(Protocol):
    """What came of one call."""

    @property
    def name(self) -> str:
        """The upstream's name."""

    @property
    def failure(self) -> Failure | None:
        """Why there is no answer."""


T = TypeVar("T", bound=Try)


class Target(Protocol[T]):
    """A request, and the upstreams that it may be sent to."""

    async def send(self, step: Send) -> T | None:
        """Send the request; None if it cannot be sent there. Raises UpstreamError."""

    def facts(self, last: T) -> Facts:
        """Return what the next step depends on."""


async def drive(target: Target[T], budget: Budget) -> tuple[T, Tries, Deliver | Fail]:
    """Send a request until nothing more is to be sent; return the last try and how it ends.

    ``budget`` pays for retries. Raises UpstreamError if the first upstream could not be chosen.
    """
    step: Send | Wait | Deliver | Fail = START
    last: T | None = None
    tries = START.tries
    while True:
        match step:
            case Send():
                found = await _send(target, step, budget)
                if found is None:
                    step = step.otherwise
                    continue
                last = found
                if last.failure is None:
                    return last, step.tries, Deliver()
                tries = step.tries.after(last.name, last.failure)
                step = step.next(last.name, last.failure, target.facts(last))
            case Wait(seconds, then):
                if then.pays is not Pays.RETRY or budget.has_retry:
                    await asyncio.sleep(seconds)
                step = then
            case _:
                if last is None:
                    raise RuntimeError("the first step is sent somewhere, or raises")
                return last, tries, step


async def _send(target: Target[T], step: Send, budget: Budget) -> T | None:
    """Pay for a step, and send; what is not sent costs nothing."""
    paid = step.pays is not Pays.NOTHING and budget.spend()
    if step.pays is Pays.RETRY and not paid:
        return None
    found = None
    try:
        found = await target.send(step)
    finally:
        if paid and found is None:
            budget.give_back()
    return found


class PooledUpstream:
    """The pool as one ``Upstream``; ``name`` is what keys say of it."""

    def __init__(self, pool: UpstreamPool) -> None:
        self.pool, self.name = pool, pool.name
        self.send = partial(PoolCall, pool)


class PoolCall:
    """A request to the upstreams of a pool. Inside the context is the reply."""

    __slots__ = (
        "_before",
        "_forwarding",
        "_lacking",
        "_last",
        "_outgoing",
        "_pool",
        "_refusing",
        "_reply",
        "_with_additions",
    )

    def __init__(self, pool: UpstreamPool, outgoing: Outgoing) -> None:
        self._pool, self._outgoing = pool, outgoing
        self._forwarding = outgoing.forwarding or Forwarding()
        self._last: OneTry | None = None
        self._with_additions: OneTry | None = None
        """The last try with additions; its reply serves if there is none without them."""
        self._before: Tried = ()
        """The tries that had failed before that one."""
        self._refusing: OneTry | None = None
        """The first try that may have been refused for its additions."""
        self._lacking: OneTry | None = None
        """The first try at an upstream that does not have the model."""

    async def __aenter__(self) -> OneTry:
        """Return the reply after its first token. Raises UpstreamError if there is none."""
        pool, outgoing = self._pool, self._outgoing
        if self._forwarding.calls_left <= 0:
            message = "The upstream was called too often for one request."
            raise UpstreamError(502, message, Reason.UPSTREAM_BROKE)
        if pool.several:
            if not outgoing.pinned:
                outgoing = await pool.pin(outgoing)
            if (
                outgoing.target.startswith(MESSAGES)
                and pool.table.is_mixed(outgoing)
                and not (
                    await asyncio.to_thread(is_translatable, outgoing)
                    if len(outgoing.raw) > LARGE_BYTES
                    else is_translatable(outgoing)
                )
            ):
                outgoing = replace(outgoing, native=True)
            self._outgoing = outgoing
        last, tries, end = await drive(self, pool.retry_budget)
        try:
            self._reply = await self._finish(last, tries, end)
        except BaseException:
            await last.close()
            raise
        return self._reply

    async def __aexit__(self, _: object, error: BaseException | None, _traceback: object) -> None:
        """Leave the reply."""
        await self._reply.close(error)

    async def send(self, step: Send) -> OneTry | None:
        """Send the request where a step says; None if it cannot be sent there."""
        pool, last = self._pool, self._last
        if step.tries.plain and self._with_additions is None and last is not None:
            self._with_additions, self._before = last, last.served.tried
        call = await self._acquire(step, last)
        if call is None:
            return None
        self._forwarding.calls_left -= 1
        if last is not None:
            await self._leave(last, call)
        plain = step.tries.plain
        try:
            to_send, variant = await self._form_for(call, plain=plain)
        except BaseException:
            pool.release(call)
            raise
        served = Served(call.name, tried=step.tries.failed, variant=variant)
        self._last = found = OneTry(pool, call, served, call.name)
        await found.send(to_send)
        if found.may_be_of_additions and self._refusing is None:
            self._refusing = found
        if found.lacks_model and self._lacking is None and found.error is None:
            self._lacking = found
        if found.failure is NOT_KEPT and not plain:
            self._forwarding.calls_left += 1
        return found

    def facts(self, last: OneTry) -> Facts:
        """Return what the next step depends on."""
        return Facts(
            self._forwarding.calls_left,
            self._pool.jitter(),
            has_reply=last.error is None,
            added=last.may_be_of_additions,
        )

    async def _acquire(self, step: Send, last: OneTry | None) -> Call | None:
        pool, outgoing = self._pool, self._outgoing
        match step.where:
            case Where.BEST if last is None:
                if not pool.queue.waiting.lanes:
                    at_once = pool.table.acquire(outgoing, pool.clock())
                    if isinstance(at_once, Call):
                        return at_once
                return await pool.queue.acquire(outgoing)
            case Where.OTHER:
                found = pool.table.acquire(outgoing, pool.clock(), step.tries.names)
                return found if isinstance(found, Call) else None
            case _ if last is not None and last.error is None:
                # Its body is held: the upstream gets room for the second request.
                await last.close()
                if step.where is Where.SAME:
                    outgoing = replace(outgoing, pinned=last.name)
                try:
                    return await pool.queue.acquire(outgoing)
                except UpstreamError:
                    return None
            case _:
                return pool.table.retry_same(step.tries.last, outgoing, pool.clock())

    async def _leave(self, last: OneTry, call: Call) -> None:
        """Leave a refusal for the call that takes its place."""
        try:
            await last.close()
        except BaseException:
            self._pool.release(call)
            raise

    async def _form_for(self, call: Call, *, plain: bool) -> tuple[Outgoing, Variant | None]:
        """Return the request as an upstream gets it."""
        outgoing, additions = self._outgoing, self._pool.additions
        variants, refused = outgoing.variants, NONE
        if variants is None:
            return outgoing, None
        if additions.differ:
            place = declared_name(call.name), outgoing.client, outgoing.model
            refused = additions.of(*place, needs_usage=variants.exchange.request.needs_usage)
        variant = variants.usual
        if plain or refused:
            make = partial(variants.without, None if plain else refused)
            is_large = len(outgoing.raw) > LARGE_BYTES
            variant = await asyncio.to_thread(make) if is_large else make()
        if variant.raw is not outgoing.raw:
            outgoing = replace(outgoing, raw=variant.raw, body=variant.body)
        if outgoing.target.startswith(MESSAGES):
            refused = refused if variants.adds else refused | USAGE
            if plain or refused:
                outgoing = replace(outgoing, plain=plain, refused=refused)
        return outgoing, variant

    async def _finish(self, last: OneTry, tries: Tries, end: Deliver | Fail) -> OneTry:
        """Return the reply as the client gets it. Raises UpstreamError if there is none."""
        if last.failure is None and not (tries.failed or tries.plain):
            return last
        if (better := await self._earlier(last, end)) is not None:
            if better is self._with_additions:
                better.served = replace(better.served, tried=self._before)
            return better
        pool, outgoing, failure = self._pool, self._outgoing, last.failure
        if failure is ADDITION_REFUSED:
            failure = None
        seconds = pool.retry_after(outgoing)
        if seconds is None and outgoing.bound and failure is not None:
            seconds = failure.retry_after or 1.0  # nobody else can read what the client has
        if last.error is not None:
            raise self._fault(last.error, tries, seconds)
        if failure is NOT_KEPT and (why := pool.untried_owner(outgoing, tries)):
            await last.close()
            message = "An upstream that may keep what this request names is not available."
            raise UpstreamError(503, message, why, tried=tries.failed, retry_after=seconds or 1.0)
        if tried := tries.failed[:-1] if failure else tries.failed:
            last.served = replace(last.served, tried=tried)
        if failure and seconds is not None and pool.several:
            # Until the first upstream comes back.
            headers = without(last.headers, "retry-after", "retry-after-ms")
            last.headers = (*headers, ("Retry-After", str(ceil(seconds))))
        return last

    async def _earlier(self, last: OneTry, end: Deliver | Fail) -> OneTry | None:
        """Return an earlier reply that is better for the client than the last one, if there is one.

        What was refused and then answered without additions is noted.
        """
        pool, outgoing = self._pool, self._outgoing
        first, lacking = self._with_additions, self._lacking
        if isinstance(end, Deliver) and end.with_additions:
            return first
        if first is not None and last.failure is None and last.status < HTTPStatus.BAD_REQUEST:
            self._learn(last)
        if lacking is None or last.lacks_model or last.error is not None:
            return None
        if last.status not in _OTHERS_KEY or not pool.passes_credentials:
            return None
        # The client's key is for the upstream that knows it, and not for the last one.
        await last.close()
        pool.table.forget_lack(lacking.name, outgoing)
        return lacking

    def _learn(self, last: OneTry) -> None:
        """Note what an upstream refused and then answered without, if it is the same upstream.

        A server error may have another cause, so nothing is learned from one.
        """
        refusing, outgoing = self._refusing, self._outgoing
        declared = declared_name(last.name)
        if refusing is None or declared_name(refusing.name) != declared:
            return
        if refusing.status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            return
        additions = self._pool.additions
        remedy = additions.note(declared, outgoing.client, outgoing.model, refusing.additions)
        if remedy is not None:
            log.warning(
                "upstream %s refuses what the gateway adds (status %d): this client's requests for"
                " model %s get nothing of it for %d minutes; set %s",
                *(declared, refusing.status, outgoing.model[:_LONGEST_LOGGED]),
                *(REFUSED_SECONDS // 60, remedy),
            )

    def _fault(self, fault: UpstreamError, tries: Tries, seconds: float | None) -> UpstreamError:
        """Return the fault of the last try as the client reads it."""
        error = fault.again()
        if self._outgoing.bound and error.status == HTTPStatus.BAD_GATEWAY:
            message = "The upstream that made a part of this request is not available."
            error = UpstreamError(503, message, error.reason, detail=error.detail)
        error.tried, error.retry_after = tries.failed if self._pool.several else (), seconds
        return error
