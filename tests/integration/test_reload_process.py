"""SIGHUP to `refrain serve`: other settings come into force, and no request is lost."""

import asyncio
import os
import pty
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession, TCPConnector
from processes import PATIENT, Process
from raw_upstream import EVENTS, RawUpstream, StartRaw, answer, raw_servers, sends, whole

from scripted_upstream import chunk, stream_of

WORDS = stream_of("Hello from here.")
EXACT = (
    "version: 1\ndefault: {exact: on, semantic: off, freshness: 1h, scope: tenant, pii: bypass}\n"
)
IN_FORCE = "reload: the new settings are in force"
KEPT = "reload: keeping the settings in force:"


@pytest.fixture
async def raw() -> AsyncIterator[StartRaw]:
    async with raw_servers() as start:
        yield start


class Gateway:
    """A gateway with a file of settings, which the test may edit."""

    def __init__(self, folder: Path, upstream: RawUpstream, **settings: Any) -> None:
        self.file = folder / "refrain.yaml"
        (folder / "policy.yaml").write_text(EXACT)
        self.settings: dict[str, Any] = {
            "upstream": upstream.url,
            "upstream_name": "one",
            "policy": folder / "policy.yaml",
            "data_dir": folder / "data",
            "port": 0,
            **settings,
        }
        self.write()
        self.process = Process("-m", "gateway.cli", "serve", "--config", str(self.file))

    def write(self, more: str = "") -> None:
        lines = [f"{key}: {value}\n" for key, value in self.settings.items() if value is not None]
        self.file.write_text("".join(lines) + more)

    async def ready(self) -> str:
        line = await self.line("ready: base URL")
        return line.rpartition(" ")[2].removesuffix("/v1")

    async def line(self, text: str) -> str:
        return await asyncio.to_thread(self.process.wait_for_line, text)

    def hang_up(self) -> None:
        self.process.popen.send_signal(signal.SIGHUP)

    async def reload(self, expected: str = IN_FORCE) -> str:
        self.hang_up()
        return await self.line(expected)

    async def until_children(self, number: int) -> None:
        async with asyncio.timeout(60):
            while len(self.process.children()) != number:  # noqa: ASYNC110 - nobody tells
                await asyncio.sleep(0.01)


Start = Callable[..., Gateway]


@pytest.fixture
async def start(tmp_path: Path) -> AsyncIterator[Start]:
    started: list[Gateway] = []

    def begin(upstream: RawUpstream, **settings: Any) -> Gateway:
        started.append(Gateway(tmp_path, upstream, **settings))
        return started[-1]

    yield begin
    for gateway in started:
        assert await asyncio.to_thread(gateway.process.stop) == 0
        assert not any("killed" in line for line in gateway.process.lines)


def body(question: str, **more: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": question}], **more}


async def ask(session: ClientSession, url: str, question: str) -> tuple[str, str, str]:
    """Return Cache-Status, the answer and the header Connection."""
    async with session.post(f"{url}/v1/chat/completions", json=body(question)) as reply:
        assert reply.status == 200, await reply.text()
        said = (await reply.json())["choices"][0]["message"]["content"]
        return reply.headers["Cache-Status"], said, reply.headers.get("Connection", "")


def streamed(session: ClientSession, url: str, question: str) -> Any:
    return session.post(f"{url}/v1/chat/completions", json=body(question, stream=True))


async def until_all_are_ready(url: str) -> None:
    """The line comes with the first worker that is ready. Many requests at once reach them all."""

    async def is_ready() -> bool:
        async with ClientSession() as session, session.get(f"{url}/readyz") as reply:
            return reply.status == 200

    async with asyncio.timeout(60):
        while not all(await asyncio.gather(*(is_ready() for _ in range(64)))):
            pass


def one_connection() -> ClientSession:
    return ClientSession(connector=TCPConnector(limit=1))


class HeldStream(RawUpstream):
    """An upstream that begins streams, which end once they may; it answers others at once."""

    def __init__(self, text: str) -> None:
        super().__init__(self._says)
        self.may_end = asyncio.Event()
        self._text = text

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := (await reader.readuntil(b"\r\n\r\n")).lower():
                length = head.partition(b"content-length:")[2].partition(b"\r\n")[0]
                asked = await reader.readexactly(int(length or b"0"))
                if head.startswith(b"get"):
                    writer.write(whole(b'{"data": []}'))
                    continue
                self.calls += 1
                if b'"stream":true' not in asked.replace(b" ", b""):
                    writer.write(whole(answer(self._text)))
                    continue
                writer.write(b"HTTP/1.1 200 OK\r\n" + EVENTS + b"\r\n" + WORDS[0])
                writer.write(chunk(delta={"content": "Hello"}))
                await self.may_end.wait()
                writer.write(b"".join(WORDS[1:]))
                return
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def _says(self, _: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        raise AssertionError("not used")


@pytest.fixture
async def held() -> AsyncIterator[Callable[[str], Any]]:
    async with AsyncExitStack() as stack:

        async def begin(text: str) -> HeldStream:
            upstream = HeldStream(text)
            server = await asyncio.start_server(upstream.serve, "127.0.0.1", 0, limit=2**26)
            stack.callback(server.close)
            upstream.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
            return upstream

        yield begin


@pytest.mark.parametrize("workers", [1, 2])
async def test_under_load_no_request_fails_and_a_stream_ends_whole(
    held: Callable[[str], Any], start: Start, workers: int
):
    before, after = await held("before"), await held("after")
    # The policy by default: the new worker is not ready before it knows the encoder.
    gateway = start(before, workers=workers, policy=None)
    url = await gateway.ready()
    answers: dict[str, int] = {}
    done = asyncio.Event()

    async def load(number: int) -> None:
        async with one_connection() as session:
            for count in range(1_000_000):
                if done.is_set():
                    return
                # Each third question is new.
                question = f"What is {number} and {count // 3}?"
                _, text, _ = await ask(session, url, question)
                answers[text] = answers.get(text, 0) + 1

    async def watch() -> None:
        while not done.is_set():
            async with ClientSession() as session, session.get(f"{url}/readyz") as reply:
                assert reply.status == 200, await reply.text()

    await until_all_are_ready(url)
    async with AsyncExitStack() as stack:
        session = await stack.enter_async_context(ClientSession())
        stream = await stack.enter_async_context(streamed(session, url, "Hello?"))
        first = await stream.content.readany()
        tasks = [asyncio.create_task(load(number)) for number in range(8)]
        tasks.append(asyncio.create_task(watch()))
        gateway.settings["upstream"] = after.url
        gateway.settings["upstream_name"] = "two"
        gateway.write()
        await gateway.reload()
        async with asyncio.timeout(60):
            while answers.get("after", 0) < 300:
                for task in tasks:
                    if task.done():
                        task.result()  # says why it has ended
                await asyncio.sleep(0.01)
        done.set()
        await asyncio.gather(*tasks)
        # The old process is there for the stream alone.
        assert len(gateway.process.children()) > 1 + workers
        before.may_end.set()
        rest = await asyncio.wait_for(stream.content.read(), 30)
    assert (first + rest).endswith(WORDS[-1])
    assert answers["before"]
    await gateway.until_children(1 + workers)


async def test_what_was_stored_just_before_is_a_hit_after_and_a_crash_changes_nothing(
    held: Callable[[str], Any], start: Start
):
    before, after = await held("before"), await held("after")
    gateway = start(before)
    url = await gateway.ready()
    questions = [f"What is {number}?" for number in range(200)]
    async with ClientSession() as session:
        for question in questions:
            assert "stored" in (await ask(session, url, question))[0]
        behind = set(gateway.process.children())
        gateway.settings["upstream"] = after.url  # its name in keys stays
        gateway.write()
        await gateway.reload()
        for question in questions:
            assert "hit" in (await ask(session, url, question))[0]
        await gateway.until_children(2)
        assert "stored" in (await ask(session, url, "Who?"))[0]
    worker = next(pid for pid in gateway.process.children() if pid not in behind)
    os.kill(worker, signal.SIGKILL)
    await gateway.line("starting it again")
    async with ClientSession() as session:
        for question in (questions[0], "Who?"):
            assert "hit" in (await ask(session, url, question))[0]
        assert (await ask(session, url, "Why?"))[1] == "after"
    second = Process("-m", "gateway.cli", "serve", "--config", str(gateway.file))
    await asyncio.to_thread(second.wait_for_line, f"(pid {gateway.process.popen.pid})")
    assert await asyncio.to_thread(second.popen.wait, 60) == 1


async def test_a_purge_and_a_revoked_key_hold_in_the_new_process_and_in_the_one_that_leaves(
    held: Callable[[str], Any], start: Start, tmp_path: Path
):
    upstream = await held("an answer")
    keys = tmp_path / "keys"
    keys.write_text(f"ours {sha256(b'sk-ours').hexdigest()}\n")
    gateway = start(upstream, gateway_keys=keys)
    url = await gateway.ready()
    purge = {"all": True, "dry_run": False}
    credential = {"Authorization": "Bearer sk-ours"}
    async with AsyncExitStack() as stack:
        # A connection each, which the old processes keep open as long as a stream is under way.
        kept = [await stack.enter_async_context(one_connection()) for _ in range(12)]
        fresh = await stack.enter_async_context(ClientSession())
        for session in (*kept, fresh):
            session.headers.update(credential)
        for number, session in enumerate(kept):
            assert await ask(session, url, "How?")
            other = await stack.enter_async_context(ClientSession(headers=credential))
            await stack.enter_async_context(streamed(other, url, f"Stream {number}?"))
        await gateway.reload()
        assert "hit" in (await ask(fresh, url, "How?"))[0]
        async with fresh.post(f"{url}/admin/purge", json=purge) as reply:
            assert (await reply.json())["entries"] == 1
        status, _, connection = await ask(kept[0], url, "How?")
        assert "fwd=miss" in status
        assert connection == "close"
        assert "hit" in (await ask(fresh, url, "How?"))[0]
        async with kept[1].post(f"{url}/admin/purge", json=purge) as reply:
            assert (await reply.json())["entries"] == 1
        assert "fwd=miss" in (await ask(fresh, url, "How?"))[0]
        assert "hit" in (await ask(kept[2], url, "How?"))[0]
        async with kept[3].get(f"{url}/readyz") as reply:
            assert reply.status == 200
        keys.write_text("# nobody\n")
        for _ in range(2):
            await gateway.line(f"keys: {keys} reloaded")
        for session in (kept[4], fresh):
            async with session.post(f"{url}/v1/chat/completions", json=body("How?")) as reply:
                assert reply.status == 401
        upstream.may_end.set()


async def test_what_is_wrong_changes_nothing_and_is_told_with_its_place(
    raw: StartRaw, start: Start, tmp_path: Path
):
    upstream = await raw(sends(whole(answer("an answer"))))
    gateway = start(upstream)
    url = await gateway.ready()
    before, settings = gateway.process.children(), dict(gateway.settings)
    gateway.write("read_timout: 3s\n")
    line = await gateway.reload(KEPT)
    assert f"{gateway.file}:{len(settings) + 1}: read_timout: expected a known key" in line
    gateway.settings |= {"port": 1, "data_dir": tmp_path / "other", "store": "redis://:secret@x"}
    gateway.write()
    line = await gateway.reload(KEPT)
    where = list(gateway.settings).index("port") + 1
    assert f"{gateway.file}:{where}: port: a change needs a restart of the gateway; " in line
    assert "data_dir: a change" in line
    assert "store: a change" in line
    assert "secret" not in line
    gateway.settings = settings | {"policy": tmp_path / "absent.yaml"}
    gateway.write()
    assert "absent.yaml: cannot be read" in await gateway.reload(KEPT)
    assert gateway.process.children() == before
    # What is right, and no worker can start with.
    gateway.settings = settings
    gateway.write()
    async with ClientSession() as session:
        assert "stored" in (await ask(session, url, "How?"))[0]
        secret = tmp_path / "data" / "secret"
        good = secret.read_bytes()
        secret.write_bytes(b"short")
        line = await gateway.reload(KEPT)
        assert "gateway-1 ended (exit code 1); its own lines say why" in line
        assert gateway.process.children() == before
        assert "hit" in (await ask(session, url, "How?"))[0]
        assert "stored" in (await ask(session, url, "Why?"))[0]
        secret.write_bytes(good)
        await gateway.reload()
        assert "hit" in (await ask(session, url, "Why?"))[0]


async def test_the_figures_of_several_workers_go_on_and_a_stop_ends_a_reload(
    raw: StartRaw, start: Start
):
    upstream = await raw(sends(whole(answer("an answer"))))
    gateway = start(upstream, workers=2)
    url = await gateway.ready()

    async def counted() -> float:
        async with ClientSession() as session, session.get(f"{url}/metrics") as reply:
            page = (await reply.text()).splitlines()
        named = [line for line in page if line.startswith("refrain_requests_total")]
        return sum(float(line.rpartition(" ")[2]) for line in named)

    async def overview(path: str = "") -> Any:
        async with ClientSession() as session, session.get(f"{url}/admin/overview{path}") as reply:
            return await reply.json()

    started = (await overview())["started"]
    files: list[set[str]] = []
    for round_ in range(1, 4):
        for number in range(10):
            async with ClientSession() as session:
                await ask(session, url, f"What is {number}?")
        async with asyncio.timeout(60):
            # A worker writes down what it counts once a second.
            while await counted() < 10 * round_:  # noqa: ASYNC110 - nobody tells
                await asyncio.sleep(0.01)
        await gateway.reload()
        await gateway.until_children(3)
        assert await counted() == 10 * round_
        files.append(files_of_figures(gateway.process))
    assert (await overview())["started"] == started
    assert (await overview("/history"))["samples"][0]["time"] < started + 5
    # Two names for each worker, used in turn; what is under way is counted of those that run.
    names = {name.partition("gateway-")[2] for each in files for name in each}
    assert names <= {"1.0.db", "1.1.db", "2.0.db", "2.1.db"}
    assert all(sum(name.startswith("gauge") for name in each) <= 2 for each in files)
    await gateway.reload("reload: upstream")
    pids = [os.pidfd_open(pid) for pid in gateway.process.children()]
    assert await asyncio.to_thread(gateway.process.stop) == 0
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            signal.pidfd_send_signal(pid, 0)
        os.close(pid)


def files_of_figures(process: Process) -> set[str]:
    """Return the names of the files in which the workers count."""
    for child in process.children():
        for variable in Path(f"/proc/{child}/environ").read_text().split("\0"):
            name, _, value = variable.partition("=")
            if name == "PROMETHEUS_MULTIPROC_DIR":
                return {path.name for path in Path(value).iterdir()}
    raise AssertionError("no worker counts in files")


async def test_entries_in_memory_alone_are_gone_and_a_purge_by_the_old_process_fails(
    held: Callable[[str], Any], start: Start
):
    upstream = await held("an answer")
    gateway = start(upstream, store="memory")
    url = await gateway.ready()
    purge = {"all": True, "dry_run": False}
    async with one_connection() as old, one_connection() as older, ClientSession() as new:
        assert "stored" in (await ask(old, url, "How?"))[0]
        assert "hit" in (await ask(older, url, "How?"))[0]
        async with streamed(new, url, "Stream?"):
            await gateway.reload()
            assert "stored" in (await ask(new, url, "How?"))[0]
            assert "fwd=miss" in (await ask(old, url, "How?"))[0]
            async with older.post(f"{url}/admin/purge", json=purge) as reply:
                assert reply.status == 503
            upstream.may_end.set()


def test_with_a_terminal_it_ends_as_the_terminal_does(tmp_path: Path):
    here, there = pty.openpty()
    log = tmp_path / "log"
    with log.open("wb") as written:
        # The leader of a session that opens a terminal has it from then on.
        process = subprocess.Popen(
            [
                *("sh", "-c", HUNG_UP, os.ttyname(there), sys.executable),
                *("-m", "gateway.cli", "serve", "--upstream", "http://127.0.0.1:9/v1"),
                *("--port", "0", "--data-dir", str(tmp_path / "data")),
            ],
            stdout=written,
            stderr=written,
            env={**os.environ, **PATIENT},
            start_new_session=True,
        )
    try:
        watched = Process("-c", FOLLOW, str(log))
        watched.wait_for_line("ready: base URL")
        watched.stop(signal.SIGKILL)
        os.close(there)
        os.close(here)
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()
    assert "reload" not in log.read_text()


# Below nohup, SIGHUP would be ignored.
HUNG_UP = 'exec env --default-signal=HUP "$@" < "$0"'
FOLLOW = """
import sys, time
with open(sys.argv[1]) as log:
    while True:
        print(log.readline(), end="", flush=True)
        time.sleep(0.01)
"""
