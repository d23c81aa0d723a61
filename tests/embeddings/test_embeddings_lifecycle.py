"""Start, stop, crash and restart of the real process."""

import asyncio
import os
import signal
import subprocess
import sys
import time

import pytest

from embeddings.client import EmbeddingsClient, SemanticUnavailableError
from embeddings.index.store import FILE_NAME

QUESTION = "How do I export my invoices?"


async def listening(service, client):
    """Wait until the service answers at all; return its first status."""
    async with asyncio.timeout(60):
        while True:
            try:
                return await client.status()
            except SemanticUnavailableError:
                assert service.process.poll() is None, service.process.stderr.read()
                await asyncio.sleep(0.01)


async def test_acknowledged_vectors_survive_kill_9_and_the_client_reconnects(new_service):
    service = new_service()
    service.start()
    client = EmbeddingsClient(service.socket, timeout=30)
    await service.ready(client)
    await client.add(b"p", b"kept", QUESTION, time.time() + 3600)
    await client.add(b"p", b"dropped", "Something else", time.time() + 3600)
    await client.remove([b"dropped"])
    service.stop(signal.SIGKILL)
    with pytest.raises(SemanticUnavailableError) as down:
        await client.search(b"p", QUESTION, 1)

    service.start()
    status = await service.ready(client)
    matches = await client.search(b"p", QUESTION, 5)
    await client.close()
    code, stderr = service.stop(signal.SIGTERM)

    assert down.value.reason == "unavailable"
    assert status.vectors == 1
    assert [match.key for match in matches] == [b"kept"]
    assert code == 0
    assert "Traceback" not in stderr
    assert not service.socket.exists()
    assert QUESTION.encode() not in (service.data_dir / FILE_NAME).read_bytes()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_while_loading_ends_it_cleanly_and_soon(new_service, number):
    service = new_service()
    service.start()
    client = EmbeddingsClient(service.socket, timeout=30)
    assert not (await listening(service, client)).ready
    await client.close()
    code, stderr = service.stop(number)
    assert code == 0
    assert "Traceback" not in stderr


async def test_it_gives_way_to_the_gateway(new_service):
    service = new_service()
    process = service.start()
    client = EmbeddingsClient(service.socket, timeout=30)
    await listening(service, client)
    await client.close()
    own = os.getpriority(os.PRIO_PROCESS, 0)
    assert os.getpriority(os.PRIO_PROCESS, process.pid) == min(own + 5, 19)


async def test_it_ends_when_its_parent_is_gone(new_service):
    service = new_service()
    environment = {**os.environ, "REFRAIN_PARENT_PIPE": "1"}
    process = service.start(stdin=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment)
    client = EmbeddingsClient(service.socket, timeout=30)
    await listening(service, client)
    await client.close()
    process.stdin.close()
    code = await asyncio.to_thread(process.wait, 30)
    service.process = None
    assert code == 0


async def test_a_second_service_on_the_same_socket_is_refused(running_service, client, tmp_path):
    socket = str(running_service.socket)
    second = await asyncio.to_thread(run, "--socket", socket, "--data-dir", str(tmp_path))
    assert second.returncode == 1
    assert second.stderr == f"embeddings: another process listens on {socket}\n"
    assert (await client.status()).ready


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("/no/such/model", "model directory /no/such/model does not exist"),
        ("nobody/no-such-model", "model 'nobody/no-such-model' is neither a directory"),
    ],
)
def test_a_missing_model_is_one_line_and_exit_1(short_path, model, message):
    ended = run("--socket", f"{short_path}/s", "--data-dir", str(short_path), "--model", model)
    assert ended.returncode == 1
    assert ended.stderr.count("\n") == 1
    assert message in ended.stderr
    assert not (short_path / "s").exists()


def test_a_socket_path_that_cannot_be_bound_is_one_line_and_exit_1(tmp_path):
    ended = run("--socket", str(tmp_path / ("x" * 120)), "--data-dir", str(tmp_path))
    assert ended.returncode == 1
    assert ended.stderr.startswith("embeddings: cannot listen on ")
    assert ended.stderr.count("\n") == 1


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["--socket", "s"],
        ["--socket", "s", "--data-dir", "d", "--max-vectors", "0"],
        ["--socket", "s", "--data-dir", "d", "--encoders", "many"],
        ["--socket", "s", "--data-dir", "d", "--device", "tpu"],
        ["--socket", "s", "--data-dir", "d", "--unknown"],
    ],
)
def test_bad_usage_is_exit_2(arguments):
    ended = run(*arguments)
    assert ended.returncode == 2
    assert "usage: python -m embeddings" in ended.stderr


def run(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "embeddings", *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
