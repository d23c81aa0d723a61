"""The laws hold for our tree, and each is shown to be broken by a bad one."""

from pathlib import Path

import architecture
import pytest
from architecture import LAWS, MOST_LINES, modules

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.__name__)
def test_our_tree_keeps_the_law(law):
    assert law(ROOT) == []


def test_all_four_packages_are_looked_at():
    names = {module.name for module in modules(ROOT)}
    assert {"policies.decide", "gateway.core.key", "embeddings.client", "backend.core"} <= names
    assert len(names) > 100


GOOD = {
    "policies/__init__.py": "",
    "policies/decide.py": "import math\nimport re2\nimport policies.freshness",
    "policies/cli.py": "import sys\nfrom pathlib import Path\nprint(open('x'))",
    "gateway/core/key.py": "import hashlib\nfrom policies.decide import Scope\nimport orjson",
    "gateway/core/__init__.py": "from . import key",
    "gateway/core/plan.py": "from .key import Scope",
    "gateway/ports.py": "from typing import Protocol\nfrom gateway.core.key import Scope",
    "gateway/pipeline.py": "import asyncio\nfrom gateway.ports import Store",
    "gateway/adapters/handlers.py": "from aiohttp import web\nfrom gateway.adapters import store",
    "gateway/app.py": "from aiohttp import web\nfrom embeddings.client import C\n"
    "import gateway.adapters.handlers",
    "gateway/semantics.py": "from embeddings.client import EmbeddingsClient",
    "gateway/verifying.py": "from embeddings.verify.agreement import agree",
    "gateway/cli.py": "def main():\n    from backend.__main__ import main",
    "gateway/worker.py": "import uvloop\nfrom gateway.adapters.secret import SecretError",
    "embeddings/client.py": "import asyncio\nfrom embeddings import link",
    "embeddings/verify/agreement.py": "import re",
    "backend/core/scheduler.py": "from backend.core.types import Sequence",
    "backend/runtime/engine.py": "import torch, os, time\nfrom backend.core import scheduler",
    "backend/ports.py": "from backend.core.types import TextDelta",
}

BAD = {
    "cores_are_pure": [
        ("policies/decide.py", "import time"),
        ("policies/detectors/card.py", "import os.path"),
        ("policies/cli.py", "import logging"),
        ("gateway/core/key.py", "from random import random"),
        ("gateway/core/key.py", "def f():\n    import asyncio"),
        ("gateway/core/key.py", "if TYPE_CHECKING:\n    from torch import Tensor"),
        ("gateway/core/deep/er.py", "from redis.asyncio import Redis"),
        ("gateway/core/__init__.py", "import aiohttp"),
        ("gateway/core/key.py", "data = open('x').read()"),
        ("gateway/core/key.py", "def f():\n    return __import__('time')"),
        ("backend/core/scheduler.py", "try:\n    import torch\nexcept ImportError:\n    pass"),
        ("backend/core/scheduler.py", "import collections, logging as log"),
        ("embeddings/verify/agreement.py", "from pathlib import Path"),
    ],
    "cores_are_leaves": [
        ("policies/decide.py", "from gateway.core.types import Entry"),
        ("policies/decide.py", "import backend"),
        ("gateway/core/key.py", "from gateway.ports import Store"),
        ("gateway/core/key.py", "from gateway import ports"),
        ("gateway/core/key.py", "from ..ports import Store"),
        ("gateway/core/__init__.py", "from .. import ports"),
        ("gateway/core/key.py", "from embeddings.verify.agreement import agree"),
        ("backend/core/scheduler.py", "from backend.runtime import engine"),
        ("backend/core/scheduler.py", "from policies.decide import Scope"),
        ("embeddings/verify/agreement.py", "from embeddings.protocol import Match"),
    ],
    "packages_do_not_import_one_another": [
        ("gateway/pipeline.py", "from embeddings.client import C"),
        ("gateway/app.py", "from embeddings.service import S"),
        ("gateway/app.py", "from backend.app import create_app"),
        ("gateway/cli.py", "from backend.__main__ import main"),
        ("gateway/cli.py", "def main():\n    from embeddings.__main__ import main"),
        ("embeddings/client.py", "import gateway.core.types"),
        ("backend/server/errors.py", "from gateway.core.errors import error_body"),
        ("backend/demo/evaluate.py", "def f():\n    from embeddings import encoder"),
        ("policies/cli.py", "import gateway"),
    ],
    "ports_import_only_cores": [
        ("gateway/ports.py", "from aiohttp import web"),
        ("gateway/ports.py", "from gateway.exchange import Reply"),
        ("gateway/ports.py", "import gateway.core.types, asyncio"),
        ("backend/ports.py", "from backend.runtime.engine import Engine"),
        ("backend/ports.py", "import torch"),
    ],
    "adapters_are_imported_by_roots_only": [
        ("gateway/pipeline.py", "from gateway.adapters.store_memory import MemoryStore"),
        ("gateway/pipeline.py", "from .adapters import store_memory"),
        ("gateway/core/key.py", "import gateway.adapters.secret"),
        ("gateway/ports.py", "from gateway import adapters"),
        ("gateway/installation.py", "def f():\n    from gateway.adapters import tracing"),
        ("embeddings/client.py", "from gateway.adapters import secret"),
    ],
    "the_pipeline_knows_no_http_library": [
        ("gateway/pipeline.py", "from aiohttp import web"),
        ("gateway/core/key.py", "from multidict import CIMultiDict"),
        ("gateway/exchange.py", "def f():\n    import yarl"),
    ],
    "files_are_small": [("gateway/pipeline.py", "pass\n" * (MOST_LINES + 1))],
    "names_say_what_is_inside": [
        ("gateway/utils.py", ""),
        ("gateway/core/_helpers.py", ""),
        ("backend/common/__init__.py", ""),
        ("policies/base.py", ""),
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
    write(tmp_path, {"gateway/pipeline.py": "x = 1"}, docstring="# no docstring\n")
    assert architecture.files_say_what_they_are_for(tmp_path) == ["gateway.pipeline"]


def test_every_law_is_shown_to_fail():
    assert {law.__name__ for law in LAWS} == set(BAD)
