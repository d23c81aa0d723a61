"""The supervisor replaces its workers: real child processes, which obey as a worker does."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Sequence

import pytest

from gateway.cli.process import supervisor as module
from gateway.cli.process.child_process import Child
from gateway.cli.process.supervisor import ReloadError, Supervisor

WORKER = """
import asyncio, os, signal, sys
from gateway.cli.process.child_process import Order, ParentLine, Report
from gateway.cli.process.supervisor import SEAT

name, hears = sys.argv[1], asyncio.Event()

def say(word):
    os.write(int(sys.argv[2]), f"{name} {word} {os.getpid()} {os.environ[SEAT]}\\n".encode())

async def follow(line):
    while True:
        order = await line.orders.get()
        say(order)
        if order is Order.LEAVE:
            if "deaf" in name:
                await hears.wait()
            line.report(Report.LEFT)
            if "stays" not in name:
                return

async def main():
    line = ParentLine()
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, hears.set)
    say("began")
    if "broken" in name:
        sys.exit(1)
    if "slow" not in name:
        line.report(Report.READY)
    left, stopped = asyncio.create_task(follow(line)), asyncio.create_task(line.stop.wait())
    await asyncio.wait((left, stopped), return_when=asyncio.FIRST_COMPLETED)
    say("ended")

asyncio.run(main())
"""


class Rig:
    """A supervisor, and what its workers say."""

    def __init__(self, reader: asyncio.StreamReader, fd: int) -> None:
        self._reader = reader
        self._fd = fd
        self.said: list[str] = []
        self.pids: dict[str, int] = {}
        self.seats: dict[str, str] = {}
        self.next: list[Sequence[str] | str] = []
        """The names of the workers after each reload, or the fault of its settings."""
        self.reads = 0
        self.may_read = asyncio.Event()
        self.may_read.set()
        self.supervisor: Supervisor
        self.running: asyncio.Task[int]

    def start(self, *names: str) -> None:
        self.supervisor = Supervisor(self._children(names), reload=self._reload)
        self.running = asyncio.create_task(self.supervisor.run())

    def hang_up(self) -> None:
        os.kill(os.getpid(), signal.SIGHUP)

    def _children(self, names: Sequence[str]) -> list[Child]:
        return [
            Child(
                f"gateway-{number}",
                [sys.executable, "-c", WORKER, name, str(self._fd)],
                pass_fds=(self._fd,),
                front=True,
                stop_seconds=30.0,
            )
            for number, name in enumerate(names, 1)
        ]

    async def _reload(self) -> list[Child]:
        self.reads += 1
        await self.may_read.wait()
        names = self.next.pop(0)
        if isinstance(names, str):
            raise ReloadError(names)
        return self._children(names)

    async def until(self, *expected: str) -> None:
        """Wait until all this was said, since the last time."""
        left = set(expected)
        while left:
            line = await asyncio.wait_for(self._reader.readline(), 60)
            name, word, pid, seat = line.decode().split()
            self.pids[name], self.seats[name] = int(pid), seat
            self.said.append(f"{name} {word}")
            left.discard(f"{name} {word}")

    async def until_logged(self, text: str, caplog: pytest.LogCaptureFixture) -> None:
        async with asyncio.timeout(60):
            while text not in caplog.text:  # noqa: ASYNC110 - nobody tells
                await asyncio.sleep(0)

    async def stop(self) -> int:
        self.supervisor.stop()
        return await asyncio.wait_for(self.running, 60)


@pytest.fixture
async def rig(caplog: pytest.LogCaptureFixture) -> AsyncIterator[Rig]:
    caplog.set_level("INFO")
    read, write = os.pipe()
    reader = asyncio.StreamReader()
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(read, "rb")
    )
    rig = Rig(reader, write)
    yield rig
    if not rig.running.done():
        assert await rig.stop() == 0
    assert not [pid for pid in rig.pids.values() if os.path.exists(f"/proc/{pid}")]  # noqa: ASYNC240, PTH110
    transport.close()
    os.close(write)


async def test_the_new_one_is_there_before_the_old_one_leaves(rig: Rig):
    rig.start("old")
    await rig.until("old accept")
    rig.next = [["new"]]
    rig.hang_up()
    await rig.until("old ended", "new accept")
    assert rig.said.index("new began") < rig.said.index("old leave")
    assert (rig.seats["old"], rig.seats["new"]) == ("gateway-1.0", "gateway-1.1")


async def test_wrong_settings_change_nothing(rig: Rig, caplog: pytest.LogCaptureFixture):
    rig.start("old")
    await rig.until("old accept")
    rig.next = ["refrain.yaml:3: prot: unknown key", ["new"]]
    rig.hang_up()
    await rig.until_logged("in force: refrain.yaml:3: prot: unknown key", caplog)
    assert rig.said == ["old began", "old accept"]
    rig.hang_up()
    await rig.until("new accept")


async def test_if_the_new_one_does_not_start_the_old_one_stays(
    rig: Rig, caplog: pytest.LogCaptureFixture
):
    rig.start("old")
    await rig.until("old accept")
    rig.next = [["broken"]]
    rig.hang_up()
    await rig.until("broken began")
    await rig.until_logged("in force: gateway-1 ended (exit code 1)", caplog)
    assert "old leave" not in rig.said
    assert not rig.running.done()


async def test_if_the_new_one_is_never_ready_it_is_ended(
    rig: Rig, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(module, "READY_SECONDS", 1.0)
    rig.start("old")
    await rig.until("old accept")
    rig.next = [["slow"]]
    rig.hang_up()
    await rig.until_logged("in force: gateway-1 did not report ready in 1 s", caplog)
    assert "old leave" not in rig.said


async def test_several_workers_are_replaced_one_after_another(rig: Rig):
    rig.start("one", "two")
    await rig.until("one accept", "two accept")
    rig.next = [["three", "four"]]
    rig.hang_up()
    await rig.until("one ended", "two ended", "three accept", "four accept")
    assert rig.said.index("three began") < rig.said.index("four began")


async def test_if_one_of_several_cannot_be_replaced_none_is(
    rig: Rig, caplog: pytest.LogCaptureFixture
):
    rig.start("one", "two")
    await rig.until("one accept", "two accept")
    rig.next = [["three", "broken"]]
    rig.hang_up()
    await rig.until("one ended", "three accept", "broken began", "three ended", "one accept")
    assert "two leave" not in rig.said
    await rig.until_logged("in force: gateway-2 ended (exit code 1)", caplog)


async def test_a_worker_that_is_killed_starts_again_with_the_newest_settings(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(module, "FIRST_BACKOFF_SECONDS", 0.01)
    rig.start("old")
    await rig.until("old accept")
    rig.next = [["new"]]
    rig.hang_up()
    await rig.until("new accept")
    os.kill(rig.pids["new"], signal.SIGKILL)
    await rig.until("new began", "new accept")


async def test_while_the_old_one_leaves_its_successor_keeps_another_name(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
):
    """So does one that was started after a crash."""
    monkeypatch.setattr(module, "FIRST_BACKOFF_SECONDS", 0.01)
    rig.start("old-stays")
    await rig.until("old-stays accept")
    rig.next = [["new"]]
    rig.hang_up()
    await rig.until("old-stays leave", "new accept")
    os.kill(rig.pids["new"], signal.SIGKILL)
    await rig.until("new began", "new accept")
    assert rig.seats["new"] == "gateway-1.1"  # the name of the one that was killed
    os.kill(rig.pids["old-stays"], signal.SIGKILL)


async def test_if_the_old_one_dies_meanwhile_the_new_one_takes_its_place(rig: Rig):
    rig.start("old")
    await rig.until("old accept")
    rig.may_read.clear()
    rig.next = [["new"]]
    rig.hang_up()
    os.kill(rig.pids["old"], signal.SIGSTOP)
    rig.may_read.set()
    os.kill(rig.pids["old"], signal.SIGKILL)
    await rig.until("new accept")


async def test_signals_during_a_reload_are_one_more_reload(rig: Rig):
    rig.start("old")
    await rig.until("old accept")
    rig.may_read.clear()
    rig.next = [["second"], ["third"], ["fourth"]]
    rig.hang_up()
    async with asyncio.timeout(60):
        while not rig.reads:  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0)
    for _ in range(3):
        rig.hang_up()
        await asyncio.sleep(0)
    rig.may_read.set()
    await rig.until("third accept")
    assert rig.next == [["fourth"]]


@pytest.mark.parametrize("phase", ["reads", "starts", "leaves"])
async def test_a_stop_during_a_reload_ends_everything(rig: Rig, phase: str):
    rig.start("old-stays" if phase == "leaves" else "old")
    await rig.until(*(["old-stays accept"] if phase == "leaves" else ["old accept"]))
    rig.next = [["slow" if phase == "starts" else "new"]]
    if phase == "reads":
        rig.may_read.clear()
    rig.hang_up()
    if phase == "starts":
        await rig.until("slow began")
    elif phase == "leaves":
        await rig.until("old-stays leave", "new accept")
        rig.supervisor.stop()
        await rig.until("new ended")
        rig.supervisor.stop()  # it has no answers to finish, and would wait for its time
    assert (await rig.stop() if phase != "leaves" else await asyncio.wait_for(rig.running, 60)) == 0


async def test_a_reload_waits_for_no_stream_unless_too_many_old_workers_have_one(
    rig: Rig, caplog: pytest.LogCaptureFixture
):
    rig.start("first-stays")
    await rig.until("first-stays accept")
    rig.next = [["second-stays"], ["third-stays"], ["fourth"]]
    rig.hang_up()
    await rig.until("first-stays leave", "second-stays accept")
    rig.hang_up()
    await rig.until("second-stays leave", "third-stays accept")
    assert "first-stays ended" not in rig.said
    rig.hang_up()
    await rig.until_logged("waits for 1 workers that finish their answers", caplog)
    rig.hang_up()  # the settings are read later: no further reload
    os.kill(rig.pids["first-stays"], signal.SIGKILL)
    await rig.until("third-stays leave", "fourth accept")
    assert rig.seats["fourth"] == "gateway-1.0"
    assert not rig.next
    for name in ("second-stays", "third-stays"):
        os.kill(rig.pids[name], signal.SIGKILL)


async def test_settings_are_in_force_once_the_old_worker_takes_no_connections(
    rig: Rig, caplog: pytest.LogCaptureFixture
):
    rig.start("old-deaf")
    await rig.until("old-deaf accept")
    rig.next = [["new"]]
    rig.hang_up()
    await rig.until("old-deaf leave", "new accept")
    assert "are in force" not in caplog.text
    os.kill(rig.pids["old-deaf"], signal.SIGUSR1)
    await rig.until_logged("are in force", caplog)


async def test_an_old_worker_that_does_not_obey_holds_a_reload_up_for_a_while_only(
    rig: Rig, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(module, "LEFT_SECONDS", 0.01)
    rig.start("old-deaf")
    await rig.until("old-deaf accept")
    rig.next = [["new"]]
    rig.hang_up()
    await rig.until_logged("are in force", caplog)
    os.kill(rig.pids["old-deaf"], signal.SIGUSR1)
    await rig.until("old-deaf ended")
