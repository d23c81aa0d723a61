"""A file that several processes append to: whole lines, bounded, and nothing behind its back."""

import os
import stat
import subprocess
import sys

import pytest

from gateway.cache.append_files import before, held, turned

MOST = 1000
LINES = 2000
WRITER = """
import os, sys
from pathlib import Path
from gateway.cache.append_files import turned
path, name, lines, most = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
print("ready", flush=True)
sys.stdin.readline()
for number in range(lines):
    line = f"{name} {number} {'x' * (number % 90)}\\n".encode()
    with turned(path, len(line), max_bytes=most) as (descriptor, _):
        os.write(descriptor, line)
"""


@pytest.fixture
def path(tmp_path):
    return tmp_path / "lines"


def append(path, data, most=MOST):
    with turned(path, len(data), max_bytes=most) as (descriptor, size):
        os.write(descriptor, data)
    return size


def test_it_is_made_for_its_owner_and_grows_to_its_bound_and_no_further(path):
    sizes = [append(path, b"x" * 400) for _ in range(5)]
    assert sizes == [0, 400, 0, 400, 0]
    assert (path.stat().st_size, before(path).stat().st_size) == (400, 800)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_what_is_larger_than_the_bound_has_a_file_of_its_own(path):
    assert [append(path, b"x" * 3 * MOST), append(path, b"y")] == [0, 0]
    assert (before(path).stat().st_size, path.read_bytes()) == (3 * MOST, b"y")


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
        writer.communicate(timeout=15)
        assert writer.returncode == 0
    files = before(path), path
    assert all(0 < file.stat().st_size <= MOST for file in files)
    last = dict.fromkeys(("one", "other"), -1)
    for line in b"".join(file.read_bytes() for file in files).decode().splitlines():
        name, number, filling = line.split(" ")
        assert filling == "x" * (int(number) % 90)
        assert last[name] in (-1, int(number) - 1)
        last[name] = int(number)
    assert LINES - 1 in last.values()


def test_where_it_cannot_be_turned_over_nothing_is_written_and_nobody_is_kept_waiting(path):
    (before(path) / "occupied").mkdir(parents=True)
    append(path, b"x" * MOST)
    with pytest.raises(OSError, match="directory"):
        append(path, b"lost")
    assert path.stat().st_size == MOST
    with held(path, seconds=0.0) as (_, size):
        assert size == MOST
    (before(path) / "occupied").rmdir()
    before(path).rmdir()
    assert append(path, b"found") == 0
    assert path.read_bytes() == b"found"


def test_a_write_that_fails_lets_the_next_one_have_the_file(path):
    with pytest.raises(ValueError, match="mine"), turned(path, 1, max_bytes=MOST):
        raise ValueError("mine")
    assert append(path, b"x") == 0


def test_the_file_that_was_turned_over_replaces_the_one_before(path):
    for number in range(3):
        append(path, b"%d" % number * MOST)
    kept = [file.read_bytes()[:1] for file in (before(path), path)]
    assert kept == [b"1", b"2"]
    assert {file.name for file in path.parent.iterdir()} == {"lines", "lines.1", "lines.lock"}
