"""Files that several processes append to: one lock, whole lines, bounded, whatever crashes."""

import asyncio
import os
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import orjson
import pytest
from filelock import FileLock, Timeout
from lock_holder import lock_held

from gateway.cache.append_files import LOCK_SECONDS, Journal, open_locked, previous_file

MOST = 1000
LINES = 300
WRITER = """
import os, sys
from pathlib import Path
from gateway.cache.append_files import open_locked
path, name, lines, most = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
print("ready", flush=True)
sys.stdin.readline()
for number in range(lines):
    line = f"{name} {number} {'x' * (number % 90)}\\n".encode()
    with open_locked(path, len(line), max_bytes=most) as (descriptor, _):
        os.write(descriptor, line)
"""


@pytest.fixture
def path(tmp_path):
    return tmp_path / "lines"


def append(path, data, most=MOST):
    with open_locked(path, len(data), max_bytes=most) as (descriptor, size):
        os.write(descriptor, data)
    return size


def test_it_is_made_for_its_owner_and_grows_to_its_bound_and_no_further(path):
    sizes = [append(path, b"x" * 400) for _ in range(5)]
    assert sizes == [0, 400, 0, 400, 0]
    assert (path.stat().st_size, previous_file(path).stat().st_size) == (400, 800)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_what_is_larger_than_the_bound_has_a_file_of_its_own(path):
    assert [append(path, b"x" * 3 * MOST), append(path, b"y")] == [0, 0]
    assert (previous_file(path).stat().st_size, path.read_bytes()) == (3 * MOST, b"y")


def test_processes_that_write_at_the_same_time_lose_and_mix_no_lines(path):
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", WRITER, str(path), name, str(LINES), str(MOST)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        for name in ("one", "other")
    ]
    for writer in writers:
        assert writer.stdout.readline() == b"ready\n"
    for writer in writers:
        writer.stdin.write(b"go\n")
        writer.stdin.flush()
    for writer in writers:
        writer.communicate(timeout=60)
        assert writer.returncode == 0
    files = previous_file(path), path
    assert all(0 < file.stat().st_size <= MOST for file in files)
    last = dict.fromkeys(("one", "other"), -1)
    for line in b"".join(file.read_bytes() for file in files).decode().splitlines():
        name, number, filling = line.split(" ")
        assert filling == "x" * (int(number) % 90)
        assert last[name] in (-1, int(number) - 1)
        last[name] = int(number)
    assert LINES - 1 in last.values()


def test_where_it_cannot_be_turned_over_nothing_is_written_and_nobody_is_kept_waiting(path):
    (previous_file(path) / "occupied").mkdir(parents=True)
    append(path, b"x" * MOST)
    with pytest.raises(OSError, match="directory"):
        append(path, b"lost")
    assert path.stat().st_size == MOST
    with open_locked(path, seconds=0.0) as (_, size):
        assert size == MOST
    (previous_file(path) / "occupied").rmdir()
    previous_file(path).rmdir()
    assert append(path, b"found") == 0
    assert path.read_bytes() == b"found"


def test_a_write_that_fails_lets_the_next_one_have_the_file(path):
    with pytest.raises(ValueError, match="mine"), open_locked(path, 1, max_bytes=MOST):
        raise ValueError("mine")
    assert append(path, b"x") == 0


def test_the_file_that_was_turned_over_replaces_the_one_before(path):
    for number in range(3):
        append(path, b"%d" % number * MOST)
    kept = [file.read_bytes()[:1] for file in (previous_file(path), path)]
    assert kept == [b"1", b"2"]
    assert {file.name for file in path.parent.iterdir()} == {"lines", "lines.1", "lines.lock"}


@pytest.fixture
def waiting(monkeypatch):
    """What a waiter does between two looks at the lock."""
    pauses = []

    def pause(seconds):
        pauses.pop(0)()

    monkeypatch.setattr("time.sleep", pause)
    return pauses


def open_files():
    return len(list(Path("/proc/self/fd").iterdir()))


def test_who_waits_longer_than_the_bound_is_told_which_file(path):
    with lock_held(path):
        opened = open_files()
        with pytest.raises(Timeout, match=str(path)), open_locked(path, seconds=0.0):
            pytest.fail("two have the lock")
        assert open_files() == opened
    with open_locked(path, seconds=0.0) as (_, size):
        assert size == 0


def test_nobody_waits_without_a_bound(path, monkeypatch):
    waits = []

    def acquired(lock, *_, **__):
        waits.append(lock.timeout)
        raise Timeout(lock.lock_file)

    monkeypatch.setattr(FileLock, "acquire", acquired)
    for waiter in (open_locked(path), open_locked(path, 1, max_bytes=1)):
        with pytest.raises(Timeout), waiter:
            pytest.fail("the lock was not acquired")
    assert waits == [LOCK_SECONDS] * 2


def test_who_waits_goes_on_when_the_lock_is_given_back(path, waiting):
    with ExitStack() as stopped:
        stopped.enter_context(lock_held(path))
        waiting += [lambda: None, stopped.close]
        with open_locked(path) as (descriptor, _):
            os.write(descriptor, b"late")
    assert (waiting, path.read_bytes()) == ([], b"late")


def test_who_waited_while_the_file_was_turned_over_writes_to_the_new_one(path, waiting):
    path.write_bytes(b"full\n")
    with ExitStack() as holder:
        holder.enter_context(lock_held(path))
        waiting += [lambda: path.replace(previous_file(path)), holder.close]
        with open_locked(path, 5, max_bytes=100) as (descriptor, _):
            os.write(descriptor, b"late\n")
    assert (previous_file(path).read_bytes(), path.read_bytes()) == (b"full\n", b"late\n")


def test_threads_of_one_process_keep_one_another_out(path):
    with open_locked(path), ThreadPoolExecutor(1) as other:
        late = other.submit(lambda: open_locked(path, seconds=0.0).__enter__())
        assert isinstance(late.exception(timeout=10), Timeout)


def test_nobody_else_may_read_the_lock(path):
    with open_locked(path):
        pass
    modes = {stat.S_IMODE(file.stat().st_mode) for file in path.parent.iterdir()}
    assert modes == {0o600}


def lines(path):
    return [orjson.loads(line) for line in path.read_bytes().splitlines()]


async def test_many_writers_mix_no_lines_and_nobody_else_may_read_them(tmp_path):
    path = tmp_path / "journal.jsonl"
    journals = [Journal(path) for _ in range(4)]
    await asyncio.gather(
        *(journals[n % 4].append({"n": n, "filler": "x" * 500}) for n in range(200))
    )
    assert sorted(line["n"] for line in lines(path)) == list(range(200))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


async def test_the_half_line_of_a_crash_is_closed_off(tmp_path):
    path = tmp_path / "journal.jsonl"
    path.write_bytes(b'{"n":1}\n{"n":')
    await Journal(path).append({"n": 3})
    assert path.read_bytes() == b'{"n":1}\n{"n":\n{"n":3}\n'
