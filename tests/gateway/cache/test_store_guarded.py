"""The breaker around a store: bounded waits, none at all while it is open, back after a probe."""

import asyncio
import logging

import pytest
from controlled_sleep import Pauses

from gateway.cache.ports import (
    EntryTooLargeError,
    StoreError,
    StoreFullError,
    StoreRefusedError,
    StoreUnavailableError,
)
from gateway.cache.stores.conformance import check_store, example_entry
from gateway.cache.stores.guarded import FIRST_PAUSE, LONGEST_PAUSE, PROBE_KEY, GuardedStore
from gateway.cache.stores.memory import MemoryStore, resident_size

ENTRY = example_entry()
NEVER = 3600.0


class Frozen(MemoryStore):
    """Hangs while frozen, like a stopped Redis; notes what it was asked for."""

    def __init__(self):
        super().__init__(max_bytes=1 << 20)
        self.thawed = asyncio.Event()
        self.thawed.set()
        self.fault = None
        self.calls = []

    async def _pass(self, *call):
        self.calls.append(call)
        await self.thawed.wait()
        if self.fault is not None:
            raise self.fault

    async def get(self, key, *, touch=True):
        await self._pass("get", key)
        return await super().get(key, touch=touch)

    async def put(self, entry):
        await self._pass("put", entry.key)
        await super().put(entry)

    async def delete(self, key):
        await self._pass("delete", key)
        await super().delete(key)


async def used_again(guarded):
    """Wait for the probe that is answered."""
    async with asyncio.timeout(60):
        while not guarded.is_used:  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0)


@pytest.fixture
def pauses():
    return Pauses()


@pytest.fixture
def store():
    return Frozen()


@pytest.fixture
async def guarded(store, pauses):
    guarded = GuardedStore(store, read_seconds=0.01, write_seconds=0.01, sleep=pauses.sleep)
    yield guarded
    await guarded.close()


async def test_a_guarded_store_is_a_store(pauses):
    async def make(max_bytes):
        memory = MemoryStore(max_bytes=max_bytes)
        return GuardedStore(memory, read_seconds=NEVER, write_seconds=NEVER, sleep=pauses.sleep)

    await check_store(make, charge=resident_size)


@pytest.mark.parametrize(
    "call",
    [
        lambda store: store.get(b"key"),
        lambda store: store.put(ENTRY),
        lambda store: store.delete(b"key"),
    ],
)
async def test_a_frozen_store_fails_within_its_bound_and_then_at_once(guarded, store, pauses, call):
    store.thawed.clear()
    with pytest.raises(StoreUnavailableError, match=r"within 0\.01 s"):
        await call(guarded)
    assert not guarded.is_used
    asked = len(store.calls)
    for _ in range(100):
        with pytest.raises(StoreUnavailableError, match="probed meanwhile"):
            await call(guarded)
    assert len(store.calls) == asked


async def test_a_look_finds_out_without_requests_and_the_fault_has_a_time(store, pauses):
    guarded = GuardedStore(
        store, read_seconds=0.01, write_seconds=0.01, sleep=pauses.sleep, now=lambda: 1000.0
    )
    await guarded.check()
    assert guarded.problem is None
    store.thawed.clear()
    await guarded.check()
    assert not guarded.is_used
    assert guarded.problem == ("not answering", 1000.0, "the store did not answer within 0.01 s")
    await guarded.check()
    assert len(store.calls) == 2
    await guarded.close()


async def test_it_is_used_again_once_a_probe_was_answered(guarded, store, pauses):
    store.thawed.clear()
    with pytest.raises(StoreError):
        await guarded.get(b"key")
    assert await pauses.next() == FIRST_PAUSE
    pauses.end()
    assert await pauses.next() == 2 * FIRST_PAUSE
    assert store.calls[-1] == ("get", PROBE_KEY)
    store.thawed.set()
    with pytest.raises(StoreUnavailableError):  # half-open is not open to clients
        await guarded.get(b"key")
    pauses.end()
    await used_again(guarded)
    assert guarded.is_used
    await guarded.put(ENTRY)
    assert await guarded.get(ENTRY.key) == ENTRY


async def test_a_store_that_is_gone_opens_it_and_one_without_room_does_not(guarded, store, pauses):
    store.fault = EntryTooLargeError("no")
    with pytest.raises(EntryTooLargeError):
        await guarded.put(ENTRY)
    store.fault = StoreError("out of memory")
    with pytest.raises(StoreError, match="out of memory"):
        await guarded.put(ENTRY)
    assert guarded.is_used
    store.fault = StoreUnavailableError("connection refused")
    with pytest.raises(StoreUnavailableError, match="refused"):
        await guarded.get(b"key")
    assert not guarded.is_used


async def test_calls_that_hang_together_open_it_once(guarded, store, pauses):
    store.thawed.clear()
    outcomes = await asyncio.gather(
        *(guarded.get(b"%d" % n) for n in range(50)), return_exceptions=True
    )
    assert {type(outcome) for outcome in outcomes} == {StoreUnavailableError}
    await pauses.next()
    assert pauses.asked.empty()


async def test_a_probe_that_raises_something_odd_does_not_end_the_probing(guarded, store, pauses):
    store.thawed.clear()
    with pytest.raises(StoreError):
        await guarded.get(b"key")
    await pauses.next()
    store.fault = ZeroDivisionError()
    store.thawed.set()
    pauses.end()
    await pauses.next()
    store.fault = None
    pauses.end()
    await used_again(guarded)
    assert guarded.is_used
    assert await guarded.get(b"key") is None


async def test_closing_ends_the_probing(store, pauses):
    guarded = GuardedStore(store, read_seconds=0.01, write_seconds=0.01, sleep=pauses.sleep)
    store.thawed.clear()
    with pytest.raises(StoreError):
        await guarded.get(b"key")
    await pauses.next()
    await guarded.close()
    with pytest.raises(StoreError):
        await guarded.get(b"key")


async def test_pauses_double_up_to_a_bound_within_which_recovery_is_seen(guarded, store, pauses):
    store.thawed.clear()
    with pytest.raises(StoreError):
        await guarded.get(b"key")
    paused = []
    for _ in range(10):
        paused.append(await pauses.next())
        pauses.end()
    assert paused[:3] == [FIRST_PAUSE, 2 * FIRST_PAUSE, 4 * FIRST_PAUSE]
    assert max(paused) == LONGEST_PAUSE < 5


async def test_a_call_that_is_answered_at_once_does_not_suspend(guarded, store):
    await guarded.put(ENTRY)
    with pytest.raises(StopIteration) as stopped:
        guarded.get(ENTRY.key).send(None)
    assert stopped.value.value == ENTRY


async def test_a_cancelled_caller_cancels_the_call_of_the_store(guarded, store):
    store.thawed.clear()
    ended = []

    async def get(key, *, touch):
        try:
            await store.thawed.wait()
        except asyncio.CancelledError:
            ended.append(key)
            raise

    store.get = get
    call = asyncio.create_task(guarded.get(b"key"))
    await asyncio.sleep(0)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert ended == [b"key"]
    assert guarded.is_used


async def test_a_store_that_refuses_writes_is_read_on_and_says_so_until_it_takes_one(
    guarded, store, caplog
):
    caplog.set_level(logging.INFO, "gateway")
    await guarded.put(ENTRY)
    store.fault = StoreRefusedError("read-only")
    for _ in range(20):
        with pytest.raises(StoreRefusedError):
            await guarded.put(ENTRY)
    assert guarded.is_used
    assert guarded.problem[::2] == ("refuses writes", "read-only")
    store.fault = None
    assert await guarded.get(ENTRY.key) is not None
    assert guarded.problem is not None
    await guarded.put(ENTRY)
    assert guarded.problem is None
    assert [record.getMessage() for record in caplog.records] == [
        "store: it refuses to store answers: read-only",
        "store: it stores answers again",
    ]


async def test_a_store_that_refuses_now_and_then_is_logged_once_a_minute(guarded, store, caplog):
    caplog.set_level(logging.INFO, "gateway")
    for _ in range(20):
        store.fault = StoreRefusedError("full")
        with pytest.raises(StoreRefusedError):
            await guarded.put(ENTRY)
        store.fault = None
        await guarded.put(ENTRY)
    assert len(caplog.records) == 2


async def test_a_store_that_refuses_a_read_is_not_used(guarded, store, pauses):
    store.fault = StoreRefusedError("no such database")
    with pytest.raises(StoreRefusedError):
        await guarded.get(b"key")
    assert guarded.problem[::2] == ("not answering", "no such database")
    await pauses.next()


async def test_the_upkeep_shows_a_refusal_and_its_end_but_not_that_a_full_store_has_room(guarded):
    guarded.note_upkeep(StoreRefusedError("read-only"))
    assert guarded.problem is not None
    guarded.note_upkeep(None)
    assert guarded.problem is None
    guarded.note_upkeep(StoreFullError("full"))
    guarded.note_upkeep(None)
    assert guarded.problem is not None
