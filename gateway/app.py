"""The composition root: the one place where the parts are chosen and joined."""

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Any

from aiohttp import web

from gateway.cache.append_files import Journal
from gateway.cache.pii_scan import Scans
from gateway.cache.ports import ForgetKeys, Quarantine
from gateway.cache.quarantine import QuarantineFile
from gateway.cache.shadow_eval.journal import CHECKS_FILE, ComparisonJournal
from gateway.cache.stores.entry_codec import encoded_size
from gateway.cache.writer import CacheWriter
from gateway.prompts.compress.compressor import Compressor
from gateway.semantic.calibrations import Calibrations
from gateway.semantic.embeddings_service import SemanticService
from gateway.semantic.verifier import CalibratedVerifier
from gateway.server.admin.api import Admin
from gateway.server.admin.explain import explain_action
from gateway.server.admin.load import Loader
from gateway.server.admin.operations import Operations
from gateway.server.admin.semantic_report import Budgets, SemanticOperations
from gateway.server.auth import Access
from gateway.server.http import front
from gateway.server.http.handlers import Handlers, refuse
from gateway.server.http.pass_through import PassThrough
from gateway.server.http.readiness import Readiness
from gateway.server.local_encoder import local_model
from gateway.server.open_store import Entries, open_store
from gateway.server.open_upstreams import ended, open_upstreams
from gateway.server.pipeline import Pipeline
from gateway.server.policy_file import PolicyFile
from gateway.server.prepare import Outbox
from gateway.server.secrets import load_or_create_secret, secret_setting, shared_secret
from gateway.settings import Settings
from gateway.telemetry.decision_log import DecisionLog, Recorder
from gateway.telemetry.metrics import Metrics
from gateway.telemetry.observation import Sink
from gateway.telemetry.request_log import request_sinks
from gateway.upstream.coalescing.coalescer import Coalescer
from gateway.upstream.http.startup_check import UPSTREAMS
from gateway.upstream.judge_model import Judge
from gateway.upstream.ports import Upstream
from gateway.upstream.shadow_eval import Checks

POLICY_POLL_SECONDS = 0.5
ENCODER_POLL_SECONDS = 0.5


def default_policy() -> Path:
    """Return the policy that holds where none is given."""
    return Path(str(files("policies") / "default.yaml"))


END_CALLS: web.AppKey[Callable[[], Awaitable[None]]] = web.AppKey("end_calls")
"""Ends the calls to the upstream, whoever waits for them."""


def create_app(
    settings: Settings, *, semantic_socket: Path | None, engine_required: bool = False
) -> web.Application:
    """Build the gateway. ``semantic_socket`` is None where semantic lookup is not installed.

    Raises PolicyError, KeyRingError, OSError and SecretError when it cannot start.
    """
    settings.data_dir.mkdir(parents=True, exist_ok=True)
    policies = PolicyFile(settings.policy or default_policy())
    access = Access(settings.gateway_keys, settings.denied_keys)
    store = (entries := open_store(settings, os.environ)).store
    secret = shared_secret(os.environ) or load_or_create_secret(settings.data_dir)
    metrics = Metrics(store.stats)
    upstreams = open_upstreams(
        settings,
        os.environ,
        own_keys=access.own_keys,
        required=engine_required,
        metrics=metrics,
    )
    upstream = upstreams.upstream
    semantic = _semantic(settings, semantic_socket)
    checks = [upstreams.ready]
    if semantic is not None:
        checks.append(semantic.not_ready)
    decision_log = _decision_log(settings)
    sinks: tuple[Sink, ...] = (
        metrics.observe,
        *request_sinks(),
        *_observers(decision_log),
    )
    tracing = _tracing()
    verifier = CalibratedVerifier(
        semantic, Calibrations(settings.data_dir), seconds=settings.verifier_timeout
    )
    scans = Scans()
    quarantine = QuarantineFile(settings.data_dir / "quarantine.jsonl")
    writer = CacheWriter(store, semantic, scans, time.time, quarantine)

    journal, comparisons = _learning(
        settings, quarantine, semantic, verifier, metrics=metrics, upstream=upstream
    )

    def make_coalescer(to: Upstream) -> Coalescer:
        return Coalescer(
            to,
            writer,
            max_answer_bytes=settings.max_answer_bytes,
            claims=entries.claims,
            checks=comparisons,
            chains=upstreams.chains,
            answered=None if upstreams.warm_up is None else upstreams.warm_up.note,
            accepts=upstreams.accepts,
        )

    pipeline = Pipeline(
        store=store,
        semantic=semantic,
        verifier=verifier,
        policies=policies,
        coalescer=make_coalescer(upstream),
        scans=scans,
        secret=secret,
        outbox=Outbox(
            secret,
            settings.upstream_cache_salt,
            compressor=Compressor(semantic, settings.compress_timeout),
        ),
        recorder=_recorder(settings, secret),
        now=time.time,
        semantic_seconds=settings.semantic_timeout,
        learned=journal,
        overloaded=upstreams.overloaded,
        local=None if semantic is None else local_model(semantic, make_coalescer),
    )
    budgets = Budgets(policies, lambda: _verifier_known(semantic), verifier.threshold)
    app = front.new_app(refuse, client_max_size=settings.max_body_bytes)
    handlers = Handlers(
        pipeline,
        PassThrough(
            upstreams.passing, client_seconds=settings.client_timeout, models=upstreams.models
        ),
        Readiness(
            checks,
            lambda: {
                **_details(policies, entries, semantic, verifier, access),
                **upstreams.details(),
                "rules_off": sorted(rule for rule, off in journal.rules_off().items() if off),
                "budgets_not_kept": budgets.not_kept(),
                "hints_never_hit": metrics.prefixes.shares.never_hit(),
            },
        ),
        metrics.page,
        sinks,
        trace=None if tracing is None else tracing.begin,
        access=access,
        client_seconds=settings.client_timeout,
        names=settings.public_names,
    )
    loader = Loader(pipeline, make_coalescer, time.perf_counter, access.holder)
    told = SemanticOperations(journal, time.time, budgets)
    admin = _admin(pipeline, entries.forget_keys, quarantine, access, settings.data_dir)
    admin.add_routes(
        app,
        {
            "load": loader.load,
            "explain": explain_action(pipeline, access.holder),
            "semantic/reset": told.reset,
        },
        {"semantic": told.report, "prefix-hits": metrics.prefixes.shares.report},
    )
    handlers.add_routes(app)
    app[END_CALLS], app[UPSTREAMS] = pipeline.close, tuple(upstreams.each.values())

    async def lifespan(_app: web.Application) -> AsyncIterator[None]:
        async with contextlib.AsyncExitStack() as stack:
            if tracing is not None:
                stack.push_async_callback(asyncio.to_thread, tracing.close)
            stack.push_async_callback(_closed, decision_log)
            await stack.enter_async_context(entries.opened())
            stack.callback(scans.close)
            await stack.enter_async_context(upstreams.opened())
            if semantic is not None:
                stack.push_async_callback(semantic.close)
                learning = asyncio.create_task(_learnt(semantic, budgets))
                stack.push_async_callback(ended, learning)
            for load in (quarantine.compact, journal.read):
                await asyncio.to_thread(load)
            stack.push_async_callback(comparisons.close)
            stack.push_async_callback(pipeline.close)
            for watch in (
                policies.watch(POLICY_POLL_SECONDS, partial(_reloaded, metrics, budgets)),
                access.watch(),
            ):
                stack.push_async_callback(ended, asyncio.create_task(watch))
            yield

    app.cleanup_ctx.append(lifespan)
    return app


def _semantic(settings: Settings, socket: Path | None) -> SemanticService | None:
    if socket is None:
        return None
    return SemanticService.at(socket, timeout=settings.semantic_timeout)


def _learning(
    settings: Settings,
    quarantine: Quarantine,
    semantic: SemanticService | None,
    verifier: CalibratedVerifier,
    *,
    metrics: Metrics,
    upstream: Upstream,
) -> tuple[ComparisonJournal, Checks]:
    journal = ComparisonJournal(settings.data_dir / CHECKS_FILE, quarantine)
    model = settings.semantic_judge_model
    metrics.tell_rules_off(journal.rules_off)
    return journal, Checks(
        journal,
        quarantine,
        index=semantic,
        encoder=semantic,
        now=time.time,
        threshold=verifier.threshold,
        count=metrics.compared,
        with_text=settings.decision_log_text,
        judge=None if model is None else Judge(upstream, model),
    )


def _details(
    policies: PolicyFile,
    entries: Entries,
    semantic: SemanticService | None,
    verifier: CalibratedVerifier,
    access: Access,
) -> dict[str, Any]:
    policy = policies.active.policy
    return {
        "policy": {
            "source": policy.source,
            "generation": policy.generation,
            "problem": policies.problem,
        },
        "store": entries.status(),
        "semantic": "on" if semantic is not None else "off",
        "vectors": semantic.details() if semantic is not None else {},
        "verifier": verifier.details() if semantic is not None else {},
        "keys": access.details(),
    }


def _verifier_known(semantic: SemanticService | None) -> bool:
    return semantic is not None and semantic.verifier is not None


async def _learnt(semantic: SemanticService, budgets: Budgets) -> None:
    await semantic.learn(ENCODER_POLL_SECONDS)
    budgets.tell()


def _reloaded(metrics: Metrics, budgets: Budgets, taken: bool) -> None:
    metrics.policy_reloaded(taken)
    if taken:
        budgets.tell()


def _decision_log(settings: Settings) -> DecisionLog | None:
    if settings.decision_log is None:
        return None
    return DecisionLog(
        settings.decision_log, max_bytes=settings.decision_log_bytes, clock=time.time
    )


def _observers(log: DecisionLog | None) -> tuple[Sink, ...]:
    return () if log is None else (log.observe,)


def _recorder(settings: Settings, secret: bytes) -> Recorder | None:
    if settings.decision_log is None:
        return None
    return Recorder(secret, settings.decision_log_text, settings.decision_log_requests)


async def _closed(log: DecisionLog | None) -> None:
    if log is not None:
        await asyncio.to_thread(log.close)


def _admin(
    pipeline: Pipeline,
    forget_keys: ForgetKeys | None,
    quarantine: Quarantine,
    access: Access,
    data_dir: Path,
) -> Admin:
    operations = Operations(
        store=pipeline.store,
        semantic=pipeline.semantic,
        quarantine=quarantine,
        cases=Journal(data_dir / "wrong-hits.jsonl"),
        policies=pipeline.policies,
        scans=pipeline.scans,
        forget_keys=forget_keys,
        size=encoded_size,
        now=time.time,
    )
    token = secret_setting(os.environ, "ADMIN_TOKEN")
    audit_log = Journal(data_dir / "admin-audit.jsonl")
    return Admin(
        operations, audit_log, secret=pipeline.secret, token=token, holder_of=access.holder
    )


def _tracing() -> Any:
    if not (
        os.environ.get("OTEL_EXPORTER_OTLP_ENDPOINT")
        or os.environ.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
    ):
        return None
    from gateway.telemetry.tracing import Tracing  # noqa: PLC0415 - costs 200 ms to import

    return Tracing()
