"""The composition root: the one place where the parts are chosen and joined."""

import contextlib
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Any

from aiohttp import web
from aiohttp.http import SERVER_SOFTWARE

from gateway import background
from gateway.cache.append_files import Journal
from gateway.cache.key import Tenant, affinity_scopes, cache_salt, identify
from gateway.cache.pii_scan import Scans
from gateway.cache.writer import CacheWriter
from gateway.server.admin.access import AdminAccess
from gateway.server.admin.api import Admin
from gateway.server.admin.operations import Operations
from gateway.server.admin.overview import HISTORY_FILE, Overview
from gateway.server.admin.policy_editor import PolicyEditor
from gateway.server.admin.semantic_report import SemanticOperations
from gateway.server.hot_path import HotPath
from gateway.server.http import middleware as front
from gateway.server.http.handlers import Handlers, Readiness, refuse
from gateway.server.http.hot_connection import HOT_PATH, SERVE
from gateway.server.http.pass_through import PassThrough
from gateway.server.http.pings import PATIENCE
from gateway.server.http.unread import Unread
from gateway.server.keys.auth import Access
from gateway.server.keys.key_line import Key
from gateway.server.keys.usage_sync import UsageSync
from gateway.server.open.local_encoder import LocalModel, LocalUpstream
from gateway.server.open.policy_file import PolicyFile
from gateway.server.open.secrets import load_or_create_secret, secret_setting, shared_secret
from gateway.server.open.semantic import open_semantic
from gateway.server.open.store import OpenedStore, open_store
from gateway.server.open.telemetry import open_telemetry
from gateway.server.open.upstreams import open_upstreams
from gateway.server.pipeline import Pipeline
from gateway.server.prepare import Compressor, Outbox, salted_endpoints
from gateway.server.ui.page import OperatorPage
from gateway.settings import Settings
from gateway.telemetry.events import AUDIT_FILE, EventList, event_log
from gateway.upstream.answer import AnsweredCall
from gateway.upstream.pool.watch.probes import GREET
from gateway.upstream.request import Upstream
from gateway.upstream.sharing.coalescer import Claims, Coalescer
from gateway.upstream.sharing.shared_response import Holder
from policies.decision import Scope

POLICY_POLL_SECONDS = 0.5

END_CALLS: web.AppKey[Callable[[], Awaitable[None]]] = web.AppKey("end_calls")
"""Ends the calls to the upstream, even if requests wait for them."""

READINESS: web.AppKey[Readiness] = web.AppKey("readiness")
STORE: web.AppKey[OpenedStore] = web.AppKey("store")


def default_policy() -> Path:
    """Return the policy that holds where none is given."""
    return Path(str(files("policies") / "default.yaml"))


def _coalescer(
    upstream: Upstream, *, claims: Claims | None, unread: Holder, **options: Any
) -> Coalescer:
    return Coalescer(AnsweredCall(upstream, **options), claims=claims, unread=unread)


def _tenant_of(headers: Mapping[str, str], key: Key | None) -> Tenant:
    name, team = (None, None) if key is None else (key.name, key.team)
    return identify(headers, name, team)


def _scopes_of(secret: bytes, headers: Mapping[str, str], key: Key | None) -> tuple[bytes, ...]:
    """Return the scopes within which a client knows state of upstreams."""
    return affinity_scopes(secret, Scope.TENANT, _tenant_of(headers, key))


def _salt_of(secret: bytes, headers: Mapping[str, str], key: Key | None) -> str:
    """Return the salt of a client's live sessions, which no rule of the policy gives a scope."""
    return cache_salt(secret, Scope.TENANT, _tenant_of(headers, key))


def create_app(
    settings: Settings,
    *,
    semantic_socket: Path | None,
    engine_required: bool = False,
    started: float | None = None,
    changes: Path | None = None,
) -> web.Application:
    """Build the gateway. ``semantic_socket`` is None where semantic lookup is not installed.

    ``started`` is when the installation was started, in seconds since the epoch; None is now.
    ``changes`` is the file through which workers tell one another what they store.

    Raises PolicyError, KeyRingError, PricesError, OSError and SecretError when it cannot start.
    """
    settings.data_dir.mkdir(parents=True, exist_ok=True)
    policies = PolicyFile(settings.policy or default_policy())
    access = Access(settings.gateway_keys, settings.denied_keys)
    entries = open_store(settings, os.environ, changes)
    secret = shared_secret(os.environ) or load_or_create_secret(settings.data_dir)
    telemetry = open_telemetry(
        settings, secret=secret, store_stats=entries.store.stats, usage_store=entries.usage
    )
    metrics = telemetry.metrics
    upstreams = open_upstreams(
        settings,
        os.environ,
        own_keys=access.own_keys,
        required=engine_required,
        metrics=metrics,
        makers=entries.makers,
    )
    usage_sync = UsageSync(
        entries.key_counts if access.own_keys else None,
        time.time,
        telemetry.usage.prices,
        fails_open=settings.key_limits_fail == "open",
        refuse_unknown=upstreams.refuse_unknown,
    )
    usage_sync.keep(access.holders)
    semantic = open_semantic(
        settings, semantic_socket, policies=policies, upstream=upstreams.upstream, metrics=metrics
    )
    scans = Scans()
    writer = CacheWriter(
        entries=entries.store,
        semantic=semantic.service,
        scans=scans,
        now=time.time,
        quarantine=semantic.quarantine,
        count_not_added=partial(metrics.count, "semantic_not_added"),
    )
    unread = Unread(settings.max_unread_bytes, settings.client_timeout, time.monotonic)
    metrics.add_sum("unread_bytes", "Bytes held for clients to read.", lambda: unread.bytes)
    make_coalescer = partial(
        _coalescer,
        claims=entries.claims,
        unread=unread,
        writer=writer,
        max_answer_bytes=settings.max_answer_bytes,
        retry_budget=upstreams.pool.retry_budget,
        comparisons=semantic.comparisons,
        chains=upstreams.chains,
        on_answer=None if upstreams.warm_up is None else upstreams.warm_up.note,
        on_step=telemetry.on_step,
    )
    pipeline = Pipeline(
        store=entries.store,
        semantic=semantic.service,
        verifier=semantic.verifier,
        policies=policies,
        coalescer=make_coalescer(upstreams.upstream),
        scans=scans,
        secret=secret,
        outbox=Outbox(
            secret=secret,
            salted=salted_endpoints(upstream_knows_salt=settings.salts),
            compressor=Compressor(semantic.service, settings.compress_timeout),
        ),
        recorder=telemetry.recorder,
        now=time.time,
        semantic_seconds=settings.semantic_timeout,
        on_step=telemetry.on_step,
        on_surest=semantic.verifier.traffic.note,
        learned=semantic.journal,
        overloaded=upstreams.overloaded,
        aliases=upstreams.aliases,
        refuse_unknown=upstreams.refuse_unknown,
        local=None
        if (encoder := semantic.service) is None
        else LocalModel(encoder, make_coalescer(LocalUpstream(encoder))),
    )
    operations = Operations(
        pipeline=pipeline,
        quarantine=semantic.quarantine,
        cases=Journal(settings.data_dir / "wrong-hits.jsonl"),
        forget_keys=entries.forget_keys,
        make_coalescer=make_coalescer,
        key_of=access.key,
        holders=lambda: access.holders,
        hits_of=telemetry.usage.hits_of if settings.workers == 1 else None,
    )
    comparisons = SemanticOperations(
        semantic.journal, time.time, semantic.budgets, semantic.verifier.traffic
    )

    app = front.new_app(refuse, unread, client_max_size=settings.max_body_bytes)
    stopping = app[front.STOPPING].is_set
    readiness = Readiness(
        [upstreams.ready, semantic.not_ready],
        lambda: {
            "policy": policies.details(),
            "store": entries.status(),
            "keys": (keys := access.details()) | usage_sync.details(keys["problems"]),
            **semantic.details(),
            **upstreams.details(),
            "hints_never_hit": metrics.prefixes.shares.never_hit(),
            "background": background.problems(),
        },
    )
    operator = AdminAccess(secret_setting(os.environ, "ADMIN_TOKEN"), time.time, ui=settings.ui)
    metrics.add_sum(
        "calls_in_flight", "Calls to upstreams under way.", lambda: len(pipeline.coalescer.calls)
    )
    events = EventList(settings.data_dir)
    overview = Overview(
        families=metrics.families,
        readiness=readiness.report,
        check_store=entries.check,
        rules=comparisons.report,
        upstreams=upstreams.each,
        load=upstreams.engine_load,
        events=events.latest,
        now=time.time,
        started=time.time() if started is None else started,
        kept=settings.data_dir / HISTORY_FILE,
        workers=settings.workers,
        keeps_history=settings.ui,
    )
    admin = Admin(
        operations,
        comparisons,
        metrics.prefixes.shares.report,
        telemetry.usage.report,
        overview=overview,
        events=events.latest,
        policy=PolicyEditor(
            policies=policies,
            is_packaged=settings.policy is None,
            decision_log=settings.decision_log,
            data_dir=settings.data_dir,
        ),
        keys=access.list_keys,
        audit_log=settings.data_dir / AUDIT_FILE,
        access=operator,
    )
    handlers = Handlers(
        pipeline=pipeline,
        pass_through=PassThrough(
            upstreams.passing,
            settings.client_timeout,
            partial(_scopes_of, secret),
            partial(_salt_of, secret) if settings.salts else lambda *_: "",
        ),
        readiness=readiness,
        metrics=metrics.page,
        sinks=telemetry.sinks,
        trace=telemetry.trace,
        access=access,
        usage_sync=usage_sync,
        stopping=stopping,
        client_seconds=settings.client_timeout,
        names=settings.public_names,
        default_model=settings.default_model or "",
        patience=PATIENCE,
    )
    hot = app[HOT_PATH] = HotPath(
        entries.memory if telemetry.counts_only else None,
        policies,
        access,
        metrics,
        telemetry.usage,
        server=SERVER_SOFTWARE,
        stopping=stopping,
        now=time.time,
        max_body_bytes=settings.max_body_bytes,
    )
    page = [OperatorPage(operator).add_routes] if settings.ui else []
    for add_routes in (admin.add_routes, *page, handlers.add_routes):
        add_routes(app)
    app[SERVE], app[END_CALLS], app[GREET], app[READINESS], app[STORE] = (
        *(handlers.serve, pipeline.close, upstreams.greet),
        *(readiness, entries),
    )

    def on_policy_reload(accepted: bool) -> None:
        metrics.count_policy_reload(accepted)
        if accepted:
            semantic.budgets.warn()

    async def lifespan(_app: web.Application) -> AsyncIterator[None]:
        async with contextlib.AsyncExitStack() as stack:
            stack.enter_context(event_log(settings.data_dir))
            for part in (telemetry, entries, telemetry.usage, upstreams, semantic):
                await stack.enter_async_context(part.lifespan())
            await stack.enter_async_context(usage_sync.lifespan())
            stack.callback(scans.close)
            stack.push_async_callback(writer.settle)
            stack.push_async_callback(pipeline.close)
            on_edit = partial(policies.watch, POLICY_POLL_SECONDS, on_policy_reload)
            on_keys = partial(access.watch, lambda: usage_sync.keep(access.holders))
            for name, watch in (
                ("watch of the policy", on_edit),
                ("watch of the keys", on_keys),
                ("sweep of repeated hits", hot.watch),
                ("history of the overview", overview.watch),
            ):
                await stack.enter_async_context(background.running(name, watch))
            yield

    app.cleanup_ctx.append(lifespan)
    return app
