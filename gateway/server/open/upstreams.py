"""The upstreams of the settings, as one pool."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from gateway.protocol.errors import UpstreamError
from gateway.protocol.http.headers import Fields
from gateway.protocol.http.messages import ALL_ADDITIONS, Addition, declared_name, read_up_to
from gateway.server.open.secrets import outbound_proxy, upstream_headers, upstream_keys
from gateway.server.open.watched_file import WatchedFile
from gateway.settings import Settings
from gateway.telemetry.metrics import Metrics
from gateway.upstream.call import PooledUpstream
from gateway.upstream.pool.affinity import Affinity, MakerStore
from gateway.upstream.pool.metrics import UpstreamCollector, UpstreamMetrics
from gateway.upstream.pool.pass_through import PoolRequests
from gateway.upstream.pool.pool import UpstreamPool, log_change
from gateway.upstream.pool.prefix_chain import PromptChains
from gateway.upstream.pool.routing import LeastLoaded, PrefixAware
from gateway.upstream.pool.table import PoolTable, states
from gateway.upstream.pool.upstream_state import Member
from gateway.upstream.pool.waiting_queue import Bounds
from gateway.upstream.pool.watch.discovery import (
    Address,
    DnsSource,
    FileSource,
    Source,
    read_addresses,
)
from gateway.upstream.pool.watch.engine_load import EngineLoad
from gateway.upstream.pool.watch.membership import Discovered, Membership
from gateway.upstream.pool.watch.probes import (
    PATHS,
    ModelLists,
    Prober,
    log_upstream,
    log_upstreams,
)
from gateway.upstream.pool.watch.warm_up import WarmUp
from gateway.upstream.settings import DiscoveryFile, UpstreamSettings, alias_identities
from gateway.upstream.wire.http_client import HttpUpstream

PROBE_SECONDS = 2.0
UNREACHABLE = "engine: not reachable"
NOT_FOUND = "upstreams: no replica is known; see discovery"

Check = Callable[[], Awaitable[str | None]]
"""Returns why a part is not ready yet, or None. Bounded in time; raises nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Upstreams:
    """The upstreams as one, and each by its name."""

    upstream: PooledUpstream
    passing: PoolRequests
    each: Mapping[str, HttpUpstream]
    ready: Check
    membership: Membership
    aliases: Mapping[str, str] = field(default_factory=dict)
    """What keys say of an alias in place of the upstreams' identity."""
    refuse_unknown: Callable[[str], None] | None = None
    """Raises ClientError for a model that no upstream declares."""
    warm_up: WarmUp | None = None
    chains: PromptChains | None = None
    """Makes the prefix chains for routing by prompt; None for other routing."""

    @asynccontextmanager
    async def lifespan(self) -> AsyncIterator[None]:
        """Open the upstreams, and probe them until the end."""
        async with contextlib.AsyncExitStack() as stack:
            stack.callback(self.pool.queue.close)
            stack.push_async_callback(self.pool.affinity.settle)
            await stack.enter_async_context(self.membership.lifespan())
            yield

    @property
    def pool(self) -> UpstreamPool:
        """All that is known of the upstreams."""
        return self.upstream.pool

    async def greet(self) -> None:
        """Log how each upstream answers: the present ones, and each replica that joins."""
        self.membership.greet = log_upstream
        await log_upstreams([*self.each.values()])

    def engine_load(self, name: str) -> EngineLoad | None:
        """Return what an engine said of its load a moment ago, if it is asked for routing."""
        state = self.pool.table.upstreams.get(name)
        signal = None if state is None else state.signal
        return signal.load if signal is not None and signal.is_fresh(time.monotonic()) else None

    def overloaded(self, model: str, client: str | None) -> bool:
        """Tell whether a client's request for the model could not be sent at once."""
        return self.pool.overloaded(model, client)

    def details(self) -> dict[str, Any]:
        """Return the part of ``/readyz`` about upstreams."""
        now = time.monotonic()
        upstreams = {}
        for upstream, state, _ in states(self.pool.table, now):
            why = upstream.shown(now).why(now)
            role = {"role": upstream.member.role} if upstream.member.role else {}
            upstreams[upstream.member.name] = {
                "state": state.value,
                "why": None if why is None else why.value,
                "in_flight": upstream.in_flight,
                **role,
            }
        discovery = self.membership.details()
        return {"upstreams": upstreams} | ({"discovery": discovery} if discovery else {})


def open_upstreams(
    settings: Settings,
    environment: Mapping[str, str],
    *,
    own_keys: bool,
    required: bool,
    metrics: Metrics,
    makers: MakerStore | None = None,
) -> Upstreams:
    """Return the upstreams of the settings. Raises SecretSettingError.

    ``own_keys`` says that the gateway has its own keys, ``required`` that an upstream must
    answer before the gateway is ready. By ``makers`` gateways know what others have learnt.
    """
    given = settings.all_upstreams
    several = len(given) > 1 or bool(settings.upstreams)
    if not several and settings.upstream_name is not None:
        given = (given[0].model_copy(update={"name": settings.upstream_name}),)
    identity = settings.upstream_identity or ""
    keys = upstream_keys(given, environment, own_keys=own_keys)
    named = {one.label: one for one in given}
    make = {
        name: partial(
            make_upstream,
            settings=settings,
            api_key=keys[one.label],
            headers=upstream_headers(one, environment, own_keys=own_keys),
            environment=environment,
            own_keys=own_keys,
        )
        for name, one in named.items()
    }
    each = {name: make[name](one, name) for name, one in named.items() if one.discover is None}
    accepts = {
        name: accepted
        for name, one in named.items()
        if (accepted := _first_given(one.accepts, settings.upstream_accepts)) != ALL_ADDITIONS
    }
    counts = UpstreamMetrics(metrics.registry)
    clock = time.monotonic
    by_prefix = several and settings.upstream_routing == "prefix"
    routing = PrefixAware(has_siblings=settings.workers > 1) if by_prefix else LeastLoaded()
    members = {
        one.label: _member(one, settings.workers, number) for number, one in enumerate(given)
    }
    table = PoolTable(
        [members[name] for name in each],
        routing,
        clock(),
        log_change,
        discovered=[member for name, member in members.items() if name not in each],
        is_lone=not several,
    )
    ready = _engines_ready(each, table.takes_requests, required=required)
    pool = UpstreamPool(
        identity,
        each,
        table,
        Bounds(settings.queue_size, settings.queue_timeout),
        metrics=counts,
        passes_credentials=not own_keys,
        affinity=Affinity(makers),
        accepts=accepts,
        several=several,
    )
    chains = PromptChains(shared=own_keys) if by_prefix else None
    warm_up = None
    if settings.upstream_warm_up:
        warm_up = WarmUp(
            each,
            table,
            clock,
            own_credentials=own_keys,
            chains=chains,
            on_warm=lambda name: counts.warmed.labels(declared_name(name)).inc(),
        )
    lists = None
    if len(given) > 1 or any(keys.values()):
        lists = ModelLists(each, clock, table.record_models)
        table.unlisted = lists.want
    prober = Prober(
        each,
        {one.label: _probe_paths(one) for one in given},
        table,
        clock=clock,
        on_probe=pool.queue.admit,
        warm=None if warm_up is None else warm_up.warm,
        lists=lists,
        is_lone=not several,
        # Where there is no choice, no figures are needed.
        with_load={
            one.label for one in given if one.load_signal and (one.discover or len(given) > 1)
        },
    )
    discovered = [
        Discovered(
            one.label,
            source_of(one, settings.dns_server),
            partial(replica_of, one, make[one.label]),
            partial(_replica_member, members[one.label]),
        )
        for one in given
        if one.discover is not None
    ]
    membership = Membership(each, pool, prober.watch, discovered, lists=lists)
    metrics.add(UpstreamCollector(pool, membership.details))
    text = "Requests that wait for room at an upstream."
    metrics.add_sum("upstream_waiting", text, lambda: len(pool.queue.waiting))
    refuse_unknown = table.refuse_unknown if settings.refuses_unknown_models else None
    passing = PoolRequests(
        *(each, table, clock, pool.affinity, refuse_unknown),
        retry_budget=pool.retry_budget,
        several=several,
    )
    return Upstreams(
        upstream=PooledUpstream(pool),
        passing=passing,
        each=each,
        ready=ready,
        membership=membership,
        aliases=alias_identities(given),
        refuse_unknown=refuse_unknown,
        warm_up=warm_up,
        chains=chains,
    )


def read_discovery_file(one: UpstreamSettings, path: Path) -> WatchedFile[tuple[Address, ...]]:
    """Return the file of an upstream's replicas. Raises DiscoveryError and OSError."""
    port = urlsplit(one.url).port
    in_force = f"upstream {one.label}: keeping the last good list of replicas"
    return WatchedFile(path, partial(read_addresses, port=port), in_force)


def source_of(one: UpstreamSettings, dns_server: str | None) -> Source:
    """Return the place of an upstream's replicas. Raises DiscoveryError and OSError for a file."""
    if isinstance(one.discover, DiscoveryFile):
        return FileSource(read_discovery_file(one, one.discover.file))
    server = None
    if dns_server is not None:
        parts = urlsplit(f"//{dns_server}")
        server = (parts.hostname or "", parts.port or 53)
    parts = urlsplit(one.url)
    return DnsSource(one.label, parts.hostname or "", parts.port, server)


def replica_of(
    one: UpstreamSettings, make: Callable[..., HttpUpstream], name: str, address: Address
) -> HttpUpstream:
    """Return a replica. Those by the addresses of a host name keep the name for TLS."""
    if one.discover == "dns":
        return make(one, name, connect_to=address.host)
    url = urlsplit(one.url)._replace(netloc=address.text).geturl()
    return make(one.model_copy(update={"url": url}), name)


def _replica_member(member: Member, name: str, address: Address) -> Member:
    return replace(
        member,
        name=name,
        tier=member.tier + address.rank,
        weight=member.weight * address.weight,
    )


def _first_given(*accepts: tuple[Addition, ...] | None) -> frozenset[Addition]:
    return frozenset(next((one for one in accepts if one is not None), ALL_ADDITIONS))


def make_upstream(
    one: UpstreamSettings,
    name: str,
    *,
    settings: Settings,
    api_key: str | None,
    headers: Fields,
    environment: Mapping[str, str],
    own_keys: bool,
    connect_to: str | None = None,
) -> HttpUpstream:
    """Return the client of one upstream. Raises SecretSettingError."""
    proxy = outbound_proxy(one, environment)
    if proxy is not None and connect_to is not None:  # NO_PROXY may name the address, too
        url = urlsplit(one.url)._replace(netloc=Address(connect_to, 80).text).geturl()
        proxy = outbound_proxy(one.model_copy(update={"url": url}), environment)
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
        connect_to=connect_to,
        api=one.api,
        preset=one.preset,
        asks_usage=Addition.STREAM_USAGE in _first_given(one.accepts, settings.upstream_accepts),
        connect_seconds=one.connect_timeout or settings.connect_timeout,
        read_seconds=one.read_timeout or settings.read_timeout,
        first_token_seconds=one.first_token_timeout or settings.first_token_timeout,
        between_tokens_seconds=one.between_tokens_timeout or settings.between_tokens_timeout,
    )


def _member(one: UpstreamSettings, workers: int, number: int) -> Member:
    return Member(
        one.label,
        models=one.models,
        tier=one.tier,
        max_concurrency=_share(one.max_concurrency, workers),
        requests_per_minute=_share(one.requests_per_minute, workers),
        weight=one.weight,
        native=one.api == "anthropic",
        rename=one.rename,
        number=number,
        realtime=one.realtime,
        role=one.role or "",
        kv_transfer=one.kv_transfer or "",
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


def _engines_ready(
    upstreams: Mapping[str, HttpUpstream], takes_requests: Callable[[str], bool], *, required: bool
) -> Check:
    """Return a check of the engines' own ``/readyz``, which are asked until one was ready once.

    Later faults show request by request: hits need no upstream. One that is not ours has no
    such path, or one that says nothing of reasons; silence counts only where it is ``required``.
    """
    was_ready = False

    async def check() -> str | None:
        nonlocal was_ready
        if was_ready:
            return None
        some = [one for name, one in upstreams.items() if takes_requests(name)]
        if not some:
            return NOT_FOUND
        reasons = await asyncio.gather(*map(_ask_readiness, some))
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
