"""The runbook does what it says: each command runs with the fault that its entry is about."""

import asyncio
import json
import re
import shutil
import signal
import ssl
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from certificates import write_certificate
from faulty_upstreams import CLOSED, status
from ports import lasting_port
from processes import Process
from recipe import ROOT, Step, bash, command, steps_of, unseen

from running_gateway import RunningGateway, StartGateway, start_app
from running_redis import RunningRedis, ask, redis_program
from scripted_upstream import ScriptedUpstream, completion
from tests.chaos.installation import SMALL_DISK_BYTES, UnavailableError, fill, opened
from tests.chaos.load import Asked, Client

TEXT = (ROOT / "docs" / "operations" / "runbook.md").read_text()
TOKEN = "operators-token-of-this-test"
ENTRIES = {part.partition("\n")[0]: steps_of(part) for part in TEXT.split("\n## ")[1:]}
TRIED: dict[str, Callable[..., Any]] = {}


def tries(title: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Note that a test tries an entry."""

    def note(test: Callable[..., Any]) -> Callable[..., Any]:
        TRIED[title] = test
        return test

    return note


@dataclass
class Operator:
    """Runs the commands of an entry in their order, and reads what they print."""

    folder: Path
    replaced: dict[str, str] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)
    left: list[Step] = field(default_factory=list)

    def at(self, title: str, **replaced: str) -> None:
        """Turn to an entry."""
        assert self.left == [], "commands of the entry before were not run"
        self.left = [*ENTRIES[title]]

    def gateway(self, url: str) -> None:
        """Note where the gateway is."""
        self.replaced["http://127.0.0.1:8080"] = url

    async def does(self, steps: int = 1) -> str:
        """Run the next steps; return what they print."""
        printed = ""
        for _ in range(steps):
            step = self.left.pop(0)
            commands = step.commands
            for old, new in self.replaced.items():
                commands = commands.replace(old, new)
            known = "".join(f"export {name}='{text}'\n" for name, text in self.environment.items())
            output, _ = await bash(f"exec 2>&1\n{known}{commands}", self.folder)
            assert unseen(step.expected, output) == [], (commands, output)
            printed += output
        return printed


@pytest.fixture
def operator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Operator]:
    lacking = [tool for tool in ("curl", "openssl", "pgrep", "ps") if shutil.which(tool) is None]
    if lacking:
        pytest.skip(f"not installed: {', '.join(lacking)}")
    monkeypatch.setenv("REFRAIN_ADMIN_TOKEN", TOKEN)
    command(tmp_path / "bin", "refrain", "-m", "gateway.cli")
    (tmp_path / "bin" / "redis-cli").symlink_to(redis_program("redis-cli"))
    body = {"model": "m", "messages": [{"role": "user", "content": "What is a rake?"}]}
    (tmp_path / "request.json").write_text(json.dumps(body))
    hand = Operator(tmp_path, environment={"REFRAIN_ADMIN_TOKEN": TOKEN})
    yield hand
    assert hand.left == [], "commands of an entry were not run"


def test_each_entry_with_commands_is_tried_and_no_entry_lacks_commands():
    assert set(TRIED) == set(ENTRIES)
    assert all(ENTRIES.values())


def test_each_entry_says_who_suffers_what_to_do_first_and_when_all_is_normal_again():
    for part in TEXT.split("\n## ")[1:]:
        title = part.partition("\n")[0]
        leads = re.findall(r"^\*\*(\w[\w ]*)\.\*\*", part, re.MULTILINE)
        assert leads == ["Signs", "Users", "First", "Cause", "Normal again"], title


async def test_look_first(operator: Operator, gateway: RunningGateway):
    operator.gateway(gateway.url)
    operator.left = steps_of(TEXT.partition("\n## ")[0])
    assert "ready" in await operator.does()


@pytest.fixture
async def expired(tmp_path: Path) -> AsyncIterator[int]:
    """The port of an upstream whose certificate has expired."""
    file = write_certificate(tmp_path / "expired.pem", "localhost", days=-1)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(file)
    server = await asyncio.start_server(lambda _, w: w.close(), "127.0.0.1", 0, ssl=context)
    yield server.sockets[0].getsockname()[1]
    server.close()


def settings(folder: Path, **changes: Any) -> None:
    (folder / ".refrain").mkdir(exist_ok=True)
    chosen = {"data_dir": ".refrain", "port": lasting_port(), **changes}
    (folder / "refrain.yaml").write_text(json.dumps(chosen))


@tries("A process is down")
async def test_a_process_is_down(operator: Operator, upstream: ScriptedUpstream):
    settings(operator.folder, upstream=f"{upstream.url}/v1")
    operator.gateway(f"http://127.0.0.1:{lasting_port()}")
    operator.at("A process is down")
    await operator.does()


@tries("The gateway is not ready")
async def test_the_gateway_is_not_ready(operator: Operator, start_gateway: StartGateway):
    gateway = await start_gateway(semantic_socket=operator.folder / "nobody.sock")
    assert (await gateway.get("/readyz")).status == 503
    operator.gateway(gateway.url)
    operator.at("The gateway is not ready")
    await operator.does()


@tries("Requests get errors")
async def test_requests_get_errors(
    operator: Operator, gateway: RunningGateway, upstream: ScriptedUpstream
):
    upstream.answer = status(500)
    assert (await gateway.ask()).status == 500
    operator.gateway(gateway.url)
    operator.at("Requests get errors")
    await operator.does()


@tries("An upstream fails")
async def test_an_upstream_fails(
    operator: Operator, start_gateway: StartGateway, upstream: ScriptedUpstream
):
    listed = [
        {"name": "gpu-1", "url": CLOSED, "tier": 1},
        {"name": "gpu-2", "url": f"{upstream.url}/v1", "tier": 2},
    ]
    gateway = await start_gateway(upstream=(), upstreams=listed)
    for number in range(3):
        assert (await gateway.ask(f"question {number}")).status == 200
    async with asyncio.timeout(60):  # its probes fail, too, so that it stays open ever longer
        while await pause_of(gateway, "gpu-1") < 2:
            pass
    operator.gateway(gateway.url)
    operator.replaced["http://127.0.0.1:8001/v1"] = CLOSED
    operator.at("An upstream fails")
    await operator.does(2)


async def pause_of(gateway: RunningGateway, upstream: str) -> float:
    """Return how long the gauge says that an upstream still gets no requests."""
    page = (await gateway.get("/metrics")).raw.decode()
    (found,) = re.findall(rf'refrain_upstream_pause_seconds{{upstream="{upstream}"}} (\S+)', page)
    return float(found)


@tries("Requests wait")
async def test_requests_get_429(operator: Operator, start_gateway: StartGateway, upstream):
    upstream.answer = status(429, Retry_After="7")
    listed = [{"name": "provider", "url": f"{upstream.url}/v1"}]
    gateway = await start_gateway(upstream=(), upstreams=listed)
    assert (await gateway.ask()).status == 429
    operator.gateway(gateway.url)
    operator.at("Requests wait")
    await operator.does()


@tries("Redis is full or gone")
async def test_redis_is_gone_and_full(operator: Operator, start_gateway: StartGateway):
    redis = RunningRedis(operator.folder / "redis")
    redis.start()
    try:
        gateway = await start_gateway(store=redis.url, memory_bytes=0)
        operator.gateway(gateway.url)
        operator.environment["REFRAIN_STORE"] = redis.url
        operator.at("Redis is full or gone")
        redis.freeze()
        await gateway.ask()
        await store_says(gateway, "not answering")
        await operator.does()
        redis.thaw()
        await store_says(gateway, None)
        ask(redis, "config", "set", "maxmemory", "1")
        assert "stored" not in (await gateway.ask("full")).cache
        await operator.does(2)
        assert ask(redis, "config", "get", "maxmemory-policy").split()[1] == "allkeys-lru"
        ask(redis, "config", "set", "maxmemory", "0")
        await hit_in_the_end(gateway, "full")
    finally:
        redis.kill()


async def store_says(gateway: RunningGateway, problem: str | None) -> None:
    async with asyncio.timeout(60):
        while (await gateway.get("/readyz")).json["store"]["problem"] != problem:
            pass


async def hit_in_the_end(gateway: RunningGateway, question: str) -> None:
    async with asyncio.timeout(60):
        while "hit" not in (await gateway.ask(question)).cache:
            pass


@tries("The disk is full")
async def test_the_disk_is_full(operator: Operator):
    async with AsyncExitStack() as stack:
        try:
            there = await opened(stack, operator.folder, store="disk", small_disk=True)
        except UnavailableError as why:
            pytest.skip(str(why))
        client = Client(there.url)
        stack.push_async_callback(client.close)
        place = there.seen_from_here
        operator.replaced[".refrain"] = str(place)
        operator.at("The disk is full")
        asked = Asked("t", "What is a rake?")
        # What fills the disk is the former part of a decision log.
        (place / "decisions.jsonl.1").write_bytes(bytes(SMALL_DISK_BYTES // 2))
        await asyncio.to_thread(fill, place / "filler")
        assert (await client.ask(asked)).kind == "miss"
        assert "decisions.jsonl.1" in await operator.does()
        await operator.does()
        async with asyncio.timeout(60):
            while (await client.ask(asked)).kind != "hit":
                pass


@tries("It served a wrong answer")
async def test_a_wrong_answer_was_served(operator: Operator, gateway: RunningGateway):
    await gateway.ask("What is a rake?")
    operator.gateway(gateway.url)
    operator.at("It served a wrong answer")
    await operator.does(2)
    assert "miss" in (await gateway.ask("What is a rake?")).cache
    await operator.does(2)
    assert "miss" in (await gateway.ask("What is a rake?")).cache
    await operator.does()


@tries("Another tenant's answer is suspected")
async def test_another_tenants_answer_is_suspected(operator: Operator, gateway: RunningGateway):
    for key in ("KEY-OF-A", "KEY-OF-B"):
        await gateway.ask(headers={"Authorization": f"Bearer {key}"})
    operator.gateway(gateway.url)
    operator.at("Another tenant's answer is suspected")
    printed = await operator.does()
    assert '"entries": 2' in printed
    kept = json.loads((operator.folder / "entries-before.json").read_text())
    scopes = {entry["scope"] for entry in kept["entries"]}
    printed = await operator.does()
    assert set(re.findall(r'"tenant": "(\w+)"', printed)) == scopes
    assert len(scopes) == 2
    assert "miss" in (await gateway.ask(headers={"Authorization": "Bearer KEY-OF-A"})).cache


@tries("The hit rate fell")
async def test_the_hit_rate_fell(
    operator: Operator, gateway: RunningGateway, upstream: ScriptedUpstream
):
    async def answer(_request: web.Request, _body: dict[str, Any]) -> web.StreamResponse:
        return web.json_response(completion("Half", finish_reason="length"))

    upstream.answer = answer
    await gateway.ask("What is a rake?")
    operator.gateway(gateway.url)
    operator.at("The hit rate fell")
    assert 'reason="truncated"' in await operator.does()
    await operator.does()


@tries("Paraphrases miss")
async def test_paraphrases_miss(operator: Operator, start_gateway: StartGateway):
    gateway = await start_gateway(semantic_socket=operator.folder / "nobody.sock")
    await gateway.ask("How do I reset my password?")
    operator.gateway(gateway.url)
    operator.at("Paraphrases miss")
    await operator.does()


@tries("The budget of a key is spent")
async def test_the_budget_of_a_key_is_spent(operator: Operator, start_gateway: StartGateway):
    made, _ = await bash("refrain keys add shop --budget 1tokens/day --file keys", operator.folder)
    headers = {"Authorization": f"Bearer {made.split()[-1]}"}
    gateway = await start_gateway(gateway_keys=operator.folder / "keys")
    assert (await gateway.ask(headers=headers)).status == 200
    async with asyncio.timeout(60):
        while (await gateway.ask(headers=headers)).status != 429:
            pass
    operator.gateway(gateway.url)
    operator.at("The budget of a key is spent")
    await operator.does(2)
    async with asyncio.timeout(60):
        while (await gateway.ask(headers=headers)).status != 200:
            pass


@tries("A policy edit was refused")
async def test_a_policy_edit_was_refused(operator: Operator, start_gateway: StartGateway):
    policy = operator.folder / "policy.yaml"
    policy.write_text((ROOT / "policies" / "default.yaml").read_text())
    gateway = await start_gateway(policy=policy)
    policy.write_text(policy.read_text() + "\ndefalt: {exact: on}\n")
    async with asyncio.timeout(60):
        while (await gateway.get("/readyz")).json["policy"]["problem"] is None:
            pass
    operator.at("A policy edit was refused")
    assert "defalt" in await operator.does()


@tries("Hits are slow")
@tries("Memory grows")
@tries("The data directory is locked")
async def test_processes_are_looked_at_and_ended(operator: Operator, upstream: ScriptedUpstream):
    settings(operator.folder, upstream=f"{upstream.url}/v1")
    argv = ("-m", "gateway.cli", "serve", "--config", "refrain.yaml")
    process = Process(*argv, cwd=operator.folder)
    try:
        line = await asyncio.to_thread(process.wait_for_line, "ready: base URL")
        operator.gateway(re.findall(r"http://[\d.:]+", line)[0])
        async with asyncio.timeout(60):
            url = operator.replaced["http://127.0.0.1:8080"]
            client = Client(f"{url}/v1")
            for _ in range(2):
                await client.ask(Asked("t", "What is a rake?"))
            await client.close()
        operator.at("Hits are slow")
        await operator.does()
        operator.at("Memory grows")
        await operator.does(2)
        await asyncio.to_thread(process.wait_for_line, "starting it again")
        second = Process(*argv, "--port", "0", cwd=operator.folder)
        await asyncio.to_thread(second.wait_for_line, "is in use by another gateway (pid")
        assert await asyncio.to_thread(second.popen.wait, 60) == 1
        await asyncio.to_thread(second.stop)
        operator.at("The data directory is locked")
        await operator.does(2)
        assert await asyncio.to_thread(process.popen.wait, 60) == 0
    finally:
        await asyncio.to_thread(process.stop, signal.SIGKILL)


@tries("The engine hangs or restarts")
async def test_the_engine_hangs(operator: Operator):
    port = str(lasting_port())
    model = str(ROOT / "backend" / "demo" / "model")
    process = Process("-m", "gateway.cli", "backend", "--model", model, "--port", port)
    try:
        await asyncio.to_thread(process.wait_for_line, "is ready after")
        operator.replaced |= {"8000": port, "refrain backend": f"backend .*--port {port}"}
        operator.at("The engine hangs or restarts")
        await operator.does(2)
        await asyncio.to_thread(process.wait_for_line, "the engine is ready again")
    finally:
        await asyncio.to_thread(process.stop, signal.SIGKILL)


@tries("A certificate or a key has expired")
async def test_a_certificate_and_a_key_have_expired(
    operator: Operator, upstream: ScriptedUpstream, expired: int
):
    async def refuse(_request: web.Request) -> web.Response:
        return web.Response(status=401)

    app = web.Application()
    app.router.add_get("/v1/models", refuse)
    runner, refusing = await start_app(app)
    operator.replaced |= {
        "api.example.com:443": f"localhost:{expired}",
        "https://api.example.com": refusing,
    }
    operator.at("A certificate or a key has expired")
    await operator.does()
    await runner.cleanup()


@tries("Back to the former version")
async def test_back_to_the_former_version(operator: Operator):
    settings(operator.folder, upstream="http://127.0.0.1:8001/v1", setting_of_tomorrow=1)
    operator.at("Back to the former version")
    assert "setting_of_tomorrow" in await operator.does()
