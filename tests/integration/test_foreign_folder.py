"""Nothing is imported from the folder that one stands in, by any process that we start."""

import ast
import json
import signal
import urllib.request
from pathlib import Path

import pytest
from processes import Process

ROOT = Path(__file__).parents[2]
PACKAGES = ("backend", "embeddings", "gateway", "policies")
NAMES = ("backend", "gateway", "embeddings", "policies", "html", "json", "torch", "aiohttp")


def test_a_folder_with_our_names_in_it_is_not_imported(tmp_path: Path):
    folder, ran = tmp_path / "project", tmp_path / "ran"
    for name in NAMES:
        (folder / name).mkdir(parents=True)
        code = f"open({str(ran)!r}, 'a').write({name!r})\nraise SystemExit('a decoy ran')\n"
        (folder / name / "__init__.py").write_text(code)
        (folder / f"{name}.py").write_text(code)
    data = tmp_path / "data"
    argv = ("-P", "-m", "gateway.cli", "demo", "--port", "0", "--data-dir", str(data))
    process = Process(*argv, cwd=folder)
    try:
        base = process.wait_for_line("Refrain is ready.").split()[4]
        # A schema is compiled in one more process.
        schema = {"type": "object", "properties": {"a": {"type": "string", "maxLength": 3}}}
        asked = {
            "model": "refrain-demo",
            "messages": [{"role": "user", "content": "Hello?"}],
            "max_tokens": 8,
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "a", "schema": schema},
            },
        }
        request = urllib.request.Request(
            f"{base}/chat/completions",
            json.dumps(asked).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=60) as reply:
            assert reply.status == 200
    finally:
        process.stop(signal.SIGTERM)
    assert not ran.exists()


def unsafe(source: str) -> list[int]:
    """The lines that name the interpreter without -P beside it."""
    tree = ast.parse(source)
    safe = {
        id(first)
        for node in ast.walk(tree)
        if isinstance(node, ast.Tuple | ast.List) and len(node.elts) > 1
        for first, second in [node.elts[:2]]
        if ast.unparse(second) == "'-P'"
    }
    named = [node for node in ast.walk(tree) if ast.unparse(node) == "sys.executable"]
    return [
        node.lineno for node in named if isinstance(node, ast.Attribute) and id(node) not in safe
    ]


@pytest.mark.parametrize("package", PACKAGES)
def test_every_process_of_ours_is_started_with_a_safe_path(package):
    files = [*(ROOT / package).rglob("*.py")]
    assert files
    assert {file.name: lines for file in files if (lines := unsafe(file.read_text()))} == {}


def test_a_process_without_a_safe_path_is_found():
    assert unsafe("run([sys.executable, '-m', 'x'])\nrun((sys.executable, '-P', '-c', x))") == [1]
    assert unsafe("argv = [sys.executable]\nfrom sys import path") == [1]
