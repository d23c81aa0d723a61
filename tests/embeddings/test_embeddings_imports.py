"""The gateway loads the client and the guards; neither may bring the heavy libraries."""

import subprocess
import sys
from pathlib import Path

import pytest

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
        "embeddings.verify.features",
    ],
)
def test_no_heavy_library_is_imported(module):
    assert not imported_by(module) & HEAVY


def test_the_check_is_pure():
    bare = imported_by("site")
    assert not (imported_by("embeddings.verify.guards") - bare) & IMPURE


def test_help_does_not_wait_for_the_libraries():
    assert not imported_by("embeddings.__main__") & HEAVY
