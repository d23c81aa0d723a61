"""The quickstarts of the docs do what they say: the pages are run as they stand."""

import re
from pathlib import Path

import orjson
import pytest
from aiohttp import web
from ports import lasting_port
from recipe import ROOT, bash, command, run_recipe, steps_of, unseen

from gateway.settings import load_settings
from running_gateway import start_app
from scripted_upstream import completion

PAGE = (ROOT / "docs" / "start" / "providers.md").read_text()
PROVIDERS = {
    "OpenAI": ("Authorization", "Bearer sk-..."),
    "Azure OpenAI": ("api-key", "..."),
    "Anthropic": ("x-api-key", "sk-ant-..."),
    "Gemini": ("Authorization", "Bearer ..."),
    "vLLM": ("Authorization", None),
    "SGLang": ("Authorization", None),
    "Ollama": ("Authorization", None),
    "The bundled engine": ("Authorization", None),
}
"""The header with the key that the provider gets."""

MESSAGE = {
    "id": "msg_01",
    "type": "message",
    "role": "assistant",
    "model": "claude-sonnet-4-5-20250929",
    "content": [{"type": "text", "text": "Gathering leaves."}],
    "stop_reason": "end_turn",
    "stop_sequence": None,
    "usage": {"input_tokens": 15, "output_tokens": 16},
}


def section(name: str) -> str:
    return re.split(rf"^## {name}\n", PAGE, flags=re.MULTILINE)[1].partition("\n## ")[0]


async def test_the_first_ten_minutes(tmp_path: Path):
    await run_recipe("docs/start/quickstart.md", tmp_path, {"8080": str(lasting_port())})


@pytest.mark.parametrize("name", PROVIDERS)
async def test_each_provider_is_asked_once(name, tmp_path, start_gateway, monkeypatch):
    got = []

    async def answer(request: web.Request) -> web.Response:
        got.append((request.path, request.headers, orjson.loads(await request.read())))
        anthropic = request.path.endswith("/messages")
        return web.json_response(MESSAGE if anthropic else completion("Gathering leaves."))

    app = web.Application()
    app.router.add_post("/{path:.*}", answer)
    runner, url = await start_app(app)
    key, question = steps_of(section("First: a key, and a question"))
    start, *asked = steps_of(section(name))
    command(tmp_path / "bin", "refrain", "-m", "gateway.cli")
    await bash(key.commands, tmp_path)
    for variable, value in re.findall(r"(\w+_KEY)=(\S+)", start.commands):
        monkeypatch.setenv(variable, value)
    text = re.search(r"<<'END'\n(.*)^END$", start.commands, re.MULTILINE | re.DOTALL)[1]
    if "url:" not in text:
        text = re.sub(r"(preset: \w+)", r"\1\n    url: https://host/v1", text)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "refrain.yaml").write_text(re.sub(r"url: https?://[^/]+", f"url: {url}", text))
    settings = load_settings({"data_dir": "data"}, {}, tmp_path / "refrain.yaml")
    gateway = await start_gateway(**dict(settings))
    call = asked[0].commands if asked else re.search(r"`(ask [^`]+)`", section(name))[1]
    script = f"{question.commands}\n{call}\n".replace("http://127.0.0.1:8080", gateway.url)
    output, errors = await bash(script, tmp_path)
    await runner.cleanup()

    expected = tuple(line.replace("3599", "…") for line in question.expected)
    assert unseen(expected, output) == [], (output, errors)
    [(path, headers, body)] = got
    header, value = PROVIDERS[name]
    assert headers.get(header) == value
    assert (tmp_path / "me.key").read_text().strip() not in str(headers)
    model = re.search(r'`ask ([^`]+)`|"model": "(claude[^"]+)"', section(name))
    assert body["model"] == ("my-deployment" if name == "Azure OpenAI" else model[1] or model[2])
    assert path.endswith("/messages" if name == "Anthropic" else "/chat/completions")
    assert start.commands.endswith("END\nrefrain serve --config refrain.yaml\n")


def test_each_preset_of_the_page_has_a_section_that_is_run():
    headings = re.findall(r"^## (.+)$", PAGE, re.MULTILINE)
    assert headings == ["First: a key, and a question", *PROVIDERS, "Without a key of the gateway"]
