"""`refrain backend` as a process: usage, failures in one line, signals, the parent's pipe."""

import asyncio
import os
import re
import signal
import socket
import sys
from pathlib import Path

import orjson
import pytest
from aiohttp import ClientSession
from parsed_command import parsed_backend

from backend.__main__ import main
from backend.settings import Settings, milliseconds, seconds, size

pytest_plugins = ["running_backend"]

ROOT = Path(__file__).parents[2]
LIMIT = 120.0


class Process:
    """The command, with its stderr read line by line."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.lines: list[str] = []

    async def line(self, pattern: str) -> re.Match[str]:
        """Read until a line matches."""
        async with asyncio.timeout(LIMIT):
            while raw := await self.process.stderr.readline():
                self.lines.append(raw.decode())
                if match := re.search(pattern, self.lines[-1]):
                    return match
        raise AssertionError(f"the process ended: {self.lines}")

    async def end(self) -> tuple[int, str]:
        """Wait for the exit code; everything that was said."""
        async with asyncio.timeout(LIMIT):
            rest = await self.process.stderr.read()
            return await self.process.wait(), "".join(self.lines) + rest.decode()


@pytest.fixture
async def start():
    """Start the command; what still runs at the end is killed."""
    running = []

    async def run(*arguments, **environment) -> Process:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "backend",
            *map(str, arguments),
            cwd=ROOT,
            env={**os.environ, "HF_HUB_OFFLINE": "1", **environment},
            stdin=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        running.append(process)
        return Process(process)

    yield run
    for process in running:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def get(url):
    async with ClientSession() as session, session.get(url) as reply:
        return reply.status, orjson.loads(await reply.read())


async def test_serves_and_stops_cleanly(start, chat_model):
    process = await start("--model", chat_model, "--port", 0, "--device", "cpu")
    url = (await process.line(r"listening on (http://127.0.0.1:\d+)"))[1]
    assert (await get(f"{url}/healthz"))[0] == 200
    await process.line("tiny-llama is ready")
    assert (await get(f"{url}/readyz"))[0] == 200
    _, models = await get(f"{url}/v1/models")
    assert [model["id"] for model in models["data"]] == ["tiny-llama"]
    process.process.terminate()
    code, said = await process.end()
    assert (code, "Traceback" in said) == (0, False)


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT, "parent"])
async def test_stops_cleanly_while_it_loads(start, chat_model, how):
    process = await start("--model", chat_model, "--port", 0, REFRAIN_PARENT_PIPE="1")
    await process.line("listening on")
    if how == "parent":
        process.process.stdin.close()
    else:
        process.process.send_signal(how)
    code, said = await process.end()
    assert (code, "Traceback" in said) == (0, False)


async def one_line_failure(process):
    code, said = await process.end()
    *logged, last = said.splitlines()
    assert code == 1
    assert last.startswith("refrain backend: ")
    assert all(orjson.loads(line)["level"] for line in logged)
    return last


async def test_a_model_that_cannot_be_loaded(start, chat_model, tmp_path):
    for file in chat_model.iterdir():
        if file.suffix != ".safetensors":
            (tmp_path / file.name).write_bytes(file.read_bytes())
    process = await start("--model", tmp_path, "--port", 0)
    assert "safetensors" in await one_line_failure(process)


def test_a_missing_model_directory(capsys, tmp_path):
    assert main(["--model", str(tmp_path / "nowhere"), "--port", "0"]) == 1
    assert re.fullmatch("refrain backend: .*nowhere.*\n", capsys.readouterr().err)


@pytest.mark.parametrize("arguments", [("--model", "nowhere"), ("check",)])
def test_without_torch_it_is_said_what_to_install(capsys, monkeypatch, arguments):
    monkeypatch.setitem(sys.modules, "torch", None)
    assert main(arguments) == 1
    said = "refrain backend: torch is not installed: pip install 'refrain-gateway[cpu]', or [gpu]\n"
    assert capsys.readouterr().err == said


def test_an_unknown_architecture(capsys, chat_model, tmp_path):
    for file in chat_model.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "config.json").write_text(
        '{"architectures": ["PerceptronForCausalLM"], "model_type": "perceptron"}'
    )
    assert main(["--model", str(tmp_path), "--port", "0"]) == 1
    assert re.fullmatch("refrain backend: .*perceptron.*\n", capsys.readouterr().err)


@pytest.mark.parametrize(
    "name", ["config.json", "tokenizer_config.json", "model.safetensors", "1_Pooling/config.json"]
)
def test_a_pipe_in_place_of_a_file_is_not_waited_for(capsys, chat_model, tmp_path, name):
    for file in chat_model.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).unlink(missing_ok=True)
    os.mkfifo(tmp_path / name)
    assert main(["--model", str(tmp_path), "--port", "0"]) == 1
    last = capsys.readouterr().err.splitlines()[-1]
    assert last == f"refrain backend: {tmp_path / name}: no regular file"


async def test_a_header_that_is_too_long_is_not_logged(start, chat_model):
    process = await start("--model", chat_model, "--port", 0, REFRAIN_PARENT_PIPE="1")
    port = int((await process.line(r"listening on http://127.0.0.1:(\d+)"))[1])
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    secret = "the-api-key"
    head = f"GET /healthz HTTP/1.1\r\nAuthorization: Bearer {secret * 2000}\r\n\r\n"
    writer.write(head.encode())
    async with asyncio.timeout(LIMIT):
        assert b" 400 " in await reader.readline()
    writer.close()
    process.process.stdin.close()
    code, said = await process.end()
    assert (code, secret in said) == (0, False)


def test_a_host_that_is_none(capsys, tmp_path):
    assert main(["--model", str(tmp_path), "--host", "no such host", "--port", "0"]) == 1
    said = capsys.readouterr().err
    assert re.fullmatch("refrain backend: cannot listen on no such host:0: .+\n", said)
    assert "Unknown error" not in said


async def test_a_port_in_use(start, chat_model):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        process = await start("--model", chat_model, "--port", port)
        assert f"cannot listen on 127.0.0.1:{port}" in await one_line_failure(process)


@pytest.mark.parametrize(
    ("read", "text", "value"),
    [
        (size, "1GB", 10**9),
        (size, "1.5GiB", 3 << 29),
        (size, "512m", 512 << 20),
        (size, "4096", 4096),
        (seconds, "500ms", 0.5),
        (seconds, "2m", 120),
        (seconds, "2.5", 2.5),
        (milliseconds, "50", 50),
        (milliseconds, "50ms", 50),
        (milliseconds, "0.2s", 200),
    ],
)
def test_sizes_and_times_take_units(read, text, value):
    assert read(text) == value


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "--model"),
        (["--model", "m", "--port", "70000"], "expected a port from 0 to 65535, got '70000'"),
        (["--model", "m", "--max-num-seqs", "0"], "expected a whole number of at least 1"),
        (["--model", "m", "--max-num-seqs", "99999999999"], "expected at most 65536, got"),
        (["--model", "m", "--threads", "99999999999"], "expected at most 1024, got"),
        (["--model", "m", "--queue-timeout", "0"], "expected a time above 0, such as 500ms"),
        (["--model", "m", "--step-timeout", "0"], "expected a time above 0, such as 500ms"),
        (["--model", "m", "--load-timeout", "never"], "or a number of seconds, got 'never'"),
        (["--model", "m", "--target-itl-ms", "fast"], "or a number of milliseconds, got 'fast'"),
        (["--model", "m", "--kv-bytes", "lots"], "expected bytes such as 512MiB"),
        (["--model", "m", "--dtype", "int4"], "'int4' is not one of"),
        (["--model", "m", "--attention", "flashinfer"], "not one of 'auto', 'triton', 'torch'"),
        (["--model", "m", "--served-model-name", ""], "'--served-model-name': expected a"),
        (["--model", "m", "--served-model-name", " \t"], "'--served-model-name': expected"),
        (["--model", "m", "--served-model-name", "a\nb"], "expected a name, got 'a\\nb'"),
        (["--model", "m", "--gpu-memory-utilization", "1.1"], "expected a number above 0 and at"),
        (["--model", "m", "tune"], "No such command 'tune'"),
        (["--model", "m", "--prot", "1"], "Did you mean"),
    ],
)
def test_bad_usage(capsys, arguments, said):
    assert main(arguments) == 2
    assert said in capsys.readouterr().err


def test_the_self_check_is_on_unless_it_is_told_off():
    assert parsed_backend(["--model", "m"]).self_check
    assert not parsed_backend(["--model", "m", "--no-self-check"]).self_check


def test_help_has_examples(capsys):
    assert main(["--help"]) == 0
    assert "refrain backend --model" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "size"),
    [("1024", 1024), ("4K", 4096), ("512MiB", 2**29), ("2G", 2**31)],
)
def test_sizes(monkeypatch, text, size):
    seen = []
    monkeypatch.setattr("backend.__main__._serve", lambda settings: seen.append(settings) or 0)
    monkeypatch.setattr("backend.process.configure_logging", lambda _form: None)
    assert main(["--model", "m", "--kv-bytes", text]) == 0
    assert seen == [Settings(model="m", kv_bytes=size)]


def test_the_name_that_clients_use(tmp_path, monkeypatch):
    directory = tmp_path / "my-model"
    directory.mkdir()
    monkeypatch.chdir(directory)
    assert Settings(model=str(directory)).model_name == "my-model"
    assert Settings(model=".").model_name == "my-model"
    assert Settings(model="Qwen/Qwen3-0.6B").model_name == "Qwen/Qwen3-0.6B"
    assert Settings(model=".", served_model_name="other").model_name == "other"
