"""The guard before an index on the network: bounded waits, none while open, back by a probe."""

import asyncio
import logging
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from controlled_sleep import Pauses

from embeddings.index import breaker
from embeddings.index.breaker import LONGEST_PAUSE_S, MAX_WRITES, PREPARE_S, GuardedIndex
from embeddings.index.text_index import TextIndex
from embeddings.index.vector_index import IndexLostError, VectorIndexError
from embeddings.messages import Match, Reason

VECTOR = np.array([1, 0, 0, 0], dtype=np.float32)
SHORT = 0.01
LOST = IndexLostError(Reason.INDEX_UNAVAILABLE, "gone")
REFUSED = VectorIndexError(Reason.INDEX_ERROR, "full")


class Scripted:
    """An index that hangs while frozen and raises what it is told; notes what it was asked."""

    name, size = "scripted", 7

    def __init__(self):
        self.thawed = asyncio.Event()
        self.thawed.set()
        self.fault = None
        self.write_fault = None
        self.calls = []
        self.stored = []

    async def _pass(self, call, fault):
        self.calls.append(call)
        await self.thawed.wait()
        if fault is not None:
            raise fault

    async def prepare(self):
        await self._pass("prepare", self.fault)

    async def search(self, partition, vector, k, now):
        await self._pass("search", self.fault)
        return [Match(b"found", 1.0)]

    async def add(self, partition, key, vector, expires_at, now):
        await self._pass("add", self.fault or self.write_fault)
        self.stored.append(key)

    async def remove(self, keys):
        await self._pass("remove", self.fault or self.write_fault)

    async def sweep(self, now):
        await self._pass("sweep", self.fault)

    async def close(self):
        self.calls.append("close")


@pytest.fixture
def pauses():
    return Pauses()


@pytest.fixture
def index():
    return Scripted()


@pytest.fixture
async def guarded(index, pauses):
    made = GuardedIndex(index, dimensions=4, seconds=SHORT, sleep=pauses.sleep)
    await made.start()
    index.calls.clear()
    yield made
    index.thawed.set()
    await made.close()


async def reason_of(call):
    with pytest.raises(VectorIndexError) as refused:
        await call
    return refused.value.reason


def search(guarded):
    return guarded.search(b"p", VECTOR, 1, 0.0)


def add(guarded, key=b"k"):
    return guarded.add(b"p", key, VECTOR, 1.0, 0.0)


async def test_a_search_that_hangs_is_a_timeout_and_no_other_waits(guarded, index):
    index.thawed.clear()
    assert await reason_of(search(guarded)) == "index-timeout"
    assert guarded.fault == "not answering"
    for call in (search(guarded), add(guarded), guarded.remove([b"k"]), guarded.sweep(0.0)):
        assert await reason_of(call) == "index-unavailable"
    assert index.calls == ["search"]


async def test_searches_under_way_when_it_opens_wait_no_longer_than_their_own_bound(guarded, index):
    index.thawed.clear()
    calls = [reason_of(search(guarded)) for _ in range(50)]
    assert set(await asyncio.gather(*calls)) == {"index-timeout"}
    assert guarded.fault == "not answering"


async def test_an_index_that_is_gone_is_not_asked_again(guarded, index):
    index.fault = LOST
    assert await reason_of(search(guarded)) == "index-unavailable"
    assert await reason_of(search(guarded)) == "index-unavailable"
    assert index.calls == ["search"]


async def test_a_fault_that_cost_no_time_opens_nothing(guarded, index):
    index.fault = REFUSED
    assert await reason_of(search(guarded)) == "index-error"
    assert guarded.fault is None
    index.fault = None
    assert await search(guarded) == [Match(b"found", 1.0)]


async def test_it_is_used_again_after_the_first_probe_that_was_answered(guarded, index, pauses):
    index.fault = LOST
    await reason_of(search(guarded))
    waited = []
    for _ in range(6):
        waited.append(await pauses.next())
        pauses.end()
    waited.append(await pauses.next())
    assert waited == [0.1, 0.2, 0.4, 0.8, 1.0, 1.0, 1.0]
    index.fault = None
    pauses.end()
    async with asyncio.timeout(60):
        while guarded.fault is not None:  # noqa: ASYNC110 - one turn of the loop at a time
            await asyncio.sleep(0)
    assert await search(guarded) == [Match(b"found", 1.0)]
    assert "search" in index.calls[-2:]


def test_recovery_is_used_within_five_seconds():
    """At worst a probe hangs that began just before; the next is answered at once."""
    assert PREPARE_S + LONGEST_PAUSE_S <= 4


async def test_a_probe_that_hangs_ends_and_the_next_one_finds_it(
    guarded, index, pauses, monkeypatch
):
    monkeypatch.setattr(breaker, "PREPARE_S", SHORT)
    index.thawed.clear()
    await reason_of(search(guarded))
    await pauses.next()
    pauses.end()
    await pauses.next()
    assert guarded.fault == "not answering"
    index.thawed.set()
    pauses.end()
    async with asyncio.timeout(60):
        while guarded.fault is not None:  # noqa: ASYNC110
            await asyncio.sleep(0)


async def test_a_defect_in_a_probe_does_not_end_the_probing(guarded, index, pauses, caplog):
    index.fault = LOST
    await reason_of(search(guarded))
    index.fault = RuntimeError("a defect")
    await pauses.next()
    pauses.end()
    await pauses.next()
    index.fault = None
    pauses.end()
    async with asyncio.timeout(60):
        while guarded.fault is not None:  # noqa: ASYNC110
            await asyncio.sleep(0)
    assert "RuntimeError" in caplog.text


async def test_an_index_that_is_not_there_at_the_start_is_found_later(index, pauses):
    index.fault = LOST
    guarded = GuardedIndex(index, dimensions=4, seconds=SHORT, sleep=pauses.sleep)
    await guarded.start()
    assert await reason_of(search(guarded)) == "index-unavailable"
    index.fault = None
    await pauses.next()
    pauses.end()
    async with asyncio.timeout(60):
        while guarded.fault is not None:  # noqa: ASYNC110
            await asyncio.sleep(0)
    assert await search(guarded) == [Match(b"found", 1.0)]
    await guarded.close()


async def test_a_slow_write_goes_on_without_its_caller(guarded, index):
    index.thawed.clear()
    assert await reason_of(add(guarded)) == "index-timeout"
    assert guarded.fault is None
    assert guarded.dropped == 0
    index.thawed.set()
    await asyncio.wait(guarded._writing)
    assert index.stored == [b"k"]


async def test_a_write_that_hangs_opens_and_counts_as_dropped(guarded, index, monkeypatch):
    monkeypatch.setattr(breaker, "WRITE_S", 2 * SHORT)
    index.thawed.clear()
    assert await reason_of(add(guarded)) == "index-timeout"
    await asyncio.wait(guarded._writing)
    await asyncio.sleep(0)
    assert guarded.fault == "not answering"
    assert await reason_of(add(guarded)) == "index-unavailable"
    assert guarded.dropped == 2
    assert index.stored == []


async def test_writes_that_hang_are_bounded_in_number(guarded, index):
    index.thawed.clear()
    calls = [asyncio.create_task(reason_of(add(guarded, b"%d" % n))) for n in range(MAX_WRITES + 5)]
    reasons = await asyncio.gather(*calls)
    assert reasons.count("overloaded") == 5
    assert len(guarded._writing) == MAX_WRITES
    assert guarded.dropped == 5


async def test_an_index_that_is_full_is_searched_on(guarded, index, caplog):
    caplog.set_level(logging.INFO)
    index.write_fault = REFUSED
    for _ in range(3):
        assert await reason_of(add(guarded)) == "index-error"
    assert (guarded.fault, guarded.dropped) == ("not storing", 3)
    assert await search(guarded) == [Match(b"found", 1.0)]
    index.write_fault = None
    await add(guarded)
    await asyncio.sleep(0)
    assert guarded.fault is None
    assert caplog.text.count("vectors are not stored") == 1
    assert "3 were dropped" in caplog.text


async def test_what_is_no_vector_is_refused_and_no_fault_of_the_index(guarded, index):
    index.write_fault = ValueError("not a vector")
    with pytest.raises(ValueError, match="not a vector"):
        await add(guarded)
    assert (guarded.fault, guarded.dropped) == (None, 0)


async def test_a_cancelled_search_opens_nothing(guarded, index):
    index.thawed.clear()
    call = asyncio.create_task(search(guarded))
    await asyncio.sleep(0)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert guarded.fault is None


async def test_a_cancelled_write_is_whole(guarded, index):
    index.thawed.clear()
    call = asyncio.create_task(add(guarded))
    await asyncio.sleep(0)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    index.thawed.set()
    await asyncio.wait(guarded._writing)
    assert index.stored == [b"k"]


async def test_closing_ends_the_probing_and_waits_for_writes(index, pauses):
    guarded = GuardedIndex(index, dimensions=4, seconds=SHORT, sleep=pauses.sleep)
    await guarded.start()
    index.thawed.clear()
    await reason_of(add(guarded))
    await reason_of(search(guarded))
    await pauses.next()
    closing = asyncio.create_task(guarded.close())
    await asyncio.sleep(0)
    assert not closing.done()
    index.thawed.set()
    await closing
    assert index.stored == [b"k"]
    assert index.calls[-1] == "close"


class Lengths:
    """Encodes at once."""

    name, digest, dimensions, lanes = "lengths", "ab" * 32, 4, 1

    def encode(self, texts):
        return [VECTOR for _ in texts]


async def test_an_index_that_hangs_does_not_hold_up_the_encoder(index, pauses):
    guarded = GuardedIndex(index, dimensions=4, seconds=3600, sleep=pauses.sleep)
    await guarded.start()
    texts = TextIndex(Lengths(), ThreadPoolExecutor(1), guarded, lambda: 0.0)
    index.thawed.clear()
    hanging = [asyncio.create_task(texts.search(b"p", f"text {n}", 1)) for n in range(100)]
    async with asyncio.timeout(30):
        while index.calls.count("search") < 101:  # noqa: ASYNC110 - the probe is one of them
            await asyncio.sleep(0)
        assert len(await texts.embed(["a", "b"])) == 2
    assert not any(call.done() for call in hanging)
    index.thawed.set()
    await asyncio.gather(*hanging)
    await texts.close()
