import numpy as np
import pytest

from embeddings.index.partition import MemoryIndex

AXES = np.eye(4, dtype=np.float32)
LATER = 100.0


def keys(index: MemoryIndex, partition: bytes, vector, *, k: int = 10, now: float = 0.0):
    return [match.key for match in index.search(partition, vector, k, now)]


@pytest.fixture
def index() -> MemoryIndex:
    return MemoryIndex(dimensions=4, max_vectors=1000)


def test_the_nearest_come_first_with_their_cosine(index):
    half = np.array([0.6, 0.8, 0, 0], dtype=np.float32)
    index.add(b"p", b"half", half, LATER)
    index.add(b"p", b"axis", AXES[0], LATER)
    matches = index.search(b"p", AXES[0], 2, now=0.0)
    assert [(m.key, round(m.similarity, 3)) for m in matches] == [(b"axis", 1.0), (b"half", 0.6)]


def test_similarity_never_leaves_its_range(index):
    vector = np.full(4, 0.5000001, dtype=np.float32)
    index.add(b"p", b"k", vector, LATER)
    assert index.search(b"p", vector, 1, now=0.0)[0].similarity == 1.0
    assert index.search(b"p", -vector, 1, now=0.0)[0].similarity == -1.0


def test_partitions_are_apart_and_empty_ones_cost_nothing(index):
    index.add(b"p", b"k", AXES[0], LATER)
    assert keys(index, b"q", AXES[0]) == []
    assert index.partitions == 1
    index.remove(b"k")
    assert index.partitions == 0


def test_a_key_moves_to_the_partition_it_was_added_to_last(index):
    index.add(b"p", b"k", AXES[0], LATER)
    index.add(b"q", b"k", AXES[1], LATER)
    assert keys(index, b"p", AXES[0]) == []
    assert keys(index, b"q", AXES[1]) == [b"k"]
    assert len(index) == 1


def test_removing_tells_whether_it_was_there(index):
    index.add(b"p", b"k", AXES[0], LATER)
    assert index.remove(b"k")
    assert not index.remove(b"k")


def test_expired_vectors_neither_show_nor_hide_live_ones(index):
    for number in range(20):
        index.add(b"p", b"old-%d" % number, AXES[0], expires_at=10.0)
    index.add(b"p", b"live", AXES[1], LATER)
    assert keys(index, b"p", AXES[0], k=1, now=10.0) == [b"live"]


def test_a_sweep_drops_what_expired_within_its_limit(index):
    for number in range(5):
        index.add(b"p", b"%d" % number, AXES[0], expires_at=float(number))
    assert index.sweep(now=3.0, limit=2) == [b"0", b"1"]
    assert index.sweep(now=3.0, limit=9) == [b"2", b"3"]
    assert keys(index, b"p", AXES[0], now=3.0) == [b"4"]


def test_a_sweep_goes_by_the_latest_expiry(index):
    index.add(b"p", b"k", AXES[0], expires_at=1.0)
    index.add(b"p", b"k", AXES[0], expires_at=9.0)
    assert index.sweep(now=5.0, limit=9) == []
    assert index.sweep(now=9.0, limit=9) == [b"k"]


def test_the_oldest_leave_beyond_the_bound_and_replacing_makes_young():
    index = MemoryIndex(dimensions=4, max_vectors=2)
    assert index.add(b"p", b"a", AXES[0], LATER) == []
    assert index.add(b"q", b"b", AXES[0], LATER) == []
    assert index.add(b"p", b"a", AXES[0], LATER) == []
    assert index.add(b"p", b"c", AXES[0], LATER) == [b"b"]
    assert len(index) == 2


def test_rows_are_reused_and_a_shrunken_partition_is_rebuilt(index):
    random = np.random.default_rng(1)
    vectors = random.standard_normal((300, 4)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    for number, vector in enumerate(vectors):
        index.add(b"p", b"%d" % number, vector, LATER)
    for number in range(290):
        index.remove(b"%d" % number)
    for number in range(290, 300):
        assert keys(index, b"p", vectors[number], k=1) == [b"%d" % number]
    rows = len(index._partitions[b"p"]._rows.places)  # nothing else shows the memory it holds
    assert rows < 100


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_vector_that_is_not_finite_is_refused(index, value):
    bad = AXES[0].copy()
    bad[2] = value
    with pytest.raises(ValueError, match="finite"):
        index.add(b"p", b"k", bad, LATER)
    assert len(index) == 0


def test_a_vector_of_another_shape_is_refused(index):
    with pytest.raises(ValueError, match="4 dimensions"):
        index.add(b"p", b"k", np.ones(5, dtype=np.float32), LATER)


def test_an_expiry_that_is_no_number_is_refused(index):
    with pytest.raises(ValueError, match="expiry"):
        index.add(b"p", b"k", AXES[0], float("nan"))


def test_expiry_bookkeeping_stays_bounded_under_replacement(index):
    for number in range(5000):
        index.add(b"p", b"k", AXES[0], expires_at=float(number + 1))
    assert len(index._expiries) < 200  # memory is the only thing it could be seen by
