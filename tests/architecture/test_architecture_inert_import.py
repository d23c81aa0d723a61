"""Importing a module does nothing observable: shown for every module, and to fail for bad ones."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from architecture import PACKAGES

ROOT = Path(__file__).parents[2]
WATCH = ROOT / "tests" / "support" / "watch_imports.py"


def actions_of(root: Path, *packages: str) -> list[list[str | int]]:
    run = subprocess.run(
        [sys.executable, "-B", str(WATCH), str(root), *packages],
        cwd=root,
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def ours():
    """All our modules imported in one run, which takes seconds."""
    return actions_of(ROOT, *PACKAGES)


@pytest.mark.parametrize("package", PACKAGES)
def test_importing_our_modules_does_nothing(package, ours):
    assert [action for action in ours if str(action[0]).split(".")[0] == package] == []


def test_nothing_else_acts_in_our_name(ours):
    assert {str(module).split(".")[0] for module, _, _ in ours} <= set(PACKAGES)


DOES_NOTHING = """
import json, logging, os, re, socket, subprocess, threading
import logging.handlers
log = logging.getLogger(__name__)
PATTERN = re.compile("a")
lock = threading.Lock()
thread = threading.Thread(target=print)
class Client:
    def __init__(self):
        self.home = os.environ["HOME"]
def read():
    print(open(__file__).read())
if __name__ == "__main__":
    read()
"""


def test_a_module_that_only_defines_is_inert(tmp_path):
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").write_text("")
    (tmp_path / "package" / "good.py").write_text(DOES_NOTHING)
    (tmp_path / "package" / "importer.py").write_text("from package import good")
    assert actions_of(tmp_path, "package") == []


BAD = {
    "environ_item": ("import os\nhome = os.environ['PATH']", "environment PATH"),
    "environ_get": ("import os\nhome = os.environ.get('PATH')", "environment PATH"),
    "getenv": ("import os\nhome = os.getenv('REFRAIN_X', '')", "environment REFRAIN_X"),
    "environ_name": ("from os import environ\nx = 'REFRAIN_X' in environ", "environment"),
    "environ_set": ("import os\nos.environ['REFRAIN_X'] = '1'", "sets environment"),
    "reads_a_file": ("text = open(__file__).read()", "open"),
    "reads_a_path": ("from pathlib import Path\nt = Path(__file__).read_text()", "open"),
    "writes_a_file": ("open('made', 'w').close()", "open"),
    "makes_a_folder": ("import os\nos.makedirs('folder', exist_ok=True)", "os.mkdir"),
    "makes_a_temporary": ("import tempfile\nt = tempfile.mkdtemp(dir='.')", "tempfile"),
    "lists_a_folder": ("import os\nx = os.listdir('.')", "os.listdir"),
    "opens_a_socket": ("import socket\ns = socket.socket()\ns.close()", "socket"),
    "resolves_a_name": ("import socket\nsocket.gethostbyname('localhost')", "socket"),
    "starts_a_thread": (
        "import threading\nt = threading.Thread(target=int)\nt.start()\nt.join()",
        "thread",
    ),
    "starts_a_pool": (
        "import concurrent.futures as f\nwith f.ThreadPoolExecutor() as p:\n    p.submit(int)",
        "thread",
    ),
    "starts_a_process": ("import subprocess\nsubprocess.run(['true'])", "subprocess"),
    "opens_a_database": ("import sqlite3\nsqlite3.connect(':memory:').close()", "sqlite3"),
    "configures_logging": ("import logging\nlogging.basicConfig()", "logging"),
    "sets_a_level": ("import logging\nlogging.getLogger('x').setLevel(1)", "logging"),
    "handles_signals": ("import signal\nsignal.signal(15, signal.SIG_DFL)", "signal"),
    "prints": ("print('hello')", "prints"),
    "by_a_function": ("def f():\n    return open(__file__)\nf().close()", "open"),
    "by_a_decorator": ("@lambda f: open(__file__).close()\ndef f(): ...", "open"),
    "as_a_default": ("import os\ndef f(home=os.getenv('PATH')): ...", "environment PATH"),
}


@pytest.fixture(scope="module")
def blamed(tmp_path_factory):
    """All bad modules imported in one run: who was blamed for what."""
    root = tmp_path_factory.mktemp("bad")
    (root / "bad").mkdir()
    for name, (text, _) in BAD.items():
        (root / "bad" / f"{name}.py").write_text(text + "\n")
    blamed: dict[str, list[str]] = {}
    for module, _line, action in actions_of(root, "bad"):
        blamed.setdefault(str(module), []).append(str(action))
    return blamed


@pytest.mark.parametrize("name", BAD)
def test_a_module_that_acts_when_imported_is_found(name, blamed):
    _, expected = BAD[name]
    assert any(expected in action for action in blamed.get(f"bad.{name}", []))
