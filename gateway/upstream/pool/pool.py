"""The upstreams as one: the table of what is known of them, the queue for room, and who made what.

One upstream is a pool of one. Nothing is sent here: the driver is ``upstream/call.py``.
"""

import logging
import random
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace

from gateway.protocol.endpoints.maker_state import named_state
from gateway.protocol.http.cache_status import Reason
from gateway.protocol.http.messages import declared_name
from gateway.upstream.additions import Accepts, RefusedAdditions
from gateway.upstream.pool.affinity import Affinity
from gateway.upstream.pool.health import State
from gateway.upstream.pool.metrics import UpstreamMetrics
from gateway.upstream.pool.retry_budget import Budget
from gateway.upstream.pool.table import Call, Change, PoolTable
from gateway.upstream.pool.waiting_queue import Bounds, PoolQueue
from gateway.upstream.request import Outgoing, Upstream
from gateway.upstream.tries import Failure, Tries
from policies.decision import Endpoint

log = logging.getLogger(__name__)
_EVENT = {"fields": {"event": "upstream"}}

_STATEFUL = frozenset({Endpoint.CHAT, Endpoint.RESPONSES, Endpoint.MESSAGES, Endpoint.COUNT_TOKENS})
"""The endpoints whose requests may hold what an answer brought."""


@dataclass(eq=False)
class UpstreamPool:
    """The upstreams, and all that is known of them; ``name`` stands for all of them in keys.

    ``jitter`` gives random numbers from 0 to 1, for the pause before a retry. If
    ``passes_credentials`` is set, upstreams get the clients' credentials. The caller adds each
    request of a client to ``retry_budget``.
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
    accepts: Accepts = field(default_factory=dict)
    several: bool = True
    """False for one that is given by its URL alone: its name is its address, which no reply shows.
    Then no reply waits for its first token either, since no other upstream could answer."""

    def __post_init__(self) -> None:
        self.additions = RefusedAdditions(self.clock, self.accepts)
        self.queue = PoolQueue(self.table, self.bounds, self.clock, self.release)

    def overloaded(self, model: str, client: str | None) -> bool:
        """Tell whether a client's request for the model could not be sent at once."""
        return self.table.overloaded(model, client, self.clock())

    def note_failure(self, call: Call, failure: Failure) -> None:
        """Count a failure."""
        if self.metrics is not None:
            self.metrics.failures.labels(declared_name(call.name), failure.reason.value).inc()
        self.table.record_failure(call, failure, self.clock())

    def release(self, call: Call) -> None:
        """Note the end of a call, and let in the next that waits."""
        self.table.release(call)
        if self.queue.waiting.lanes:
            self.queue.admit()

    async def pin(self, outgoing: Outgoing) -> Outgoing:
        """Pin a request to the upstream that keeps what it names, or that made what it holds."""
        if outgoing.sticky_id:
            maker = await self.affinity.maker_of((outgoing.sticky_id,), outgoing.scopes())
            if self.table.takes_requests(maker):
                return replace(outgoing, pinned=maker)
        has_state = outgoing.target.partition("?")[0] in _STATEFUL and outgoing.body is not None
        values = named_state(outgoing.body) if has_state and outgoing.body else ()
        if values:
            maker = await self.affinity.maker_of(values, outgoing.scopes())
            # Of another model's state the model makes what it can.
            if self.table.serves(maker, outgoing.model):
                return replace(outgoing, pinned=maker, bound=True)
        return outgoing

    def untried_owner(self, outgoing: Outgoing, tries: Tries) -> Reason | None:
        """Return why an upstream that may keep the sticky id was not tried, if so."""
        failed = next((why for _, why in tries.failed if why is not Reason.NOT_KEPT), None)
        busy = self.table.has_other(outgoing, tries.names)
        return failed or (Reason.UPSTREAM_BUSY if busy else None)

    def retry_after(self, outgoing: Outgoing) -> float | None:
        """Return the seconds until the first paused upstream comes back, None if none is paused."""
        now = self.clock()
        at = self.table.paused_until(outgoing, now)
        return None if at is None else max(1.0, at - now)

    def learn(self, maker: str, values: Sequence[str], scope: bytes) -> Awaitable[None] | None:
        """Note what this upstream alone can read."""
        return self.affinity.note(values, scope, maker)


def log_change(change: Change) -> None:
    """Log a change of an upstream's state."""
    why = "" if change.why is None else f" ({change.why})"
    match change.after:
        case State.UP:
            log.info("upstream %s is up", change.name, extra=_EVENT)
        case State.PAUSED:
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
