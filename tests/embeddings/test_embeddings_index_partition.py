"""A partition on its way from flat to approximate and back, and what waits for what meanwhile."""

import asyncio

import numpy as np
import pytest

from embeddings.index.approximate import ApproximateIndex
from embeddings.index.flat import Place
from embeddings.index.local import open_local_index
from embeddings.index.partition import MemoryIndex, Partition

DIMENSIONS, NOW, LATER = 16, 0.0, 100.0
FLAT = 40


def unit_rows(count: int) -> np.ndarray:
    rows = np.random.default_rng(1).standard_normal((count, DIMENSIONS))
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


ROWS = unit_rows(400)


def put(partition: Partition, numbers, *, expires_at=lambda number: LATER) -> list[Place]:
    places = [Place(b"%d" % number, b"p", expires_at(number)) for number in numbers]
    for place, number in zip(places, numbers, strict=True):
        partition.put([place], ROWS[number : number + 1])
    return places


def filled(count: int, **how) -> tuple[Partition, list[Place]]:
    partition = Partition(DIMENSIONS, FLAT)
    return partition, put(partition, range(count), **how)


def build_all(partition: Partition) -> int:
    """Return how many steps there were."""
    partition.ask_for_building()
    steps = 0
    while partition.build():
        steps += 1
    return steps


def found(partition: Partition, numbers) -> list[int]:
    """Return which of these vectors are their own nearest."""
    nearest = {number: partition.search(ROWS[number], 1, NOW) for number in numbers}
    return [n for n, places in nearest.items() if places and places[0][1].key == b"%d" % n]


def test_a_small_partition_is_exact_and_has_nothing_to_build():
    partition, _ = filled(FLAT)
    assert not partition.ask_for_building()
    assert not partition.build()
    assert not partition.approximate
    assert found(partition, range(FLAT)) == list(range(FLAT))


def test_whoever_makes_a_partition_large_is_told_to_build_and_only_once():
    partition, told = Partition(DIMENSIONS, FLAT), []
    for number in range(FLAT + 5):
        put(partition, [number])
        told.append(partition.ask_for_building())
    assert told == [False] * FLAT + [True] + [False] * 4


def test_a_vector_is_found_at_each_step_of_the_build_and_afterwards():
    partition, _ = filled(100)
    assert partition.ask_for_building()
    added, steps = iter(range(100, 200)), 0
    while partition.build():
        put(partition, [next(added)])
        steps += 1
        assert found(partition, range(100 + steps)) == list(range(100 + steps))
    assert steps > 3
    assert partition.approximate
    put(partition, range(200, 300))
    there = [*range(100 + steps), *range(200, 300)]
    assert found(partition, there) == there


def test_a_vector_replaced_during_the_build_is_found_as_it_is_now():
    partition, places = filled(100)
    partition.ask_for_building()
    while partition.build():
        partition.remove(places[7])
        places[7] = Place(b"300", b"p", LATER)
        partition.put([places[7]], ROWS[300:301])
    assert partition.approximate
    assert found(partition, [6, 7, 8, 300]) == [6, 8, 300]


def test_entries_out_of_date_have_the_index_built_again():
    partition, places = filled(100)
    build_all(partition)
    for number in range(100, 200):
        partition.remove(places[number - 100])
        places += put(partition, [number])
    assert partition.ask_for_building()
    assert build_all(partition)
    assert not partition.ask_for_building()
    assert found(partition, range(200)) == list(range(100, 200))


def test_growth_beyond_what_it_was_trained_for_has_it_built_again():
    partition, _ = filled(50)
    build_all(partition)
    put(partition, range(50, 201))
    assert build_all(partition)
    assert found(partition, range(201)) == list(range(201))


def test_a_vector_stored_anew_many_times_hides_no_other():
    partition, places = filled(60)
    build_all(partition)
    near = ROWS[0] + 0.01 * ROWS[1]
    near /= np.linalg.norm(near)
    again = places[0]
    for _ in range(1500):
        partition.remove(again)
        again = Place(b"again", b"p", LATER)
        partition.put([again], ROWS[:1])
    nearest = partition.search(near, 4, NOW)
    exact = sorted((float(near @ row) for row in ROWS[:60]), reverse=True)[:4]
    assert np.allclose([similarity for similarity, _ in nearest], exact, atol=5e-4)


def test_a_partition_that_shrinks_is_exact_again():
    partition, places = filled(100)
    build_all(partition)
    for place in places[:97]:
        partition.remove(place)
    assert not partition.approximate
    assert not partition.ask_for_building()
    assert found(partition, range(100)) == [97, 98, 99]


def test_a_build_that_the_partition_shrank_under_is_given_up():
    partition, places = filled(200)
    partition.ask_for_building()
    assert partition.build()
    for place in places[:140]:
        partition.remove(place)
    put(partition, [300])
    while partition.build():
        assert found(partition, range(130, 150)) == list(range(140, 150))
    assert partition.approximate  # a second build, of what was left
    assert found(partition, [*range(140, 200), 300]) == [*range(140, 200), 300]


def test_a_build_that_fails_leaves_the_partition_exact(monkeypatch):
    def fail(*arguments):
        raise MemoryError

    partition, places = filled(100)
    assert partition.ask_for_building()
    monkeypatch.setattr(ApproximateIndex, "add", fail)
    with pytest.raises(MemoryError):
        build_all(partition)
    partition.remove(places[3])
    put(partition, range(100, 150))
    assert not partition.approximate
    there = [*range(3), *range(4, 150)]
    assert found(partition, range(150)) == there


def test_where_no_build_succeeds_entries_out_of_date_stay_bounded(monkeypatch):
    def fail(*arguments):
        raise MemoryError

    partition, places = filled(100)
    build_all(partition)
    monkeypatch.setattr(ApproximateIndex, "train", fail)
    tried = 0
    for _ in range(4):
        for place in places:
            partition.remove(place)
        places = put(partition, range(100))
        if partition.ask_for_building():
            tried += 1
            with pytest.raises(MemoryError):
                partition.build()
    assert tried > 1
    assert not partition.approximate
    assert found(partition, range(100)) == list(range(100))


def test_vectors_that_could_not_be_put_in_change_nothing(monkeypatch):
    index = MemoryIndex(DIMENSIONS, 100, FLAT)
    index.add(b"p", b"old", ROWS[0], LATER)

    def put_but(self, places, vectors, whole=Partition.put):
        if places[0].partition == b"q":
            raise MemoryError
        whole(self, places, vectors)

    monkeypatch.setattr(Partition, "put", put_but)
    places = [Place(b"new", b"p", LATER), Place(b"old", b"q", LATER)]
    with pytest.raises(MemoryError):
        index.add_all(places, ROWS[1:3])
    assert (len(index), index.partitions) == (1, 1)
    assert [match.key for match in index.search(b"p", ROWS[0], 9, NOW)] == [b"old"]
    assert index.search(b"q", ROWS[2], 9, NOW) == []
    assert not index.remove(b"new")
    monkeypatch.undo()
    assert index.add_all(places, ROWS[1:3]) == []
    assert [match.key for match in index.search(b"p", ROWS[1], 9, NOW)] == [b"new"]
    assert [match.key for match in index.search(b"q", ROWS[2], 9, NOW)] == [b"old"]


def test_removed_and_expired_vectors_neither_show_nor_hide_the_others():
    partition, places = filled(80, expires_at=lambda number: LATER if number % 4 else NOW)
    build_all(partition)
    for place in places[1::4]:
        partition.remove(place)
    near = partition.search(ROWS[0], 80, NOW)
    assert sorted(int(place.key) for _, place in near) == [n for n in range(80) if n % 4 in (2, 3)]


def test_a_similarity_is_the_cosine_within_what_a_16_bit_float_can_be_off():
    partition, _ = filled(60)
    build_all(partition)
    for row in ROWS[60:80]:
        for similarity, place in partition.search(row, 60, NOW):
            assert abs(similarity - float(row @ ROWS[int(place.key)])) < 5e-4


def clusters(count: int, random: np.random.Generator) -> np.ndarray:
    """Return unit vectors about a hundred centres, of an odd number of dimensions."""
    rows = random.standard_normal((100, 33))[random.integers(0, 100, count)]
    rows += 0.7 * random.standard_normal(rows.shape)
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


def test_candidates_hold_the_nearest_of_many_vectors():
    random = np.random.default_rng(2)
    vectors = clusters(20_000, random)
    index = ApproximateIndex(33, len(vectors))
    for _ in index.train(vectors[: index.sample_size]):
        pass
    index.add(np.arange(len(vectors)), vectors)
    asked = vectors[:100] + 0.05 * random.standard_normal((100, 33)).astype(np.float32)
    nearest = np.argsort(-(asked @ vectors.T), axis=1)[:, :4]
    proposed = [index.candidates(row, 128) for row in asked]
    hits = [np.isin(best, rows).mean() for best, rows in zip(nearest, proposed, strict=True)]
    assert np.mean(hits) > 0.95
    assert max(len(rows) for rows in proposed) <= 128


@pytest.fixture
async def index(tmp_path):
    opened = await open_local_index(
        tmp_path,
        encoder_digest="ab" * 32,
        dimensions=DIMENSIONS,
        max_vectors=1000,
        clock=lambda: NOW,
        flat_vectors=8,
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


async def test_changes_while_an_index_is_built_are_all_seen(index):
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
    assert "building the index failed" in caplog.text
    (match,) = await index.search(b"p", ROWS[19], 1, NOW)
    assert match.key == b"19"


async def test_after_a_failed_build_another_is_tried(index, monkeypatch, caplog):
    def fail(*arguments):
        raise MemoryError

    monkeypatch.setattr("embeddings.index.local._PAUSE_S", -1.0)
    with monkeypatch.context() as failing:
        failing.setattr(ApproximateIndex, "train", fail)
        for number in range(FLAT + 1):
            await index.add(b"p", b"%d" % number, ROWS[number], LATER, NOW)
        while index.building:
            await asyncio.wait([index._building])
    assert "building the index failed" in caplog.text
    caplog.clear()
    await index.sweep(NOW)  # which changes nothing
    while index.building:
        await asyncio.wait([index._building])
    assert index._index._partitions[b"p"].approximate
    assert "failed" not in caplog.text
