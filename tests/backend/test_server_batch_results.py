"""Results on disk: whatever a crash leaves of them, each line has one result in the end."""

import tempfile
from pathlib import Path

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backend.server.batches.batch import (
    STATUSES,
    Batch,
    Line,
    StateError,
    answered_line,
    faulty_line,
)
from backend.server.batches.store import Results, Store

QUICK = settings.get_profile("quick")
DIGITS = "0123456789abcdef" * 2
BATCH = Batch(
    id=f"batch_{DIGITS}",
    owner="",
    endpoint="/v1/completions",
    input_file_id=f"file-{DIGITS}",
    completion_window="24h",
    created_at=0,
    expires_at=86_400,
    result_seconds=60,
)

tears = st.one_of(st.just(b""), st.binary(max_size=40), st.integers(1, 4096).map(bytes))


def store_in(directory, **options):
    store = Store(Path(directory), **({"most_bytes": 10**9, "keep_seconds": 60} | options))
    store.open()
    return store


def write(results, numbers, fails):
    for number in numbers:
        line = Line(number, f"line {number}\n")
        failed = number in fails
        told = (
            faulty_line(BATCH, line, "code", "words")
            if failed
            else (answered_line(BATCH, line, 200, "req", b'{"text":"\\n{}"}'))
        )
        results.append(number, told, failed=failed)
    results.close()


@settings(QUICK)
@given(data=st.data(), total=st.integers(1, 12), fails=st.frozensets(st.integers(1, 12)))
def test_each_line_has_one_result_after_a_tear(data, total, fails):
    with tempfile.TemporaryDirectory() as directory:
        store = store_in(directory)
        store.save(BATCH)
        store.move(BATCH.id, "in_progress", total=total)
        first = data.draw(st.integers(0, total))
        write(Results(store, BATCH), range(1, first + 1), fails)
        for file_id in BATCH.result_ids:
            path = Path(directory, f"{file_id}.jsonl")
            whole = path.read_bytes()
            path.write_bytes(whole[: data.draw(st.integers(0, len(whole)))] + data.draw(tears))
        store._lock.close()

        store = store_in(directory)
        results = Results(store, BATCH)
        for which, file_id in enumerate(BATCH.result_ids):
            lines = Path(directory, f"{file_id}.jsonl").read_bytes().splitlines(keepends=True)
            numbers = {int(orjson.loads(line)["id"][-6:], 16) for line in lines}
            assert numbers == {n for n in results.done if (n in fails) == bool(which)}
        write(results, [n for n in range(1, total + 1) if n not in results.done], fails)
        store.move(BATCH.id, "finalizing")
        store.finish(BATCH.id, "completed")
        ended = store.batches[BATCH.id]
        told = []
        for file_id in filter(None, ended.result_files):
            with store.reader(file_id) as file:
                told += [orjson.loads(line)["custom_id"] for line in file]
        assert sorted(told) == sorted(f"line {n}\n" for n in range(1, total + 1))
        assert ended.failed == len([n for n in fails if n <= total])
        assert ended.completed + ended.failed == total
        sizes = [path.stat().st_size for path in Path(directory).glob("*.jsonl")]
        assert store._used == sum(sizes)
        store._lock.close()


def test_what_a_crash_left_of_uploads_is_removed(tmp_path):
    for name in (f"file-{DIGITS}.jsonl", f"file-{DIGITS}.new", "somebody's.json"):
        (tmp_path / name).write_bytes(b"x")
    store = store_in(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["lock", "somebody's.json"]
    assert store._used == 0
    store._lock.close()


def test_a_damaged_description_is_named(tmp_path):
    (tmp_path / f"batch_{DIGITS}.json").write_bytes(b'{"id": 1}')
    with pytest.raises(OSError, match=f"batch_{DIGITS}.json is damaged"):
        store_in(tmp_path)


def test_states_follow_one_another_and_none_follows_an_end():
    ways = {(before, after) for before in STATUSES for after in STATUSES if can_move(before, after)}
    assert {before for before, _ in ways} == set(STATUSES[:4])
    assert ("in_progress", "expired") in ways
    assert ("finalizing", "cancelling") not in ways


def can_move(before, after):
    try:
        return Batch(**{**fields(), "status": before}).moved(after, 7.9).times[after] == 7
    except StateError:
        return False


def fields():
    return {name: getattr(BATCH, name) for name in BATCH.__slots__}
