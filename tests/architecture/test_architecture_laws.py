"""The laws hold for our tree, and each is shown to be broken by a bad one."""

from pathlib import Path

import architecture
import pytest
from architecture import LAWS, MOST_ENTRIES, MOST_LINES, modules

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.__name__)
def test_our_tree_keeps_the_law(law):
    assert law(ROOT) == []


def test_all_four_packages_are_looked_at():
    names = {module.name for module in modules(ROOT)}
    assert {
        "policies.decision",
        "gateway.cache.key",
        "embeddings.client",
        "backend.scheduler",
    } <= names
    assert len(names) > 100


GOOD = {
    "policies/__init__.py": "",
    "policies/decision.py": "import math\nimport re2\nimport policies.freshness",
    "gateway/settings.py": "from gateway.upstream.settings import UpstreamSettings",
    "gateway/upstream/settings.py": "from pathlib import Path\nfrom gateway.protocol import sse",
    "gateway/protocol/__init__.py": "",
    "gateway/protocol/sse.py": "import re",
    "gateway/cache/key.py": "import hashlib\nfrom policies.decision import Scope\nimport orjson",
    "gateway/cache/__init__.py": "from . import key",
    "gateway/cache/plan.py": "from .key import Scope\nfrom gateway.protocol import sse",
    "gateway/cache/ports.py": "from typing import Protocol\nfrom gateway.cache.key import Scope",
    "gateway/cache/stores/redis/store.py": "import asyncio\nfrom redis.asyncio import Redis",
    "gateway/upstream/wire/http_client.py": "from aiohttp import web\nimport yarl",
    "gateway/server/pipeline.py": "import asyncio\nfrom gateway.cache.ports import Store",
    "gateway/server/http/handlers.py": "from aiohttp import web\n"
    "from gateway.server import pipeline",
    "gateway/app.py": "from aiohttp import web\nfrom gateway.settings import Settings\n"
    "import gateway.server.http.handlers",
    "gateway/server/open/semantic.py": "from embeddings.client import EmbeddingsClient",
    "gateway/semantic/verifier.py": "from embeddings.verify.guards import guard",
    "gateway/upstream/pool/pool.py": "import random\njitter = random.Random().random",
    "gateway/cli/commands.py": "def main():\n    from backend.__main__ import main",
    "gateway/cli/process/worker.py": "import uvloop\nfrom gateway.app import create_app",
    "embeddings/client.py": "import asyncio\nfrom embeddings import link",
    "embeddings/verify/guards/gate.py": "import re",
    "backend/scheduler/scheduler.py": "from backend.scheduler.request import Sequence",
    "backend/engine/engine.py": "import torch, os, time\nfrom backend.scheduler import scheduler",
    "backend/ports.py": "from backend.scheduler.request import TextDelta",
}

BAD = {
    "pure_modules_are_pure": [
        ("policies/decision.py", "import time"),
        ("policies/pii/card.py", "import os.path"),
        ("gateway/cache/key.py", "from random import random"),
        ("gateway/cache/key.py", "def f():\n    import asyncio"),
        ("gateway/cache/key.py", "if TYPE_CHECKING:\n    from torch import Tensor"),
        ("gateway/cache/deep/er.py", "from redis.asyncio import Redis"),
        ("gateway/protocol/__init__.py", "import logging"),
        ("gateway/cache/key.py", "data = open('x').read()"),
        ("gateway/cache/key.py", "def f():\n    return __import__('time')"),
        ("gateway/server/admin/recorded_request.py", "import time"),
        ("backend/scheduler/scheduler.py", "try:\n    import torch\nexcept ImportError:\n    pass"),
        ("backend/scheduler/scheduler.py", "import collections, logging as log"),
        ("embeddings/verify/guards/gate.py", "from pathlib import Path"),
    ],
    "pure_modules_import_pure_modules": [
        ("gateway/cache/plan.py", "from gateway.cache.stores.redis.store import RedisStore"),
        ("gateway/cache/key.py", "from .stores.redis import store"),
        ("gateway/upstream/request.py", "from gateway.upstream.wire import http_client"),
    ],
    "cores_are_leaves": [
        ("policies/decision.py", "from gateway.cache.ports import Entry"),
        ("policies/decision.py", "import backend"),
        ("backend/scheduler/scheduler.py", "from backend.engine import engine"),
        ("backend/scheduler/scheduler.py", "from policies.decision import Scope"),
        ("embeddings/verify/guards/gate.py", "from embeddings.wire import Match"),
    ],
    "imports_run_one_way": [
        ("gateway/protocol/sse.py", "from gateway.cache.key import Scope"),
        ("gateway/protocol/sse.py", "from gateway import semantic"),
        ("gateway/protocol/sse.py", "from ..prompts import outcome"),
        ("gateway/semantic/tokens.py", "from gateway.prompts.rewrite.text_rules import Text"),
        ("gateway/prompts/texts.py", "import gateway.cache.key"),
        ("gateway/cache/__init__.py", "from .. import telemetry"),
        ("gateway/telemetry/metrics.py", "from gateway.upstream.pool.health import State"),
        (
            "gateway/upstream/wire/http_client.py",
            "def f():\n    from gateway.server import pipeline",
        ),
        ("gateway/server/pipeline.py", "from gateway.app import create_app"),
        ("gateway/app.py", "from gateway.cli.process.worker import main"),
        ("gateway/upstream/wire/http_client.py", "from gateway.settings import Settings"),
        ("gateway/settings.py", "from gateway.cache.key import Scope"),
        ("gateway/settings.py", "from gateway.upstream.request import Outgoing"),
        ("gateway/upstream/settings.py", "from gateway.cache.key import Scope"),
        ("gateway/pipeline.py", ""),
    ],
    "imports_run_in_no_circle": [
        ("backend/scheduler/scheduler.py", "def f():\n    from backend.engine import engine"),
        ("backend/scheduler/__init__.py", "from backend.engine.engine import Engine"),
    ],
    "packages_do_not_import_one_another": [
        ("gateway/server/pipeline.py", "from embeddings.client import C"),
        ("gateway/app.py", "from embeddings.service import S"),
        ("gateway/app.py", "from backend.app import create_app"),
        ("gateway/cli/commands.py", "from backend.__main__ import main"),
        ("gateway/cli/commands.py", "def main():\n    from embeddings.__main__ import main"),
        ("embeddings/client.py", "import gateway.cache.key"),
        ("backend/server/errors.py", "from gateway.protocol.errors import error_body"),
        ("backend/server/prompts.py", "def f():\n    from embeddings import encoder"),
        ("policies/decide.py", "import gateway"),
    ],
    "ports_import_only_values": [
        ("gateway/cache/ports.py", "from aiohttp import web"),
        ("gateway/cache/ports.py", "import gateway.cache.key, asyncio"),
        ("backend/ports.py", "from backend.engine.engine import Engine"),
        ("backend/ports.py", "import torch"),
    ],
    "few_modules_know_http_libraries": [
        ("gateway/server/pipeline.py", "from aiohttp import web"),
        ("gateway/cache/key.py", "from multidict import CIMultiDict"),
        ("gateway/upstream/request.py", "def f():\n    import yarl"),
    ],
    "folders_have_few_entries": [],
    "files_are_small": [("gateway/server/pipeline.py", "pass\n" * (MOST_LINES + 1))],
    "names_say_what_is_inside": [
        ("gateway/protocol/utils.py", ""),
        ("gateway/cache/_helpers.py", ""),
        ("backend/common/__init__.py", ""),
        ("policies/base.py", ""),
    ],
    "every_draw_has_an_owner": [
        ("gateway/server/pipeline.py", "import random\ndraw = random.random"),
        ("gateway/server/pipeline.py", "def f():\n    from random import choice"),
    ],
    "observations_have_two_writers": [
        ("gateway/upstream/wire/http_client.py", "def f(seen):\n    seen.status = 200"),
        ("gateway/server/http/handlers.py", "def f(observation):\n    observation.size += 1"),
    ],
    "files_say_what_they_are_for": [],
}


def write(root: Path, files: dict[str, str], *, docstring: str = '"""Says why."""\n') -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(docstring + text + "\n", encoding="utf-8")


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.__name__)
def test_a_good_tree_keeps_the_law(law, tmp_path):
    write(tmp_path, GOOD)
    assert law(tmp_path) == []


@pytest.mark.parametrize(
    ("law", "file", "text"),
    [(law, file, text) for law, files in BAD.items() for file, text in files],
)
def test_a_bad_file_breaks_the_law(law, file, text, tmp_path):
    write(tmp_path, GOOD)
    write(tmp_path, {file: text})
    [broken] = getattr(architecture, law)(tmp_path)
    assert broken.startswith(file.removesuffix(".py").removesuffix("/__init__").replace("/", "."))


def test_a_file_without_a_purpose_breaks_the_law(tmp_path):
    write(tmp_path, GOOD)
    write(tmp_path, {"gateway/server/pipeline.py": "x = 1"}, docstring="# no docstring\n")
    assert architecture.files_say_what_they_are_for(tmp_path) == ["gateway.server.pipeline"]


@pytest.mark.parametrize("folder", ["gateway", "gateway/server/ui/static", "policies/pii"])
def test_a_full_folder_breaks_the_law(folder, tmp_path):
    marks = ["__init__.py", "py.typed", "__pycache__/a.pyc"]
    names = [f"{number}.js" for number in range(MOST_ENTRIES)]
    write(tmp_path, {f"{folder}/{name}": "" for name in names + marks})
    assert architecture.folders_have_few_entries(tmp_path) == []
    write(tmp_path, {f"{folder}/more/a.py": ""})
    assert architecture.folders_have_few_entries(tmp_path) == [f"{folder}: 13 entries"]


def test_each_exception_names_a_module_that_exists():
    names = {module.name for module in modules(ROOT)}
    exceptions = architecture.IO_MODULES | architecture.HTTP_MODULES | set(architecture.CROSSINGS)
    assert exceptions - names == set()


def test_every_law_is_shown_to_fail():
    assert {law.__name__ for law in LAWS} == set(BAD)
