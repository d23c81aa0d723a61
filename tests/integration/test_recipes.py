"""The recipes of the docs do what they say: each page is run as it stands, against fakes."""

import os
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import orjson
import pytest
from aiohttp import web
from ports import lasting_port
from recipe import ROOT, command, run_recipe, steps_of, unseen

from running_gateway import start_app
from scripted_upstream import ScriptedUpstream, completion

SUPPORT = Path(__file__).parents[1] / "support"
LITELLM = "LITELLM_COMMAND"
"""Names a real ``litellm`` with its proxy, for the tests that can use it."""

AZURE = completion(
    "A rake gathers leaves, breaks up soil and levels beds.",
    id="chatcmpl-C1",
    created=1764000000,
    model="gpt-4o-2024-11-20",
    system_fingerprint="fp_ee1d74bde0",
    prompt_filter_results=[{"prompt_index": 0, "content_filter_results": {}}],
    usage={
        "prompt_tokens": 14,
        "completion_tokens": 12,
        "total_tokens": 26,
        "prompt_tokens_details": {"audio_tokens": 0, "cached_tokens": 0},
    },
)
ANTHROPIC = {
    "id": "msg_01",
    "type": "message",
    "role": "assistant",
    "model": "claude-sonnet-4-5-20250929",
    "content": [{"type": "text", "text": "Gathering leaves, breaking up soil, levelling beds."}],
    "stop_reason": "end_turn",
    "stop_sequence": None,
    "usage": {
        "input_tokens": 15,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 0,
        "output_tokens": 16,
        "service_tier": "standard",
    },
}
Asked = list[tuple[dict[str, str], dict[str, Any]]]


@pytest.fixture
async def start_provider() -> AsyncIterator[Callable[..., Awaitable[tuple[str, Asked]]]]:
    """Start a provider with one recorded answer; return its URL, and what it is asked."""
    runners = []

    async def start(path: str, recorded: dict[str, Any]) -> tuple[str, Asked]:
        asked: Asked = []

        async def answer(request: web.Request) -> web.Response:
            headers = {name.lower(): text for name, text in request.headers.items()}
            asked.append((headers, orjson.loads(await request.read())))
            return web.json_response(recorded)

        app = web.Application()
        app.router.add_post(path, answer)
        runner, url = await start_app(app)
        runners.append(runner)
        return url, asked

    yield start
    for runner in runners:
        await runner.cleanup()


def installed_litellm() -> str:
    found = os.environ.get(LITELLM)
    if not found:
        pytest.skip(f"{LITELLM} names no litellm")
    return found


@pytest.mark.parametrize("real", [False, True], ids=["stand-in", "litellm"])
async def test_behind_litellm(real: bool, upstream: ScriptedUpstream, tmp_path: Path):
    folder = tmp_path / "litellm-env" / "bin"
    if real:
        folder.mkdir(parents=True)
        (folder / "litellm").symlink_to(installed_litellm())
    else:
        command(folder, "litellm", str(SUPPORT / "fake_litellm.py"))
    await run_recipe(
        "docs/guides/recipes/behind-litellm.md",
        tmp_path,
        {
            "preset: openai\n": f"preset: openai\n    url: {upstream.url}/v1\n",
            "8080": str(lasting_port()),
            "4000": str(lasting_port()),
            "sk-...": "sk-of-openai",
        },
        without="python3 -m venv",
    )
    assert upstream.calls == 1
    assert upstream.requests[-1].headers["Authorization"] == "Bearer sk-of-openai"


async def test_in_front_of_replicas(tmp_path: Path):
    command(tmp_path / "bin", "vllm", str(SUPPORT / "fake_vllm.py"))
    ports = ("8001", "8002", "8003", "8004", "8080")
    ran = await run_recipe(
        "docs/guides/recipes/in-front-of-replicas.md",
        tmp_path,
        {port: str(lasting_port()) for port in ports},
    )
    questions = ran.of("cached_tokens")
    first, second = re.findall(r"X-Refrain-Upstream: (\S+)", questions)
    assert first == second
    assert int(re.findall(r'"cached_tokens": *(\d+)', questions)[0]) > 1_000
    spread = re.findall(r"(\d+) X-Refrain-Upstream: (gpu-\d)\s*$", ran.of("     "), re.MULTILINE)
    assert sum(int(count) for count, _ in spread) == 12
    assert len(spread) > 1


async def test_in_front_of_azure_and_anthropic(start_provider, tmp_path: Path):
    azure, to_azure = await start_provider("/openai/v1/chat/completions", AZURE)
    anthropic, to_anthropic = await start_provider("/v1/messages", ANTHROPIC)
    await run_recipe(
        "docs/guides/recipes/azure-and-anthropic.md",
        tmp_path,
        {
            "https://RESOURCE.openai.azure.com": azure,
            "preset: anthropic\n": f"preset: anthropic\n    url: {anthropic}/v1\n",
            "8080": str(lasting_port()),
            "AZURE_KEY=...": "AZURE_KEY=key-of-azure",
            "sk-ant-...": "sk-ant-of-ours",
        },
    )
    ((headers, body),) = to_azure
    assert headers["api-key"] == "key-of-azure"
    assert body["model"] == "my-deployment"
    ((headers, body),) = to_anthropic
    assert (headers["x-api-key"], headers["anthropic-version"]) == ("sk-ant-of-ours", "2023-06-01")
    assert body["model"] == "claude-sonnet-4-5"
    key = (tmp_path / "ann.key").read_text().strip()
    assert key not in str(to_azure + to_anthropic)


def test_what_one_should_see_is_compared():
    steps = steps_of("```sh\necho a\n```\nYou see:\n```text\na … c\nd\n```\n```sh\nb\n```\n")
    assert [(step.commands, step.expected) for step in steps] == [
        ("echo a\n", ("a … c", "d")),
        ("b\n", ()),
    ]
    expected = steps[0].expected
    assert unseen(expected, "x\n  a b c\nd\n") == []
    assert unseen(expected, "d\na b c\n") == ["d"]
    assert unseen(expected, "a b c d\nd\n") == ["a … c", "d"]


def test_each_recipe_is_run():
    pages = {page.stem for page in (ROOT / "docs" / "guides" / "recipes").glob("*.md")}
    assert pages == {"behind-litellm", "in-front-of-replicas", "azure-and-anthropic"}
