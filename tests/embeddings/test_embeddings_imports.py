"""The gateway loads the client and the guards; neither may bring the heavy libraries.

The service itself needs neither torch nor what is built on it.
"""

import subprocess
import sys
import time
from pathlib import Path

import pytest

from embeddings.client import EmbeddingsClient

ROOT = Path(__file__).parents[2]
HEAVY = {
    *("torch", "faiss", "numpy", "scipy", "sklearn", "transformers", "sentence_transformers"),
    *("safetensors", "tokenizers", "huggingface_hub", "onnx", "onnxruntime"),
}
# What no pure check needs.
IMPURE = {"asyncio", "socket", "sqlite3", "logging", "random", "subprocess", "threading"}


def imported_by(module: str) -> set[str]:
    program = (
        f"import sys; sys.path.insert(0, {str(ROOT)!r}); import {module};"
        "print(*(name.split('.')[0] for name in sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-c", program], capture_output=True, text=True, check=True
    )
    assert not done.stderr
    return set(done.stdout.split())


@pytest.mark.parametrize(
    "module",
    [
        *("embeddings.client", "embeddings.wire", "embeddings.verify.guards"),
        "embeddings.verify.recipe",
    ],
)
def test_no_heavy_library_is_imported(module):
    assert not imported_by(module) & HEAVY


def test_the_check_is_pure():
    bare = imported_by("site")
    assert not (imported_by("embeddings.verify.guards") - bare) & IMPURE


def test_help_does_not_wait_for_the_libraries():
    assert not imported_by("embeddings.__main__") & HEAVY


WITHOUT_TORCH = """
import sys
for name in ("torch", "transformers", "sentence_transformers", "scipy", "sklearn"):
    sys.modules[name] = None  # as if it were not installed
from embeddings.__main__ import main
sys.exit(main(sys.argv[1:]))
"""


async def test_a_question_is_found_and_verified_where_torch_is_not_installed(new_service):
    service = new_service(program=("-c", WITHOUT_TORCH))
    service.start()
    client = EmbeddingsClient(service.socket, timeout=30)
    status = await service.ready(client)
    assert (status.encoder, status.verifier_fault) == ("all-MiniLM-L6-v2", "")
    stored, asked = "How do I reset my password?", "How can I reset my password?"
    await client.add(b"p", b"key", stored, time.time() + 60)
    (match,) = await client.search(b"p", asked, 1)
    assert (match.key, match.similarity > 0.9) == (b"key", True)
    assert await client.score(asked, stored) > await client.score("Who wrote Hamlet?", stored)
    await client.close()
