import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from embeddings.batching import BatchedEncoder, Batcher, OverloadedError
from embeddings.messages import Reason


class Gate:
    """A batch function that waits until it may go on, and remembers its batches."""

    def __init__(self) -> None:
        self.batches: list[list[str]] = []
        self.may_run = threading.Event()
        self.may_run.set()

    def __call__(self, items):
        self.batches.append(list(items))
        assert self.may_run.wait(30)
        if "bad" in items:
            raise ValueError("bad item")
        return [item.upper() for item in items]


@pytest.fixture
def executor():
    with ThreadPoolExecutor(1) as threads:
        yield threads


async def until(condition) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 - set from the batch's thread
            await asyncio.sleep(0)


async def test_an_idle_batcher_starts_a_lone_item_at_once(executor):
    run = Gate()
    batcher = Batcher(run, executor, max_batch=8, max_waiting=8)
    assert await batcher.submit("a") == "A"
    assert await batcher.submit("b") == "B"
    assert run.batches == [["a"], ["b"]]


async def test_what_arrives_during_a_batch_makes_up_the_next_ones(executor):
    run = Gate()
    run.may_run.clear()
    batcher = Batcher(run, executor, max_batch=3, max_waiting=8)
    calls = [asyncio.create_task(batcher.submit("first"))]
    await until(lambda: run.batches)
    calls += [asyncio.create_task(batcher.submit(item)) for item in "abcde"]
    await asyncio.sleep(0)
    run.may_run.set()
    assert await asyncio.gather(*calls) == ["FIRST", *"ABCDE"]
    assert run.batches == [["first"], ["a", "b", "c"], ["d", "e"]]


async def test_a_cancelled_item_is_left_out_of_its_batch(executor):
    run = Gate()
    run.may_run.clear()
    batcher = Batcher(run, executor, max_batch=8, max_waiting=8)
    running = asyncio.create_task(batcher.submit("running"))
    await until(lambda: run.batches)
    waiting = [asyncio.create_task(batcher.submit(item)) for item in "ab"]
    await asyncio.sleep(0)
    waiting[0].cancel()
    running.cancel()
    await asyncio.sleep(0)
    run.may_run.set()
    assert await waiting[1] == "B"
    assert run.batches == [["running"], ["b"]]
    assert waiting[0].cancelled()
    assert running.cancelled()


@pytest.fixture
def lanes():
    """A batch function for two lanes, and a batcher. A third batch would have a thread."""
    run = Gate()
    with ThreadPoolExecutor(3) as threads:
        yield run, Batcher(run, threads, max_batch=8, max_waiting=32, lanes=2)
        run.may_run.set()


async def test_lanes_share_what_waits_and_no_more_batches_run(lanes):
    run, batcher = lanes
    run.may_run.clear()
    calls = [asyncio.create_task(batcher.submit(item)) for item in "abc"]
    await until(lambda: len(run.batches) == 2)
    assert sorted(run.batches) == [["a", "b"], ["c"]]
    calls += [asyncio.create_task(batcher.submit(item)) for item in "defg"]
    await asyncio.sleep(0)
    assert batcher.wait_seconds == 0.0  # no batch has ended
    run.may_run.set()
    assert await asyncio.gather(*calls) == list("ABCDEFG")
    await batcher.drain()
    # The lane that is free first takes its half, and not all four.
    assert sorted(map(len, run.batches[2:])) == [1, 1, 2]
    assert sorted(item for batch in run.batches for item in batch) == list("abcdefg")


async def test_a_lone_item_takes_a_free_lane(lanes):
    run, batcher = lanes
    run.may_run.clear()
    calls = [asyncio.create_task(batcher.submit("first"))]
    await until(lambda: run.batches)
    calls.append(asyncio.create_task(batcher.submit("second")))
    await until(lambda: len(run.batches) == 2)
    run.may_run.set()
    assert await asyncio.gather(*calls) == ["FIRST", "SECOND"]


async def test_items_that_can_wait_leave_lanes_to_others(lanes):
    run, batcher = lanes
    run.may_run.clear()
    late = [asyncio.create_task(batcher.submit(item, later=True)) for item in "abcdefgh"]
    await until(lambda: run.batches)
    await asyncio.sleep(0)
    assert run.batches == [["a", "b", "c", "d"]]
    other = asyncio.create_task(batcher.submit("other"))
    await until(lambda: len(run.batches) == 2)
    assert run.batches[1] == ["other"]
    run.may_run.set()
    assert await other == "OTHER"
    assert await asyncio.gather(*late) == list("ABCDEFGH")


async def test_the_time_of_an_item_is_that_of_its_own_batch():
    began, may_end = threading.Event(), threading.Event()

    def run(items):
        if items == ["slow"]:
            began.set()
            assert may_end.wait(30)
        return items

    with ThreadPoolExecutor(2) as threads:
        batcher = Batcher(run, threads, max_batch=1, max_waiting=8, lanes=2)
        slow = asyncio.create_task(batcher.submit_timed("slow"))
        await until(began.is_set)
        _, quick_seconds = await batcher.submit_timed("quick")
        may_end.set()
        _, slow_seconds = await slow
    assert 0 <= quick_seconds < slow_seconds


async def test_a_failing_batch_fails_its_own_callers_only(executor):
    batcher = Batcher(Gate(), executor, max_batch=8, max_waiting=8)
    with pytest.raises(ValueError, match="bad item"):
        await batcher.submit("bad")
    assert await batcher.submit("good") == "GOOD"


async def test_an_executor_that_takes_no_work_fails_all_who_wait():
    executor = ThreadPoolExecutor(1)
    batcher = Batcher(Gate(), executor, max_batch=1, max_waiting=8)
    executor.shutdown()
    async with asyncio.timeout(60):
        calls = [batcher.submit(item) for item in "ab"]
        failures = await asyncio.gather(*calls, return_exceptions=True)
        await batcher.drain()
    assert [type(failure) for failure in failures] == [RuntimeError] * 2


async def test_an_executor_that_ends_during_a_batch_still_gives_its_results():
    run = Gate()
    run.may_run.clear()
    executor = ThreadPoolExecutor(1)
    batcher = Batcher(run, executor, max_batch=1, max_waiting=8)
    calls = [asyncio.create_task(batcher.submit(item)) for item in "ab"]
    await until(lambda: run.batches)
    executor.shutdown(wait=False)
    run.may_run.set()
    async with asyncio.timeout(60):
        results = await asyncio.gather(*calls, return_exceptions=True)
        await batcher.drain()
    assert results[0] == "A"
    assert isinstance(results[1], RuntimeError)


async def test_too_few_results_fail_their_batch(executor):
    batcher = Batcher(lambda items: items[:1], executor, max_batch=8, max_waiting=8)
    async with asyncio.timeout(60):
        calls = [batcher.submit(item) for item in "ab"]
        failures = await asyncio.gather(*calls, return_exceptions=True)
        assert await batcher.submit("c") == "c"
    assert [type(failure) for failure in failures] == [ValueError] * 2


async def test_as_many_wait_as_may_and_cancelled_ones_make_room(executor):
    run = Gate()
    run.may_run.clear()
    batcher = Batcher(run, executor, max_batch=1, max_waiting=2)
    calls = [asyncio.create_task(batcher.submit("running"))]
    await until(lambda: run.batches)
    calls += [asyncio.create_task(batcher.submit(item)) for item in "ab"]
    await asyncio.sleep(0)
    with pytest.raises(OverloadedError):
        await batcher.submit("c")
    calls.pop().cancel()
    await asyncio.sleep(0)
    calls.append(asyncio.create_task(batcher.submit("d")))
    await asyncio.sleep(0)
    run.may_run.set()
    assert await asyncio.gather(*calls) == ["RUNNING", "A", "D"]


async def test_drain_returns_when_nothing_is_left(executor):
    run = Gate()
    batcher = Batcher(run, executor, max_batch=1, max_waiting=8)
    calls = [asyncio.create_task(batcher.submit(item)) for item in "abc"]
    await asyncio.sleep(0)
    await batcher.drain()
    assert run.batches == [["a"], ["b"], ["c"]]
    assert await asyncio.gather(*calls) == ["A", "B", "C"]


async def test_what_can_wait_comes_last_and_a_few_at_a_time(executor):
    run = Gate()
    run.may_run.clear()
    batcher = Batcher(run, executor, max_batch=8, max_waiting=8)
    calls = [asyncio.create_task(batcher.submit("first"))]
    await until(lambda: run.batches)
    calls += [asyncio.create_task(batcher.submit(item, later=True)) for item in "abcdef"]
    calls += [asyncio.create_task(batcher.submit(item)) for item in "xyz"]
    await asyncio.sleep(0)
    run.may_run.set()
    assert await asyncio.gather(*calls) == ["FIRST", *"ABCDEFXYZ"]
    assert run.batches == [["first"], ["x", "y", "z"], ["a", "b", "c", "d"], ["e", "f"]]


async def test_after_what_could_wait_comes_a_pause_if_others_had_to_wait_for_it(
    executor, monkeypatch
):
    monkeypatch.setattr("embeddings.batching.LATER_PAUSE", 1e9)
    run = Gate()
    batcher = Batcher(run, executor, max_batch=8, max_waiting=8)
    assert await batcher.submit("alone", later=True) == "ALONE"
    assert await batcher.submit("again", later=True) == "AGAIN"
    run.may_run.clear()
    calls = [asyncio.create_task(batcher.submit("later", later=True))]
    await until(lambda: len(run.batches) == 3)
    calls.append(asyncio.create_task(batcher.submit("a")))
    await asyncio.sleep(0)
    run.may_run.set()
    assert await asyncio.gather(*calls) == ["LATER", "A"]
    waiting = asyncio.create_task(batcher.submit("b", later=True))
    for item in "cd":
        assert await batcher.submit(item) == item.upper()
    assert run.batches[3:] == [["a"], ["c"], ["d"]]
    assert not waiting.done()
    waiting.cancel()


async def test_what_can_wait_takes_no_place_of_what_cannot(executor):
    run = Gate()
    run.may_run.clear()
    batcher = Batcher(run, executor, max_batch=1, max_waiting=2)
    calls = [asyncio.create_task(batcher.submit("first"))]
    await until(lambda: run.batches)
    calls += [asyncio.create_task(batcher.submit(item, later=True)) for item in "ab"]
    await asyncio.sleep(0)
    with pytest.raises(OverloadedError):
        await batcher.submit("c", later=True)
    calls.append(asyncio.create_task(batcher.submit("x")))
    run.may_run.set()
    assert await asyncio.gather(*calls) == ["FIRST", *"ABX"]


class CountingEncoder:
    def __init__(self) -> None:
        self.texts: list[str] = []

    def __call__(self, texts):
        self.texts.extend(texts)
        return [
            Reason.TEXT_TOO_LONG if text == "long" else np.full(4, len(text), dtype=np.float32)
            for text in texts
        ]


async def test_a_recent_text_costs_no_second_pass(executor):
    encode = CountingEncoder()
    encoder = BatchedEncoder(encode, executor, max_batch=8, max_waiting=8, remembered=2)
    first = await encoder.encode("abc", b"p")
    again = await encoder.encode("abc", b"p")
    assert again is first
    assert encode.texts == ["abc"]


async def test_the_wait_for_others_is_known_and_a_remembered_vector_has_none(executor):
    encode = CountingEncoder()
    encoder = BatchedEncoder(encode, executor, max_batch=8, max_waiting=8, remembered=2)
    loop = asyncio.get_running_loop()
    began = loop.time()
    _, waited = await encoder.encode_timed("abc", b"p")
    assert 0 <= waited <= loop.time() - began
    assert (await encoder.encode_timed("abc", b"p"))[1] == 0.0


async def test_the_least_recent_vector_is_forgotten(executor):
    encode = CountingEncoder()
    encoder = BatchedEncoder(encode, executor, max_batch=8, max_waiting=8, remembered=2)
    for text in ("a", "b", "a", "c", "a", "b"):
        await encoder.encode(text, b"p")
    assert encode.texts == ["a", "b", "c", "b"]


async def test_a_refusal_is_passed_on_and_not_remembered(executor):
    encode = CountingEncoder()
    encoder = BatchedEncoder(encode, executor, max_batch=8, max_waiting=8, remembered=2)
    assert await encoder.encode("long", b"p") is Reason.TEXT_TOO_LONG
    assert await encoder.encode("long", b"p") is Reason.TEXT_TOO_LONG
    assert encode.texts == ["long", "long"]


async def test_equal_texts_of_one_batch_are_encoded_once(executor):
    encode = CountingEncoder()
    encoder = BatchedEncoder(encode, executor, max_batch=8, max_waiting=8, remembered=2)
    vectors = await asyncio.gather(*(encoder.encode(text, b"p") for text in ("a", "bb", "a")))
    assert encode.texts == ["a", "bb"]
    assert [vector[0] for vector in vectors] == [1, 2, 1]


class GatedEncoder(CountingEncoder):
    """Waits in each batch until it may go on."""

    def __init__(self) -> None:
        super().__init__()
        self.may_run = threading.Event()

    def __call__(self, texts):
        vectors = super().__call__(texts)
        assert self.may_run.wait(30)
        return vectors


async def test_a_text_under_way_is_not_encoded_a_second_time(executor):
    encode = GatedEncoder()
    encoder = BatchedEncoder(encode, executor, max_batch=8, max_waiting=8, remembered=0)
    calls = [asyncio.create_task(encoder.encode("abc", b"p"))]
    await until(lambda: encode.texts)
    calls += [asyncio.create_task(encoder.encode("abc", b"p")) for _ in range(2)]
    await asyncio.sleep(0)
    calls.pop(0).cancel()  # the others still wait for it
    await asyncio.sleep(0)
    encode.may_run.set()
    assert [vector[0] for vector in await asyncio.gather(*calls)] == [3, 3]
    assert encode.texts == ["abc"]


async def test_an_addition_joins_a_search_of_its_text_and_no_search_waits_for_an_addition(executor):
    encode = GatedEncoder()
    encoder = BatchedEncoder(encode, executor, max_batch=8, max_waiting=8, remembered=0)
    calls = [asyncio.create_task(encoder.encode("search", b"p"))]
    await until(lambda: encode.texts)
    calls.append(asyncio.create_task(encoder.encode("search", b"p", later=True)))
    calls.append(asyncio.create_task(encoder.encode("added", b"p", later=True)))
    await asyncio.sleep(0)
    calls.append(asyncio.create_task(encoder.encode("added", b"p")))
    await asyncio.sleep(0)
    encode.may_run.set()
    await asyncio.gather(*calls)
    assert encode.texts == ["search", "added", "added"]


async def test_a_text_that_all_have_left_is_not_encoded(executor):
    encode = GatedEncoder()
    encoder = BatchedEncoder(encode, executor, max_batch=8, max_waiting=8, remembered=0)
    running = asyncio.create_task(encoder.encode("running", b"p"))
    await until(lambda: encode.texts)
    left = [asyncio.create_task(encoder.encode("left", b"p")) for _ in range(2)]
    await asyncio.sleep(0)
    for call in left:
        call.cancel()
    await asyncio.gather(*left, return_exceptions=True)
    again = asyncio.create_task(encoder.encode("again", b"p"))
    await asyncio.sleep(0)
    encode.may_run.set()
    await asyncio.gather(running, again)
    assert encode.texts == ["running", "again"]


async def test_what_one_has_encoded_saves_another_nothing(executor):
    encode = CountingEncoder()
    encoder = BatchedEncoder(encode, executor, max_batch=8, max_waiting=8, remembered=8)
    await encoder.encode("abc", b"one")
    await encoder.encode("abc", b"two")
    await asyncio.gather(*(encoder.encode("d", owner) for owner in (b"one", b"two")))
    assert encode.texts == ["abc", "abc", "d", "d"]
