"""Published clients through a miss, a hit, a stream and a call of a tool.

Each client is a script that gets the base URL of a gateway and prints a line for each scene. It
runs in an environment of its own, with the versions that docs/guides/clients.md lists.
"""

import re
import shutil
import sys
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import orjson
import pytest
from client_environments import (
    CLIENTS,
    NotInstallableError,
    node_environment,
    python_environment,
    run_client,
)
from messages_api import ARGUMENTS, WORDS, as_anthropic, as_openai, is_tool_result

ROOT = Path(__file__).parents[3]
TEXT = "".join(WORDS)
CALL = ["weather", orjson.loads(ARGUMENTS)]


class Client(NamedTuple):
    """How a client's script is run, and what the client does and shows."""

    script: str
    requirements: str = ""
    shows_headers: bool = True
    asks_again: bool = False  # with what the tool returned
    api: str = "openai"  # of the upstream


MAIN, OLDER = "requirements.txt", "requirements-llama-index.txt"
TABLE = {
    "openai": Client("openai_client.py", MAIN),
    "openai, older": Client("openai_client.py", OLDER),
    "openai for Node": Client("openai_client.mjs"),
    "anthropic": Client("anthropic_client.py", MAIN, api="anthropic"),
    "anthropic, translated": Client("anthropic_client.py", MAIN),
    "LangChain": Client("langchain_client.py", MAIN),
    "LlamaIndex": Client("llama_index_client.py", OLDER, shows_headers=False),
    "LiteLLM": Client("litellm_client.py", MAIN),
    "AI SDK": Client("ai_client.mjs", asks_again=True),
    "pydantic-ai": Client("pydantic_ai_client.py", MAIN, shows_headers=False, asks_again=True),
    "openai-agents": Client("openai_agents_client.py", MAIN, shows_headers=False, asks_again=True),
    "curl": Client("curl_client.py"),
}


def script_of(client: Client, folder: Path) -> list[str]:
    """Return the command that runs a client's script. Raises NotInstallableError."""
    if client.script.endswith(".mjs"):
        # Node looks for packages beside the script.
        made = node_environment("node") / "node_modules"
        shutil.copytree(CLIENTS / "node", folder, dirs_exist_ok=True)
        (folder / "node_modules").symlink_to(made)
        return ["node", str(folder / client.script)]
    if client.requirements:
        python = str(python_environment(client.requirements))
    elif shutil.which("curl"):
        python = sys.executable
    else:
        raise NotInstallableError("curl is not on this machine")
    return [python, str(CLIENTS / "python" / client.script)]


@pytest.fixture(params=TABLE)
def client(request):
    return TABLE[request.param]


@pytest.fixture
def script(client, tmp_path):
    folder = tmp_path / "client"
    folder.mkdir()
    try:
        return script_of(client, folder)
    except NotInstallableError as error:
        pytest.skip(f"{client.script} cannot be installed: {error}")


def status_of(cache: str | None) -> str | None:
    """Return the part of Cache-Status that says whether it was a hit."""
    return cache and cache.split(";")[1].strip()


async def test_a_client_has_its_miss_its_hit_a_stream_and_a_call(
    client, script, upstream, start_gateway, tmp_path
):
    async def answer(request, body):
        reply = as_anthropic if client.api == "anthropic" else as_openai
        return await reply(request, {**body, "tools": []} if is_tool_result(body) else body)

    upstream.answer = answer
    listed = [{"url": f"{upstream.url}/v1", "api": client.api, "probe": "off"}]
    gateway = await start_gateway(upstream=(), upstreams=listed)
    said = await run_client([*script, gateway.url], tmp_path / "client")

    scenes = {line["scene"]: line["answers"] for line in map(orjson.loads, said.splitlines())}
    shown = [(name, answer) for name, answers in scenes.items() for answer in answers]
    assert [(name, answer["text"]) for name, answer in shown] == [
        *[("miss", TEXT), ("hit", TEXT)],
        *[("stream", TEXT)] * 2,
        *[("call", TEXT)] * 2,
    ]
    assert [answer["calls"] for _, answer in shown] == [[]] * 4 + [[CALL]] * 2
    expected = ["fwd=miss", "hit"] * 3 if client.shows_headers else [None] * 6
    assert [status_of(answer["cache"]) for _, answer in shown] == expected
    # What was answered from the cache did not reach the upstream.
    questions = Counter(body["messages"][0]["content"] for body in upstream.bodies)
    assert questions == {"plain": 1, "stream": 1, "call": 1 + client.asks_again}


def test_the_page_lists_the_versions_that_are_tested():
    page = (ROOT / "docs" / "guides" / "clients.md").read_text()
    rows = [line.split("|")[1:3] for line in page.splitlines() if line.startswith("| ")]
    listed = {name.strip(): version.strip() for name, version in rows}
    main, older = (
        dict(re.findall(r"^([\w-]+)==(\S+)", (CLIENTS / "python" / file).read_text(), re.MULTILINE))
        for file in (MAIN, OLDER)
    )
    node, claude = (
        orjson.loads((CLIENTS / folder / "package.json").read_bytes())["dependencies"]
        for folder in ("node", "claude_code")
    )
    ai = f"{node['ai']}, {node['@ai-sdk/openai-compatible']}"
    assert listed == {
        "Client": "Version",
        "[openai](#openai) for Python": f"{main['openai']}, {older['openai']}",
        "[openai](#openai) for Node": node["openai"],
        "[anthropic](#anthropic)": main["anthropic"],
        "[langchain-openai](#langchain)": main["langchain-openai"],
        "[llama-index-llms-openai-like](#llamaindex)": older["llama-index-llms-openai-like"],
        "[litellm](#litellm)": main["litellm"],
        "[ai](#ai-sdk) (AI SDK) with @ai-sdk/openai-compatible": ai,
        "[pydantic-ai-slim](#pydantic-ai)": main["pydantic-ai-slim"],
        "[openai-agents](#openai-agents)": main["openai-agents"],
        "[curl](#curl)": "of the system",
        "[@anthropic-ai/claude-code](messages.md#claude-code)": (
            claude["@anthropic-ai/claude-code"]
        ),
    }
