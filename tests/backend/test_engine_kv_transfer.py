"""A prompt computed by one engine and continued by another: the same text, or computed again."""

import asyncio
import errno
import json
import os
import signal
import socket
import struct
import threading
from array import array
from contextlib import closing, contextmanager, suppress
from time import monotonic

import pytest
from engine_answers import checked_engines
from host_requests import LIMIT, until
from lora_adapters import write_adapter

from backend.engine.kv_transfer import offers, protocol
from backend.engine.kv_transfer.protocol import Channel, TransferError, Wanted
from backend.engine.loading import load_engine
from backend.engine.supervisor import EngineSupervisor
from backend.models.config import ModelLoadError
from backend.ports import QueueTimeoutError
from backend.scheduler.block_pool import BLOCK_SIZE
from backend.scheduler.request import GenerationRequest, SamplingParams
from backend.settings import AdapterSource, EngineOptions, address

pytest_plugins = ["tiny_checkpoints", "tier_rates"]
pytestmark = pytest.mark.usefixtures("loads_pay")

SECRET = "between the engines"
PROMPT = tuple(7 * place % 300 for place in range(100))
CACHED = (len(PROMPT) - 1) // BLOCK_SIZE * BLOCK_SIZE


@contextmanager
def running(directory, **options):
    with checked_engines() as start:
        yield start(directory, speculation="off", kv_bytes=2**22, **options)


@contextmanager
def prefill(directory, **options):
    options = {"kv_transfer_secret": SECRET, **options}
    at = (address("127.0.0.1:0"),)
    with running(directory, role="prefill", kv_transfer=at, **options) as engine:
        yield engine, f"127.0.0.1:{engine._role.port}"


def decode(directory, *addresses, **options):
    options = {"kv_transfer_secret": SECRET, "kv_host_bytes": 2**24, **options}
    at = tuple(map(address, addresses))
    return running(directory, role="decode", kv_transfer=at, **options)


async def answer(engine, prefill_at="", prompt=PROMPT, **fields):
    """Return the answer's text, and how many tokens of the prompt this engine did not compute."""
    seed = fields.pop("seed", None)
    sampling = SamplingParams(
        temperature=0.0 if seed is None else 1.0, seed=seed, max_tokens=6, ignore_eos=True
    )
    request = GenerationRequest("r", prompt, sampling, prefill=prefill_at, **fields)
    text, cached = "", 0
    async with asyncio.timeout(LIMIT):
        async for delta in engine.generate(request):
            text, cached = text + delta.text, delta.cached_tokens
    return text, cached


def counts(engine):
    return engine._core.stats().recording.counts


def no_shared_memory(monkeypatch):
    def full(*_):
        raise OSError("no room")

    monkeypatch.setattr(os, "posix_fallocate", full)


@pytest.mark.parametrize("by", ["memory", "tcp"])
@pytest.mark.parametrize(
    "options",
    [{}, {"kv_dtype": "int8"}, {"overlap": True, "max_tokens_per_step": 32}],
    ids=["float32", "int8", "chunks"],
)
async def test_a_prompt_is_computed_once_and_the_text_is_the_same(
    checkpoint, monkeypatch, by, options
):
    directory, _ = checkpoint("llama")
    sent = []
    send_blocks = Channel.send_blocks
    monkeypatch.setattr(protocol, "PART_BYTES", 2**14)  # several parts of a prompt
    monkeypatch.setattr(
        Channel,
        "send_blocks",
        lambda self, *part: sent.append(self._memory) or send_blocks(self, *part),
    )
    if by == "tcp":
        no_shared_memory(monkeypatch)
    with running(directory, **options) as engine:
        greedy, sampled = await answer(engine), await answer(engine, seed=3, cache_salt="else")
    with prefill(directory, **options) as (first, at), decode(directory, at, **options) as second:
        assert await answer(second, at) == (greedy[0], CACHED)
        assert await answer(second, at, seed=3, cache_salt="else") == (sampled[0], CACHED)
        assert len(sent) > 2
        assert {memory is not None for memory in sent} == {by == "memory"}
        # What it has it does not ask for.
        asked = len(sent)
        assert await answer(second, at) == (greedy[0], CACHED)
        assert len(sent) == asked
        assert counts(second)["kv_transfers", ("complete",)] == 2
        assert counts(second)["kv_transfer_blocks", ("received",)] == 2 * CACHED // BLOCK_SIZE
        assert counts(first)["kv_transfer_blocks", ("sent",)] == 2 * CACHED // BLOCK_SIZE
        # Another salt is another tenant, for both engines.
        assert first._core.stats().prefix_hits == 0
        assert await answer(second, at, prompt=(*PROMPT, 1, 2, 3), cache_salt="else") != greedy
        assert first._core.stats().prefix_hits == 0


async def test_many_prompts_at_once(checkpoint):
    directory, _ = checkpoint("qwen3")
    prompts = [tuple((place * step) % 300 for place in range(90)) for step in range(1, 13)]
    with running(directory) as engine:
        expected = [(await answer(engine, prompt=prompt))[0] for prompt in prompts]
    with prefill(directory) as (_, at), decode(directory, at) as second:
        answers = await asyncio.gather(*(answer(second, at, prompt=each) for each in prompts))
        assert answers == [(text, 80) for text in expected]


async def test_an_adapter_has_blocks_of_its_own(checkpoint, tmp_path):
    directory, _ = checkpoint("llama")
    adapter = write_adapter(tmp_path / "adapter", directory, seed=1)
    options = {"lora": (AdapterSource("mine", str(adapter)),)}
    with running(directory, **options) as engine:
        expected = [(await answer(engine, adapter=number))[0] for number in (0, 1)]
    with prefill(directory, **options) as (_, at), decode(directory, at, **options) as second:
        assert [await answer(second, at, adapter=number) for number in (0, 1)] == [
            (text, CACHED) for text in expected
        ]
    with prefill(directory) as (_, at), decode(directory, at, **options) as second:
        assert await answer(second, at, adapter=1) == (expected[1], 0)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"kv_dtype": "int8"}, "another model"),
        ({"kv_transfer_secret": "between other engines"}, "another secret"),
        ({"max_model_len": 64}, "96 tokens do not fit"),
    ],
)
async def test_an_engine_that_does_not_fit_is_refused(checkpoint, caplog, options, reason):
    directory, _ = checkpoint("llama")
    with prefill(directory, **options) as (_, at), decode(directory, at) as second:
        alone = await answer(second)
        assert await answer(second, at, cache_salt="new") == (alone[0], 0)
    assert reason in caplog.text


async def test_a_request_for_an_engine_that_is_not_there_is_computed(checkpoint, caplog):
    directory, _ = checkpoint("llama")
    with socket.create_server(("127.0.0.1", 0)) as reserved:
        closed = f"127.0.0.1:{reserved.getsockname()[1]}"
    with decode(directory, closed) as second:
        assert await answer(second, closed) == (*(await answer(second, cache_salt="x"))[:1], 0)
        await answer(second, closed, cache_salt="again")
        assert (await answer(second, "10.1.2.3:80", cache_salt="stranger"))[1] == 0
        assert counts(second)["kv_transfers", ("failed",)] == 1
    assert caplog.text.count("Connection refused") == 1  # the second time it is left in peace
    assert "10.1.2.3:80' is none of --kv-transfer" in caplog.text


class Between:
    """Passes bytes of one connection on, and calls ``then`` once so many came back."""

    def __init__(self, target, num_bytes, then):
        self.server = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self.server.getsockname()[1]}"
        self._target, self._left, self._then = target, num_bytes, then
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self):
        inner, _ = self.server.accept()
        outer = socket.create_connection(self._target)
        threading.Thread(target=self._back, args=(outer, inner), daemon=True).start()
        with inner, outer:
            while data := inner.recv(2**16):
                outer.sendall(data)

    def _back(self, outer, inner):
        with inner:
            while self._left > 0 and (data := outer.recv(min(2**12, self._left))):
                self._left -= len(data)
                inner.sendall(data)
            self._then()


async def test_one_that_is_killed_in_a_transfer_costs_time_and_no_answer(
    checkpoint, monkeypatch, caplog
):
    directory, _ = checkpoint("llama")
    no_shared_memory(monkeypatch)
    with socket.create_server(("127.0.0.1", 0)) as reserved:
        port = reserved.getsockname()[1]
    options = EngineOptions(
        str(directory),
        device="cpu",
        role="prefill",
        kv_transfer=(address(f"127.0.0.1:{port}"),),
        kv_transfer_secret=SECRET,
        max_tokens_per_step=32,  # two blocks at a time
    )
    with running(directory) as engine:
        alone = await answer(engine)
    host = EngineSupervisor(options, lambda _: None)
    await host.start()
    try:
        pid = host._process._process.pid
        between = Between(("127.0.0.1", port), 40_000, lambda: os.kill(pid, signal.SIGKILL))
        with closing(between.server), decode(directory, between.address) as second:
            text, cached = await answer(second, between.address)
            assert text == alone[0]
            assert cached % BLOCK_SIZE == 0
            assert cached < CACHED
            assert counts(second)["kv_transfers", ("partial",)] == 1
    finally:
        await host.stop()
    assert "it is computed here" in caplog.text


async def test_one_that_falls_silent_is_given_up(checkpoint, monkeypatch, caplog):
    directory, _ = checkpoint("llama")
    monkeypatch.setattr(protocol, "SILENCE_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        at = f"127.0.0.1:{silent.getsockname()[1]}"
        with decode(directory, at) as second:
            assert (await answer(second, at))[1] == 0
            assert (await answer(second, at, cache_salt="again"))[1] == 0
    assert caplog.text.count("timed out") == 1  # the second time it is left in peace


@contextmanager
def stand_in(num_blocks, go=None, refusal=""):
    """Serve as a prefill engine that sends so many blocks of zeros, once ``go`` is set.

    Then it says that this was all, or refuses the rest.
    """

    def serve():
        sock, _ = server.accept()
        with sock:
            made = Channel(sock)
            made.be_greeted(SECRET)
            size = made.asked().block_bytes
            made.grant(size)
            if go is not None:
                go.wait(LIMIT)
            with suppress(OSError, TransferError):
                made.send_blocks(memoryview(bytes(num_blocks * size)), num_blocks)
                made.refuse(refusal) if refusal else made.say_end()

    with socket.create_server(("127.0.0.1", 0)) as server:
        serving = threading.Thread(target=serve)
        serving.start()
        yield f"127.0.0.1:{server.getsockname()[1]}"
        serving.join(LIMIT)


async def test_one_that_sends_more_than_was_asked_for_is_not_believed(checkpoint, caplog):
    directory, _ = checkpoint("llama")
    with stand_in(CACHED // BLOCK_SIZE + 1) as at, decode(directory, at) as second:
        text, cached = await answer(second, at)
        assert (text, cached) == ((await answer(second, cache_salt="alone"))[0], 0)
        assert second._core.stats().restarts == 0
    assert "more than it was asked for" in caplog.text


async def test_blocks_of_a_prompt_that_failed_are_not_used(checkpoint, caplog):
    directory, _ = checkpoint("llama")
    with stand_in(3, refusal="not finite") as at, decode(directory, at) as second:
        text, cached = await answer(second, at)
        assert (text, cached) == ((await answer(second, cache_salt="alone"))[0], 0)
        assert counts(second)["kv_transfers", ("failed",)] == 1
    assert "not finite; it is computed here" in caplog.text


async def test_a_prompt_that_is_computed_elsewhere_does_not_wait(checkpoint):
    directory, _ = checkpoint("llama")
    go = threading.Event()
    with stand_in(CACHED // BLOCK_SIZE, go) as at, decode(directory, at) as second:
        fields = {"queue_seconds": 30.0, "arrived": monotonic() - 60}
        asking = asyncio.create_task(answer(second, at, **fields))
        await until(lambda: second._role._open)
        (fetch,) = second._role._open.values()
        fetch.began -= 60
        go.set()
        assert (await asking)[1] == CACHED
        with pytest.raises(QueueTimeoutError):
            await answer(second, cache_salt="alone", **fields)


def test_memory_that_a_killed_engine_left_is_removed(monkeypatch, tmp_path):
    monkeypatch.setattr(protocol, "_SHARED_DIR", str(tmp_path))
    left, used = tmp_path / "refrain-kv-abcdefgh", tmp_path / "refrain-kv-bcdefghi"
    for path in (left, used):
        path.touch()
    os.utime(left, (0, 0))
    protocol.remove_left_memory()
    assert list(tmp_path.iterdir()) == [used]


async def test_a_client_that_leaves_meanwhile_leaves_nothing(checkpoint):
    directory, _ = checkpoint("llama")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        at = f"127.0.0.1:{silent.getsockname()[1]}"
        with decode(directory, at) as second:
            asking = asyncio.create_task(answer(second, at))
            await until(lambda: second._role._open)
            asking.cancel()
            await until(lambda: not second._role._open)
            assert (await answer(second))[0]


@contextmanager
def channel(port):
    with socket.create_connection(("127.0.0.1", port), timeout=LIMIT) as sock:
        made = Channel(sock)
        made.greet(SECRET)
        yield made


def wanted(engine, **fields):
    known = {
        "fingerprint": engine._core.fingerprints[0],
        "salt": "",
        "block_bytes": engine._core.runner.block_bytes,
        "num_known": 0,
        "priority": 1,
        "tokens": array("I", PROMPT[:CACHED]),
    }
    return Wanted(**(known | fields))


def test_what_no_decode_engine_would_ask_is_refused(checkpoint):
    directory, _ = checkpoint("llama")
    with prefill(directory) as (engine, _):
        port = engine._role.port
        for fields, reason in [
            ({"tokens": array("I", [1] * 15)}, "do not fill"),
            ({"tokens": array("I")}, "0 tokens"),
            ({"tokens": array("I", [2**31] * 16)}, "does not exist"),
            ({"num_known": 6}, "do not fill"),
            ({"num_known": -1}, "do not fill"),
            ({"priority": 9}, "does not exist"),
            ({"block_bytes": 1}, "another size"),
            ({"fingerprint": b"f" * 32}, "another model"),
        ]:
            with channel(port) as made, pytest.raises(TransferError, match=reason):
                made.ask(wanted(engine, **fields))
        for words in [b"{", b"[]", b'{"salt": 1}', json.dumps({"tokens": 1}).encode()]:
            with channel(port) as made:
                made._send(protocol.Kind.WANTED, words)
                made._send(protocol.Kind.TOKENS, b"\0" * 64)
                assert b"cannot be read" in made._expect(protocol.Kind.REFUSED, 2**16)
        for data in [b"GET / HTTP/1.1\r\n\r\n", b"refrain KV 1\0\0\0\0" + b"x" * 64, b""]:
            at = ("127.0.0.1", port)
            # It hangs up at any moment.
            with socket.create_connection(at, timeout=LIMIT) as sock, suppress(OSError):
                sock.sendall(data)
                sock.shutdown(socket.SHUT_WR)
                while sock.recv(4096):
                    pass
        with channel(port) as made:
            made._socket.sendall(struct.pack("!cI", b"?", 2**31))  # more than any request has
            with pytest.raises((TransferError, OSError)):
                list(made.blocks(1))
        with channel(port) as made:
            made.ask(wanted(engine))
            size = engine._core.runner.block_bytes
            assert sum(map(len, made.blocks(size))) == CACHED // BLOCK_SIZE * size


def test_who_asks_before_the_engine_is_warm_is_served_when_it_is(checkpoint):
    directory, _ = checkpoint("llama")
    at = (address("127.0.0.1:0"),)
    engine, _ = load_engine(
        str(directory), device="cpu", role="prefill", kv_transfer=at, kv_transfer_secret=SECRET
    )
    with channel(engine._role.port) as made:
        made.ask(wanted(engine))
        engine.start()
        try:
            parts = made.blocks(engine._core.runner.block_bytes)
            assert any(part for part, _ in zip(parts, range(int(LIMIT)), strict=False))
        finally:
            engine.stop()


def test_a_connection_that_cannot_be_accepted_is_not_the_last(checkpoint, monkeypatch, caplog):
    directory, _ = checkpoint("llama")
    monkeypatch.setattr(offers, "_AGAIN_SECONDS", 0.01)
    faults, accept = [OSError(errno.EMFILE, "Too many open files")] * 3, socket.socket.accept

    def full(self):
        if faults:
            raise faults.pop()
        return accept(self)

    with prefill(directory) as (engine, _):
        monkeypatch.setattr(socket.socket, "accept", full)
        for _ in range(2):  # the first is what it waits for already
            with channel(engine._role.port) as made:
                made.ask(wanted(engine))
    assert not faults
    assert caplog.text.count("Too many open files") == 1


def test_strangers_do_not_fill_the_log(checkpoint, caplog):
    directory, _ = checkpoint("llama")
    with prefill(directory) as (engine, _):
        for _ in range(5):
            with socket.create_connection(("127.0.0.1", engine._role.port), timeout=LIMIT) as sock:
                sock.sendall(b"GET / HTTP/1.1\r\n")
                with suppress(ConnectionResetError):
                    assert not sock.recv(1)
    assert caplog.text.count("no decode engine") == 1


def test_memory_of_others_is_not_mapped(tmp_path):
    (tmp_path / "refrain-kv-abcdefgh").write_bytes(b"0" * 4096)
    for path in [
        str(tmp_path / "refrain-kv-abcdefgh"),
        "/etc/passwd",
        "/dev/shm/refrain-kv-../etc",
    ]:
        assert protocol._map(path, 4096) is None


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"role": "prefill"}, "role prefill: kv-transfer is missing"),
        ({"role": "decode", "kv_transfer": ("h:1",)}, "kv-transfer-secret-file is missing"),
        ({"kv_transfer": ("h:1",)}, "say with role"),
        ({"role": "decode", "kv_transfer": ("h:1",), "kv_transfer_secret": "s"}, "16 characters"),
        ({"role": "prefill", "kv_transfer": ("h:1", "h:2"), "kv_transfer_secret": SECRET}, "got 2"),
        (
            {"role": "decode", "kv_transfer": ("h:1",), "kv_transfer_secret": SECRET},
            "kv-host-bytes",
        ),
        (
            {"role": "prefill", "kv_transfer": ("192.0.2.1:1",), "kv_transfer_secret": SECRET},
            "192.0.2.1:1: Cannot assign",
        ),
    ],
)
def test_settings_that_say_too_little_are_refused(checkpoint, options, reason):
    directory, _ = checkpoint("llama")
    if "kv_transfer" in options:
        options = options | {"kv_transfer": tuple(map(address, options["kv_transfer"]))}
    with pytest.raises(ModelLoadError, match=reason):
        load_engine(str(directory), device="cpu", **options)


@pytest.mark.parametrize("text", ["host", ":1", "host:", "host:99999", "::1:8200", "a\nb:1"])
def test_an_address_names_host_and_port(text):
    with pytest.raises(ValueError, match=r"expected (HOST:PORT|a port)"):
        address(text)
    assert address("[::1]:8200").address == ("::1", 8200)
