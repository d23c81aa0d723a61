"""``/sleep``, ``/wake_up`` and ``/is_sleeping`` of a server with an engine's process."""

import os
from pathlib import Path

import pytest

from backend.app import create_app
from backend.settings import Settings, secret

pytest_plugins = ["running_backend"]

KEY = {"Authorization": "Bearer s3cret"}
WORKER = "backend.engine.worker"
AWAKE = 200, {"is_sleeping": False, "level": 0}
WORDS = {"prompt": "a", "max_tokens": 8, "temperature": 0, "model": "tiny"}


@pytest.fixture
async def serve(chat_model, serve_application):
    async def start(**settings):
        server = await serve_application(
            create_app(
                Settings(
                    str(chat_model),
                    device="cpu",
                    threads=1,
                    kv_bytes=64 * 2**20,
                    served_model_name="tiny",
                    **settings,
                )
            )
        )
        await server.model.load()
        return server

    return start


async def call(server, method, path, headers=KEY):
    async with server.session.request(method, server.url + path, headers=headers) as reply:
        return reply.status, await reply.json()


def engines():
    tasks = Path(f"/proc/{os.getpid()}/task").iterdir()
    pids = [pid for task in tasks for pid in (task / "children").read_text().split()]
    return [pid for pid in pids if WORKER in Path(f"/proc/{pid}/cmdline").read_text()]


async def test_an_engine_sleeps_on_both_levels_and_says_the_same_afterwards(serve):
    server = await serve(admin_key="s3cret")
    before = (await server.complete("a", **WORDS)).json["choices"]
    assert await call(server, "GET", "/is_sleeping") == AWAKE
    for level, processes in ((1, 1), (2, 0)):
        asleep = {"is_sleeping": True, "level": level}
        assert await call(server, "POST", f"/sleep?level={level}") == (200, asleep)
        assert await call(server, "GET", "/is_sleeping") == (200, asleep)
        assert len(engines()) == processes
        ready = (await server.get("/readyz")).json
        assert ready["detail"] == [f"the engine sleeps (level {level}); a request wakes it"]
        assert (await server.complete("a", **WORDS)).json["choices"] == before
        assert await call(server, "GET", "/is_sleeping") == (
            200,
            {"is_sleeping": False, "level": 0},
        )
    assert await server.metric("refrain_engine_restarts_total") == 0
    # The warm-up's token, and three answers.
    assert await server.metric("refrain_engine_generation_tokens_total") == 1 + 3 * 8
    await server.model.close()


async def test_a_server_that_refuses_says_so_until_it_is_woken(serve):
    server = await serve(admin_key="s3cret", when_asleep="refuse")
    await call(server, "POST", "/sleep")
    reply = await server.complete("a", **WORDS)
    assert reply.status == 503
    assert "the engine sleeps (level 1)" in reply.error["message"]
    assert (await server.get("/readyz")).status == 503
    assert await call(server, "POST", "/wake_up") == AWAKE
    assert (await server.complete("a", **WORDS)).status == 200
    await server.model.close()


@pytest.mark.parametrize(
    ("method", "path", "status", "text"),
    [
        ("POST", "/sleep?level=3", 400, "level must be 1 or 2"),
        ("POST", "/sleep?timeout=soon", 400, "timeout must be seconds"),
        ("POST", "/sleep?timeout=nan", 400, "timeout must be seconds"),
    ],
)
async def test_bad_arguments_are_named(start_server, method, path, status, text):
    server = await start_server(limits={"admin_key": "s3cret"}, sleeper=object())
    code, body = await call(server, method, path)
    assert (code, text in body["error"]["message"]) == (status, True)


@pytest.mark.parametrize("headers", [{}, {"Authorization": "Bearer other"}, {"Authorization": "é"}])
async def test_only_the_admin_key_opens_it(start_server, headers):
    server = await start_server(limits={"admin_key": "s3cret"}, sleeper=object())
    for method, path in (("POST", "/sleep"), ("POST", "/wake_up"), ("GET", "/is_sleeping")):
        status, body = await call(server, method, path, headers)
        assert (status, body["error"]["code"]) == (401, "invalid_api_key")


async def test_without_an_admin_key_there_is_no_such_endpoint(server):
    assert (await call(server, "POST", "/sleep"))[0] == 404


def test_a_key_comes_from_a_file_of_one_line(tmp_path):
    file = tmp_path / "key"
    with pytest.raises(ValueError, match="cannot read"):
        secret(str(file))
    file.write_text(" \n")
    with pytest.raises(ValueError, match="holds no key"):
        secret(str(file))
    file.write_text("s3cret\n")
    assert secret(str(file)) == "s3cret"
    assert "s3cret" not in repr(Settings("m", admin_key=secret(str(file))))
