"""No background work ends in silence: who begins a task or a thread is supervised, or says why not.

``gateway.background`` supervises the gateway's. A reason below says who learns of a failure.
"""

import ast
from pathlib import Path

from architecture import Module, modules

ROOT = Path(__file__).parents[2]
STARTS = frozenset({"create_task", "ensure_future", "Thread"})

_WAIT = "waits for an event, which cannot fail"
_REQUEST = "who waits for it gets the exception"
_LINES = "writes lines that are ready, and passes over what cannot be written"
_CHILD = "the process ends, and its supervisor starts it again"

REASONS = {
    "gateway.background.start": "supervises",
    "gateway.background.start_thread": "supervises",
    "gateway.cache.single_flight.SingleFlight.ask": _REQUEST,
    "gateway.cache.stores.redis.claims.RedisClaims.release": "the lease of the claim lapses",
    "gateway.cache.stores.redis.link.Batches.call": "callers get an error, the next call a lane",
    "gateway.cache.stores.redis.store.RedisStore._spawn": _REQUEST,
    "gateway.cache.stores.sqlite.writer.start_thread": "a checkpoint, which logs each fault",
    "gateway.cache.writer.CacheWriter._index": "one vector; the entry has exact hits",
    "gateway.cli.offline.calibrate._start_service": "the command reads its exit code",
    "gateway.cli.process.child_process.ChildProcess.__init__": "the exit code, which others await",
    "gateway.cli.process.child_process.is_first": _WAIT,
    "gateway.cli.process.launch._serve": "logs the page's address once, and nothing depends on it",
    "gateway.cli.process.log_lines.QueuedLines.__init__": _LINES,
    "gateway.cli.progress.for_each": "the command ends with the exception",
    "gateway.cli.process.supervisor.Supervisor._reload_until_stop": "logs each fault and goes on",
    "gateway.cli.process.supervisor.Supervisor._replace": "sees one process off",
    "gateway.cli.process.supervisor._first": _WAIT,
    "gateway.cli.operator.top._top": "the command ends with the exception",
    "gateway.cli.process.worker.Orders._begin": "a failure stops the worker, which starts again",
    "gateway.cli.process.worker._first": _WAIT,
    "gateway.cli.process.worker.serve": "logs once how the upstreams answer",
    "gateway.server.http.cors.Cors._find": _REQUEST,
    "gateway.server.http.hot_connection.HotConnection._start": "one request",
    "gateway.server.http.pings.PingedSink._tick": "one ping; the next write has the same fault",
    "gateway.server.http.pings.reply_in_time": _REQUEST,
    "gateway.server.prepare.Summariser.apply": "one summary; a later request begins it anew",
    "gateway.telemetry.otel.export.close_in_time": "the end of the process does not wait for it",
    "gateway.telemetry.metrics.Metrics.page": _REQUEST,
    "gateway.upstream.sharing.coalescer.Coalescer._run": "one call; its readers learn of its end",
    "gateway.cache.quality.comparisons.Comparisons.begin": "logs each fault and goes on",
    "gateway.server.http.realtime._first": "one session",
    "gateway.upstream.wire.connection.HttpReply._ask": "the body of one request",
    "gateway.upstream.pool.affinity.Affinity.note": "logs each fault; this process knows the maker",
    "gateway.upstream.pool.watch.membership.Membership._watch": "supervised as one by its caller",
    "gateway.upstream.pool.watch.probes.Prober.watch": "supervised as one by its caller",
    "embeddings.batching.BatchedEncoder._shared": _REQUEST,
    "embeddings.client.EmbeddingsClient._connected": _REQUEST,
    "embeddings.index.breaker.GuardedIndex._begin": _REQUEST,
    "embeddings.index.breaker.GuardedIndex._open": "each fault of a probe leads to the next probe",
    "embeddings.index.local.LocalIndex._whole": _REQUEST,
    "embeddings.index.local.LocalIndex.build_if_needed": "logs each fault; begun anew later",
    "embeddings.log_lines.QueuedLines.__init__": _LINES,
    "embeddings.service.Connection._take": "one request",
    "embeddings.service._watch_parent": "waits for the end of its stdin, errors included",
    "embeddings.service.serve": "loading ends the process; the sweep logs each fault and goes on",
    "backend.app._load": "the start fails with the exception",
    "backend.engine.embedder.EmbeddingEngine.__init__": "/readyz is 503 from then on",
    "backend.engine.engine.Engine.__init__": _CHILD,
    "backend.engine.kv_transfer.fetches.Fetches.submit": "its request is computed here, and a line",
    "backend.engine.kv_transfer.offers.Offers.__init__": "logs why it ends; prompts come as text",
    "backend.engine.kv_transfer.offers.Offers._listen": "logs each fault; its peer computes itself",
    "backend.engine.ranks.Ranks.__init__": "its end is the process's, with a reason",
    "backend.engine.supervisor.EngineSupervisor.open": "logs each fault and goes on",
    "backend.engine.supervisor.EngineSupervisor.wake": "who waits for it gets the exception",
    "backend.executor.transfer._DiskThread.__init__": "logs each fault and goes on",
    "backend.log_lines.QueuedLines.__init__": _LINES,
    "backend.process.end_with_parent": "waits for the parent's end",
    "backend.process.in_background": "who waits for it gets the exception",
    "backend.server.app._load_and_wait": "the process ends with the exception",
    "backend.server.app._stop_event": "waits for the end of its stdin, errors included",
    "backend.server.batches.runner.Batches._compute_lines": "its caller gets the exception",
    "backend.server.batches.runner.Batches._compute_lines.compute_all": "the same, by a group",
    "backend.server.batches.runner.Batches._start": "supervises",
    "backend.server.pipeline._merge": _REQUEST,
    "backend.server.realtime.session.LiveSession._grow": "logs a fault; the response comes without",
    "backend.server.realtime.session.LiveSession._respond": "tells its fault to the client",
    "backend.server.realtime.session.LiveSession.stop": "the session ends in any case",
    "backend.server.tracing.Tracing.close": "the end of the process does not wait for it",
}


def starts(module: Module) -> set[str]:
    """Return the functions of a module that begin a task or a thread."""
    found: set[str] = set()

    def visit(node: ast.AST, inside: str) -> None:
        for child in ast.iter_child_nodes(node):
            name = inside
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                name = f"{inside}.{child.name}"
            elif isinstance(child, ast.Call) and _called(child) in STARTS:
                found.add(inside)
            visit(child, name)

    visit(module.tree, module.name)
    return found


def _called(call: ast.Call) -> str:
    return getattr(call.func, "attr", getattr(call.func, "id", ""))


FOUND = set().union(*map(starts, modules(ROOT)))


def test_each_task_and_thread_is_supervised_or_has_a_reason():
    assert FOUND - set(REASONS) == set()


def test_each_reason_is_of_a_task_or_thread_that_exists():
    assert set(REASONS) - FOUND == set()
