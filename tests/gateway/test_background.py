"""Background work that raises is logged, shown as a problem, and begins again."""

import asyncio
import os
import threading

import pytest
from host_requests import until

from gateway import background
from gateway.background import LONGEST_PAUSE, SETTLED_SECONDS, Restarts
from gateway.cache.quality.comparison_journal import ComparisonJournal
from gateway.cache.quality.quarantine import QuarantineFile
from gateway.cache.stores.redis.invalidation import RedisInvalidations
from gateway.cache.stores.redis.scripts import make_shards
from gateway.server.keys.auth import Access
from gateway.server.open.policy_file import PolicyFile
from gateway.server.open.watched_file import WatchedFile

ERRORS = [
    OSError(5, "Input/output error"),
    ValueError("no value"),
    UnicodeError("half a character"),
    MemoryError(),
    RecursionError("too deep"),
    AttributeError("a defect"),
]


class Work:
    """Raises these errors, one at each run, then waits for ever."""

    def __init__(self, *errors):
        self.errors = list(errors)
        self.went_on = asyncio.Event()
        self.pauses = []

    async def __call__(self):
        if self.errors:
            raise self.errors.pop(0)
        self.went_on.set()
        await asyncio.Event().wait()

    async def sleep(self, seconds):
        self.pauses.append(seconds)


async def run(name, work):
    task = background.start(name, work, sleep=work.sleep)
    await asyncio.wait_for(work.went_on.wait(), 10)
    return task


async def end(task):
    task.cancel()
    await asyncio.wait([task])


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
async def test_work_that_raises_is_logged_and_a_problem_and_goes_on(error, caplog):
    task = await run("a watch", Work(error))
    assert f"a watch: failed ({type(error).__name__}) and begins again" in background.problems()
    assert "a watch: failed, and begins again in 1 s" in caplog.text
    await end(task)
    assert background.problems() == []


async def test_the_pause_grows_and_is_bounded():
    work = Work(*[TypeError()] * 8)
    await end(await run("a watch", work))
    assert work.pauses == [1, 2, 4, 8, 16, LONGEST_PAUSE, LONGEST_PAUSE, LONGEST_PAUSE]


def test_work_that_ran_on_is_well_again_and_pauses_little_the_next_time():
    now = 0.0
    restarts = Restarts("a watch", lambda: now)
    restarts.note(TypeError())
    restarts.note(TypeError())
    assert background.problems()
    now = SETTLED_SECONDS + 2.5
    assert background.problems() == []
    assert restarts.note(TypeError()) == 1
    restarts.end()


def test_a_thread_that_raises_goes_on_too():
    errors, went_on = [TypeError(), OSError()], threading.Event()

    def work():
        if errors:
            raise errors.pop(0)
        went_on.set()

    background.start_thread("a writer", work, sleep=lambda _: None).join(10)
    assert went_on.is_set()


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_a_watched_file_survives_whatever_reading_it_raises(error, tmp_path, caplog):
    file = tmp_path / "file"
    file.write_bytes(b"good")

    def read(data, _):
        if data == b"bad":
            raise error
        return data

    watched = WatchedFile(file, read, "keys: keeping the last good ones")
    file.write_bytes(b"bad")
    watched.reload()
    assert not watched.reload()
    assert (watched.active, watched.problem is None) == (b"good", False)
    assert "keys: keeping the last good ones: " in caplog.text
    file.write_bytes(b"better")
    watched.reload()
    assert watched.reload()
    assert (watched.active, watched.problem) == (b"better", None)


def test_a_file_that_met_no_memory_is_read_again(tmp_path):
    file, full = tmp_path / "file", [False]
    file.write_bytes(b"old")

    def read(data, _):
        if full[0]:
            raise MemoryError
        return data

    watched = WatchedFile(file, read, "keys: keeping the last good ones")
    file.write_bytes(b"new")
    full[0] = True
    watched.reload()
    watched.reload()
    full[0] = False
    assert watched.reload()
    assert (watched.active, watched.problem) == (b"new", None)


async def test_the_watches_of_policy_and_keys_go_on_after_what_they_tell_raises(tmp_path):
    """Whoever is told of an edit may raise: the next edit is taken all the same."""
    policy, keys = tmp_path / "policy.yaml", tmp_path / "keys"
    text = (
        "version: 1\ngeneration: {}\n"
        "default: {{exact: on, semantic: off, freshness: 1h, scope: tenant, pii: bypass}}\n"
    )
    policy.write_text(text.format(1))
    keys.write_text("")
    policies, access = PolicyFile(policy), Access(keys, None)
    told = {"policy": asyncio.Event(), "keys": asyncio.Event()}

    def tell(name):
        first = not told[name].is_set()
        told[name].set()
        if first:
            raise TypeError("a defect")

    async def no_pause(_):
        await asyncio.sleep(0)

    tasks = [
        background.start(
            "p", lambda: policies.watch(0.01, lambda _: tell("policy")), sleep=no_pause
        ),
        background.start("k", lambda: access.watch(lambda: tell("keys")), sleep=no_pause),
    ]
    policy.write_text(text.format(2))
    keys.write_text("ci 9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08\n")
    for event in told.values():
        await asyncio.wait_for(event.wait(), 10)
    policy.write_text(text.format(3))
    keys.write_text("")
    await until(lambda: policies.active.policy.generation == 3 and not access.holders)
    for task in tasks:
        await end(task)


class Link:
    """Each subscription ends with an error that nobody expects of redis-py."""

    def __init__(self):
        self.subscriptions = asyncio.Semaphore(0)

    def subscribe(self, *_):
        self.subscriptions.release()
        raise AttributeError("'NoneType' object has no attribute 'read_response'")


async def test_the_receiver_of_invalidations_goes_on_after_an_error_of_the_library(caplog):
    link = Link()
    invalidations = RedisInvalidations(link, make_shards(1))
    invalidations.listen(lambda _: None, lambda: None)
    invalidations.start()
    async with asyncio.timeout(20):
        for _ in range(2):
            await link.subscriptions.acquire()
    assert "invalidations of the store: failed" in caplog.text
    assert background.problems()
    await invalidations.close()
    assert background.problems() == []


def no_pipe(file):
    os.mkfifo(file)


def no_endless_device(file):
    file.symlink_to("/dev/zero")


def no_loop(file):
    file.symlink_to(file)


def no_folder(file):
    file.mkdir()


@pytest.mark.parametrize("make", [no_pipe, no_endless_device, no_loop, no_folder])
def test_what_is_no_file_is_a_problem_and_the_file_in_its_place_is_taken(make, tmp_path):
    """Whoever reads a pipe waits for ever; the watch goes on."""
    file = tmp_path / "file"
    file.write_bytes(b"good")
    watched = WatchedFile(file, lambda data, _: data, "keys: keeping the last good ones")
    file.unlink()
    make(file)
    assert not watched.reload()
    assert (watched.active, str(file) in watched.problem) == (b"good", True)
    if make is no_folder:
        file.rmdir()
    else:
        file.unlink()
    file.write_bytes(b"better")
    watched.reload()
    assert watched.reload()
    assert (watched.active, watched.problem) == (b"better", None)


@pytest.mark.parametrize("name", ["quarantine.jsonl", "semantic-checks.jsonl"])
def test_a_pipe_in_the_data_directory_is_not_known_and_holds_no_thread(name, tmp_path):
    quarantine = QuarantineFile(tmp_path / "quarantine.jsonl")
    journal = ComparisonJournal(tmp_path / "semantic-checks.jsonl", quarantine)
    file = {quarantine: "quarantine.jsonl", journal: "semantic-checks.jsonl"}
    os.mkfifo(tmp_path / name)
    assert [each.look() for each in (quarantine, journal)] == [
        file[each] != name for each in (quarantine, journal)
    ]
