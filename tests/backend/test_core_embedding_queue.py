"""Which inputs share a pass, and what is refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend.scheduler.embedding_queue import EmbeddingQueue, Place, QueueBoundError


def queue(per_pass=100, waiting=1000):
    return EmbeddingQueue(max_tokens_per_pass=per_pass, max_waiting_tokens=waiting)


def test_a_lone_input_is_computed_alone():
    waiting = queue()
    waiting.add(1, [7])
    assert waiting.take() == (Place(1, 0, 7),)
    assert waiting.take() == ()


def test_longest_first_within_a_request():
    waiting = queue(per_pass=60)
    waiting.add(1, [10, 30, 20])
    assert [place.position for place in waiting.take()] == [1, 2]
    assert [place.position for place in waiting.take()] == [0]


def test_requests_take_turns_so_that_a_large_one_holds_nobody_up():
    waiting = queue(per_pass=40)
    waiting.add(1, [10] * 50)
    waiting.add(2, [10])
    assert 2 in [place.request_id for place in waiting.take()]


def test_padding_counts():
    waiting = queue(per_pass=100)
    waiting.add(1, [90])
    waiting.add(2, [5, 5])
    assert waiting.take() == (Place(1, 0, 90),)
    assert len(waiting.take()) == 2


def test_an_input_over_the_budget_gets_a_pass_of_its_own():
    waiting = queue(per_pass=10)
    waiting.add(1, [50, 50])
    assert [len(waiting.take()) for _ in range(3)] == [1, 1, 0]


def test_what_waits_is_bounded_and_a_refusal_takes_nothing():
    waiting = queue(waiting=100)
    waiting.add(1, [150])  # larger than the bound, but nothing else waits
    with pytest.raises(QueueBoundError, match="150 tokens wait"):
        waiting.add(2, [1])
    assert waiting.num_waiting == 1
    waiting.drop(1)
    waiting.add(2, [1])
    assert waiting.num_waiting_tokens == 1


def test_a_dropped_request_is_in_no_later_pass():
    waiting = queue(per_pass=20)
    waiting.add(1, [10] * 4)
    waiting.add(2, [10] * 4)
    waiting.take()
    waiting.drop(1)
    waiting.drop(1)
    left = [place.request_id for _ in range(3) for place in waiting.take()]
    assert left == [2] * 3
    assert waiting.num_waiting_tokens == 0


@given(st.lists(st.lists(st.integers(1, 60), min_size=1, max_size=8), max_size=8))
def test_every_input_is_in_one_pass_within_the_budget(requests):
    waiting = queue(per_pass=100, waiting=10_000)
    for request_id, lengths in enumerate(requests):
        waiting.add(request_id, lengths)
    taken = []
    while batch := waiting.take():
        longest = max(place.num_tokens for place in batch)
        assert len(batch) == 1 or longest * len(batch) <= 100
        taken += batch
    expected = [
        Place(request_id, position, length)
        for request_id, lengths in enumerate(requests)
        for position, length in enumerate(lengths)
    ]
    assert sorted(taken, key=lambda place: (place.request_id, place.position)) == expected
    assert waiting.num_waiting == waiting.num_waiting_tokens == 0
