"""The lock of a shared file: had by one, waited for by the others, but not for ever."""

import os
import stat
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest
from filelock import FileLock, Timeout
from lock_holder import lock_held

from gateway.cache.append_files import LOCK_SECONDS, before, held, turned


@pytest.fixture
def path(tmp_path):
    return tmp_path / "lines"


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
        with pytest.raises(Timeout, match=str(path)), held(path, seconds=0.0):
            pytest.fail("two have the lock")
        assert open_files() == opened
    with held(path, seconds=0.0) as (_, size):
        assert size == 0


def test_nobody_waits_without_a_bound(path, monkeypatch):
    waits = []

    def acquired(lock, *_, **__):
        waits.append(lock.timeout)
        raise Timeout(lock.lock_file)

    monkeypatch.setattr(FileLock, "acquire", acquired)
    for waiter in (held(path), turned(path, 1, max_bytes=1)):
        with pytest.raises(Timeout), waiter:
            pytest.fail("the lock was not acquired")
    assert waits == [LOCK_SECONDS] * 2


def test_who_waits_goes_on_when_the_lock_is_given_back(path, waiting):
    with ExitStack() as stopped:
        stopped.enter_context(lock_held(path))
        waiting += [lambda: None, stopped.close]
        with held(path) as (descriptor, _):
            os.write(descriptor, b"late")
    assert (waiting, path.read_bytes()) == ([], b"late")


def test_who_waited_while_the_file_was_turned_over_writes_to_the_new_one(path, waiting):
    path.write_bytes(b"full\n")
    with ExitStack() as holder:
        holder.enter_context(lock_held(path))
        waiting += [lambda: path.replace(before(path)), holder.close]
        with turned(path, 5, max_bytes=100) as (descriptor, _):
            os.write(descriptor, b"late\n")
    assert (before(path).read_bytes(), path.read_bytes()) == (b"full\n", b"late\n")


def test_threads_of_one_process_keep_one_another_out(path):
    with held(path), ThreadPoolExecutor(1) as other:
        late = other.submit(lambda: held(path, seconds=0.0).__enter__())
        assert isinstance(late.exception(timeout=10), Timeout)


def test_nobody_else_may_read_the_lock(path):
    with held(path):
        pass
    modes = {stat.S_IMODE(file.stat().st_mode) for file in path.parent.iterdir()}
    assert modes == {0o600}
