"""Keys in quarantine: for every worker, after every restart, and not without bound."""

import asyncio
import errno
import os
import stat
from pathlib import Path

import orjson
import pytest

from gateway.cache.quality.quarantine import KEEP_SECONDS, RENEW_SECONDS, QuarantineFile

KEY, OTHER = b"k" * 32, b"o" * 32
LINE = 100
"""Bytes, nearly."""


class Clock:
    def __init__(self):
        self.now = 1_000.0

    def __call__(self):
        return self.now


@pytest.fixture
def path(tmp_path):
    return tmp_path / "quarantine.jsonl"


def lines(path):
    read = [orjson.loads(line) for line in path.read_bytes().splitlines()]
    return [line for line in read if "key" in line]


def key_of(number):
    return number.to_bytes(32)


async def test_a_key_in_quarantine_stays_there_for_every_worker_and_after_a_restart(path):
    one, other = QuarantineFile(path), QuarantineFile(path)
    assert not one.holds(KEY)
    await one.add(KEY)
    await one.add(KEY)
    assert len(lines(path)) == 1
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    for quarantine in (one, other, QuarantineFile(path)):
        assert quarantine.holds(KEY)
        assert not quarantine.holds(OTHER)
    await other.add(OTHER)
    assert one.holds(OTHER)


async def test_what_a_crash_left_of_a_line_hides_no_other(path):
    line = b'{"key":"%s","time":1000}' % KEY.hex().encode()
    path.write_bytes(line + b'\n{"key":"6b\n[]\n{"key":5,"time":1000}\n{"key":')
    quarantine = QuarantineFile(path, now=Clock())
    await quarantine.add(OTHER)
    assert quarantine.holds(KEY)
    assert quarantine.holds(OTHER)
    assert QuarantineFile(path, now=Clock()).holds(OTHER)


async def test_a_list_that_cannot_be_read_holds_every_key(path, caplog):
    path.mkdir()
    assert QuarantineFile(path).holds(KEY)
    QuarantineFile(path).compact()
    assert "cannot be written anew" in caplog.text


async def test_a_key_leaves_after_its_time_and_the_file_with_the_next_start(path):
    clock = Clock()
    quarantine = QuarantineFile(path, now=clock)
    await quarantine.add(KEY)
    clock.now += KEEP_SECONDS - 1
    await quarantine.add(OTHER)
    assert quarantine.holds(KEY)
    clock.now += 1
    assert not quarantine.holds(KEY)
    assert quarantine.holds(OTHER)
    QuarantineFile(path, now=clock).compact()
    assert [line["key"] for line in lines(path)] == [OTHER.hex()]
    assert not quarantine.holds(KEY)
    assert quarantine.holds(OTHER)


async def test_lines_without_a_time_begin_theirs_when_they_are_first_loaded(path):
    path.write_bytes(b'{"key":"%s"}\n' % KEY.hex().encode())
    clock = Clock()
    assert QuarantineFile(path, now=clock).holds(KEY)
    QuarantineFile(path, now=clock).compact()
    clock.now += KEEP_SECONDS - 1
    assert QuarantineFile(path, now=clock).holds(KEY)
    clock.now += 1
    assert not QuarantineFile(path, now=clock).holds(KEY)


async def test_a_key_that_came_back_into_quarantine_counts_from_then_on(path):
    clock = Clock()
    quarantine = QuarantineFile(path, now=clock)
    await quarantine.add(KEY)
    clock.now += KEEP_SECONDS
    await quarantine.add(KEY)
    quarantine.compact()
    assert lines(path) == [{"key": KEY.hex(), "time": clock.now}]
    assert QuarantineFile(path, now=clock).holds(KEY)


async def test_the_file_has_a_bound_and_the_oldest_leave_it(path):
    clock = Clock()
    bound = 20 * LINE
    quarantine = QuarantineFile(path, max_keys=10, max_bytes=bound, now=clock)
    beside = QuarantineFile(path, max_keys=10, max_bytes=bound, now=clock)
    for number in range(100):
        clock.now += 1
        await quarantine.add(key_of(number))
        assert quarantine.holds(key_of(number))
        assert beside.holds(key_of(number))
        assert path.stat().st_size <= bound
    for reader in (quarantine, beside, QuarantineFile(path, now=clock)):
        held = [number for number in range(100) if reader.holds(key_of(number))]
        assert held == list(range(held[0], 100))
        assert 10 <= len(held) <= bound / 80
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


async def test_workers_that_write_at_the_same_time_lose_no_key(path):
    files = [QuarantineFile(path, max_keys=200, max_bytes=210 * LINE) for _ in range(4)]
    path.write_bytes(b"no key\n" * 2_900)
    await asyncio.gather(*(files[n % 4].add(key_of(n)) for n in range(150)))
    assert {line["key"] for line in lines(path)} == {key_of(n).hex() for n in range(150)}
    assert all(quarantine.holds(key_of(n)) for quarantine in files for n in range(150))


class CrashError(BaseException):
    """Whatever happens behind it does not happen any more."""


@pytest.mark.parametrize("dies_at", ["fsync", "replace"])
@pytest.mark.parametrize("grown", [True, False], ids=["grown", "loaded"])
async def test_a_crash_while_it_is_written_anew_leaves_the_former_list(
    path, monkeypatch, dies_at, grown
):
    clock = Clock()
    quarantine = QuarantineFile(path, max_keys=3, max_bytes=5 * LINE, now=clock)
    for number in range(5):
        await quarantine.add(key_of(number))
    former = path.read_bytes()

    def crash(*_):
        raise CrashError

    with monkeypatch.context() as patch:
        patch.setattr(*{"fsync": ("os.fsync", crash), "replace": (Path, "replace", crash)}[dies_at])
        if grown:
            with pytest.raises(CrashError):
                await quarantine.add(KEY)
        else:
            clock.now += KEEP_SECONDS
            with pytest.raises(CrashError):
                quarantine.compact()
    assert path.read_bytes() == former
    clock.now = 1_000.0
    again = QuarantineFile(path, max_keys=3, max_bytes=5 * LINE, now=clock)
    assert all(again.holds(key_of(number)) for number in range(5))
    await again.add(KEY)
    assert [line["key"] for line in lines(path)] == [*(key_of(n).hex() for n in (3, 4)), KEY.hex()]


async def test_the_half_of_a_new_list_is_no_list(path):
    """What a crash may leave beside the file is overwritten, and never read."""
    quarantine = QuarantineFile(path, max_keys=1, max_bytes=LINE * 3 // 2)
    path.with_name("quarantine.jsonl.new").write_bytes(b'{"key":"%s"}\n{"k' % OTHER.hex().encode())
    for number in range(3):
        await quarantine.add(key_of(number))
    assert quarantine.holds(key_of(2))
    assert not QuarantineFile(path).holds(OTHER)
    assert [line["key"] for line in lines(path)] == [key_of(2).hex()]


async def test_a_full_disk_is_said(path):
    path.symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space left") as raised:
        await QuarantineFile(path).add(KEY)
    assert raised.value.errno == errno.ENOSPC


@pytest.mark.parametrize("failing", ["fsync", "write"])
async def test_a_key_that_may_not_have_reached_the_disk_is_written_again(
    path, monkeypatch, failing
):
    quarantine = QuarantineFile(path)
    await quarantine.add(OTHER)
    write = os.write

    def fail(descriptor, data=b""):
        if failing == "write":
            return write(descriptor, data[:50])
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(f"os.{failing}", fail)
        with pytest.raises(OSError, match=r"No space left|Input/output"):
            await quarantine.add(KEY)
    before = path.stat().st_size
    await quarantine.add(KEY)
    assert path.stat().st_size > before
    await quarantine.add(KEY)
    assert path.read_bytes().count(b'"%s","time"' % KEY.hex().encode()) <= 2
    assert QuarantineFile(path).holds(KEY)
    assert QuarantineFile(path).holds(OTHER)


async def test_a_key_called_wrong_again_late_stays_for_another_term(path):
    clock = Clock()
    quarantine = QuarantineFile(path, now=clock)
    await quarantine.add(KEY)
    clock.now += RENEW_SECONDS - 1
    await quarantine.add(KEY)
    assert len(lines(path)) == 1
    clock.now = 1_000.0 + KEEP_SECONDS - 1
    await quarantine.add(KEY)
    clock.now += KEEP_SECONDS - 1
    assert quarantine.holds(KEY)
    assert QuarantineFile(path, now=clock).holds(KEY)


async def test_another_list_under_the_same_number_of_a_file_is_read_from_its_beginning(path):
    """A file system gives the number of a file that is gone to the next one."""
    quarantine, writer = QuarantineFile(path), QuarantineFile(path)
    for number in range(5):
        await writer.add(key_of(number))
    assert quarantine.holds(key_of(0))
    inode = path.stat().st_ino
    beside = path.with_name("beside")
    other = QuarantineFile(beside)
    for number in range(100, 110):
        await other.add(key_of(number))
    path.write_bytes(beside.read_bytes())
    assert path.stat().st_ino == inode
    assert all(quarantine.holds(key_of(number)) for number in range(100, 110))
    assert not quarantine.holds(key_of(0))


async def test_a_list_with_nothing_to_leave_out_is_not_written_anew(path):
    quarantine = QuarantineFile(path)
    await quarantine.add(KEY)
    former = path.stat()
    quarantine.compact()
    assert path.stat() == former


async def test_a_list_written_anew_is_read_whole_by_others_whatever_its_length(path):
    clock = Clock()
    quarantine, other = (QuarantineFile(path, now=clock) for _ in range(2))
    for number in range(4):
        await quarantine.add(key_of(number))
    assert other.holds(key_of(3))
    clock.now += KEEP_SECONDS
    for number in range(10, 20):
        await quarantine.add(key_of(number))
        quarantine.compact()
        assert other.holds(key_of(number))
    assert not other.holds(key_of(3))
    assert not QuarantineFile(path, now=clock).holds(key_of(0))


async def test_a_list_that_is_away_for_a_while_is_read_whole_when_it_is_back(path):
    quarantine = QuarantineFile(path)
    await quarantine.add(KEY)
    await quarantine.add(OTHER)
    assert quarantine.holds(KEY)
    away = path.rename(path.with_name("away"))
    assert not quarantine.holds(KEY)
    away.rename(path)
    assert quarantine.holds(OTHER)
    assert quarantine.holds(KEY)
