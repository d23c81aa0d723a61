"""An embeddings service for one command: the one that is named, or one started for it.

Law: what was started ends with the command, whatever becomes of it, and owns nothing of a gateway.
"""

import asyncio
import contextlib
import importlib.util
import os
import sys
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

from gateway.cli.logging_setup import PARENT_PIPE, PYTHON
from gateway.semantic.embeddings_service import SemanticService

READY_SECONDS = 120.0
_CALL_SECONDS = 30.0
TELL_SECONDS = 1.0
"""From here on it is said what is waited for."""
_POLL_SECONDS = 0.1


class ScoringError(Exception):
    """No scores are to be had; the message says why."""


@contextlib.asynccontextmanager
async def scoring_service(socket: Path | None) -> AsyncIterator[SemanticService]:
    """Open the service at ``socket``, or one of our own. Raises ScoringError."""
    if socket is not None:
        async with _ready(socket, None) as service:
            yield service
        return
    if importlib.util.find_spec("sentence_transformers") is None:
        raise ScoringError("pairs cannot be scored: install refrain[cpu] or refrain[gpu]")
    with tempfile.TemporaryDirectory(prefix="refrain-") as folder:
        path = Path(folder) / "embeddings.sock"
        async with _started(path, Path(folder)) as process, _ready(path, process) as service:
            yield service


@contextlib.asynccontextmanager
async def _started(socket: Path, folder: Path) -> AsyncIterator[asyncio.subprocess.Process]:
    argv = ["-m", "embeddings", "--socket", str(socket), "--data-dir", str(folder)]
    model = os.environ.get("REFRAIN_EMBEDDINGS_MODEL")
    if model:
        argv += ["--model", model]
    process = await asyncio.create_subprocess_exec(
        *PYTHON,
        *argv,
        stdin=asyncio.subprocess.PIPE,
        env={**os.environ, PARENT_PIPE: "1", "REFRAIN_VECTORS": "faiss"},
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.terminate()
            try:
                await asyncio.wait_for(process.wait(), 5.0)
            except TimeoutError:
                process.kill()
        await process.wait()


@contextlib.asynccontextmanager
async def _ready(
    socket: Path, process: asyncio.subprocess.Process | None
) -> AsyncIterator[SemanticService]:
    service = SemanticService.at(socket, timeout=_CALL_SECONDS)
    telling = asyncio.get_running_loop().call_later(TELL_SECONDS, _tell, process)
    try:
        async with asyncio.timeout(READY_SECONDS):
            while (reason := await service.not_ready()) is not None:
                _still_hopeful(reason, socket, process)
                await asyncio.sleep(_POLL_SECONDS)
    except TimeoutError:
        await service.close()
        raise ScoringError(f"the embeddings service was not ready in {READY_SECONDS:g} s") from None
    except ScoringError:
        await service.close()
        raise
    finally:
        telling.cancel()
    try:
        yield service
    finally:
        await service.close()


def _tell(process: asyncio.subprocess.Process | None) -> None:
    what = "starting an embeddings service" if process is not None else "the service is loading"
    print(f"refrain: {what}, to score the pairs", file=sys.stderr)


def _still_hopeful(reason: str, socket: Path, process: asyncio.subprocess.Process | None) -> None:
    if process is None and reason != "encoder: loading":
        raise ScoringError(f"{socket}: no embeddings service answers there")
    if process is not None and process.returncode is not None:
        raise ScoringError("the embeddings service did not start; its own lines say why")
