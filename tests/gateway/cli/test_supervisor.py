"""The supervisor with real child processes: stopping, restarting, and never leaving one behind."""

import asyncio
import logging
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from gateway.cli.process import supervisor as module
from gateway.cli.process.child_process import Child
from gateway.cli.process.supervisor import Supervisor
from gateway.upstream.wire.http_client import VARIABLE

WAITS = """
import asyncio, os
from gateway.cli.process.child_process import ParentLine
async def main():
    stop = ParentLine().stop
    os.write({fd}, b"%d\\n" % os.getpid())
    await stop.wait()
asyncio.run(main())
"""

STUBBORN = """
import os, signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
os.write({fd}, b"%d\\n" % os.getpid())
signal.pause()
"""

PARENT = """
import asyncio, sys
from gateway.cli.process.child_process import Child
from gateway.cli.process.supervisor import Supervisor
child = Child("c", [sys.executable, "-c", {child!r}], pass_fds=({fd},))
sys.exit(asyncio.run(Supervisor([child]).run()))
"""


class Pids:
    """A pipe on which children tell their process ids once they run."""

    def __init__(self, reader: asyncio.StreamReader, fd: int) -> None:
        self._reader = reader
        self.fd = fd

    async def next(self) -> int:
        return int(await asyncio.wait_for(self._reader.readline(), 60))


@pytest.fixture
async def pids() -> AsyncIterator[Pids]:
    read, write = os.pipe()
    reader = asyncio.StreamReader()
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(read, "rb")
    )
    yield Pids(reader, write)
    transport.close()
    os.close(write)


def python(code: str, pids: Pids, name: str = "child") -> Child:
    return Child(name, [sys.executable, "-c", code.format(fd=pids.fd)], pass_fds=(pids.fd,))


async def gone(pid: int) -> None:
    """Wait, bounded, until the process has ended; at once if it has."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_reader(descriptor, ended.set)
    try:
        await asyncio.wait_for(ended.wait(), 60)
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)


def event_of(record: logging.LogRecord) -> str:
    fields: dict[str, str] = record.__dict__["fields"]
    return fields["event"]


async def test_stop_ends_every_child_cleanly(pids: Pids):
    running = Supervisor([python(WAITS, pids), python(WAITS, pids)])
    task = asyncio.create_task(running.run())
    started = [await pids.next(), await pids.next()]
    running.stop()

    assert await asyncio.wait_for(task, 60) == 0
    for pid in started:
        await gone(pid)


async def test_it_says_once_that_it_stops_while_all_still_run(pids: Pids):
    running: list[bool] = []
    waits = python(WAITS, pids)
    supervisor = Supervisor([waits], stopping=lambda: running.append(Path(f"/proc/{pid}").exists()))
    task = asyncio.create_task(supervisor.run())
    pid = await pids.next()
    supervisor.stop()
    supervisor.stop()
    assert await asyncio.wait_for(task, 60) == 0
    assert running == [True]


async def test_a_child_that_is_killed_is_started_again(
    pids: Pids, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr(module, "FIRST_BACKOFF_SECONDS", 0.01)
    caplog.set_level(logging.INFO, module.log.name)
    running = Supervisor([python(WAITS, pids, "engine")])
    task = asyncio.create_task(running.run())
    first = await pids.next()
    os.kill(first, signal.SIGKILL)
    second = await pids.next()
    running.stop()
    await asyncio.wait_for(task, 60)

    assert first != second
    assert [(event_of(record), record.getMessage()) for record in caplog.records] == [
        ("process", "engine ended (exit code -9); starting it again"),
        ("gateway", "engine was started again"),
    ]


@pytest.mark.parametrize("code", [1, 2])
async def test_a_child_that_cannot_start_ends_everything_with_its_code(pids: Pids, code: int):
    running = Supervisor([python(WAITS, pids), python(f"raise SystemExit({code})", pids)])

    assert await asyncio.wait_for(running.run(), 60) == code


async def test_a_child_that_ignores_sigterm_is_killed(pids: Pids, caplog: pytest.LogCaptureFixture):
    running = Supervisor([replace(python(STUBBORN, pids, "stubborn"), stop_seconds=0.2)])
    task = asyncio.create_task(running.run())
    pid = await pids.next()
    running.stop()
    await asyncio.wait_for(task, 60)

    await gone(pid)
    assert "stubborn did not stop" in caplog.text


async def test_told_twice_it_waits_no_longer(pids: Pids):
    running = Supervisor([replace(python(STUBBORN, pids), stop_seconds=600)])
    task = asyncio.create_task(running.run())
    pid = await pids.next()
    running.stop()
    running.stop()
    await asyncio.wait_for(task, 60)
    await gone(pid)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
async def test_no_child_outlives_the_supervisor(pids: Pids, number: signal.Signals):
    parent = PARENT.format(child=WAITS.format(fd=pids.fd), fd=pids.fd)
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", parent, stdin=subprocess.DEVNULL, pass_fds=(pids.fd,)
    )
    pid = await pids.next()
    process.send_signal(number)

    assert await asyncio.wait_for(process.wait(), 60) == (-9 if number == signal.SIGKILL else 0)
    await gone(pid)


def test_the_name_of_the_installation_is_carried_where_upstream_calls_read_it():
    assert module.INSTANCE == VARIABLE
