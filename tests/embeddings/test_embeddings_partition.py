"""A partition on its way from block to graph and back, and what waits for what meanwhile."""

import asyncio
import os
import threading

import numpy as np
import pytest

from embeddings.index.flat_block import Place
from embeddings.index.local import open_local_index
from embeddings.index.partition import Partition, Sizes
from embeddings.index.turns import Turns

DIMENSIONS, NOW, LATER = 16, 0.0, 100.0
SIZES = Sizes(block=8, graph=32, unbuilt=16)


def unit_rows(count: int) -> np.ndarray:
    rows = np.random.default_rng(1).standard_normal((count, DIMENSIONS))
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


ROWS = unit_rows(100)


def filled(count: int, *, expires_at=lambda number: LATER) -> tuple[Partition, list[Place]]:
    partition = Partition(DIMENSIONS, SIZES)
    places = [Place(b"%d" % number, b"p", expires_at(number)) for number in range(count)]
    for place, row in zip(places, ROWS, strict=False):
        partition.put(place, row)
    return partition, places


def build_all(partition: Partition) -> None:
    while partition.build():
        pass


def found(partition: Partition, numbers) -> list[int]:
    """Return which of these vectors are their own nearest."""
    nearest = {number: partition.search(ROWS[number], 1, NOW) for number in numbers}
    return [n for n, places in nearest.items() if places and places[0][1].key == b"%d" % n]


def test_a_small_partition_has_no_graph_and_nothing_to_build():
    partition, _ = filled(8)
    assert not partition.build()
    assert partition.graphs == ()
    assert found(partition, range(8)) == list(range(8))


def test_whoever_fills_a_block_is_told_to_build_and_only_once():
    partition = Partition(DIMENSIONS, SIZES)
    told = [partition.put(Place(b"%d" % n, b"p", LATER), ROWS[n]) for n in range(20)]
    assert told == [False] * 8 + [True] + [False] * 11


def test_a_vector_is_found_at_each_step_of_its_way_into_a_graph():
    partition, _ = filled(24)
    last = range(8, 24)
    assert found(partition, last) == list(last)
    while partition.build():
        assert found(partition, last) == list(last)
    assert [len(graph.places) for graph in partition.graphs] == [16]


def test_of_what_is_not_built_in_yet_a_search_sees_the_latest():
    partition, _ = filled(100)
    seen = found(partition, range(100))
    assert seen == list(range(88, 100))  # a full block of 8 and one of 4: the bound is 16
    build_all(partition)
    assert found(partition, range(100)) == list(range(100))
    assert [len(graph.places) for graph in partition.graphs] == [32, 32, 32]


def test_a_graph_that_lost_most_of_its_vectors_is_left_and_dropped():
    partition, places = filled(80)
    build_all(partition)
    for place in places[:20]:
        partition.remove(place)
    while partition.build():
        assert found(partition, range(20, 80)) == list(range(20, 80))
    assert all(len(graph.places) < 2 * graph.live + SIZES.block for graph in partition.graphs)
    assert places[25].rows is partition.graphs[-1]


def test_a_partition_that_shrinks_is_small_again():
    partition, places = filled(80)
    build_all(partition)
    for place in places[:77]:
        partition.remove(place)
    build_all(partition)
    assert partition.graphs == ()
    assert found(partition, range(80)) == [77, 78, 79]


def test_removed_and_expired_vectors_of_a_graph_neither_show_nor_hide_the_others():
    partition, places = filled(40, expires_at=lambda number: LATER if number % 4 else NOW)
    build_all(partition)
    for place in places[1::4]:
        partition.remove(place)
    near = partition.search(ROWS[0], 40, NOW)
    assert sorted(int(place.key) for _, place in near) == [n for n in range(40) if n % 4 in (2, 3)]


def test_a_similarity_is_the_cosine_within_what_a_16_bit_float_can_be_off():
    partition, _ = filled(60)
    build_all(partition)
    for row in ROWS[60:80]:
        for similarity, place in partition.search(row, 60, NOW):
            assert abs(similarity - float(row @ ROWS[int(place.key)])) < 5e-4


def test_turns_are_taken_in_the_order_of_coming():
    turns, order = Turns(), []

    def take(number):
        with turns:
            order.append(number)

    threads = [threading.Thread(target=take, args=(number,)) for number in range(5)]
    with turns:
        for number, thread in enumerate(threads):
            thread.start()
            while len(turns._waiting) <= number:  # nothing else shows that a thread waits
                os.sched_yield()
    for thread in threads:
        thread.join()
    assert order == [0, 1, 2, 3, 4]


def test_a_turn_belongs_to_one_thread_and_ends_with_its_failure():
    turns, inside, overlaps = Turns(), [0], []

    def take_often():
        for _ in range(300):
            with turns:
                inside[0] += 1
                os.sched_yield()
                overlaps.append(inside[0])
                inside[0] -= 1

    with pytest.raises(RuntimeError), turns:
        raise RuntimeError
    threads = [threading.Thread(target=take_often) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert overlaps == [1] * 900


@pytest.fixture
async def index(tmp_path):
    opened = await open_local_index(
        tmp_path,
        encoder_digest="ab" * 32,
        dimensions=DIMENSIONS,
        max_vectors=1000,
        clock=lambda: NOW,
        sizes=Sizes(block=8, graph=32, unbuilt=1000),
    )
    yield opened
    await opened.close()


async def test_a_partition_that_is_held_up_holds_up_no_other(index):
    await index.add(b"slow", b"a", ROWS[0], LATER, NOW)
    await index.add(b"quick", b"b", ROWS[1], LATER, NOW)
    with index._index._partitions[b"slow"]._lock:  # as a search that does not end would
        waiting = [asyncio.create_task(index.search(b"slow", ROWS[0], 1, NOW)) for _ in range(20)]
        await asyncio.sleep(0)
        async with asyncio.timeout(30):
            (match,) = await index.search(b"quick", ROWS[1], 1, NOW)
        assert not any(task.done() for task in waiting)
    assert match.key == b"b"
    assert [match.key for matches in await asyncio.gather(*waiting) for match in matches] == [
        b"a"
    ] * 20


async def test_searches_that_were_given_up_leave_the_partition_usable(index):
    await index.add(b"p", b"a", ROWS[0], LATER, NOW)
    with index._index._partitions[b"p"]._lock:
        waiting = [asyncio.create_task(index.search(b"p", ROWS[0], 1, NOW)) for _ in range(5)]
        await asyncio.sleep(0)
        for task in waiting:
            task.cancel()
        await asyncio.wait(waiting)
    assert [match.key for match in await index.search(b"p", ROWS[0], 1, NOW)] == [b"a"]


async def test_changes_while_graphs_are_built_are_all_seen(index):
    async def use(number):
        key, partition = b"%d" % number, b"%d" % (number % 2)
        await index.add(partition, key, ROWS[number], LATER, NOW)
        (match,) = await index.search(partition, ROWS[number], 1, NOW)
        assert match.key == key
        if number % 3 == 0:
            await index.remove([key])

    for start in range(0, 100, 10):
        await asyncio.gather(*(use(number) for number in range(start, start + 10)))
    for partition in (0, 1):
        matches = await index.search(b"%d" % partition, ROWS[0], 1000, NOW)
        kept = [n for n in range(100) if n % 2 == partition and n % 3]
        assert sorted(int(match.key) for match in matches) == kept


async def test_a_failing_build_leaves_searches_and_changes_alone(index, monkeypatch, caplog):
    def fail():
        raise RuntimeError("no memory")

    monkeypatch.setattr(index._index, "build", fail)
    for number in range(20):
        await index.add(b"p", b"%d" % number, ROWS[number], LATER, NOW)
    if index.building:
        await asyncio.wait([index._building])
    assert "a part is searched" in caplog.text
    (match,) = await index.search(b"p", ROWS[19], 1, NOW)
    assert match.key == b"19"
