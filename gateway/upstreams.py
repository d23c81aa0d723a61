"""Which upstreams there are, and what stands before them: part of the composition root.

Law: one upstream that is given by its URL alone is asked without anything in between.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from gateway.adapters.kv_feed import KvFeed
from gateway.adapters.metrics import Metrics
from gateway.adapters.model_list import ModelList
from gateway.adapters.pool_queue import Bounds
from gateway.adapters.pool_requests import PoolRequests
from gateway.adapters.readiness import Check, engine_ready
from gateway.adapters.upstream_health import PATHS, Prober
from gateway.adapters.upstream_http import HttpUpstream
from gateway.adapters.upstream_pool import UpstreamPool, log_change
from gateway.adapters.warm_up import WarmUp
from gateway.core.pool.kept import Kept
from gateway.core.pool.member import Member
from gateway.core.pool.table import PoolTable, states
from gateway.core.prefix_blocks import PromptChains
from gateway.core.prefix_routing import PrefixAware
from gateway.core.routing import LeastLoaded
from gateway.ports import Upstream
from gateway.settings import Settings
from gateway.upstream_keys import upstream_keys
from gateway.upstream_settings import UpstreamSettings


@dataclass(frozen=True, slots=True)
class Upstreams:
    """The upstreams as one, each by its name, and the pool where there is one."""

    upstream: Upstream
    passing: HttpUpstream | PoolRequests
    each: Mapping[str, HttpUpstream]
    ready: Check
    pool: UpstreamPool | None = None
    prober: Prober | None = None
    models: ModelList | None = None
    kv_feed: KvFeed | None = None
    warm_up: WarmUp | None = None
    chains: PromptChains | None = None
    """Makes what upstreams are chosen by, where prompts decide."""

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        """Connect when asked, and probe all the while."""
        async with contextlib.AsyncExitStack() as stack:
            for upstream in self.each.values():
                await upstream.open()
                stack.push_async_callback(upstream.close)
            if self.pool is not None:
                stack.callback(self.pool.close)
            if self.prober is not None:
                probing = asyncio.create_task(self.prober.run())
                stack.push_async_callback(ended, probing)
            if self.kv_feed is not None:
                following = asyncio.create_task(self.kv_feed.run())
                stack.push_async_callback(ended, following)
            yield

    def overloaded(self, model: str) -> bool:
        """Tell whether a request for the model could not be sent at once."""
        return self.pool is not None and self.pool.overloaded(model)

    def details(self) -> dict[str, Any]:
        """Return what ``/readyz`` tells of them."""
        if self.pool is None:
            return {}
        now = time.monotonic()
        told = {}
        for standing, state, _ in states(self.pool.table, now):
            why = standing.health.why(now)
            told[standing.member.name] = {
                "state": state.value,
                "why": None if why is None else why.value,
                "in_flight": standing.in_flight,
            }
        return {"upstreams": told}


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
    name = settings.upstream_identity or ""
    keys = upstream_keys(given, environment, own_keys=own_keys)
    is_alone = len(given) == 1 and not settings.upstreams
    each: dict[str, HttpUpstream] = {}
    for one in given:
        told = name if is_alone else one.called
        each[told] = _http(one, settings, told, keys[one.called], own_keys=own_keys)
    checks = [engine_ready(upstream, required=required) for upstream in each.values()]
    if is_alone:
        return Upstreams(each[name], each[name], each, checks[0])
    members = [_member(one, settings.workers) for one in given]
    by_prefix = settings.upstream_routing == "prefix"
    sharing = frozenset(one.called for one in given if one.shares_prefill)
    aware = PrefixAware(sharing=sharing, has_siblings=settings.workers > 1)
    routing = aware if by_prefix else LeastLoaded()
    table = PoolTable(members, routing, time.monotonic(), log_change)
    bounds = Bounds(settings.queue_size, settings.queue_timeout)
    kept = Kept()
    pool = UpstreamPool(
        name,
        each,
        table,
        bounds,
        figures=metrics.upstreams,
        passes_credentials=not own_keys,
        kept=kept,
    )
    metrics.tell_upstreams(lambda: states(table, time.monotonic()), lambda: pool.waiting)
    paths = {one.called: _probe_paths(one) for one in given}
    chains = PromptChains(shared=own_keys) if by_prefix else None
    warm_up = None
    if settings.upstream_warm_up:
        warm_up = WarmUp(
            each,
            table,
            time.monotonic,
            own_credentials=own_keys,
            chains=chains,
            figures=metrics.upstreams,
        )
    warm = None if warm_up is None else warm_up.warm
    prober = Prober(each, paths, table, time.monotonic, pool.admit, warm=warm)
    passing = PoolRequests(each, table, time.monotonic, kept)
    models = ModelList(passing, {member.name: member for member in members})
    followed = {one.called: each[one.called] for one in given if one.kv_events}
    feed = KvFeed(followed, table.note_cache) if followed and by_prefix else None
    return Upstreams(pool, passing, each, _any(checks), pool, prober, models, feed, warm_up, chains)


def _http(
    one: UpstreamSettings, settings: Settings, name: str, api_key: str | None, *, own_keys: bool
) -> HttpUpstream:
    return HttpUpstream(
        one.url,
        name=name,
        own_credential=own_keys or api_key is not None,
        api_key=api_key,
        connect_seconds=one.connect_timeout or settings.connect_timeout,
        read_seconds=one.read_timeout or settings.read_timeout,
        first_token_seconds=one.first_token_timeout or settings.first_token_timeout,
        between_tokens_seconds=one.between_tokens_timeout or settings.between_tokens_timeout,
    )


def _member(one: UpstreamSettings, workers: int) -> Member:
    return Member(
        one.called,
        one.models,
        one.tier,
        _share(one.max_concurrency, workers),
        _share(one.requests_per_minute, workers),
        one.weight,
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


def _any(checks: list[Check]) -> Check:
    """Return a check that holds where one of them does."""
    was_ready = False

    async def check() -> str | None:
        nonlocal was_ready
        if was_ready:
            return None
        reasons = await asyncio.gather(*(each() for each in checks))
        was_ready = None in reasons
        return None if was_ready else reasons[0]

    return check


async def ended(task: asyncio.Task[None]) -> None:
    """Cancel a task and wait for its end."""
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
