"""Several upstreams as one: acts on the decisions of the pool's table.

Laws:
- A reply is passed on once its first token is here, and from then on nothing is sent again.
- Every call that was acquired is released once, also if its client leaves.
- Every wait is bounded.
"""

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import KW_ONLY, dataclass, field, replace
from http import HTTPStatus
from math import ceil
from typing import Any

from prometheus_client import CollectorRegistry, Counter
from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from gateway.protocol.cache_status import Reason
from gateway.protocol.endpoints.maker_state import named_state
from gateway.protocol.errors import UpstreamError
from gateway.protocol.headers import bears_credential, without
from gateway.protocol.messages import declared_name, read_up_to
from gateway.protocol.request import LARGE_BYTES
from gateway.upstream.http_client import HttpUpstream
from gateway.upstream.pool.affinity import Affinity
from gateway.upstream.pool.health import State
from gateway.upstream.pool.retry import (
    HELD_BYTES,
    NOT_KEPT,
    NOT_TRIED,
    Budget,
    Failure,
    FirstToken,
    FirstTokenDetector,
    RetryState,
    failure_of,
    refusal_of,
)
from gateway.upstream.pool.routing import Route
from gateway.upstream.pool.table import Call, Change, PoolTable, states
from gateway.upstream.pool.waiting_queue import Bounds, PoolQueue
from gateway.upstream.request import Outgoing, Served, Upstream, UpstreamReply
from gateway.upstream.translated import MESSAGES, RefusedReply, is_translatable
from gateway.upstream.verdict import error_of, lacks_model, parsed_or_none
from policies.decision import Endpoint

log = logging.getLogger(__name__)
_EVENT = {"fields": {"event": "upstream"}}

_STATEFUL = frozenset({Endpoint.CHAT, Endpoint.RESPONSES, Endpoint.MESSAGES, Endpoint.COUNT_TOKENS})
"""The endpoints whose requests may hold what an answer brought."""
_MAY_LACK_MODEL = frozenset({HTTPStatus.BAD_REQUEST, HTTPStatus.FORBIDDEN, HTTPStatus.NOT_FOUND})
"""The statuses for a model that an upstream does not have."""

_OTHERS_KEY = frozenset({HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN})
"""The statuses for a key that is another upstream's."""

_UNKNOWN_ID = frozenset(
    {HTTPStatus.BAD_REQUEST, HTTPStatus.NOT_FOUND, HTTPStatus.UNPROCESSABLE_ENTITY}
)
"""The statuses for an id that is not known, or for the field on a server that keeps nothing."""


class UpstreamMetrics:
    """Prometheus counters of what goes to a pool's upstreams."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.requests = Counter(
            "refrain_upstream_requests_total",
            "Requests sent to an upstream, tries that failed among them.",
            ("upstream", "route"),
            registry=registry,
        )
        self._of_route: dict[tuple[str, Route], Counter] = {}
        self.failures = Counter(
            "refrain_upstream_failures_total",
            "Requests that failed at an upstream, by reason.",
            ("upstream", "reason"),
            registry=registry,
        )
        self.warmed = Counter(
            "refrain_upstream_warmed_total",
            "Beginnings of prompts that a fresh upstream has computed before clients came.",
            ("upstream",),
            registry=registry,
        )

    def count_request(self, name: str, route: Route) -> None:
        """Count a request that is sent."""
        # Replicas come and go, and a series stays: so they are counted together.
        upstream = declared_name(name)
        counter = self._of_route.get((upstream, route))
        if counter is None:
            counter = self._of_route[upstream, route] = self.requests.labels(upstream, route.value)
        counter.inc()


class UpstreamCollector(Collector):
    """Reads the state of a pool's upstreams for each scrape.

    ``discovery`` returns the number of replicas and the problem of each upstream that has a list.
    """

    def __init__(
        self,
        pool: "UpstreamPool",
        discovery: Callable[[], Mapping[str, Mapping[str, Any]]] = dict,
    ) -> None:
        self._pool, self._discovery = pool, discovery

    def collect(self) -> Iterator[Metric]:
        """Yield calls under way, state and remaining pause of each upstream."""
        names = ["upstream"]
        in_flight, states_of = _in_flight_and_state()
        text = "Seconds for which an upstream still gets no requests."
        pauses = GaugeMetricFamily("refrain_upstream_rest_seconds", text, labels=names)
        text = "Requests that wait at an upstream's engine, as it reports."
        queued = GaugeMetricFamily("refrain_upstream_engine_waiting", text, labels=names)
        text = "Share of an upstream's KV blocks in use, as it reports."
        kv_use = GaugeMetricFamily("refrain_upstream_kv_use_ratio", text, labels=names)
        now = self._pool.clock()
        for upstream, state, seconds in states(self._pool.table, now):
            name = upstream.member.name
            if upstream.signal is not None and upstream.signal.is_fresh(now):
                queued.add_metric([name], upstream.signal.load.waiting)
                kv_use.add_metric([name], upstream.signal.load.kv_use)
            pauses.add_metric([name], seconds)
            _add(in_flight, states_of, name, upstream.in_flight, state)
        text = "Replicas that were found for an upstream."
        replicas = GaugeMetricFamily("refrain_upstream_replicas", text, labels=names)
        text = "1 if the list of an upstream's replicas cannot be renewed."
        failing = GaugeMetricFamily("refrain_upstream_discovery_failing", text, labels=names)
        for name, found in self._discovery().items():
            replicas.add_metric([name], found["replicas"])
            failing.add_metric([name], float(found["problem"] is not None))
        yield from (in_flight, states_of, pauses, queued, kv_use, replicas, failing)


class OnlyUpstreamCollector(Collector):
    """Reads the state of an upstream without a pool for each scrape."""

    def __init__(self, upstream: HttpUpstream) -> None:
        self._upstream = upstream

    def collect(self) -> Iterator[Metric]:
        """Yield calls under way, and the state."""
        in_flight, states_of = _in_flight_and_state()
        one = self._upstream
        state = State.UP if one.failures.outage is None else State.FAILING
        _add(in_flight, states_of, one.name, one.in_use, state)
        yield from (in_flight, states_of)


def _in_flight_and_state() -> tuple[GaugeMetricFamily, GaugeMetricFamily]:
    text = "Requests under way."
    in_flight = GaugeMetricFamily("refrain_upstream_in_flight", text, labels=["upstream"])
    text, labels = "1 for the state an upstream is in.", ["upstream", "state"]
    return in_flight, GaugeMetricFamily("refrain_upstream_state", text, labels=labels)


def _add(
    in_flight: GaugeMetricFamily,
    states_of: GaugeMetricFamily,
    name: str,
    calls: int,
    state: State,
) -> None:
    in_flight.add_metric([name], calls)
    for one in State:
        states_of.add_metric([name, one.value], float(one is state))


class PoolReply:
    """The reply to one try at one upstream; see the port ``UpstreamReply``.

    Once ``open`` has returned, its first token is here, or it is a refusal.
    """

    status = 0
    headers: Sequence[tuple[str, str]] = ()
    content_type = ""
    failure: Failure | None = None
    """Why this is no answer. A refusal is passed on nevertheless if no upstream answers."""
    error: UpstreamError | None = None
    """The failure, if there is no reply, or one that broke before its first token."""
    refused = False
    """Whether the answer is that the request is at fault."""
    lacks_model = False
    """Whether the answer is that the upstream does not have the model."""
    sent = True
    """Whether the upstream has got the request: if not, nothing of it is known."""
    _context: AbstractAsyncContextManager[UpstreamReply] | None = None
    _reply: UpstreamReply | None = None

    def __init__(self, pool: "UpstreamPool", call: Call) -> None:
        self.served = Served(call.name, several=True, report=self._report, learn=self._learn)
        self._pool, self._call = pool, call
        self._held: list[bytes] = []

    async def open(self, outgoing: Outgoing) -> None:
        """Wait for the first token. Raises UpstreamError, also for an empty answer.

        A status, or a stream that begins with an error of the server's own, may be a failure.
        """
        pool = self._pool
        context = pool.upstreams[self._call.name].send(outgoing)
        self._reply = reply = await context.__aenter__()
        self._context = context
        self.sent = not isinstance(reply, RefusedReply)
        passes = reply.served.passes_credentials
        self.served = replace(self.served, passes_credentials=passes)
        self.status, self.headers = reply.status, reply.headers
        self.content_type = reply.content_type
        if self.status != HTTPStatus.OK:
            self.refused = self.status >= HTTPStatus.BAD_REQUEST
            personal = pool.passes_credentials and bears_credential(outgoing.fields)
            self.failure = refusal_of(self.status, self.headers, pool.wall(), personal=personal)
            if self.failure is not None:
                return
            if self.status in _MAY_LACK_MODEL:
                self._held.append(body := await read_up_to(reply.read, HELD_BYTES))
                self.lacks_model = lacks_model(self.status, error_of(parsed_or_none(body)))
                return
        detector = FirstTokenDetector(self.content_type == "text/event-stream", self._held)
        found: FirstToken | Failure = FirstToken.PENDING
        while found is FirstToken.PENDING:
            piece = await reply.read()
            found = detector.add(piece, pool.clock()) if piece else detector.end()
        self.refused = self.refused or found is FirstToken.REFUSED
        if isinstance(found, Failure):
            self.failure = found if self.status == HTTPStatus.OK else None
        elif found is FirstToken.NONE and self.status == HTTPStatus.OK:
            message = "The upstream ended its answer before it began."
            raise UpstreamError(502, message, Reason.UPSTREAM_BROKE)

    async def read(self) -> bytes:
        """Return the next piece of the body, none at its end. Raises UpstreamError."""
        if self._held:
            piece = b"".join(self._held)
            self._held.clear()
            return piece
        if self._reply is None:
            return b""
        try:
            return await self._reply.read()
        except UpstreamError as error:
            error.tried = (*self.served.tried, (self._call.name, error.reason))
            raise

    async def close(self, error: BaseException | None = None) -> None:
        """Leave the reply and end the call.

        A broken or incomplete body counts against the upstream, unless its first token was judged
        already.
        """
        counted = self.failure is not None or self.refused
        if isinstance(error, UpstreamError) and not counted:
            self._pool.note_failure(self._call, failure_of(error, head=True))
        context, self._context, self._reply = self._context, None, None
        try:
            if context is not None:
                kind = None if error is None else type(error)
                await context.__aexit__(kind, error, None)
        finally:
            self._pool.release(self._call)

    def _report(self, cached_tokens: int | None) -> None:
        """Note the cached tokens of the answer."""
        if cached_tokens is not None:
            self._pool.table.routing.note_cached(self._call.dispatch, cached_tokens)

    def _learn(self, values: Sequence[str], scope: bytes) -> Awaitable[None] | None:
        """Note what this upstream alone can read."""
        return self._pool.affinity.note(values, scope, self._call.name)


class PoolCall:
    """The context of a request that a pool sends: inside it is the reply."""

    __slots__ = ("_outgoing", "_pool", "_reply")

    def __init__(self, pool: "UpstreamPool", outgoing: Outgoing) -> None:
        self._pool, self._outgoing = pool, outgoing

    async def __aenter__(self) -> PoolReply:
        """Return the reply after its first token. Raises UpstreamError if there is none."""
        self._reply = await self._pool.reply_to(self._outgoing)
        return self._reply

    async def __aexit__(self, _: object, error: BaseException | None, _traceback: object) -> None:
        """Leave the reply."""
        await self._reply.close(error)


@dataclass(eq=False)
class UpstreamPool:
    """Several upstreams as one ``Upstream``; ``name`` stands for all of them in keys.

    ``jitter`` gives random numbers from 0 to 1, for the pause before a retry. If
    ``passes_credentials`` is set, upstreams get those of the clients. The caller adds each request
    of a client to ``retry_budget``.
    """

    name: str
    upstreams: Mapping[str, Upstream]
    table: PoolTable
    bounds: Bounds
    _: KW_ONLY
    clock: Callable[[], float] = time.monotonic
    wall: Callable[[], float] = time.time
    jitter: Callable[[], float] = field(default_factory=lambda: random.Random().random)
    metrics: UpstreamMetrics | None = None
    passes_credentials: bool = False
    affinity: Affinity = field(default_factory=Affinity)
    retry_budget: Budget = field(default_factory=Budget)

    def __post_init__(self) -> None:
        self.queue = PoolQueue(self.table, self.bounds, self.clock, self.release)

    def overloaded(self, model: str, client: str | None) -> bool:
        """Tell whether a client's request for the model could not be sent at once."""
        return self.table.overloaded(model, client, self.clock())

    def send(self, outgoing: Outgoing) -> "PoolCall":
        """POST to the best upstream; see the port."""
        return PoolCall(self, outgoing)

    def note_failure(self, call: Call, failure: Failure) -> None:
        """Count a failure."""
        if self.metrics is not None:
            self.metrics.failures.labels(declared_name(call.name), failure.reason.value).inc()
        self.table.record_failure(call, failure, self.clock())

    def release(self, call: Call) -> None:
        """Note the end of a call, and let in the next that waits."""
        self.table.release(call)
        self.queue.admit()

    async def reply_to(self, outgoing: Outgoing) -> PoolReply:
        """Return a reply after its first token. Raises UpstreamError if there is none."""
        retry = NOT_TRIED
        if not outgoing.pinned and len(self.upstreams) > 1:
            outgoing = await self._pin(outgoing)
        if (
            outgoing.target.startswith(MESSAGES)
            and self.table.is_mixed(outgoing)
            and not (
                await asyncio.to_thread(is_translatable, outgoing)
                if len(outgoing.raw) > LARGE_BYTES
                else is_translatable(outgoing)
            )
        ):
            outgoing = replace(outgoing, native=True)
        call: Call | None = await self.queue.acquire(outgoing)
        replies = list[PoolReply]()
        while call is not None:
            reply = await self._attempt(call, outgoing)
            replies.append(reply)
            if (failure := reply.failure) is None:
                break
            retry = retry.after(call.name, failure)
            if not self._pay_retry(outgoing, retry, failure):
                break
            call = self._other(outgoing, retry)
            if reply.error is None:
                if call is None:
                    break
                await self._replace(reply, call)
            elif call is None and retry.may_retry_same(failure):
                await asyncio.sleep(retry.backoff(self.jitter()))
                call = self.table.retry_same(retry.last, outgoing, self.clock())
                retry = retry.with_same_retry()
        if (lacking := self._lacking(replies)) is not None:
            await reply.close()
            self.table.forget_lack(lacking.served.upstream, outgoing)
            return lacking
        return await self._finish(reply, outgoing, retry)

    def _lacking(self, replies: Sequence[PoolReply]) -> PoolReply | None:
        """Return the answer that a model is unknown, if the last upstream refuses a client's key.

        The key is for the upstream that knows it, and not for the last one.
        """
        last = replies[-1]
        if last.status not in _OTHERS_KEY or last.lacks_model or not self.passes_credentials:
            return None
        return next((one for one in replies if one.lacks_model and one.error is None), None)

    async def _pin(self, outgoing: Outgoing) -> Outgoing:
        """Pin a request to the upstream that keeps what it names, or that made what it holds."""
        if outgoing.sticky_id:
            maker = await self.affinity.maker_of((outgoing.sticky_id,), outgoing.scopes())
            if maker in self.upstreams:
                return replace(outgoing, pinned=maker)
        has_state = outgoing.target.partition("?")[0] in _STATEFUL and outgoing.body is not None
        values = named_state(outgoing.body) if has_state and outgoing.body else ()
        if values:
            maker = await self.affinity.maker_of(values, outgoing.scopes())
            # Of another model's state the model makes what it can.
            if self.table.serves(maker, outgoing.model):
                return replace(outgoing, pinned=maker, bound=True)
        return outgoing

    async def _finish(self, reply: PoolReply, outgoing: Outgoing, retry: RetryState) -> PoolReply:
        """Return the last reply as the client gets it. Raises UpstreamError if it is none."""
        seconds = self._retry_after(outgoing)
        if seconds is None and outgoing.bound and reply.failure is not None:
            seconds = reply.failure.retry_after or 1.0  # nobody else can read what the client has
        if reply.error is not None:
            error = reply.error.again()
            if outgoing.bound and error.status == HTTPStatus.BAD_GATEWAY:
                message = "The upstream that made a part of this request is not available."
                error = UpstreamError(503, message, error.reason, detail=error.detail)
            error.tried, error.retry_after = retry.failed, seconds
            raise error
        if reply.failure is NOT_KEPT and (why := self._untried_owner(outgoing, retry)):
            await reply.close()
            message = "An upstream that may keep what this request names is not available."
            raise UpstreamError(503, message, why, tried=retry.failed, retry_after=seconds or 1.0)
        if tried := retry.failed[:-1] if reply.failure else retry.failed:
            reply.served = replace(reply.served, tried=tried)
        if reply.failure and seconds is not None:
            # Until the first upstream comes back.
            headers = without(reply.headers, "retry-after", "retry-after-ms")
            reply.headers = (*headers, ("Retry-After", str(ceil(seconds))))
        return reply

    def _pay_retry(self, outgoing: Outgoing, retry: RetryState, failure: Failure) -> bool:
        """Charge the retry budget for a risky retry; tell whether the request may go on."""
        has_other = retry.may_go_on and self.table.has_other(outgoing, retry.names)
        is_charged = failure.risky and (has_other or retry.may_retry_same(failure))
        return not is_charged or self.retry_budget.spend()

    async def _attempt(self, call: Call, outgoing: Outgoing) -> PoolReply:
        """Send to one upstream and wait for the first token."""
        if self.metrics is not None:
            self.metrics.count_request(call.name, call.route)
        reply = PoolReply(self, call)
        try:
            await reply.open(outgoing)
        except UpstreamError as error:
            reply.error, reply.failure = error, failure_of(error, head=reply.status > 0)
            reply.lacks_model = error.of_model
            self._is_kept_elsewhere(reply, call, outgoing)
            self.note_failure(call, reply.failure)
            await reply.close(error)
            return reply
        except BaseException:
            await reply.close()
            raise
        if not reply.sent:
            return reply
        if self._is_kept_elsewhere(reply, call, outgoing):
            reply.failure = reply.failure or NOT_KEPT
        if reply.failure is None:
            self.table.first_byte(call, self.clock(), refused=reply.refused)
        else:
            self.note_failure(call, reply.failure)
        return reply

    def _is_kept_elsewhere(self, reply: PoolReply, call: Call, outgoing: Outgoing) -> bool:
        """Tell whether another upstream must be tried: for what a request names, or its model."""
        if reply.lacks_model:
            self.table.record_lack(call.name, outgoing, self.clock())
            return self.table.may_have(outgoing, call.name)
        if not outgoing.sticky_id or reply.failure is not None:
            return False
        if reply.status < HTTPStatus.BAD_REQUEST:
            scope = outgoing.scopes()[0]
            self.affinity.note((outgoing.sticky_id,), scope, call.name)
            return False
        return not outgoing.pinned and reply.status in _UNKNOWN_ID

    def _untried_owner(self, outgoing: Outgoing, retry: RetryState) -> Reason | None:
        """Return why an upstream that may keep the sticky id was not tried, if so."""
        failed = next((why for _, why in retry.failed if why is not Reason.NOT_KEPT), None)
        busy = self.table.has_other(outgoing, retry.names)
        return failed or (Reason.UPSTREAM_BUSY if busy else None)

    async def _replace(self, reply: PoolReply, call: Call) -> None:
        """Leave a refusal for the call that takes its place."""
        try:
            await reply.close()
        except BaseException:
            self.release(call)
            raise

    def _other(self, outgoing: Outgoing, retry: RetryState) -> Call | None:
        """Acquire the next try at another upstream, if there is to be one."""
        if not retry.may_go_on:
            return None
        other = self.table.acquire(outgoing, self.clock(), retry.names)
        return other if isinstance(other, Call) else None

    def _retry_after(self, outgoing: Outgoing) -> float | None:
        now = self.clock()
        at = self.table.paused_until(outgoing, now)
        return None if at is None else max(1.0, at - now)


def log_change(change: Change) -> None:
    """Log a change of an upstream's state."""
    why = "" if change.why is None else f" ({change.why})"
    match change.after:
        case State.UP:
            log.info("upstream %s is up", change.name, extra=_EVENT)
        case State.RESTING:
            log.warning("upstream %s pauses for %.1f s%s", change.name, change.seconds, why)
        case State.TRIAL:
            text = "upstream %s answers probes again: the next call tries it"
            log.info(text, change.name, extra=_EVENT)
        case State.OPEN:
            log.warning(
                "upstream %s is out%s; it is tested again in %.1f s",
                *(change.name, why, change.seconds),
                extra=_EVENT,
            )
