"""Which key each upstream gets, its own or that of all: part of the composition root.

Law: a key is spent only for clients that showed one of the gateway's, and no message holds one.

Which upstreams there are, and what stands before them: part of the composition root.

Law: one upstream that is given by its URL alone is asked without anything in between.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from gateway.protocol.messages import ALL_ADDITIONS, Addition
from gateway.server.http.readiness import Check, engine_ready
from gateway.server.secrets import (
    SecretError,
    SecretSettingError,
    master_keys,
    secret_setting,
    shared_secret,
)
from gateway.settings import SECRETS, Settings, UpstreamSettings
from gateway.telemetry.metrics import Metrics
from gateway.upstream.exchange import Accepts
from gateway.upstream.http.client import HttpUpstream
from gateway.upstream.pool.affinity import Kept, PoolRequests
from gateway.upstream.pool.metrics import UpstreamCollector, UpstreamMetrics
from gateway.upstream.pool.models import ModelList
from gateway.upstream.pool.pool import UpstreamPool, log_change
from gateway.upstream.pool.probes import PATHS, Prober
from gateway.upstream.pool.table import PoolTable, states
from gateway.upstream.pool.upstream_state import Member
from gateway.upstream.pool.waiting_queue import Bounds
from gateway.upstream.ports import Upstream
from gateway.upstream.routing.prefix_aware import PrefixAware
from gateway.upstream.routing.prefix_chain import PromptChains
from gateway.upstream.routing.routing import LeastLoaded
from gateway.upstream.routing.warm_up import WarmUp

log = logging.getLogger(__name__)

KEY = "UPSTREAM_API_KEY"
_INSIDE = (".local", ".internal", ".lan", ".svc")


def upstream_keys(
    upstreams: Sequence[UpstreamSettings], environment: Mapping[str, str], *, own_keys: bool
) -> dict[str, str | None]:
    """Return the key of each upstream, by name. Raises SecretSettingError.

    ``own_keys`` says that the gateway has keys of its own.
    """
    common = _key(secret_setting(environment, KEY), f"REFRAIN_{KEY}", own_keys=own_keys)
    keys = {one.called: _own_key(one, environment, own_keys=own_keys) for one in upstreams}
    return {name: key or common for name, key in keys.items()}


def secrets_problem(
    upstreams: Sequence[UpstreamSettings], environment: Mapping[str, str], *, own_keys: bool
) -> str | None:
    """Return what is wrong with any secret of the settings, or None."""
    try:
        for name in SECRETS:
            secret_setting(environment, name.upper())
        shared_secret(environment)
        master_keys(environment)
        upstream_keys(upstreams, environment, own_keys=own_keys)
    except SecretError as error:
        return str(error)
    return None


def warn_of_shared_credentials(
    upstreams: Sequence[UpstreamSettings], environment: Mapping[str, str], *, own_keys: bool
) -> None:
    """Log a warning where upstreams of several hosts get the same credentials."""
    has_common = secret_setting(environment, KEY) is not None
    sharing = [one for one in upstreams if one.api_key_env is None and one.api_key_file is None]
    if (has_common or not own_keys) and len({_site(one.url) for one in sharing}) > 1:
        log.warning(
            "%s to upstreams of several hosts: %s; declare only such as may see them, or give "
            "each a key of its own (api_key_env, api_key_file)",
            f"REFRAIN_{KEY} goes" if has_common else "the clients' credentials go",
            ", ".join(one.called for one in sharing),
        )


def _site(url: str) -> str:
    """Return the host, or nothing for all of a private network: these are the operator's own."""
    host = urlsplit(url).hostname or ""
    try:
        return "" if ip_address(host).is_private else host
    except ValueError:
        return "" if "." not in host or host.endswith(_INSIDE) else host


def _own_key(
    one: UpstreamSettings, environment: Mapping[str, str], *, own_keys: bool
) -> str | None:
    """Return the key of one upstream. Raises SecretSettingError."""
    if one.api_key_env is not None:
        where = f"upstream {one.called}: {one.api_key_env}"
        found = environment.get(one.api_key_env, "").strip()
        if not found:
            raise SecretSettingError(
                f"upstream {one.called}: api_key_env: the environment variable {one.api_key_env} "
                "is not set; set it to the upstream's key"
            )
    elif one.api_key_file is not None:
        where = f"upstream {one.called}: {one.api_key_file}"
        found = _read(one.api_key_file, where)
    else:
        return None
    if not found:
        raise SecretSettingError(f"{where}: holds no key")
    return _key(found, where, own_keys=own_keys)


def _read(file: Path, where: str) -> str:
    try:
        with file.open("rb") as opened:
            return opened.read(64 << 10).decode().strip()
    except OSError as error:
        raise SecretSettingError(f"{where}: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise SecretSettingError(f"{where}: expected text") from None


def _key(api_key: str | None, where: str, *, own_keys: bool) -> str | None:
    """Return the key once it is known to be one that may be used. Raises SecretSettingError."""
    if api_key is None:
        return None
    if not own_keys:
        raise SecretSettingError(
            f"{where} is given, but not gateway_keys: whoever reaches the gateway could spend it"
        )
    if not (api_key.isascii() and api_key.isprintable()) or " " in api_key:
        raise SecretSettingError(f"{where}: expected a key: one word of ASCII")
    return api_key


@dataclass(frozen=True, slots=True)
class Upstreams:
    """The upstreams as one, each by its name, and the pool where there is one."""

    upstream: Upstream
    passing: HttpUpstream | PoolRequests
    each: Mapping[str, HttpUpstream]
    ready: Check
    accepts: Accepts
    pool: UpstreamPool | None = None
    prober: Prober | None = None
    models: ModelList | None = None
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
    named = {name if is_alone else one.called: one for one in given}
    each = {
        told: _http(one, settings, told, keys[one.called], own_keys=own_keys)
        for told, one in named.items()
    }
    accepts = {
        told: _first_given(one.accepts, settings.upstream_accepts) for told, one in named.items()
    }
    counts = UpstreamMetrics(metrics.registry)
    checks = [engine_ready(upstream, required=required) for upstream in each.values()]
    if is_alone:
        return Upstreams(each[name], each[name], each, checks[0], accepts)
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
        figures=counts,
        passes_credentials=not own_keys,
        kept=kept,
    )
    metrics.add(UpstreamCollector(lambda: states(table, time.monotonic()), lambda: pool.waiting))
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
            warmed=counts.warmed,
        )
    warm = None if warm_up is None else warm_up.warm
    prober = Prober(each, paths, table, time.monotonic, pool.admit, warm=warm)
    passing = PoolRequests(each, table, time.monotonic, kept)
    models = ModelList(passing, {member.name: member for member in members})
    return Upstreams(
        pool, passing, each, _any(checks), accepts, pool, prober, models, warm_up, chains
    )


def _first_given(*accepts: tuple[Addition, ...] | None) -> frozenset[Addition]:
    return frozenset(next((one for one in accepts if one is not None), ALL_ADDITIONS))


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
