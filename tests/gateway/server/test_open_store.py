"""Which store the settings choose, through the whole gateway, with a real Redis."""

import asyncio
import logging
import sqlite3
import time

import pytest

from gateway.cache.ports import StoreUnavailableError
from gateway.cache.stores.conformance import example_entry
from gateway.server.open.secrets import SecretError, shared_secret
from gateway.server.open.store import open_store
from gateway.settings import Settings, SettingsError, load_settings
from running_redis import RunningRedis


@pytest.fixture(scope="module")
def server(redis_version, tmp_path_factory):
    redis = RunningRedis(tmp_path_factory.mktemp("redis"), requirepass="open sesame/1")
    redis.start()
    yield redis
    redis.kill()


@pytest.mark.parametrize(
    "store",
    [
        "disk",
        "memory",
        "redis://redis.example",
        "redis://:secret@redis.example:6379/3",
        "rediss://redis.example?ssl_ca_certs=/ca.pem&ssl_cert_reqs=required",
        "unix:///run/redis.sock?db=2",
        "redis+cluster://redis.example:7000",
        "rediss+cluster://me:secret@[::1]:7000",
    ],
)
def test_a_store_is_a_word_or_a_url(store):
    assert Settings(store=store).store == store


@pytest.mark.parametrize(
    "store",
    [
        *("dsik", "", "redis:", "redis://", "redis://:hush", "unix://", "http://redis.example"),
        *("redis://redis.example:hush", "redis://redis.example:99999", "redis://[hush"),
        "redis://redis.example?hush=1",
        *("redis://redis.example/hush", "redis://redis.example?db=hush"),
        *(
            "rediss://redis.example?ssl_cert_reqs=hush",
            "rediss://redis.example?ssl_check_hostname=hush",
        ),
        "redis://redis.example?max_connections=1&timeout=hush",
    ],
)
def test_a_wrong_store_is_told_without_a_part_of_it(store):
    with pytest.raises(SettingsError, match=r"^REFRAIN_STORE: expected ") as error:
        load_settings({}, {"REFRAIN_STORE": store or " "}, None)
    assert "hush" not in str(error.value)


def test_the_store_is_not_shown_with_the_settings():
    assert "secret" not in repr(Settings(store="redis://:secret@redis.example"))


def test_memory_is_for_one_worker():
    with pytest.raises(SettingsError, match="one worker"):
        load_settings({}, {"REFRAIN_STORE": "memory", "REFRAIN_WORKERS": "2"}, None)


def test_a_secret_for_all_gateways(tmp_path):
    assert shared_secret({}) is None
    assert shared_secret({"REFRAIN_SECRET": "ab" * 32}) == b"\xab" * 32
    file = tmp_path / "secret"
    file.write_text("cd" * 32 + "\n")
    assert shared_secret({"REFRAIN_SECRET_FILE": str(file)}) == b"\xcd" * 32


@pytest.mark.parametrize("given", ["hush", "ab" * 31, "hu" * 32])
def test_a_wrong_secret_is_told_without_a_part_of_it(given):
    with pytest.raises(SecretError, match="openssl rand -hex 32") as error:
        shared_secret({"REFRAIN_SECRET": given})
    assert given not in str(error.value)


async def test_two_gateways_with_one_secret_answer_from_one_redis(
    start_gateway, server, tmp_path, monkeypatch, caplog
):
    monkeypatch.setenv("REFRAIN_SECRET", "ab" * 32)
    monkeypatch.setenv("REFRAIN_STORE_PASSWORD", "open sesame/1")
    caplog.set_level(logging.DEBUG)
    first, second = [
        await start_gateway(store=f"{server.url}/1", data_dir=tmp_path / name) for name in "ab"
    ]
    tenant = {"Authorization": "Bearer k"}
    assert "stored" in (await first.ask(headers=tenant)).cache
    hit = await second.ask(headers=tenant)
    assert hit.cache.startswith("refrain; hit")
    assert (await second.ask()).cache.startswith("refrain; fwd=miss")
    ready = (await second.get("/readyz")).json
    assert ready["store"] == {"kind": "redis", "problem": None}
    assert not (tmp_path / "a" / "secret").exists()
    assert "sesame" not in caplog.text


async def test_with_a_wrong_password_every_request_is_a_miss_and_says_nothing_of_it(
    start_gateway, upstream, server, monkeypatch, caplog
):
    monkeypatch.setenv("REFRAIN_STORE_PASSWORD", "hush")
    gateway = await start_gateway(store=server.url)
    for _ in range(3):
        asked = await gateway.ask()
        assert (asked.status, asked.cache.split(";")[1].strip()) == (200, "fwd=miss")
        assert "stored" not in asked.cache
    store = (await gateway.get("/readyz")).json["store"]
    assert (store["kind"], store["problem"]) == ("redis", "not answering")
    assert store["since"] <= time.time()
    assert store["why"].startswith("Redis wants a password, or refused the one")
    assert "Redis wants a password, or refused the one" in caplog.text
    assert "hush" not in caplog.text


def answers_at_once(coroutine):
    try:
        coroutine.send(None)
    except StopIteration:
        return True
    coroutine.close()
    return False


async def test_a_disk_that_does_not_answer_is_not_taken_for_one_that_lacks_a_key(
    tmp_path, monkeypatch
):
    monkeypatch.setattr("gateway.server.open.store.DISK_READ_SECONDS", 30)
    monkeypatch.setattr("gateway.server.open.store.DISK_WRITE_SECONDS", 0.05)
    store = open_store(Settings(data_dir=tmp_path), {}).store
    try:
        while not answers_at_once(store.get(b"never stored", touch=False)):
            await store.get(b"nor this", touch=False)
        other = sqlite3.connect(tmp_path / "entries.sqlite3", isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreUnavailableError):
            await store.put(example_entry(b"key"))
        with pytest.raises(StoreUnavailableError):
            await store.get(b"never stored")
        other.close()
    finally:
        await store.close()


async def test_a_reply_that_says_stored_tells_of_a_committed_entry(
    start_gateway, upstream, tmp_path
):
    gateway = await start_gateway()
    for number in range(1, 11):
        asked = await gateway.ask(f"What is {number}?")
        assert "stored" in asked.cache
        other = sqlite3.connect(tmp_path / "data" / "entries.sqlite3")
        assert other.execute("SELECT count(*) FROM entry").fetchone() == (number,)
        other.close()


async def test_in_memory_nothing_is_written(start_gateway, upstream, tmp_path):
    gateway = await start_gateway(store="memory")
    await gateway.ask()
    assert (await gateway.ask()).cache.startswith("refrain; hit")
    assert not list((tmp_path / "data").glob("entries*"))
    assert (await gateway.get("/readyz")).json["store"] == {"kind": "memory", "problem": None}


async def test_a_gateway_starts_before_its_redis(
    redis_version, start_gateway, upstream, tmp_path, monkeypatch
):
    monkeypatch.setattr("gateway.cache.stores.guarded.FIRST_PAUSE", 0.01)
    redis = RunningRedis(tmp_path / "redis")
    redis.start()
    redis.kill()
    gateway = await start_gateway(store=redis.url)
    assert (await gateway.ask()).status == 200
    redis.start()
    try:
        async with asyncio.timeout(60):
            while (await gateway.get("/readyz")).json["store"]["problem"] is not None:
                pass
        assert "stored" in (await gateway.ask()).cache
        assert (await gateway.ask()).cache.startswith("refrain; hit")
    finally:
        await gateway.stop()
        redis.kill()
