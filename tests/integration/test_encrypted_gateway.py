"""The gateway with encryption on, as configured by its environment, over disk and Redis."""

import sqlite3
from contextlib import closing

import orjson
import pytest
from redis.asyncio import Redis

from gateway.server.open.secrets import SecretError
from running_redis import RunningRedis

OLD = "2026a:" + "A" * 43 + "="
NEW = "2026b:" + "B" * 42 + "A="
QUESTION = "canary-question"


def on_disk(folder):
    return b"".join(path.read_bytes() for path in folder.iterdir() if path.is_file())


async def test_entries_are_encrypted_on_disk_and_keys_rotate(
    start_gateway, monkeypatch, tmp_path, upstream
):
    monkeypatch.setenv("REFRAIN_ENCRYPTION_KEYS", OLD)
    gateway = await start_gateway()
    assert "stored" in (await gateway.ask(QUESTION)).cache
    assert b"canary" not in on_disk(gateway.data_dir)
    await gateway.stop()
    file = tmp_path / "keys"
    file.write_text(f"{NEW}\n{OLD}\n")
    monkeypatch.delenv("REFRAIN_ENCRYPTION_KEYS")
    monkeypatch.setenv("REFRAIN_ENCRYPTION_KEYS_FILE", str(file))
    gateway = await start_gateway()
    assert "hit" in (await gateway.ask(QUESTION)).cache
    await gateway.stop()
    file.write_text(NEW)
    gateway = await start_gateway()
    assert "stored" in (await gateway.ask(QUESTION)).cache
    assert b"canary" not in on_disk(gateway.data_dir)


@pytest.mark.parametrize("masters", [OLD, None])
async def test_a_purge_passes_over_no_entry_that_it_cannot_read(
    start_gateway, monkeypatch, masters
):
    async def start(keys):
        monkeypatch.setenv("REFRAIN_ENCRYPTION_KEYS", keys or "")
        return await start_gateway()

    async def purge(**fields):
        reply = await gateway.post("/admin/purge", orjson.dumps({**fields, "dry_run": False}))
        return reply.status, reply.json

    gateway = await start(NEW)
    for number in range(2):
        await gateway.ask(f"{QUESTION} {number}")
    await gateway.stop()
    gateway = await start(masters)
    await gateway.ask(f"{QUESTION} 2")
    [one] = (await gateway.get("/admin/entries")).json["entries"]
    audit = (await gateway.post("/admin/audit", b"{}")).json
    assert (audit["failed"], audit["purged"]) == (2, 0)
    status, reply = await purge(rule=one["rule"])
    assert status == 500
    assert reply["error"]["message"].startswith(
        "1 entries were selected. 2 more cannot be read without their master key"
    )
    assert (await gateway.get("/admin/entries")).json["entries"] == []
    status, reply = await purge(all=True)
    assert (status, reply["entries"]) == (200, 2)
    await gateway.stop()
    gateway = await start(NEW)
    assert "stored" in (await gateway.ask(f"{QUESTION} 1")).cache


async def test_keys_tell_no_prompt_even_where_nothing_is_encrypted(start_gateway, tmp_path):
    """Who knows a prompt and all of the code cannot tell from a key that it was asked here."""
    found = []
    for name in ("one", "two"):
        gateway = await start_gateway(data_dir=tmp_path / name)
        await gateway.ask(QUESTION)
        await gateway.stop()
        with closing(sqlite3.connect(tmp_path / name / "entries.sqlite3")) as connection:
            found += connection.execute("SELECT key FROM entry").fetchall()
    [(one,), (two,)] = found
    assert len(one) == len(two) == 32
    assert one != two


async def test_encryption_switched_off_is_told_and_what_is_encrypted_is_a_miss(
    start_gateway, monkeypatch, caplog
):
    monkeypatch.setenv("REFRAIN_ENCRYPTION_KEYS", OLD)
    gateway = await start_gateway()
    await gateway.ask(QUESTION)
    await gateway.stop()
    monkeypatch.delenv("REFRAIN_ENCRYPTION_KEYS")
    gateway = await start_gateway()
    assert [each.levelname for each in caplog.records if "scope-keys" in each.getMessage()] == [
        "WARNING"
    ]
    assert "stored" in (await gateway.ask(QUESTION)).cache
    assert "hit" in (await gateway.ask(QUESTION)).cache


async def test_a_master_key_that_is_none_stops_the_start_without_being_shown(
    start_gateway, monkeypatch
):
    monkeypatch.setenv("REFRAIN_ENCRYPTION_KEYS", "2026a:c2VjcmV0LWNhbmFyeQ==")
    with pytest.raises(SecretError, match=r"REFRAIN_ENCRYPTION_KEYS: item 1 \(2026a\)") as raised:
        await start_gateway()
    assert "c2Vj" not in str(raised.value)


async def test_entries_are_encrypted_in_redis_and_a_scope_can_be_forgotten(
    redis_version, start_gateway, monkeypatch, tmp_path
):
    server = RunningRedis(tmp_path / "redis", rdbcompression="no")
    server.start()
    try:
        monkeypatch.setenv("REFRAIN_ENCRYPTION_KEYS", OLD)
        one = await start_gateway(store=server.url)
        two = await start_gateway(store=server.url)
        assert "stored" in (await one.ask(QUESTION)).cache
        assert "hit" in (await two.ask(QUESTION)).cache
        async with Redis.from_url(server.url) as redis:
            everything = [(name, await redis.dump(name) or b"") async for name in redis.scan_iter()]
            assert not any(b"canary" in name + value for name, value in everything)
            assert any(name.startswith(b"refrain:1:scope:") for name, _ in everything)
        listed = (await one.get("/admin/entries")).json["entries"]
        order = orjson.dumps({"scope": listed[0]["scope"], "dry_run": False})
        asked = await one.post("/admin/forget", order)
        assert asked.status == 200, asked.raw
        async with Redis.from_url(server.url) as redis:
            assert await redis.keys("refrain:1:scope:*") == []
        # The other one's memory hears of it; its next answer is a new one.
        while "hit" in (await two.ask(QUESTION)).cache:
            pass
    finally:
        server.kill()
