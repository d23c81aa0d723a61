"""The composition root: the real engine behind the HTTP application."""

from pathlib import Path

from aiohttp import web

from backend.server.application import build_application
from backend.server.served_model import Loaded, LoadedEmbedder, LoadedModel, ServedModel
from backend.settings import Settings


def create_app(settings: Settings) -> web.Application:
    """Return the application for ``settings``; nothing is read or started before it is served.

    The model at ``served_model_key`` is loaded by whoever serves the application.
    """
    return build_application(ServedModel(settings.model_name, lambda: _load(settings)))


def _load(settings: Settings) -> Loaded:
    # torch takes seconds to import, and the socket answers before that.
    from backend.runtime.generation_config import recommended_sampling  # noqa: PLC0415
    from backend.runtime.loader import load_engine  # noqa: PLC0415
    from backend.runtime.weights import resolve_model  # noqa: PLC0415

    directory = resolve_model(settings.model)
    if (directory / "modules.json").is_file():  # the layout of sentence-transformers
        return _load_embedder(directory, settings)
    sampling = recommended_sampling(directory)
    engine, tokenizer = load_engine(
        str(directory),
        device=settings.device,
        dtype=settings.dtype,
        max_num_seqs=settings.max_num_seqs,
        max_model_len=settings.max_model_len,
        kv_bytes=settings.kv_bytes,
        threads=settings.threads,
    )
    engine.start()
    return LoadedModel(engine, tokenizer, engine.stop, sampling)


def _load_embedder(directory: Path, settings: Settings) -> LoadedEmbedder:
    from backend.runtime.embedding_engine import start_embedding_engine  # noqa: PLC0415

    engine, tokenizer = start_embedding_engine(
        directory,
        device=settings.device,
        dtype=settings.dtype,
        max_model_len=settings.max_model_len,
        threads=settings.threads,
    )
    return LoadedEmbedder(engine, tokenizer, engine.stop)
