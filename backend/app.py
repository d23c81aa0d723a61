"""The composition root: the real engine behind the HTTP application."""

import asyncio
import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from aiohttp import web

from backend.engine.model_files import (
    check_adapters,
    kind_of_model,
    recommended_sampling,
    resolve_model,
)
from backend.engine.supervisor import EngineSupervisor
from backend.models.config import ModelLoadError
from backend.process import in_background
from backend.server.app import build_application
from backend.server.batches.runner import Batches
from backend.server.batches.store import Store
from backend.server.kv_events import KvEvents
from backend.server.served_model import (
    Loaded,
    LoadedEmbedder,
    LoadedModel,
    LoadedReranker,
    ServedModel,
)
from backend.server.tool_parsers import FORMATS, ToolFormat, format_of, reasoning, without_format
from backend.server.tool_parsers.reasoning import ReasoningFormat
from backend.settings import Settings
from backend.tokenizer.tokenizer import Tokenizer

if TYPE_CHECKING:
    from backend.server.tracing import Tracing

log = logging.getLogger(__name__)


def create_app(settings: Settings) -> web.Application:
    """Return the application for ``settings``; nothing is read or started before it is served.

    The model at ``SERVED_MODEL`` is loaded by whoever serves the application.
    """
    kv_events = KvEvents() if settings.kv_events else None
    model = ServedModel(
        settings.model_name,
        lambda tell: _load(settings, tell, kv_events),
        adapters=settings.lora,
    )
    return build_application(
        model,
        kv_events=kv_events,
        batches=_batches(settings),
        allow_unknown_fields=settings.allow_unknown_fields,
        tracing=_tracing(settings.model_name, os.environ),
        admin_key=settings.admin_key,
    )


def _batches(settings: Settings) -> Batches | None:
    if settings.batch_dir is None:
        return None
    store = Store(
        Path(settings.batch_dir).expanduser(),
        most_bytes=settings.batch_bytes,
        keep_seconds=settings.batch_ttl,
    )
    return Batches(store, concurrency=settings.batch_concurrency)


def _tracing(model: str, environment: Mapping[str, str]) -> "Tracing | None":
    """Return what records requests, if OpenTelemetry's own variables want traces."""
    chosen = environment.get("OTEL_TRACES_EXPORTER", "").strip().lower()
    endpoints = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
    wanted = chosen == "otlp" or (not chosen and any(map(environment.get, endpoints)))
    if not wanted or environment.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return None
    # Takes 200 ms to import.
    from backend.server.tracing import Tracing  # noqa: PLC0415

    try:
        return Tracing(model)
    except ValueError as error:
        text = "OpenTelemetry is off, since a variable OTEL_… has a wrong value: %s"
        log.error(text, error)  # noqa: TRY400
        return None


async def _load(
    settings: Settings, tell: Callable[[str], None], kv_events: KvEvents | None
) -> Loaded:
    directory = await in_background(lambda: resolve_model(settings.model))
    await in_background(lambda: check_adapters(settings.lora, settings.model_name))
    if (kind := kind_of_model(directory)) != "generator":
        name = "an embedding model" if kind == "embedder" else "a reranker"
        if settings.tensor_parallel_size > 1:
            raise ModelLoadError(
                f"{directory}: {name} is computed by one process, not by "
                f"tensor-parallel-size {settings.tensor_parallel_size}"
            )
        if settings.lora:
            raise ModelLoadError(f"{directory}: {name} takes no LoRA adapters")
        tell("loading the encoder")
        local = replace(settings, model=str(directory))
        return await in_background(lambda: _load_encoder(local, ranks=kind == "reranker"))
    host = EngineSupervisor(
        replace(settings, model=str(directory)),
        tell,
        step_seconds=settings.step_timeout,
        load_seconds=settings.load_timeout,
        wakes=settings.when_asleep == "wake",
    )
    if kv_events is not None:
        host.client.cache_listener = kv_events.publish
        kv_events.fingerprint = lambda: host.client.fingerprint
        kv_events.adapter_names = [each.name for each in settings.lora]
        kv_events.adapters = lambda: host.client.adapters
    # Meanwhile, in this process, which never imports torch.
    reading = asyncio.create_task(
        in_background(
            lambda: (
                Tokenizer.load(directory, settings.chat_template),
                recommended_sampling(directory, settings.generation_config),
            )
        )
    )
    try:
        await host.start()
        tokenizer, sampling = await reading
    except BaseException:
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        await host.stop()
        raise
    host.open(tokenizer)
    return LoadedModel(
        host.client,
        tokenizer,
        host.stop,
        sampling,
        _tool_format(settings, tokenizer),
        _reasoning_format(settings, tokenizer),
        host,
    )


def _tool_format(settings: Settings, tokenizer: Tokenizer) -> ToolFormat | str:
    if settings.tool_call_parser == "none":
        return "it was started with --tool-call-parser none"
    if settings.tool_call_parser != "auto":
        return FORMATS[settings.tool_call_parser]
    template = tokenizer.tool_template
    if (form := format_of(template)) is not None:
        return form
    problem = without_format(template)
    log.info("requests with tools are refused: %s", problem)
    return problem


def _reasoning_format(settings: Settings, tokenizer: Tokenizer) -> ReasoningFormat | None:
    if settings.reasoning_parser == "auto":
        return reasoning.format_of(tokenizer.chat_template)
    return reasoning.FORMATS.get(settings.reasoning_parser)


def _load_encoder(settings: Settings, *, ranks: bool) -> LoadedEmbedder:
    # torch takes seconds to import, and the socket answers before that.
    from backend.engine import embedder, reranker  # noqa: PLC0415

    async def close() -> None:
        try:
            await asyncio.to_thread(engine.stop)
        except TimeoutError as error:
            log.warning("%s", error)

    if ranks:
        engine, encoder, encode_pairs = reranker.start(settings)
        return LoadedReranker(engine, encoder, close, encode_pairs)
    engine, tokenizer = embedder.start_embedding_engine(settings)
    return LoadedEmbedder(engine, tokenizer, close, prompts=tokenizer.named)
