import logging
import sqlite3
import stat

import numpy as np
import pytest

from embeddings.index.store import (
    FILE_NAME,
    CorruptStoreError,
    Delete,
    Expire,
    Put,
    StoreError,
    VectorStore,
)

OURS, OTHERS = "aa" * 32, "bb" * 32
NOW = 1000.0


def put(key: bytes, *, expires_at: float = NOW + 10, fill: float = 0.5) -> Put:
    return Put(key, b"partition", expires_at, np.full(4, fill, dtype=np.float32))


def opened(directory, *, digest: str = OURS, dimensions: int = 4) -> VectorStore:
    return VectorStore(directory, encoder_digest=digest, dimensions=dimensions, now=NOW)


def filled(directory, *writes, **options) -> None:
    store = opened(directory, **options)
    store.apply(writes)
    store.close()


def loaded(directory, *, now: float = NOW, **options) -> dict[bytes, Put]:
    store = opened(directory, **options)
    rows = {row.key: row for row in store.load(now)}
    store.close()
    return rows


def test_vectors_come_back_as_they_were_oldest_first(tmp_path):
    vector = np.random.default_rng(0).standard_normal(4).astype(np.float32)
    filled(tmp_path, Put(b"\x00\xff", b"\x00p", NOW + 1.5, vector), put(b"b"), put(b"c"))
    filled(tmp_path, put(b"b", fill=0.25))
    rows = loaded(tmp_path)
    assert list(rows) == [b"\x00\xff", b"c", b"b"]
    assert (rows[b"\x00\xff"].partition, rows[b"\x00\xff"].expires_at) == (b"\x00p", NOW + 1.5)
    assert rows[b"\x00\xff"].vector.tobytes() == vector.tobytes()
    assert rows[b"b"].vector.tolist() == [0.25] * 4


def test_deleted_and_expired_vectors_do_not_come_back(tmp_path):
    filled(tmp_path, *(put(b"%d" % n, expires_at=NOW + n) for n in range(5)))
    filled(tmp_path, Delete(b"4"), Delete(b"unknown"), Expire(NOW + 1))
    assert list(loaded(tmp_path)) == [b"2", b"3"]
    assert list(loaded(tmp_path, now=NOW + 2)) == [b"3"]


@pytest.mark.parametrize("options", [{"digest": OTHERS}, {"dimensions": 3}])
def test_vectors_of_another_encoder_are_removed(tmp_path, options):
    filled(tmp_path, put(b"k"))
    assert loaded(tmp_path, **options) == {}
    assert loaded(tmp_path) == {}


def test_vectors_of_another_schema_are_removed(tmp_path):
    filled(tmp_path, put(b"k"))
    database = sqlite3.connect(tmp_path / FILE_NAME)
    database.execute("PRAGMA user_version = 999")
    database.close()
    assert loaded(tmp_path) == {}
    filled(tmp_path, put(b"new"))
    assert list(loaded(tmp_path)) == [b"new"]


def test_a_file_that_is_no_database_is_set_aside_and_said_so(tmp_path, caplog):
    (tmp_path / FILE_NAME).write_bytes(b"garbage" * 1000)
    with caplog.at_level(logging.ERROR):
        assert loaded(tmp_path) == {}
    (aside,) = tmp_path.glob(f"{FILE_NAME}.corrupt-*")
    assert aside.name == f"{FILE_NAME}.corrupt-19700101T001640Z"
    assert aside.read_bytes() == b"garbage" * 1000
    assert "set aside" in caplog.text
    filled(tmp_path, put(b"k"))
    assert list(loaded(tmp_path)) == [b"k"]


def test_damage_in_the_middle_is_found_at_load_and_set_aside(tmp_path):
    filled(tmp_path, *(put(b"%d" % number) for number in range(2000)))
    path = tmp_path / FILE_NAME
    content = bytearray(path.read_bytes())
    content[4096:-4096] = b"\xff" * (len(content) - 8192)
    path.write_bytes(content)
    store = opened(tmp_path)
    with pytest.raises(CorruptStoreError) as corrupt:
        list(store.load(NOW))
    store.set_aside(corrupt.value, NOW)
    store.apply([put(b"k")])
    assert [row.key for row in store.load(NOW)] == [b"k"]
    store.close()
    assert list(tmp_path.glob(f"{FILE_NAME}.corrupt-*"))


def test_a_database_of_someone_else_with_our_version_is_corrupt(tmp_path):
    database = sqlite3.connect(tmp_path / FILE_NAME)
    database.execute("CREATE TABLE other (x)")
    database.execute("PRAGMA user_version = 1")
    database.close()
    store = opened(tmp_path)
    with pytest.raises(CorruptStoreError):
        list(store.load(NOW))
    store.close()


def test_a_failing_batch_leaves_nothing(tmp_path):
    store = opened(tmp_path)
    unstorable = Put(None, b"p", NOW + 1, np.zeros(4, dtype=np.float32))
    with pytest.raises(StoreError):
        store.apply([put(b"a"), unstorable])
    store.apply([put(b"b")])
    assert [row.key for row in store.load(NOW)] == [b"b"]
    store.close()


def test_a_store_in_use_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("embeddings.index.store._BUSY_TIMEOUT_S", 0.01)
    store = opened(tmp_path)
    with pytest.raises(StoreError, match="in use by another process"):
        opened(tmp_path)
    store.close()


def test_a_data_directory_that_cannot_be_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="cannot create"):
        opened(tmp_path / "file" / "data")


def test_only_the_owner_can_read_it(tmp_path):
    filled(tmp_path / "new", put(b"k"))
    assert stat.S_IMODE((tmp_path / "new" / FILE_NAME).stat().st_mode) == 0o600
