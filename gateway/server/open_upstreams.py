"""The upstreams of the settings, and the pool in front of them.

Law: a single upstream that is given by its URL alone is asked without a pool in between.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Coroutine, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from http import HTTPStatus
from typing import Any

from gateway.protocol.errors import UpstreamError
from gateway.protocol.headers import Fields
from gateway.protocol.messages import ALL_ADDITIONS, Addition, read_up_to
from gateway.server.secrets import outbound_proxy, upstream_headers, upstream_keys
from gateway.settings import Settings
from gateway.telemetry.metrics import Metrics
from gateway.upstream.http_client import HttpUpstream
from gateway.upstream.pool.pass_through import PoolRequests
from gateway.upstream.pool.pool import UpstreamCollector, UpstreamMetrics, UpstreamPool, log_change
from gateway.upstream.pool.prefix_chain import PromptChains
from gateway.upstream.pool.probes import PATHS, Prober
from gateway.upstream.pool.retry import Budget
from gateway.upstream.pool.routing import LeastLoaded, PrefixAware
from gateway.upstream.pool.table import Member, PoolTable, states
from gateway.upstream.pool.waiting_queue import Bounds
from gateway.upstream.pool.warm_up import WarmUp
from gateway.upstream.request import Accepts, Upstream
from gateway.upstream.settings import UpstreamSettings, alias_identities

PROBE_SECONDS = 2.0
UNREACHABLE = "engine: not reachable"

Check = Callable[[], Awaitable[str | None]]
"""Returns why a part is not ready yet, or None. Bounded in time; raises nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Upstreams:
    """The upstreams as one, each by its name, and the pool where there is one."""

    upstream: Upstream
    passing: HttpUpstream | PoolRequests
    each: Mapping[str, HttpUpstream]
    ready: Check
    accepts: Accepts
    retry_budget: Budget
    aliases: Mapping[str, str] = field(default_factory=dict)
    """What keys say of an alias in place of the upstreams' identity."""
    refuse_unknown: Callable[[str], None] | None = None
    """Raises ClientError for a model that no upstream declares."""
    pool: UpstreamPool | None = None
    prober: Prober | None = None
    warm_up: WarmUp | None = None
    chains: PromptChains | None = None
    """Makes the prefix chains for routing by prompt; None for other routing."""

    @asynccontextmanager
    async def lifespan(self) -> AsyncIterator[None]:
        """Open the upstreams, and probe them until the end."""
        async with contextlib.AsyncExitStack() as stack:
            for upstream in self.each.values():
                await upstream.open()
                stack.push_async_callback(upstream.close)
            if self.pool is not None:
                stack.callback(self.pool.queue.close)
            if self.prober is not None:
                await stack.enter_async_context(in_background(self.prober.run()))
            yield

    def overloaded(self, model: str) -> bool:
        """Tell whether a request for the model could not be sent at once."""
        return self.pool is not None and self.pool.overloaded(model)

    def details(self) -> dict[str, Any]:
        """Return the part of ``/readyz`` about upstreams."""
        if self.pool is None:
            return {}
        now = time.monotonic()
        upstreams = {}
        for upstream, state, _ in states(self.pool.table, now):
            why = upstream.health.why(now)
            upstreams[upstream.member.name] = {
                "state": state.value,
                "why": None if why is None else why.value,
                "in_flight": upstream.in_flight,
            }
        return {"upstreams": upstreams}


def open_upstreams(
    settings: Settings,
    environment: Mapping[str, str],
    *,
    own_keys: bool,
    required: bool,
    metrics: Metrics,
) -> Upstreams:
    """Return the upstreams of the settings. Raises SecretSettingError.

    ``own_keys`` says that the gateway has keys of its own, ``required`` that an upstream must
    answer before the gateway is ready.
    """
    given = settings.all_upstreams
    identity = settings.upstream_identity or ""
    keys = upstream_keys(given, environment, own_keys=own_keys)
    is_alone = len(given) == 1 and not settings.upstreams
    named = {identity if is_alone else one.label: one for one in given}
    each = {
        name: _http(
            one,
            settings,
            name,
            keys[one.label],
            upstream_headers(one, environment, own_keys=own_keys),
            proxy=outbound_proxy(one, environment),
            own_keys=own_keys,
        )
        for name, one in named.items()
    }
    accepts = {
        name: _first_given(one.accepts, settings.upstream_accepts) for name, one in named.items()
    }
    counts = UpstreamMetrics(metrics.registry)
    first = next(iter(each.values()))
    alone = Upstreams(
        upstream=first,
        passing=first,
        each=each,
        ready=_engines_ready(each.values(), required=required),
        accepts=accepts,
        retry_budget=Budget(),
    )
    if is_alone:
        return alone
    clock = time.monotonic
    by_prefix = settings.upstream_routing == "prefix"
    routing = PrefixAware(has_siblings=settings.workers > 1) if by_prefix else LeastLoaded()
    members = [_member(one, settings.workers) for one in given]
    table = PoolTable(members, routing, clock(), log_change)
    pool = UpstreamPool(
        identity,
        each,
        table,
        Bounds(settings.queue_size, settings.queue_timeout),
        metrics=counts,
        passes_credentials=not own_keys,
        retry_budget=alone.retry_budget,
    )
    metrics.add(UpstreamCollector(pool))
    chains = PromptChains(shared=own_keys) if by_prefix else None
    warm_up = None
    if settings.upstream_warm_up:
        warm_up = WarmUp(
            each,
            table,
            clock,
            own_credentials=own_keys,
            chains=chains,
            on_warm=lambda name: counts.warmed.labels(name).inc(),
        )
    prober = Prober(
        each,
        {one.label: _probe_paths(one) for one in given},
        table,
        clock=clock,
        on_probe=pool.queue.admit,
        warm=None if warm_up is None else warm_up.warm,
    )
    return replace(
        alone,
        upstream=pool,
        passing=PoolRequests(each, table, clock, pool.sticky_ids),
        aliases=alias_identities(given),
        refuse_unknown=table.refuse_unknown if settings.refuses_unknown_models else None,
        pool=pool,
        prober=prober,
        warm_up=warm_up,
        chains=chains,
    )


def _first_given(*accepts: tuple[Addition, ...] | None) -> frozenset[Addition]:
    return frozenset(next((one for one in accepts if one is not None), ALL_ADDITIONS))


def _http(
    one: UpstreamSettings,
    settings: Settings,
    name: str,
    api_key: str | None,
    headers: Fields,
    *,
    proxy: str | None,
    own_keys: bool,
) -> HttpUpstream:
    return HttpUpstream(
        one.url,
        name=name,
        own_credential=own_keys or api_key is not None or one.auth == "none",
        api_key=api_key,
        auth=one.auth,
        query=one.query,
        headers=headers,
        rename=one.rename,
        proxy=proxy,
        api=one.api,
        asks_usage=Addition.STREAM_USAGE in _first_given(one.accepts, settings.upstream_accepts),
        connect_seconds=one.connect_timeout or settings.connect_timeout,
        read_seconds=one.read_timeout or settings.read_timeout,
        first_token_seconds=one.first_token_timeout or settings.first_token_timeout,
        between_tokens_seconds=one.between_tokens_timeout or settings.between_tokens_timeout,
    )


def _member(one: UpstreamSettings, workers: int) -> Member:
    return Member(
        one.label,
        models=one.models,
        tier=one.tier,
        max_concurrency=_share(one.max_concurrency, workers),
        requests_per_minute=_share(one.requests_per_minute, workers),
        weight=one.weight,
        native=one.api == "anthropic",
        rename=one.rename,
    )


def _share(limit: int | None, workers: int) -> int | None:
    """Return one worker's part of a limit: they know nothing of one another."""
    return None if limit is None else max(1, limit // workers)


def _probe_paths(one: UpstreamSettings) -> tuple[str, ...]:
    match one.probe:
        case "auto":
            return PATHS
        case "off":
            return ()
        case path:
            return (path,)


def _engines_ready(upstreams: Collection[HttpUpstream], *, required: bool) -> Check:
    """Return a check of the engines' own ``/readyz``, which are asked until one was ready once.

    Later faults are told request by request: hits need no upstream. One that is not ours has no
    such path, or one that says nothing of reasons; silence counts only where it is ``required``.
    """
    was_ready = False

    async def check() -> str | None:
        nonlocal was_ready
        if was_ready:
            return None
        reasons = await asyncio.gather(*map(_ask_readiness, upstreams))
        # Silence is not asked for again: each answer of /readyz would wait for it.
        was_ready = None in reasons or (UNREACHABLE in reasons and not required)
        return None if was_ready else reasons[0]

    return check


async def _ask_readiness(upstream: HttpUpstream) -> str | None:
    try:
        async with (
            asyncio.timeout(PROBE_SECONDS),
            upstream.request("GET", "/readyz", [], None) as reply,
        ):
            if reply.status != HTTPStatus.SERVICE_UNAVAILABLE:
                return None
            answer = await read_up_to(reply.read, 4096)
    except (UpstreamError, TimeoutError):
        return UNREACHABLE
    return "engine: loading" if b'"reasons"' in answer else None


@asynccontextmanager
async def in_background(work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Run work in a task, which is cancelled at the end."""
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
