"""The lock of a shared file: had by one, waited for by the others, but not for ever."""

import errno
import os
from contextlib import ExitStack
from pathlib import Path

import pytest
from lock_holder import lock_held

from gateway.cache import append_files as file_lock
from gateway.cache.append_files import LOCK_SECONDS, LockedError, Wait, held


class Clock:
    """Goes on by what is paused."""

    def __init__(self):
        self.now = 1_000.0
        self.pauses = 0

    def __call__(self):
        return self.now

    def pause(self, seconds):
        self.now += seconds
        self.pauses += 1


@pytest.fixture
def path(tmp_path):
    return tmp_path / "lines"


@pytest.fixture
def clock():
    return Clock()


def open_files():
    return len(list(Path("/proc/self/fd").iterdir()))


def test_who_waits_longer_than_the_bound_is_told_which_file(path, clock):
    with lock_held(path):
        before = open_files()
        wait = Wait(clock=clock, pause=clock.pause)
        with pytest.raises(LockedError) as told, held(path, wait=wait):
            pytest.fail("two have the lock")
        assert open_files() == before
    assert LOCK_SECONDS == 5.0
    assert 5.0 <= clock.now - 1_000.0 < 5.1
    assert (told.value.errno, told.value.filename) == (errno.ETIMEDOUT, str(path))
    assert str(path) in str(told.value)
    assert told.value.strerror == "another process has its lock"
    with held(path, wait=Wait(0.0)) as (_, size):
        assert size == 0


def test_who_waits_goes_on_when_the_lock_is_given_back(path, clock):
    with ExitStack() as stopped:
        stopped.enter_context(lock_held(path))

        def pause(seconds):
            clock.pause(seconds)
            if clock.pauses == 3:
                stopped.close()

        with held(path, wait=Wait(clock=clock, pause=pause)) as (descriptor, _):
            os.write(descriptor, b"late")
    assert (clock.pauses, path.read_bytes()) == (3, b"late")


def test_who_would_not_wait_does_not_pause(path, clock):
    wait = Wait(0.0, clock=clock, pause=clock.pause)
    with lock_held(path), pytest.raises(LockedError), held(path, wait=wait):
        pytest.fail("two have the lock")
    assert clock.pauses == 0


def test_a_lock_that_is_free_is_had_even_when_the_time_is_over(path, clock):
    wait = Wait(clock=clock, pause=clock.pause)
    clock.now += 2 * LOCK_SECONDS
    with held(path, wait=wait) as (descriptor, _):
        os.write(descriptor, b"x")
    assert path.read_bytes() == b"x"


def test_a_file_that_is_replaced_again_and_again_is_not_followed_for_ever(path, clock, monkeypatch):
    lock = file_lock.fcntl.flock

    def replaced(descriptor, operation):
        clock.now += 1.0
        path.unlink()
        lock(descriptor, operation)

    monkeypatch.setattr(file_lock.fcntl, "flock", replaced)
    before = open_files()
    with pytest.raises(LockedError), held(path, wait=Wait(clock=clock, pause=clock.pause)):
        pytest.fail("the file is gone")
    assert (clock.now, open_files()) == (1_005.0, before)
