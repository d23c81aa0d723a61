"""Claude Code, the command line of the npm registry, in front of servers of either form."""

import json

import orjson
import pytest
from client_environments import NotInstallableError, node_environment, run_client
from messages_api import WORDS, as_anthropic, as_openai, is_tool_result

TEXT = "".join(WORDS)


@pytest.fixture(scope="module")
def claude():
    try:
        folder = node_environment("claude_code")
    except NotInstallableError as error:
        pytest.skip(f"Claude Code cannot be installed: {error}")
    return ["node", str(folder / "node_modules/@anthropic-ai/claude-code/cli-wrapper.cjs")]


@pytest.fixture(params=["anthropic", "openai"])
async def ask(request, claude, upstream, start_gateway, tmp_path):
    """Give Claude Code a task; return the text and the calls that it shows."""
    home = tmp_path / "home"
    home.mkdir()
    note = home / "note.txt"
    note.write_text("Rain at noon.")
    reply = as_anthropic if request.param == "anthropic" else as_openai

    async def answer(request, body):
        # It sends its tools with each request: here the task says whether one is called.
        if "note.txt" not in json.dumps(body["messages"]) or is_tool_result(body):
            body = {**body, "tools": []}
        return await reply(request, body, call=("Read", json.dumps({"file_path": str(note)})))

    upstream.answer = answer
    listed = [{"url": f"{upstream.url}/v1", "api": request.param, "probe": "off"}]
    gateway = await start_gateway(upstream=(), upstreams=listed)
    environment = {
        "ANTHROPIC_BASE_URL": gateway.url,
        "ANTHROPIC_AUTH_TOKEN": "anything",
        "ANTHROPIC_MODEL": "claude-x",
        "ANTHROPIC_DEFAULT_HAIKU_MODEL": "claude-x",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    }

    async def ask(task):
        options = ["--print", "--output-format", "stream-json", "--verbose"]
        said = await run_client([*claude, *options, task], home, **environment)
        *_, last = events = [orjson.loads(line) for line in said.splitlines()]
        blocks = [b for e in events if e["type"] == "assistant" for b in e["message"]["content"]]
        calls = [(b["name"], b["input"]) for b in blocks if b["type"] == "tool_use"]
        assert not last["is_error"], last
        return last["result"], calls

    ask.note = note
    return ask


async def test_claude_code_has_its_misses_its_hits_a_stream_and_a_call(ask, upstream):
    assert await ask("Say hello.") == (TEXT, [])
    assert [body["stream"] for body in upstream.bodies] == [True]
    read = (TEXT, [("Read", {"file_path": str(ask.note)})])
    assert await ask("What does note.txt say?") == read
    # What the tool returned reaches the server.
    assert "Rain at noon." in json.dumps(upstream.bodies[-1]["messages"][-1])
    assert upstream.calls == 3
    # The same tasks again, in sessions of their own: both requests of the second are hits, too.
    assert await ask("Say hello.") == (TEXT, [])
    assert await ask("What does note.txt say?") == read
    assert upstream.calls == 3
