"""Encrypted entries: what the files tell, rotation, forgetting, tampering, missing keys."""

import asyncio
import base64
import sqlite3
from contextlib import asynccontextmanager, closing
from dataclasses import replace

import pytest

from gateway.cache.pii_scan import Scans
from gateway.cache.ports import StoreError
from gateway.cache.quality.quarantine import QuarantineFile
from gateway.cache.stores.conformance import check_store, example_entry
from gateway.cache.stores.encrypted import (
    KNOWN_SECONDS,
    MasterKeyError,
    SealedStore,
    SealError,
    parse_master_keys,
    scope_tag,
)
from gateway.cache.stores.entry_codec import encoded_size
from gateway.cache.stores.memory import MemoryStore
from gateway.cache.stores.sqlite.scope_keys import SqliteScopeKeys
from gateway.cache.stores.sqlite.store import SqliteStore
from gateway.cache.stores.tiered import TieredStore
from gateway.cache.writer import CacheWriter
from gateway.server.admin.operations import forget_scope

NOW = 1_800_000_000.0
OLD = "2026a:" + base64.b64encode(b"a" * 32).decode()
NEW = "2026b:" + base64.b64encode(b"b" * 32).decode()
CANARIES = ("canary-answer", "canary-question", "canary-model", "canary-rule", "canary-tag")


def secret_entry(key=b"k" * 32, scope=b"s" * 32, **changes):
    return replace(
        example_entry(key, b'{"a":"canary-answer"}'),
        scope=scope,
        question="canary-question",
        model="canary-model",
        rule="canary-rule",
        tags=("canary-tag",),
        **changes,
    )


class Clock:
    now = NOW

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def opened(tmp_path, clock):
    @asynccontextmanager
    async def open_with(masters):
        disk = SqliteStore(
            tmp_path / "entries.sqlite3",
            max_bytes=16 << 20,
            clock=clock,
            read_seconds=30,
            write_seconds=30,
        )
        store = disk
        if masters is not None:
            keys = SqliteScopeKeys(tmp_path / "scope-keys.sqlite3", clock=clock)
            store = SealedStore(disk, parse_master_keys(masters), keys, clock=clock)
        try:
            yield store
        finally:
            await store.close()

    return open_with


def bytes_on_disk(folder):
    return b"".join(path.read_bytes() for path in sorted(folder.iterdir()) if path.is_file())


async def test_it_is_a_store(tmp_path):
    made = iter(range(100))

    async def make(max_bytes):
        n = next(made)
        disk = SqliteStore(
            tmp_path / f"{n}.sqlite3", max_bytes=max_bytes, read_seconds=30, write_seconds=30
        )
        keys = SqliteScopeKeys(tmp_path / f"{n}.keys", clock=lambda: NOW)
        return SealedStore(disk, parse_master_keys(NEW), keys, clock=lambda: NOW)

    def charge(entry):
        blank = replace(
            example_entry(entry.key), endpoint="sealed", model="", upstream="", scope=b""
        )
        envelope = replace(blank, fingerprint=b"", rule="", question=None, result=b"")
        return encoded_size(envelope) + encoded_size(entry) + 1 + 8 + 16 + 16 + 12 + 16

    await check_store(make, charge=charge)


async def test_the_files_hold_no_word_of_what_is_stored(opened, tmp_path):
    async with opened(NEW) as store:
        for n in range(50):
            await store.put(secret_entry(b"%032d" % n))
        await store.get(b"%032d" % 1)
        # While it is open the entries are in the write-ahead log, too.
        assert (tmp_path / "entries.sqlite3-wal").stat().st_size > 0
        on_disk = bytes_on_disk(tmp_path)
    for canary in CANARIES:
        assert canary.encode() not in on_disk + bytes_on_disk(tmp_path)
    assert b"b" * 32 not in bytes_on_disk(tmp_path)
    assert (tmp_path / "scope-keys.sqlite3").stat().st_mode & 0o077 == 0


async def test_the_same_look_finds_them_where_nothing_is_encrypted(opened, tmp_path):
    async with opened(None) as store:
        await store.put(secret_entry())
    on_disk = bytes_on_disk(tmp_path)
    assert all(canary.encode() in on_disk for canary in CANARIES)


async def test_rotation_needs_no_flush(opened):
    async with opened(OLD) as store:
        await store.put(secret_entry())
    async with opened(f"{NEW},{OLD}") as store:
        assert await store.get(b"k" * 32) == secret_entry()
        await store.put(secret_entry(b"new"))
    async with opened(NEW) as store:
        assert await store.get(b"new") == secret_entry(b"new")
        assert await store.get(b"k" * 32) is None
    async with opened(OLD) as store:
        assert await store.get(b"k" * 32) == secret_entry()


async def test_a_missing_master_key_is_a_miss_with_one_warning_and_loses_nothing(opened, caplog):
    async with opened(OLD) as store:
        for n in range(5):
            await store.put(secret_entry(b"%d" % n))
    async with opened(NEW) as store:
        for n in range(5):
            assert await store.get(b"%d" % n) is None
        [line] = [each.getMessage() for each in caplog.records]
        assert "not given" in line
        assert "REFRAIN_ENCRYPTION_KEYS" in line
        await store.put(secret_entry(b"other"))
        assert await store.get(b"other") == secret_entry(b"other")
    async with opened(f"{OLD} {NEW}") as store:
        assert await store.get(b"3") == secret_entry(b"3")


async def test_plain_entries_are_not_served_once_encryption_is_on(opened, tmp_path, caplog):
    async with opened(None) as store:
        for n in range(3):
            await store.put(secret_entry(b"%d" % n))
    async with opened(NEW) as store:
        assert await store.get(b"0") is None
        assert (await store.walk(None, 10)).entries == []
        assert len(caplog.records) == 1
        await store.put(secret_entry(b"0"))
        assert store.stats().entries == 1


async def test_sealed_entries_are_no_answers_once_encryption_is_off(opened):
    async with opened(NEW) as store:
        await store.put(secret_entry())
    async with opened(None) as store:
        found = await store.get(b"k" * 32)
    # The scope, which every lookup checks, is not there to be matched.
    assert (found.endpoint, found.scope, found.model) == ("sealed", b"", "")


def tamper(folder, change):
    from gateway.cache.stores.entry_codec import decode_entry, encode_entry

    with closing(sqlite3.connect(folder / "entries.sqlite3")) as connection:
        for identity, value in connection.execute("SELECT id, value FROM answer").fetchall():
            envelope = decode_entry(value)
            # Whoever can write here can make the store's own digest right.
            changed = encode_entry(replace(envelope, result=change(envelope.result)))
            connection.execute("UPDATE answer SET value = ? WHERE id = ?", (changed, identity))
        connection.commit()


async def test_a_changed_bit_is_a_miss(opened, tmp_path):
    async with opened(NEW) as store:
        await store.put(secret_entry())

    tamper(tmp_path, lambda sealed: sealed[:-1] + bytes([sealed[-1] ^ 1]))
    async with opened(NEW) as store:
        assert await store.get(b"k" * 32) is None


@pytest.mark.parametrize("length", [0, 1, 100])
async def test_sealed_bytes_cut_short_are_a_miss(opened, tmp_path, length):
    async with opened(NEW) as store:
        await store.put(secret_entry())
    tamper(tmp_path, lambda sealed: sealed[:length])
    async with opened(NEW) as store:
        assert await store.get(b"k" * 32) is None
        assert store.stats().entries == 0


async def test_no_nonce_and_no_sealed_byte_repeats(clock):
    inner = MemoryStore(max_bytes=1 << 20)
    store = sealed_memory(inner, clock)
    seen = set()
    for _ in range(500):
        await store.put(secret_entry())
        seen.add((await inner.get(b"k" * 32)).result)
    assert len({sealed[25:53] for sealed in seen}) == 500
    assert len({sealed[53:] for sealed in seen}) == 500


class RamKeys:
    """Scope keys at the port, shared by the stores of a test."""

    def __init__(self):
        self.there = {}
        self.asked = 0
        self.written = 0
        self.fault = None

    async def find(self, tag, master):
        self.asked += 1
        if self.fault:
            raise self.fault
        return self.there.get((tag, master))

    async def ensure(self, tag, master, proposed, until):
        self.written += 1
        if self.fault:
            raise self.fault
        return self.there.setdefault((tag, master), proposed)

    async def forget(self, tag):
        for name in [name for name in self.there if name[0] == tag]:
            del self.there[name]

    async def close(self):
        pass


def sealed_memory(inner, clock, keys=None, masters=NEW):
    return SealedStore(inner, parse_master_keys(masters), keys or RamKeys(), clock=clock)


async def test_forgetting_a_scope_forgets_it_in_hot_tier_files_and_other_processes(
    opened, clock, tmp_path
):
    class Removed:
        keys: tuple[bytes, ...] = ()

        async def remove(self, keys):
            self.keys += tuple(keys)

    async with opened(NEW) as sealed, opened(NEW) as elsewhere, opened(None) as disk:
        store = TieredStore(MemoryStore(max_bytes=1 << 20), sealed, disk.touch)
        for n in range(300):
            await store.put(secret_entry(b"%d" % n, scope=b"gone" * 8))
        await store.put(secret_entry(b"stays", scope=b"stay" * 8))
        assert await elsewhere.get(b"7") is not None
        copy = list((await disk.walk(None, 1000)).entries)
        index = Removed()
        writer = CacheWriter(store, index, Scans(), clock, QuarantineFile(tmp_path / "q"))
        count = await forget_scope(b"gone" * 8, writer=writer, forget_keys=sealed.forget)
        assert count == 300
        assert sorted(index.keys) == sorted(b"%d" % n for n in range(300))
        assert [await store.get(b"%d" % n) for n in range(300)] == [None] * 300
        assert await store.get(b"stays") is not None
        # Somebody kept a copy of the file: its entries open for nobody any more.
        for envelope in copy:
            await disk.put(envelope)
        assert await store.get(b"7") is None
        clock.now += KNOWN_SECONDS
        assert await elsewhere.get(b"8") is None
        # The scope may go on; what it stores now is found.
        await store.put(secret_entry(b"anew", scope=b"gone" * 8))
        assert await elsewhere.get(b"anew") is not None


async def test_a_scope_that_was_forgotten_elsewhere_goes_on_with_its_next_key(clock):
    inner, keys = MemoryStore(max_bytes=1 << 20), RamKeys()
    here, there = sealed_memory(inner, clock, keys), sealed_memory(inner, clock, keys)
    await here.put(secret_entry(b"old"))
    assert await there.get(b"old") is not None
    await here.forget(secret_entry().scope)
    await here.put(secret_entry(b"new"))
    # There the old key is still known, and must not make the new entry a damaged one.
    assert await there.get(b"new") == secret_entry(b"new")


async def test_a_key_asked_for_while_its_scope_is_forgotten_is_not_kept(clock):
    class Slow(RamKeys):
        began = asyncio.Event()
        go_on = asyncio.Event()

        async def find(self, tag, master):
            found = await super().find(tag, master)
            self.began.set()
            await self.go_on.wait()
            return found

    inner, keys = MemoryStore(max_bytes=1 << 20), RamKeys()
    await sealed_memory(inner, clock, keys).put(secret_entry())
    slow = Slow()
    slow.there = keys.there
    store = sealed_memory(inner, clock, slow)
    reading = asyncio.create_task(store.get(b"k" * 32))
    await slow.began.wait()
    await store.forget(secret_entry().scope)
    slow.go_on.set()
    await reading
    assert await store.get(b"k" * 32) is None


async def test_data_keys_are_asked_for_once_in_a_while_and_written_once_a_day(clock):
    keys = RamKeys()
    store = sealed_memory(MemoryStore(max_bytes=1 << 20), clock, keys)
    for n in range(20):
        await store.put(secret_entry(b"%d" % n, expires_at=NOW + 3600 + n))
        await asyncio.gather(*(store.get(b"%d" % n) for _ in range(10)))
    assert (keys.asked, keys.written) == (1, 1)
    clock.now += KNOWN_SECONDS
    await asyncio.gather(*(store.get(b"%d" % n) for n in range(20)))
    assert (keys.asked, keys.written) == (2, 1)
    await store.put(secret_entry(b"later", expires_at=NOW + 2 * 86_400))
    assert keys.written == 2


async def test_scope_keys_that_fail_are_the_store_failing(clock):
    keys = RamKeys()
    inner = MemoryStore(max_bytes=1 << 20)
    await sealed_memory(inner, clock, keys).put(secret_entry())
    keys.fault = StoreError("down")
    store = sealed_memory(inner, clock, keys)
    with pytest.raises(StoreError, match="down"):
        await store.get(b"k" * 32)
    with pytest.raises(StoreError, match="down"):
        await store.put(secret_entry())
    keys.fault = None
    assert await store.get(b"k" * 32) == secret_entry()


async def test_a_wrapped_key_that_was_changed_costs_the_scope_its_entries_and_no_more(clock):
    keys, inner = RamKeys(), MemoryStore(max_bytes=1 << 20)
    await sealed_memory(inner, clock, keys).put(secret_entry())
    [(name, wrapped)] = keys.there.items()
    keys.there[name] = wrapped[:-1] + bytes([wrapped[-1] ^ 1])
    store = sealed_memory(inner, clock, keys)
    assert await store.get(b"k" * 32) is None
    with pytest.raises(StoreError):
        await store.put(secret_entry())
    await store.put(secret_entry())
    assert await store.get(b"k" * 32) == secret_entry()


async def test_scopes_do_not_share_data_keys(clock):
    keys = RamKeys()
    store = sealed_memory(MemoryStore(max_bytes=1 << 20), clock, keys)
    await store.put(secret_entry(b"1", scope=b"one"))
    await store.put(secret_entry(b"2", scope=b"two"))
    assert len(set(keys.there.values())) == 2
    master = parse_master_keys(NEW)[0]
    one, two = scope_tag(b"one"), scope_tag(b"two")
    mine = keys.there[one, master.id]
    assert len(master.unwrap(one, mine)) == 32
    with pytest.raises(SealError):
        master.unwrap(two, mine)


async def test_two_workers_agree_on_a_scopes_key(tmp_path, clock):
    one = SqliteScopeKeys(tmp_path / "keys", clock=clock)
    two = SqliteScopeKeys(tmp_path / "keys", clock=clock)
    told = await asyncio.gather(
        *(keys.ensure(b"t", b"m", b"%d" % n, NOW + n) for n, keys in enumerate([one, two] * 8))
    )
    assert len(set(told)) == 1
    assert await two.find(b"t", b"m") == told[0]
    await one.forget(b"t")
    assert await two.find(b"t", b"m") is None
    await one.close()
    await two.close()
    with pytest.raises(StoreError):
        await one.find(b"t", b"m")


async def test_a_data_key_leaves_when_its_entries_have(tmp_path, clock):
    keys = SqliteScopeKeys(tmp_path / "keys", clock=clock)
    await keys.ensure(b"short", b"m", b"1", NOW + 10)
    await keys.ensure(b"long", b"m", b"2", NOW + 10)
    assert await keys.ensure(b"long", b"m", b"3", NOW + 1000) == b"2"
    clock.now = NOW + 100
    await keys.ensure(b"other", b"m", b"4", NOW + 1000)
    assert await keys.find(b"short", b"m") is None
    assert await keys.find(b"long", b"m") == b"2"
    await keys.close()


async def test_a_forgotten_key_is_overwritten_in_the_file(tmp_path, clock):
    keys = SqliteScopeKeys(tmp_path / "keys", clock=clock)
    await keys.ensure(b"t", b"m", b"wrapped-canary", NOW)
    assert b"wrapped-canary" in bytes_on_disk(tmp_path)
    await keys.forget(b"t")
    assert b"wrapped-canary" not in bytes_on_disk(tmp_path)
    await keys.close()


async def test_a_corrupt_file_of_keys_is_set_aside(tmp_path, clock, caplog):
    path = tmp_path / "keys"
    path.write_bytes(b"garbage, " * 1000)
    keys = SqliteScopeKeys(path, clock=clock)
    assert await keys.ensure(b"t", b"m", b"1", NOW) == b"1"
    assert await keys.find(b"t", b"m") == b"1"
    assert (tmp_path / "keys.corrupt").exists()
    assert len(caplog.records) == 1
    await keys.close()


SECRET = base64.b64encode(b"c" * 32).decode()


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (SECRET, "item 1: expected NAME:BASE64"),
        (f"{SECRET}:2026", "item 1: expected NAME:BASE64"),
        (f"{NEW},2026c:", "item 2: expected NAME:BASE64"),
        ("2026c:c2hvcnQ=", r"item 1 \(2026c\): expected 32 bytes"),
        (f"2026c:{SECRET[:-4]}!!!!", r"item 1 \(2026c\): expected 32 bytes"),
        (f"{NEW},{NEW}", r"item 2 \(2026b\): the name or the key is there already"),
        (f"{NEW},again:{NEW.partition(':')[2]}", r"item 2 \(again\)"),
        (",", "item 1"),
    ],
)
def test_master_keys_that_are_wrong_are_told_without_a_byte_of_them(text, told):
    with pytest.raises(MasterKeyError, match=told) as raised:
        parse_master_keys(text)
    assert SECRET[:8] not in str(raised.value)
    assert "c2hvcnQ" not in str(raised.value)


def test_a_master_key_does_not_show_in_its_own_description():
    keys = parse_master_keys(f"{NEW}\n{OLD}\n")
    assert [key.name for key in keys] == ["2026b", "2026a"]
    assert "bbbb" not in repr(keys)
    assert parse_master_keys("n:" + base64.urlsafe_b64encode(b"\xff" * 32).decode())
