"""Host memory and disk behind the KV pool: the same text, fewer tokens computed, no fault told."""

import errno
import os
import random
import threading
from contextlib import contextmanager

import pytest
import torch
from engine_answers import checked_engines
from host_requests import until
from lora_adapters import write_adapter

from backend.engine.engine import Engine
from backend.engine.loading import load_engine
from backend.executor import transfer
from backend.executor.block_file import BlockFile, FileInUseError, blocks_in
from backend.executor.kv_cache import KVCache
from backend.executor.transfer import BlockTransfer
from backend.models.config import ModelLoadError, ModelShape
from backend.scheduler.request import GenerationRequest, SamplingParams
from backend.scheduler.tiers import Drop, Load, Save, Source, Tiers, Transfers
from backend.server.metrics import Metrics
from backend.settings import AdapterSource

pytest_plugins = ["tiny_checkpoints", "tier_rates"]
pytestmark = pytest.mark.usefixtures("loads_pay")

HOST, DISK = Source.HOST, Source.DISK
BLOCKS = 24
PROMPT = 100
FINGERPRINT = b"m" * 32


def prompts(count, seed=0):
    chance = random.Random(seed)
    return [tuple(chance.randrange(320) for _ in range(PROMPT)) for _ in range(count)]


async def answer(engine, prompt, salt="", adapter=0):
    """Return the answer's text and how many tokens of the prompt were cached."""
    sampling = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True)
    deltas = engine.generate(
        GenerationRequest("r", prompt, sampling, cache_salt=salt, adapter=adapter)
    )
    text, cached = "", 0
    async for delta in deltas:
        text, cached = text + delta.text, delta.cached_tokens
    await settled(engine)
    return text, cached


async def settled(engine):
    """Wait for the disk, however slow it is: what leaves faster than it writes is lost."""
    mover = engine._core.runner.transfer
    if mover is not None and mover._disk is not None:
        await until(lambda: mover._disk.results.qsize() >= len(mover._jobs))


@contextmanager
def running(directory, **options):
    """An engine with a pool of ``BLOCKS`` blocks, float32 or int8."""
    per_block = 2 * 3 * 2 * 16 * (16 * 4 if options.get("kv_dtype") != "int8" else 16 + 2)
    with checked_engines() as start:
        yield start(directory, **{"kv_bytes": BLOCKS * per_block, "speculation": "off", **options})


def tiers(engine: Engine):
    return {each.name: each.figures for each in engine._core.stats().tiers}


@pytest.mark.parametrize(
    "options",
    [{}, {"overlap": True}, {"kv_dtype": "int8"}],
    ids=["float32", "overlap", "int8"],
)
@pytest.mark.parametrize("tier", [{"kv_host_bytes": 2**24}, {"kv_disk_bytes": 2**24}])
async def test_evicted_blocks_come_back_and_the_text_is_the_same(
    checkpoint, tmp_path, tier, options
):
    directory, _ = checkpoint("llama")
    texts = prompts(8)
    with running(directory, kv_bytes=2**22, **options) as engine:
        expected = [(await answer(engine, prompt))[0] for prompt in texts]
    with running(directory, kv_disk_dir=str(tmp_path), **tier, **options) as engine:
        assert [await answer(engine, prompt) for prompt in texts] == [
            (text, 0) for text in expected
        ]
        again = [await answer(engine, prompt) for prompt in texts]
        assert [text for text, _ in again] == expected
        assert [cached for _, cached in again] == [96] * 8
        assert (await answer(engine, texts[0], salt="other"))[1] == 0
        (figures,) = tiers(engine).values()
        assert figures.loads >= 40
        assert figures.failed_loads == figures.failed_saves == 0


async def test_host_memory_overflows_to_disk_and_a_restart_finds_all(checkpoint, tmp_path):
    directory, _ = checkpoint("qwen3")
    texts = prompts(8, seed=1)
    options = {"kv_host_bytes": 2**19, "kv_disk_bytes": 2**24, "kv_disk_dir": str(tmp_path)}
    with running(directory, **options) as engine:
        expected = [(await answer(engine, prompt))[0] for prompt in texts]
        assert [await answer(engine, prompt) for prompt in texts] == [
            (text, 96) for text in expected
        ]
        assert tiers(engine)["disk"].loads > 0
        stats = engine._core.stats()
        page = Metrics(lambda: stats.following(stats)).render().decode()
        disk = tiers(engine)["disk"]
        assert f'refrain_engine_kv_tier_blocks{{tier="disk"}} {disk.blocks}.0' in page
        assert f'refrain_engine_kv_tier_loads_total{{tier="disk"}} {2 * disk.loads}.0' in page
    (path,) = tmp_path.iterdir()
    assert path.stat().st_mode & 0o777 == 0o600
    with running(directory, **options) as engine:
        assert [await answer(engine, prompt) for prompt in texts] == [
            (text, 96) for text in expected
        ]
        engine._core.sleep()
        engine._core.wake()
        assert tiers(engine)["disk"].blocks >= 48
        assert tiers(engine)["host"].blocks == 0
        assert await answer(engine, texts[0]) == (expected[0], 96)
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size // 3)
    with running(directory, **options) as engine:
        answers = [await answer(engine, prompt) for prompt in texts]
        assert [text for text, _ in answers] == expected
    damaged = bytearray(path.read_bytes())
    for place in range(2 * 4096, len(damaged), 64):
        damaged[place] ^= 1
    path.write_bytes(damaged)
    with running(directory, **options) as engine:
        answers = [await answer(engine, prompt) for prompt in texts]
        assert [text for text, _ in answers] == expected
        assert tiers(engine)["disk"].failed_loads > 0


async def test_adapters_keep_their_blocks_apart_and_a_draft_model_computes_its_own(
    checkpoint, tmp_path
):
    directory, _ = checkpoint("qwen3")
    adapter = write_adapter(tmp_path / "adapter", directory, seed=3)
    texts = prompts(6, seed=2)
    asked = [(each, "", number) for each in texts for number in (0, 1)]
    own = {
        "lora": (AdapterSource("a", str(adapter)),),
        "speculative_model": str(directory),
        "kv_bytes": 2 * BLOCKS * 2 * 3 * 2 * 16 * 64,
    }
    with running(directory, **own | {"kv_bytes": 2**23}) as engine:
        expected = [(await answer(engine, *each))[0] for each in asked]
    assert expected[0] != expected[1]
    tier = {"kv_host_bytes": 2**19, "kv_disk_bytes": 2**24, "kv_disk_dir": str(tmp_path / "kv")}
    for found in (0, 96):
        with running(directory, **own, **tier) as engine:
            assert [await answer(engine, *each) for each in asked] == [
                (text, found) for text in expected
            ]
            assert [await answer(engine, *each) for each in asked] == [
                (text, 96) for text in expected
            ]


async def test_a_second_engine_serves_without_the_file_and_says_so(checkpoint, tmp_path):
    directory, _ = checkpoint("llama")
    options = {"kv_disk_bytes": 2**22, "kv_disk_dir": str(tmp_path)}
    with running(directory, **options), running(directory, **options) as second:
        assert "no disk tier: another engine uses" in second.detail[0]
        assert (await answer(second, prompts(1)[0]))[0]
        assert tiers(second) == {}


def test_a_folder_that_cannot_be_written_or_a_foreign_file_is_refused(checkpoint, tmp_path):
    directory, _ = checkpoint("llama")
    (tmp_path / "file").write_text("mine")
    options = {"device": "cpu", "kv_disk_bytes": 2**22}
    with pytest.raises(ModelLoadError, match="cannot be written: Not a directory"):
        load_engine(str(directory), kv_disk_dir=str(tmp_path / "file" / "kv"), **options)
    engine, _ = load_engine(str(directory), kv_disk_dir=str(tmp_path / "kv"), **options)
    engine._core.runner.transfer.close()
    (path,) = (tmp_path / "kv").iterdir()
    path.write_text("mine")
    with pytest.raises(ModelLoadError, match="not a file of KV blocks; move it away"):
        load_engine(str(directory), kv_disk_dir=str(tmp_path / "kv"), **options)
    assert path.read_text() == "mine"
    with pytest.raises(ModelLoadError, match="kv-disk-bytes 4096: a block takes"):
        load_engine(str(directory), device="cpu", kv_disk_bytes=4096)
    with pytest.raises(ModelLoadError, match="kv-host-bytes: at least"):
        load_engine(str(directory), device="cpu", kv_host_bytes=64)


async def test_a_full_disk_costs_hits_and_nothing_else(checkpoint, tmp_path, monkeypatch):
    directory, _ = checkpoint("llama")
    texts = prompts(6)

    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with running(directory, kv_disk_bytes=2**24, kv_disk_dir=str(tmp_path)) as engine:
        monkeypatch.setattr(os, "pwrite", full)
        first = [await answer(engine, prompt) for prompt in texts]
        assert [await answer(engine, prompt) for prompt in texts] == first
        assert tiers(engine)["disk"].failed_saves > 0
        monkeypatch.undo()
        again = [await answer(engine, prompt) for prompt in texts]
        assert [text for text, _ in again] == [text for text, _ in first]
        assert (await answer(engine, texts[0]))[1] == 96


def opened(path, **options):
    options = {"fingerprint": FINGERPRINT, "block_bytes": 100, "capacity": 3, **options}
    return BlockFile(path, **options)


def contents(file, *digests):
    content = bytearray(100)
    return [bytes(content) if file.read(each, memoryview(content)) else None for each in digests]


def test_a_file_keeps_blocks_for_its_own_model_and_one_engine(tmp_path):
    path = tmp_path / "blocks"
    one, two, three = b"1" * 32, b"2" * 32, b"3" * 32
    file = opened(path)
    file.write(one, memoryview(b"a" * 100))
    file.write(two, memoryview(b"b" * 100))
    file.write(three, memoryview(b"c" * 100))
    with pytest.raises(OSError, match="no slot"):
        file.write(b"4" * 32, memoryview(b"d" * 100))
    file.drop(two)
    with pytest.raises(FileInUseError):
        opened(path)
    file.close()
    file = opened(path)
    assert file.digests == (one, three)
    assert contents(file, one, two, three) == [b"a" * 100, None, b"c" * 100]
    file.make_room(2)
    assert file.digests == (three,)
    file.close()
    for other in ({"fingerprint": b"n" * 32}, {"block_bytes": 64}, {"capacity": 4}):
        file = opened(path, **other)
        assert file.digests == ()
        file.write(one, memoryview(b"a" * 100))
        file.close()
    assert blocks_in(3 * (4096 + 48) + 2 * 4096, 100) == 3


def test_a_file_that_was_there_becomes_private_and_what_is_no_file_is_refused(tmp_path):
    (tmp_path / "blocks").touch(0o666)
    opened(tmp_path / "blocks").close()
    assert (tmp_path / "blocks").stat().st_mode & 0o777 == 0o600
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ModelLoadError, match="it is no file; name another folder"):
        opened(tmp_path / "pipe")


def test_weights_that_were_written_anew_have_no_blocks_on_disk(checkpoint, tmp_path):
    directory, _ = checkpoint("llama")
    options = {"device": "cpu", "kv_disk_bytes": 2**22, "kv_disk_dir": str(tmp_path)}
    weights = next(iter(directory.glob("*.safetensors")))
    for seconds, found in ((1, 0), (1, 1), (2, 0)):
        os.utime(weights, (seconds, seconds))
        engine, _ = load_engine(str(directory), **options)
        moves = engine._core.runner.transfer
        assert len(moves.on_disk) == found
        moves.begin(Transfers(saves=(Save(1, b"1" * 32, DISK),)))
        moves.close()
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize("damage", [0, 31, 40, 2 * 4096 + 50])
def test_a_damaged_block_or_entry_is_no_block(tmp_path, damage):
    path, one = tmp_path / "blocks", b"1" * 32
    file = opened(path)
    file.write(one, memoryview(b"a" * 100))
    file.close()
    data = bytearray(path.read_bytes())
    data[damage if damage > 4096 else 4096 + damage] ^= 4
    path.write_bytes(data)
    file = opened(path)
    assert contents(file, one) == [None]
    file.close()


SHAPE = ModelShape(
    vocab_size=8,
    num_layers=2,
    num_heads=2,
    num_kv_heads=2,
    head_dim=4,
    max_positions=64,
    windows=(None, None),
    checkpoint_dtype="float32",
)


class Pool:
    """A pool whose blocks have random bytes, and tiers that it knows the content of."""

    def __init__(self, directory, dtype, seed, *, host, disk):
        self.random = random.Random(seed)
        self.cache = KVCache(SHAPE, 12, device=torch.device("cpu"), dtype=dtype)
        self.bytes = sum(part.shape[1] for part in self.cache.parts)
        file = None
        if disk:
            file = opened(directory / "blocks", block_bytes=self.bytes, capacity=disk)
        self.transfer = BlockTransfer(
            self.cache, host_bytes=host * self.bytes, file=file, disk_blocks=disk
        )
        self.tiers = Tiers(
            host_blocks=self.transfer.host_blocks, disk_blocks=disk, on_disk=self.transfer.on_disk
        )
        self.content = {}
        self.loading = {}
        self.num_loaded = 0

    def read(self, block):
        rows = torch.empty(1, self.bytes, dtype=torch.uint8)
        self.cache.copy_out(torch.tensor([block]), rows)
        return rows.numpy().tobytes()

    def write(self, block, content):
        rows = torch.frombuffer(bytearray(content), dtype=torch.uint8)
        self.cache.copy_in(torch.tensor([block]), rows.view(1, -1))

    def turn(self):
        """Save some blocks and write them anew, and begin to load into others."""
        blocks = [block for block in range(1, 13) if block not in self.loading]
        self.random.shuffle(blocks)
        saved = blocks[: self.random.randint(0, 4)]
        for block in saved:
            digest = b"%032d" % self.random.randrange(60)
            content = self.content.setdefault(digest, self.random.randbytes(self.bytes))
            self.write(block, content)
            self.tiers.save(block, digest)
        for block in blocks[4 : 4 + self.random.randint(0, 3)]:
            digest = b"%032d" % self.random.randrange(60)
            for source in self.tiers.reserve([digest]):
                self.tiers.load(block, digest, source)
                self.loading[block] = digest, source
        if self.random.random() < 0.05:
            self.tiers.forget([b"%032d" % self.random.randrange(60)])
        self.transfer.begin(self.tiers.take())
        for block in saved:  # whoever has it now writes at once
            self.write(block, bytes(self.bytes))
        self.take_in()

    def take_in(self):
        report = self.transfer.finished()
        for source, digest in report.lost:
            self.tiers.lost(source, digest)
        for block, succeeded in report.loaded:
            digest, source = self.loading.pop(block)
            if self.tiers.loaded(digest, source, succeeded=succeeded):
                assert self.read(block) == self.content[digest]
                self.num_loaded += 1

    def settle(self):
        while self.loading:
            self.transfer.wait(1.0)
            self.take_in()


@pytest.mark.parametrize("dtype", [torch.float32, torch.int8], ids=str)
@pytest.mark.parametrize(("host", "disk"), [(20, 0), (20, 20), (0, 30)])
def test_blocks_come_back_as_they_left(tmp_path, dtype, host, disk):
    pool = Pool(tmp_path, dtype, 1, host=host, disk=disk)
    for _ in range(300):
        pool.turn()
    pool.settle()
    assert pool.num_loaded > 50
    pool.transfer.clear()
    assert not pool.transfer.finished().loaded
    pool.tiers = Tiers(host_blocks=pool.transfer.host_blocks, disk_blocks=disk)
    pool.num_loaded = 0
    for _ in range(100):
        pool.turn()
    pool.settle()
    assert pool.num_loaded > 10
    pool.transfer.close()


def test_a_disk_that_hangs_is_given_up_and_its_late_answer_is_nobodys(tmp_path, monkeypatch):
    pool = Pool(tmp_path, torch.float32, 2, host=0, disk=8)
    block, digest = 3, b"d" * 32
    pool.write(block, b"\1" * pool.bytes)
    pool.transfer.begin(Transfers(saves=(Save(block, digest, DISK),)))
    hangs, answers = threading.Event(), os.preadv

    def late(*arguments):
        assert hangs.wait(30)
        return answers(*arguments)

    monkeypatch.setattr(os, "preadv", late)
    monkeypatch.setattr(transfer, "DISK_SECONDS", -1.0)
    pool.write(5, b"\7" * pool.bytes)
    pool.transfer.begin(Transfers(loads=(Load(5, digest, DISK),)))
    assert pool.transfer.finished().loaded == [(5, False)]
    hangs.set()
    pool.transfer.close()
    assert pool.transfer.finished().loaded == []
    assert pool.read(5) == b"\7" * pool.bytes


def test_a_load_that_finds_no_slot_is_given_up_with_a_disk_that_hangs(tmp_path, monkeypatch):
    pool = Pool(tmp_path, torch.float32, 2, host=12, disk=20)
    hangs = threading.Event()
    monkeypatch.setattr(os, "pwrite", lambda *_: hangs.wait(30) and 0)
    names = [b"%032d" % number for number in range(12)]
    first = (Save(3, b"f" * 32, HOST), *(Save(3, each, HOST) for each in names))
    pool.transfer.begin(Transfers(saves=first))
    pool.transfer.begin(Transfers(drops=tuple(Drop(each, HOST, DISK) for each in names[:8])))
    report = pool.transfer.finished()
    assert (report.loaded, report.lost) == ([], [(HOST, b"f" * 32)])
    pool.transfer.begin(Transfers(saves=tuple(Save(3, each, HOST) for each in names[:4])))
    pool.transfer.begin(Transfers(loads=(Load(5, names[0], DISK),)))
    monkeypatch.setattr(transfer, "DISK_SECONDS", -1.0)
    assert pool.transfer.finished().loaded == [(5, False)]
    monkeypatch.undo()
    hangs.set()
    pool.transfer.close()


def test_what_is_persisted_does_not_wait_for_loads_that_nobody_takes_in(tmp_path):
    pool = Pool(tmp_path, torch.float32, 4, host=20, disk=20)
    one = b"1" * 32
    pool.transfer.begin(Transfers(saves=(Save(1, one, HOST),)))
    pool.transfer.begin(Transfers(loads=(Load(2, one, HOST),)))
    wanted = [(b"%032d" % number, 3) for number in range(15)]
    assert pool.transfer.persist([*wanted, (one, None)], 5.0) == 16
    pool.transfer.clear(keeps_disk=True)
    assert pool.transfer.on_disk == tuple(each for each, _ in [*wanted, (one, 0)])
    pool.transfer.close()


def test_a_slow_disk_keeps_what_there_was_no_time_to_replace(tmp_path, monkeypatch):
    monkeypatch.setattr(transfer, "BUFFER_BYTES", 0)
    pool = Pool(tmp_path, torch.float32, 5, host=40, disk=12)
    old = [(b"o%031d" % number, 3) for number in range(12)]
    assert pool.transfer.persist(old, 5.0) == 12
    new = [b"%032d" % number for number in range(30)]
    pool.transfer.begin(Transfers(saves=tuple(Save(3, each, HOST) for each in new)))
    hangs, writes = threading.Event(), os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda *each: hangs.wait(30) and writes(*each))
    assert pool.transfer.persist([(each, None) for each in new[:12]], 0.05) == 0
    hangs.set()
    pool.transfer.clear(keeps_disk=True)
    assert pool.transfer.on_disk == (*[each for each, _ in old[8:]], *new[:8])
    pool.transfer.close()


def test_what_is_not_there_is_a_load_that_failed_and_a_demotion_that_was_lost():
    pool = Pool(None, torch.float32, 3, host=4, disk=0)
    moves = Transfers((Drop(b"x", HOST, DISK),), (), (Load(2, b"y", HOST),))
    pool.transfer.begin(moves)
    report = pool.transfer.finished()
    assert (report.loaded, report.lost) == ([(2, False)], [(DISK, b"x")])
