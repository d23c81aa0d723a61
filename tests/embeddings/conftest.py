"""The real service, with the real MiniLM, as a process on a socket of its own."""

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
from running_qdrant import RunningQdrant

from embeddings.client import EmbeddingsClient, IndexStatus, SemanticUnavailableError
from embeddings.encoder.encoder import Encoder, EncoderSettings, load_encoder
from embeddings.encoder.model_files import DEFAULT_MODEL, locate

# Loading takes a second on an idle machine; other tests may be keeping it busy.
START_BOUND_S = 120


class ServiceProcess:
    """`python -m embeddings`, started, killed and started again on the same socket and data."""

    def __init__(
        self, directory: Path, *arguments: str, program: tuple[str, str] = ("-m", "embeddings")
    ) -> None:
        self.program = program
        self.socket = directory / "e.sock"
        self.data_dir = directory / "data"
        self.arguments = arguments
        self.process: subprocess.Popen[str] | None = None

    def start(self, **popen: object) -> "subprocess.Popen[str]":
        self.process = subprocess.Popen(
            [
                *(sys.executable, *self.program),
                *("--socket", str(self.socket), "--data-dir", str(self.data_dir)),
                *self.arguments,
            ],
            text=True,
            **{"stderr": subprocess.PIPE, "stdin": subprocess.DEVNULL, **popen},
        )
        return self.process

    async def ready(self, client: EmbeddingsClient) -> IndexStatus:
        """Wait for readiness; fail at once when the process is gone."""
        async with asyncio.timeout(START_BOUND_S):
            while True:
                try:
                    status = await client.status()
                    if status.ready:
                        return status
                except SemanticUnavailableError:
                    assert self.process is not None
                    assert self.process.poll() is None, self.process.stderr.read()
                await asyncio.sleep(0.02)

    def stop(self, number: signal.Signals = signal.SIGTERM) -> tuple[int, str]:
        """Send a signal, return exit code and stderr."""
        process = self.process
        assert process is not None
        self.process = None
        process.send_signal(number)
        _, stderr = process.communicate(timeout=120)
        return process.returncode, stderr


@pytest.fixture
def short_path() -> Iterator[Path]:
    """A directory whose name leaves room for a socket: their paths end at 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="refrain-") as directory:
        yield Path(directory)


@pytest.fixture
def new_service(short_path: Path) -> Iterator[Callable[..., ServiceProcess]]:
    """Make service processes; whatever is still running afterwards is killed."""
    made: list[ServiceProcess] = []

    def make(*arguments: str, **options: tuple[str, str]) -> ServiceProcess:
        made.append(ServiceProcess(short_path, *arguments, **options))
        return made[-1]

    yield make
    for service in made:
        if service.process is not None:
            service.stop(signal.SIGKILL)


@pytest.fixture(scope="session")
def running_service() -> Iterator[ServiceProcess]:
    """One service for all tests that only talk to it."""
    with tempfile.TemporaryDirectory(prefix="refrain-") as directory:
        service = ServiceProcess(Path(directory))
        # A pipe nobody reads would fill up and block it.
        service.start(stderr=subprocess.DEVNULL)
        yield service
        service.stop(signal.SIGKILL)


@pytest.fixture
async def client(running_service: ServiceProcess) -> AsyncIterator[EmbeddingsClient]:
    connected = EmbeddingsClient(running_service.socket, timeout=30)
    await running_service.ready(connected)
    yield connected
    await connected.close()


@pytest.fixture
def partition() -> bytes:
    """A partition no other test has seen."""
    return os.urandom(16)


@pytest.fixture(scope="session")
def qdrant_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningQdrant]:
    """One Qdrant for all tests, which leave it running, thawed and without faults.

    Its start imports qdrant-client, which takes seconds where the cores are busy.
    """
    server = RunningQdrant(tmp_path_factory.mktemp("qdrant"))
    server.start()
    yield server
    server.kill()


@pytest.fixture(scope="session")
def encoder() -> Encoder:
    return load_encoder(EncoderSettings(DEFAULT_MODEL, "cpu", threads=2))


@pytest.fixture(scope="session")
def reference() -> Encoder:
    """The default model as sentence-transformers computes it."""
    from embeddings.encoder.torch import load_torch_model

    model = load_torch_model(locate(DEFAULT_MODEL).directory, "cpu", threads=2)
    return Encoder("reference", "", model)
