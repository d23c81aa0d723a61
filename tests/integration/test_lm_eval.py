"""lm-eval judges how the engine handles texts: its scores equal what it finds by transformers.

CONTRIBUTING.md says how to install it.
"""

import asyncio
import json
import os
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from backend.app import create_app
from backend.settings import Settings

pytest_plugins = ["running_backend"]

ROOT = Path(__file__).parents[2]
MODEL = ROOT / "backend/demo/model"


def flat(answers):
    """All that was answered to one document, in one row."""
    if isinstance(answers, list):
        return [each for answer in answers for each in flat(answer)]
    return [answers]


@pytest.mark.skipif(
    find_spec("lm_eval") is None, reason="lm-eval is not installed: see CONTRIBUTING.md"
)
async def test_scores_through_the_server_are_those_of_transformers(serve_application, tmp_path):
    settings = Settings(str(MODEL), served_model_name="demo", device="cpu", dtype="float32")
    server = await serve_application(create_app(settings))
    await server.model.load()
    script = ROOT / "tests/support/lm_eval_scores.py"
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, str(script), str(MODEL), server.url, str(tmp_path)),
        env={**os.environ, "HF_HOME": str(tmp_path), "CUDA_VISIBLE_DEVICES": ""},
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(400):
            output, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 0
    runs = json.loads(output.splitlines()[-1])
    assert runs["expected"]["choice"]["scores"]["acc,none"] > 0.5
    for name in ("tokens", "texts", "chat of tokens", "chat"):
        expected = runs["expected chat" if "chat" in name else "expected"]
        for task, found in runs[name].items():
            where = f"{name}: {task}"
            for answers, wanted in zip(found["answers"], expected[task]["answers"], strict=True):
                assert flat(answers) == [
                    pytest.approx(each, abs=1e-3) if isinstance(each, float) else each
                    for each in flat(wanted)
                ], where
            assert found["scores"] == pytest.approx(expected[task]["scores"], rel=1e-5), where
