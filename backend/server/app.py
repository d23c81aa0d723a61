"""The HTTP application: routes, what every request meets first and last, and its lifetime."""

import asyncio
import contextlib
import logging
import os
import signal
import socket
import threading
import time
from collections.abc import AsyncIterator
from functools import partial
from typing import TYPE_CHECKING, Any

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from backend import request_id
from backend.ports import EngineError
from backend.server import sleep
from backend.server.batches.handlers import add_routes
from backend.server.batches.runner import Batches
from backend.server.body import ALLOW_UNKNOWN, json_response
from backend.server.chat import chat_completions
from backend.server.completions import completions
from backend.server.embeddings import embeddings
from backend.server.http_server import REALTIME, Runner, is_websocket, refusal
from backend.server.kv_events import KvEvents
from backend.server.metrics import CONTENT_TYPE, Metrics
from backend.server.pipeline import WATCH
from backend.server.protocol.errors import ApiError, internal_error
from backend.server.realtime.session import Bounds
from backend.server.realtime.sessions import Realtime
from backend.server.replies import EventStream
from backend.server.rerank import rerank, score
from backend.server.responses import responses
from backend.server.served_model import ServedModel
from backend.server.tokenize import detokenize, tokenize

if TYPE_CHECKING:
    from backend.server.tracing import Tracing

MAX_BODY_BYTES = 16 * 1024 * 1024
"""Several times what the text of the longest context in use today takes."""

PARENT_PIPE = "REFRAIN_PARENT_PIPE"
"""Set to 1 where stdin is a pipe that the parent holds: its end means that the parent is gone."""

SERVED_MODEL = web.AppKey("served_model", ServedModel)
BATCHES = web.AppKey("batches", Batches)
KV_EVENTS = web.AppKey("kv_events", KvEvents)
"""Streams to routers. They do not end by themselves."""
LIVE = web.AppKey("live", Realtime)
"""Realtime sessions. They do not end by themselves either."""
STOPPING: web.AppKey[asyncio.Event] = web.AppKey("stopping")
"""Set once the server is to stop: it still answers, and asks its clients to go elsewhere."""

_GIVEN_UP_SECONDS = 0.5
"""From the engine's end to the last byte of an error."""

# Handlers were drained by then; this is for connections that are slow to close.
_CLOSE_SECONDS = 1.0

_STDIN = 0

log = logging.getLogger(__name__)


class StartError(Exception):
    """The server cannot run; the text is for people and fits a line."""


def build_application(
    model: ServedModel,
    *,
    kv_events: KvEvents | None = None,
    batches: Batches | None = None,
    allow_unknown_fields: bool = False,
    max_body_bytes: int = MAX_BODY_BYTES,
    tracing: "Tracing | None" = None,
    admin_key: str | None = None,
    realtime: Bounds | None = None,
) -> web.Application:
    """Return the application for ``model``, which the caller loads once the socket listens.

    On shutdown the engine is stopped and open requests fail; ``drain`` waits for them before. Run
    it with ``handler_cancellation=True``, or nobody notices that a client left. ``kv_events`` are
    sent to routers; with None the path does not exist. With None for ``batches`` their paths say
    how they are switched on. ``allow_unknown_fields``: fields of requests that no server is known
    to read are ignored, not refused. ``tracing`` records each POST. With an ``admin_key``, whoever
    has it can put the engine to sleep. ``realtime`` bounds live sessions.
    """
    metrics = Metrics(model.stats, model.embeddings_waiting, batches, model=model.name)
    in_flight: set[asyncio.Task[object]] = set()
    app = web.Application(
        client_max_size=max_body_bytes, middlewares=[_middleware(metrics, in_flight, tracing)]
    )
    app[SERVED_MODEL] = model
    app[ALLOW_UNKNOWN] = allow_unknown_fields
    app[STOPPING] = asyncio.Event()
    app.on_response_prepare.append(_complete_head)
    app[LIVE] = live = Realtime(model, realtime)
    post, get = app.router.add_post, app.router.add_get
    _add_endpoints(app, model, metrics, batches)
    post("/tokenize", partial(tokenize, model))
    post("/detokenize", partial(detokenize, model))
    get(REALTIME, live.serve)
    get("/v1/models", partial(_list_models, model))
    get("/v1/models/{model:.+}", partial(_get_model, model))
    get("/healthz", _healthz)
    get("/readyz", partial(_readyz, model))
    get("/metrics", partial(_metrics, metrics))

    sleep.add_routes(app.router, model, admin_key)
    if kv_events is not None:
        app[KV_EVENTS] = kv_events
        get("/kv_events", kv_events.stream)

    async def give_up(_app: web.Application) -> None:
        """End the engine, so that open requests fail and their clients get an error.

        What does not end even then is cancelled.
        """
        live.close()
        if kv_events is not None:
            kv_events.close()
        late = set(in_flight)
        if not late:
            return
        log.warning("%d requests did not end in time and were given up", len(late))
        await model.close()
        _, stuck = await asyncio.wait(late, timeout=_GIVEN_UP_SECONDS)
        for task in stuck:
            task.cancel()
        if stuck:
            await asyncio.wait(stuck, timeout=_GIVEN_UP_SECONDS)

    async def model_lifetime(_: web.Application) -> AsyncIterator[None]:
        if kv_events is not None:
            kv_events.open()
        yield
        await model.close()
        if tracing is not None:
            await asyncio.to_thread(tracing.close)

    app.on_shutdown.append(give_up)
    app.cleanup_ctx.append(model_lifetime)
    return app


def _add_endpoints(
    app: web.Application, model: ServedModel, metrics: Metrics, batches: Batches | None
) -> None:
    """Serve what computes, over HTTP and by the file."""
    endpoints: dict[str, Handler] = {
        "/v1/chat/completions": partial(chat_completions, model),
        "/v1/completions": partial(completions, model),
        "/v1/responses": partial(responses, model),
        "/v1/embeddings": partial(embeddings, model, metrics),
        "/v1/rerank": partial(rerank, model, metrics),
        "/v1/score": partial(score, model, metrics),
    }
    for path, handler in endpoints.items():
        app.router.add_post(path, handler)
    add_routes(app.router, batches)
    if batches is None:
        return
    app[BATCHES] = batches

    async def answer_line(request: web.Request) -> web.StreamResponse:
        return await _answer(request, endpoints[request.path])

    async def begin(_: web.Application) -> None:
        await batches.open(app, answer_line)

    async def stop(_: web.Application) -> None:
        await batches.stop()

    async def close(_: web.Application) -> None:
        await batches.store.close()  # no request is under way any more

    app.on_startup.append(begin)
    app.on_shutdown.append(stop)
    app.on_cleanup.append(close)


async def _list_models(model: ServedModel, _: web.Request) -> web.Response:
    described = [_describe(model, name) for name in (model.name, *model.adapters)]
    return json_response({"object": "list", "data": described})


async def _get_model(model: ServedModel, request: web.Request) -> web.Response:
    name = request.match_info["model"]  # a hub id has a slash in it
    model.check_name(name)
    return json_response(_describe(model, name))


def _describe(model: ServedModel, name: str) -> dict[str, Any]:
    card = {"id": name, "object": "model", "created": model.created, "owned_by": "refrain"}
    if (adapter := model.adapters.get(name)) is not None:
        # As vLLM shows them: where it lies, and what it was trained on.
        card |= {"root": adapter.directory, "parent": model.name}
    if (most := model.max_model_len) is not None:
        card["max_model_len"] = most
    return card


async def _healthz(_: web.Request) -> web.Response:
    return json_response({"status": "ok"})


async def _readyz(model: ServedModel, request: web.Request) -> web.Response:
    if request.app[STOPPING].is_set():
        stopping = {"status": "stopping", "reasons": ["the server was told to stop"]}
        return json_response(stopping, status=503)
    if (reason := model.unready_reason) is not None:
        return json_response({"status": "unavailable", "reasons": [reason]}, status=503)
    answer: dict[str, Any] = {"status": "ready", "reasons": []}
    batches = request.app.get(BATCHES)
    if detail := [*model.detail, *(batches.problems.values() if batches is not None else ())]:
        answer["detail"] = detail
    return json_response(answer)


async def _metrics(metrics: Metrics, _: web.Request) -> web.Response:
    return web.Response(body=metrics.render(), headers={"Content-Type": CONTENT_TYPE})


def _middleware(
    metrics: Metrics, in_flight: set[asyncio.Task[object]], tracing: "Tracing | None"
) -> Middleware:
    """Return what gives requests an id, refuses by the head alone, counts, and words failures."""

    @web.middleware
    async def observe(request: web.Request, handler: Handler) -> web.StreamResponse:
        request_id.begin(request.headers)
        refused = refusal(request, refuse)
        if refused is not None:
            return refused
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("a handler runs in a task")
        resource = request.match_info.route.resource
        endpoint = "other" if resource is None else resource.canonical
        began = time.perf_counter()
        in_flight.add(task)
        outcome, trace = "cancelled", None
        if tracing is not None and request.method == "POST":
            trace = tracing.begin(endpoint, request.headers)
            request[WATCH] = trace.watch
        try:
            response = await _answer(request, handler)
            outcome = _outcome(response)
        except ConnectionResetError as error:
            # A write found out before the cancellation came that the client has left; aiohttp would
            # log it as a failure of ours.
            raise asyncio.CancelledError from error
        finally:
            in_flight.discard(task)
            metrics.count_request(endpoint, outcome)
            if trace is not None:
                trace.end(outcome, None if outcome == "cancelled" else response.status)
        if outcome == "ok" and request.method == "POST":
            metrics.observe_request(endpoint, time.perf_counter() - began)
        return response

    return observe


async def _answer(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except ApiError as error:
        failure = error
    except web.HTTPException as error:
        failure = _from_http(request, error)
    except ConnectionResetError:
        raise
    except Exception:
        log.exception("%s %s failed", request.method, request.path)
        failure = internal_error()
    return json_response(failure.body(), failure.status, failure.headers)


async def _complete_head(request: web.Request, response: web.StreamResponse) -> None:
    headers = response.headers
    if is_websocket(request):
        if response.status != 101:  # as ``is_websocket`` says
            response.force_close()
    elif request.app[STOPPING].is_set():
        response.force_close()
        headers["Connection"] = "close"
    if request_id.HEADER not in headers or request_id.HEADER in request.headers:
        headers[request_id.HEADER] = request_id.current()


def refuse(status: int, message: str, code: str) -> web.Response:
    """Return the reply to a request that no handler sees, see ``http_server``."""
    headers = {request_id.HEADER: request_id.current()}
    return json_response(ApiError(status, message, code=code).body(), status, headers)


def _outcome(response: web.StreamResponse) -> str:
    if response.status == 503:
        return "unavailable"
    if response.status >= 500 or (isinstance(response, EventStream) and response.failed):
        return "server_error"
    return "client_error" if response.status >= 400 else "ok"


def _from_http(request: web.Request, error: web.HTTPException) -> ApiError:
    where = f"{request.method} {request.path}"
    if isinstance(error, web.HTTPNotFound):
        return ApiError(404, f"Invalid URL ({where})", code="unknown_url")
    if isinstance(error, web.HTTPMethodNotAllowed):
        allowed = ", ".join(sorted(error.allowed_methods))
        return ApiError(
            405,
            f"Not allowed to {request.method} on {request.path} (accepted: {allowed}).",
            code="method_not_supported",
            headers={"Allow": allowed},
        )
    if isinstance(error, web.HTTPRequestEntityTooLarge):
        return ApiError(
            413, f"The request body is too large. {error.text}", code="request_too_large"
        )
    return ApiError(error.status, error.reason)


async def serve(
    app: web.Application,
    host: str,
    port: int,
    *,
    drain_delay: float = 0.0,
    drain_timeout: float = 0.0,
) -> None:
    """Run until SIGINT, SIGTERM or the parent's end.

    Then it drains: see ``drain``.

    Raises StartError when the address is taken, EngineError when the engine does not warm up, and
    whatever loading the model raises.
    """
    stop = _stop_event()
    runner = Runner(app, refuse, shutdown_timeout=_CLOSE_SECONDS)
    await runner.setup()
    try:
        await _listen(runner, host, port)
        await _load_and_wait(app[SERVED_MODEL], stop)
        log.info("stopping")
        await drain(runner, app, delay=drain_delay, wait=drain_timeout)
    finally:
        await runner.cleanup()


async def drain(runner: Runner, app: web.Application, *, delay: float, wait: float) -> None:
    """Say 503 at ``/readyz`` for ``delay`` seconds, close the port, wait for open requests.

    The wait ends after ``wait`` seconds.
    """
    app[STOPPING].set()
    await asyncio.sleep(delay)
    for site in list(runner.sites):
        await site.stop()
    if (kv_events := app.get(KV_EVENTS)) is not None:
        kv_events.close()
    app[LIVE].close()
    await runner.idle(wait)


async def _listen(runner: web.AppRunner, host: str, port: int) -> None:
    try:
        await web.TCPSite(runner, host, port).start()
    except OSError as error:
        named = error.strerror if isinstance(error, socket.gaierror) else None
        # asyncio's own text repeats the address, in another form.
        reason = named or os.strerror(error.errno or 0)
        raise StartError(f"cannot listen on {host}:{port}: {reason}") from error
    bound_host, bound_port, *_ = runner.addresses[0]
    shown = f"[{bound_host}]" if ":" in bound_host else bound_host
    log.info("listening on http://%s:%d", shown, bound_port)


async def _load_and_wait(model: ServedModel, stop: asyncio.Event) -> None:
    began = time.perf_counter()
    loading = asyncio.create_task(model.load())
    stopping = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait((loading, stopping), return_when=asyncio.FIRST_COMPLETED)
        if stopping.done():
            return
        try:
            await loading
        except EngineError as error:
            raise StartError(f"the model does not warm up: {error}") from error
        log.info("%s is ready after %.1f s", model.name, time.perf_counter() - began)
        await stopping
    finally:
        for task in (loading, stopping):
            task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.gather(loading, stopping, return_exceptions=True)


def _stop_event() -> asyncio.Event:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    if os.environ.get(PARENT_PIPE) == "1":
        # A thread, because an event loop cannot watch whatever stdin may be.
        threading.Thread(
            target=_watch_parent, args=(loop, stop), name="parent-pipe", daemon=True
        ).start()
    return stop


def _watch_parent(loop: asyncio.AbstractEventLoop, stop: asyncio.Event) -> None:
    # A stdin that cannot be read, because it was closed, has ended as well.
    with contextlib.suppress(OSError):
        while os.read(_STDIN, 4096):
            pass
    if not loop.is_closed():
        loop.call_soon_threadsafe(stop.set)
