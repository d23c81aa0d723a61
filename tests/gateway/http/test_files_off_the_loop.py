"""No request waits for a file: the loop reads what a thread has found in the data directory."""

import asyncio
import builtins
import io
import os
import threading

import orjson
import pytest

from gateway.cache.folder_watch import KNOWN_SECONDS, FolderWatch

pytest_plugins = ["running_verifier"]

STORED, ASKED = "How do I reset my password?", "I want to reset my password, how?"
POLICY = """
version: 1
default: {exact: on, semantic: {max_wrong_hits: 20%}, freshness: 1h, scope: tenant, pii: bypass}
"""


@pytest.fixture
async def gateway(start_gateway, verifying_service, lenient_data, tmp_path):
    policy = tmp_path / "policy.yaml"
    policy.write_text(POLICY)
    gateway = await start_gateway(
        semantic_socket=verifying_service[0],
        semantic_timeout=30.0,
        verifier_timeout=30.0,
        data_dir=lenient_data,
        policy=policy,
    )
    while (await gateway.get("/readyz")).status != 200:
        pass
    return gateway


@pytest.fixture
def files(monkeypatch):
    """Each use of a file on this thread, which is the loop's."""
    used, here = [], threading.get_ident()

    def noted(module, name):
        real = getattr(module, name)

        def call(*arguments, **options):
            if threading.get_ident() == here:
                used.append((name, arguments[0] if arguments else None))
            return real(*arguments, **options)

        monkeypatch.setattr(module, name, call)

    for name in ("stat", "open", "listdir", "scandir", "replace", "unlink", "fsync"):
        noted(os, name)
    for module in (builtins, io):
        noted(module, "open")
    return used


async def test_no_request_uses_a_file_on_the_loop(gateway, files):
    assert "fwd=miss" in (await gateway.ask(STORED)).cache
    assert "hit" in (await gateway.ask(STORED)).cache
    assert "semantic" in (await gateway.ask(ASKED)).cache
    assert "fwd=miss" in (await gateway.ask("Who wrote Faust?")).cache
    assert "fwd=miss" in (await gateway.ask("What is a rake?", stream=True)).cache
    for path in ("/readyz", "/metrics", "/v1/models", "/admin/semantic"):
        await gateway.get(path)
    assert files == []


async def test_an_edit_of_the_data_directory_counts_within_a_second(gateway, lenient_data):
    await gateway.ask(STORED)
    reply = await gateway.ask(ASKED)
    assert "semantic" in reply.cache
    line = {"key": reply.headers["Refrain-Entry"], "time": 2e9}
    (lenient_data / "quarantine.jsonl").write_bytes(orjson.dumps(line) + b"\n")
    async with asyncio.timeout(30):
        while "semantic" in (await gateway.ask(ASKED)).cache:
            pass


async def test_a_wrong_hit_that_is_reported_here_is_none_from_then_on(gateway):
    await gateway.ask(STORED)
    entry = (await gateway.ask(ASKED)).headers["Refrain-Entry"]
    report = orjson.dumps({"entry": entry})
    assert (await gateway.post("/admin/wrong", report)).status == 200
    assert "semantic" not in (await gateway.ask(ASKED)).cache


class HangingFile:
    """Looks like a file on a disk that has stopped to answer, from the second look on."""

    def __init__(self):
        self.is_known = None
        self.looks = 0
        self.hangs = threading.Event()
        self.over = threading.Event()

    def look(self, _deliver):
        self.looks += 1
        if self.looks > 1:
            self.hangs.set()
            self.over.wait(30)
        return True


async def test_a_folder_that_hangs_is_not_known_after_a_while_and_holds_nobody_up():
    now, file = [0.0], HangingFile()
    async with FolderWatch([file], lambda: now[0]).lifespan():
        assert file.is_known()
        await asyncio.to_thread(file.hangs.wait, 30)
        now[0] = KNOWN_SECONDS - 0.01
        assert file.is_known()
        now[0] = KNOWN_SECONDS
        assert not file.is_known()
        file.over.set()
