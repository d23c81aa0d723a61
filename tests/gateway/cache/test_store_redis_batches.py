"""Calls that share round trips: each ends, in whatever order things happen."""

import asyncio

import pytest

from gateway.cache.ports import StoreError, StoreUnavailableError
from gateway.cache.stores.redis.link import LANES, MOST_AT_ONCE, Batches


class Way:
    """The way to a server, under the test's control."""

    def __init__(self):
        self.sent = []
        self.open = asyncio.Event()
        self.open.set()
        self.fault = None

    async def send(self, batch):
        self.sent.append(list(batch))
        await self.open.wait()
        if self.fault is not None:
            raise self.fault
        return [StoreError("odd") if isinstance(n, int) and n < 0 else n for n in batch]


@pytest.fixture
def way():
    return Way()


@pytest.fixture
def batches(way):
    return Batches(way.send, size=lambda n: n if isinstance(n, int) else 0)


async def test_what_is_asked_in_one_turn_goes_in_one(batches, way):
    assert await asyncio.gather(*(batches.call(n) for n in range(40))) == list(range(40))
    assert way.sent == [list(range(40))]


async def test_many_go_in_several_and_at_most_so_many_at_a_time(batches, way):
    way.open.clear()
    count = MOST_AT_ONCE * (LANES + 2)
    asked = [asyncio.create_task(batches.call(str(n))) for n in range(count)]
    for _ in range(5):
        await asyncio.sleep(0)
    assert len(way.sent) == LANES
    way.open.set()
    assert await asyncio.gather(*asked) == [str(n) for n in range(count)]
    assert max(map(len, way.sent)) == MOST_AT_ONCE


async def test_large_ones_are_not_gathered(batches, way):
    await asyncio.gather(*(batches.call(5 << 20) for _ in range(3)))
    assert [len(batch) for batch in way.sent] == [1, 1, 1]


async def test_one_that_is_refused_is_refused_alone(batches):
    told = await asyncio.gather(*(batches.call(n) for n in (1, -1, 2)), return_exceptions=True)
    assert told[0::2] == [1, 2]
    assert isinstance(told[1], StoreError)


async def test_a_fault_is_everybodys_own(batches, way):
    way.fault = StoreUnavailableError("gone")
    told = await asyncio.gather(*(batches.call(n) for n in range(3)), return_exceptions=True)
    assert [type(each) for each in told] == [StoreUnavailableError] * 3
    assert len(set(map(id, told))) == 3
    way.fault = None
    assert await batches.call(1) == 1


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
async def test_after_a_fault_of_our_own_the_next_call_is_made(batches, way):
    way.fault = ZeroDivisionError()
    asyncio.get_running_loop().set_exception_handler(lambda *_: None)
    with pytest.raises(StoreError, match="broken off"):
        await batches.call(1)
    way.fault = None
    assert await batches.call(2) == 2


async def test_calls_at_any_moment_of_a_lanes_end_are_made(batches):
    """A lane that found nothing more is not waited for, however late its task ends."""

    async def ask(turns):
        for n in range(50):
            for _ in range(turns):
                await asyncio.sleep(0)
            assert await batches.call(n) == n

    async with asyncio.timeout(60):
        await asyncio.gather(*(ask(turns) for turns in range(12)))


async def test_who_gives_up_before_it_is_sent_is_not_sent(batches, way):
    asked = asyncio.create_task(batches.call(1))
    other = asyncio.create_task(batches.call(2))
    asyncio.get_running_loop().call_soon(asked.cancel)
    await asyncio.wait([asked, other])
    assert other.result() == 2
    assert asked.cancelled()


async def test_closing_ends_who_waits(batches, way):
    way.open.clear()
    asked = [asyncio.create_task(batches.call(n)) for n in range(MOST_AT_ONCE * 6)]
    for _ in range(3):
        await asyncio.sleep(0)
    await batches.close()
    told = await asyncio.gather(*asked, return_exceptions=True)
    assert all(isinstance(each, StoreError) for each in told)
