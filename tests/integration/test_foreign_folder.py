"""Nothing is imported from the folder that one stands in, by any process that we start."""

import json
import signal
import urllib.request
from pathlib import Path

from processes import Process

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
