"""Log lines that nobody reads are dropped and counted; the others are written in order."""

import filecmp
import logging
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from gateway.cli import log_queue
from gateway.cli.terminal import PrivateFormatter

ROOT = Path(__file__).parents[3]
LAYOUT = logging.Formatter("%(levelname)s %(message)s")


@pytest.fixture
def pipe():
    read, write = os.pipe()
    yield read, write
    os.close(read)


def logger_to(handler: logging.Handler) -> Callable[[str], None]:
    logger = logging.Logger("test")  # noqa: LOG001 - not known to other tests
    logger.addHandler(handler)
    return logger.info


def read_all(descriptor: int) -> list[str]:
    with os.fdopen(os.dup(descriptor), encoding="utf-8") as lines:
        return lines.read().splitlines()


def test_lines_are_written_in_order_and_the_last_ones_at_the_end(pipe):
    read, write = pipe
    handler = log_queue.QueuedLines(LAYOUT, write)
    log = logger_to(handler)
    for number in range(100):
        log(f"line {number} \udc80")
    handler.close()
    os.close(write)
    assert read_all(read) == [f"INFO line {number} \\udc80" for number in range(100)]


def test_where_nobody_reads_lines_are_dropped_and_counted(pipe, monkeypatch):
    monkeypatch.setattr(log_queue, "MOST_LINES", 10)
    read, write = pipe
    handler = log_queue.QueuedLines(LAYOUT, write)
    log = logger_to(handler)
    # One line fills the pipe, so that the writer waits in the middle of it.
    log("x" * 200_000)
    for number in range(50):
        log(f"line {number}")
    told = ""
    with os.fdopen(os.dup(read), encoding="utf-8") as lines:
        while "dropped" not in told:
            told = lines.readline()
    handler.close()
    os.close(write)
    dropped = int(told.split()[1])
    assert told == f"WARNING {dropped} log lines were dropped: nobody read the log in time\n"
    assert 39 <= dropped <= 41


def test_the_end_does_not_wait_for_a_reader_that_never_comes(pipe, monkeypatch):
    monkeypatch.setattr(log_queue, "LAST_SECONDS", 0.01)
    read, write = pipe
    handler = log_queue.QueuedLines(LAYOUT, write)
    logger_to(handler)("x" * 200_000)
    handler.close()
    while len(os.read(read, 1 << 20)) == 1 << 20:
        pass


def test_what_exceptions_say_is_not_written(pipe):
    read, write = pipe
    handler = log_queue.QueuedLines(PrivateFormatter("%(message)s"), write)
    logger = logging.Logger("test")  # noqa: LOG001 - not known to other tests
    logger.addHandler(handler)
    logger.error("it failed", exc_info=ValueError("a " + "secret"))
    handler.close()
    os.close(write)
    written = read_all(read)
    assert written[0] == "it failed"
    assert written[-1] == "ValueError"
    assert "secret" not in "".join(written)


@pytest.mark.parametrize("package", ["backend", "embeddings"])
def test_the_packages_log_alike(package):
    # They may not import one another.
    mine, theirs = ROOT / "gateway/cli/log_queue.py", ROOT / package / "log_queue.py"
    assert filecmp.cmp(mine, theirs, shallow=False)
