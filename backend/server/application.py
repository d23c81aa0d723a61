"""Routes, limits and lifetime of the HTTP application."""

from collections.abc import AsyncIterator

from aiohttp import web

from backend.server import front
from backend.server.body import ALLOW_UNKNOWN
from backend.server.embeddings import EmbeddingHandlers
from backend.server.handlers import Handlers
from backend.server.kv_events import KvEvents
from backend.server.metrics import Metrics
from backend.server.middleware import InFlight, RequestObserver, refuse
from backend.server.responses.handlers import ResponsesHandlers
from backend.server.served_model import ServedModel
from backend.server.tokens import TokenHandlers

MAX_BODY_BYTES = 16 * 1024 * 1024
"""Several times what the text of the longest context in use today takes."""

served_model_key = web.AppKey("served_model", ServedModel)

kv_events_key = web.AppKey("kv_events", KvEvents)
"""Streams to routers. They do not end by themselves."""


def build_application(
    model: ServedModel,
    *,
    kv_events: KvEvents | None = None,
    allow_unknown_fields: bool = False,
    max_body_bytes: int = MAX_BODY_BYTES,
) -> web.Application:
    """Return the application for ``model``, which the caller loads once the socket listens.

    On shutdown the engine is stopped and open requests fail; ``serving.drain`` waits for them
    before. Run it with ``handler_cancellation=True``, or nobody notices that a client left.
    ``kv_events`` are sent to routers; with None the path does not exist. ``allow_unknown_fields``:
    fields of requests that no server is known to read are ignored, not refused.
    """
    metrics = Metrics(model.stats, model.embeddings_waiting, model=model.name)
    in_flight = InFlight()
    handlers = Handlers(model, metrics)
    tokens = TokenHandlers(model)
    observer = RequestObserver(metrics, in_flight)
    app = front.new_app(refuse, observer.middleware(), client_max_size=max_body_bytes)
    app[served_model_key] = model
    app[ALLOW_UNKNOWN] = allow_unknown_fields
    app.router.add_post("/v1/chat/completions", handlers.chat_completions)
    app.router.add_post("/v1/completions", handlers.completions)
    app.router.add_post("/v1/responses", ResponsesHandlers(model).responses)
    app.router.add_post("/v1/embeddings", EmbeddingHandlers(model, metrics).embeddings)
    app.router.add_post("/tokenize", tokens.tokenize)
    app.router.add_post("/detokenize", tokens.detokenize)
    app.router.add_get("/v1/models", handlers.list_models)
    app.router.add_get("/v1/models/{model:.+}", handlers.get_model)
    app.router.add_get("/healthz", handlers.healthz)
    app.router.add_get("/readyz", handlers.readyz)
    app.router.add_get("/metrics", handlers.metrics)

    if kv_events is not None:
        app[kv_events_key] = kv_events
        app.router.add_get("/kv_events", kv_events.stream)

    async def give_up(_: web.Application) -> None:
        if kv_events is not None:
            kv_events.close()
        await in_flight.give_up(model.close)

    async def model_lifetime(_: web.Application) -> AsyncIterator[None]:
        if kv_events is not None:
            kv_events.open()
        yield
        await model.close()

    app.on_shutdown.append(give_up)
    app.cleanup_ctx.append(model_lifetime)
    return app
