"""The gateway imports and serves without torch: nothing heavy comes in by a side door."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HEAVY = (
    *("torch", "faiss", "sentence_transformers", "transformers", "tokenizers", "safetensors"),
    *(
        "numpy",
        "triton",
        "qdrant_client",
        "onnx",
        "onnxruntime",
        "backend",
        "embeddings.service",
        "embeddings.encoder.encoder",
    ),
)

LOADED = """
import importlib, sys
for module in {module!r}.split():
    importlib.import_module(module)
    print(*sorted(name for name in {heavy!r} if name in sys.modules))
"""
MISSING = """
import importlib, sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name in {heavy!r}:
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Missing())
importlib.import_module({module!r})
print("imported")
"""


SUPERVISOR_LACKS = (
    *("aiohttp", "email", "embeddings", "gateway.settings", "http", "multidict", "phonenumbers"),
    *("policies", "prometheus_client", "pydantic", "re2", "sqlite3", "uvloop", "yaml", "yarl"),
)
"""What only reads settings and policies, or serves: the supervisor takes memory for as long."""

EXACT_LACKS = (
    *("cryptography", "opentelemetry", "qdrant_client", "redis", "gateway.cache.stores.redis"),
    *("embeddings.verify.guards", "embeddings.verify.guards.reader"),
)
"""What exact lookup on this disk does without."""

EXACT = """
version: 1
default: {exact: on, semantic: off, freshness: 1h, scope: tenant, pii: bypass}
"""
SUPERVISE = """
import sys
import gateway.cli.main, gateway.cli.process.launch
print(*sorted(name for name in {heavy!r} if name in sys.modules))
"""
SERVE_EXACT = """
import asyncio, sys
from pathlib import Path
from gateway.cli.process import worker
from gateway.settings import Settings

async def serve():
    data = Path({module!r})
    settings = Settings(
        upstream=("http://127.0.0.1:9/v1",), data_dir=data, policy=data / "policy.yaml"
    )
    app = worker.create_app(settings, semantic_socket=data / "nobody.sock")
    runner = worker.Runner(app, worker.refuse, connection=worker.new_connection(app))
    await runner.setup()
    await runner.cleanup()

asyncio.run(serve())
print(*sorted(name for name in {heavy!r} if name in sys.modules))
"""


def run(
    code: str, module: str, folder: Path = ROOT, heavy: tuple[str, ...] = HEAVY
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code.format(module=module, heavy=heavy)],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


MODULES = (
    *(
        "gateway.app",
        "gateway.cli.process.worker",
        "gateway.cli.main",
        "gateway.cli.process.launch",
    ),
    *("embeddings.client", "gateway.cli.offline.policy"),
)


def test_nothing_heavy_is_loaded():
    """By one after another: a line each."""
    done = run(LOADED, " ".join(MODULES))
    assert done.returncode == 0, done.stderr
    loaded = dict(zip(MODULES, done.stdout.split("\n"), strict=False))
    assert loaded == dict.fromkeys(MODULES, "")


def test_the_supervisor_loads_next_to_nothing():
    done = run(SUPERVISE, "", heavy=SUPERVISOR_LACKS)
    assert done.stdout.split() == [], done.stderr


def test_a_worker_with_exact_lookup_loads_no_other(tmp_path):
    (tmp_path / "policy.yaml").write_text(EXACT)
    done = run(SERVE_EXACT, str(tmp_path), heavy=EXACT_LACKS)
    assert (done.returncode, done.stdout.split()) == (0, []), done.stderr


def test_the_engine_s_server_loads_no_torch():
    """The engine's own process does."""
    done = run(LOADED, "backend.app")
    assert done.returncode == 0, done.stderr
    assert not {"torch", "numpy", "transformers", "triton"} & set(done.stdout.split())


def test_the_gateway_imports_where_nothing_heavy_is_installed():
    done = run(MISSING, "gateway.cli.process.worker")
    assert done.stdout.split() == ["imported"], done.stderr


@pytest.mark.parametrize("line", ["import torch", "from torch import nn", "import torch.nn"])
def test_a_heavy_import_is_found(line, tmp_path):
    """By a module that is imported by a module, the library being a stand-in."""
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("nn = None")
    (tmp_path / "torch" / "nn.py").write_text("")
    (tmp_path / "side_door.py").write_text(line)
    (tmp_path / "front.py").write_text("import side_door")
    assert run(LOADED, "front", tmp_path).stdout.split() == ["torch"]
    assert run(MISSING, "front", tmp_path).returncode == 1
