"""The limit of searches under way: it finds the load at which none waits too long."""

from collections import deque

import pytest

from embeddings.load_limit import FIRST, LEAST, LoadLimit

WAIT = 0.05


def begun(limit: LoadLimit) -> int:
    """Begin as many searches as may be under way; return how many."""
    number = 0
    while limit.begin():
        number += 1
    return number


def end_all(limit: LoadLimit, waited: float | None) -> None:
    """End all searches that are under way."""
    for _ in range(limit.under_way):
        limit.end(waited)


def test_twice_as_many_may_be_under_way_after_a_full_round_that_waited_little():
    limit = LoadLimit(WAIT)
    assert begun(limit) == FIRST
    for _ in range(int(FIRST)):
        limit.end(WAIT)
        begun(limit)
    assert limit.under_way == 2 * FIRST


def test_one_more_may_be_under_way_after_such_a_round_once_some_waited_long():
    limit = LoadLimit(WAIT)
    begun(limit)
    end_all(limit, 2 * WAIT)
    number = begun(limit)
    for _ in range(number + 1):
        limit.end(WAIT)
        begun(limit)
    assert limit.under_way == number + 1


def test_without_load_the_limit_stays():
    limit = LoadLimit(WAIT)
    for _ in range(1000):
        assert limit.begin()
        limit.end(0.0)
    assert begun(limit) == FIRST


def test_a_round_that_waited_long_lowers_the_limit_once():
    limit = LoadLimit(WAIT)
    begun(limit)
    end_all(limit, 2 * WAIT)
    assert begun(limit) == -(-FIRST * 4 // 5)


def test_some_may_always_begin():
    limit = LoadLimit(WAIT)
    for _ in range(1000):
        assert limit.begin()
        limit.end(100.0)
    assert begun(limit) == LEAST


def test_a_search_of_which_no_wait_is_known_changes_nothing():
    limit = LoadLimit(WAIT)
    begun(limit)
    end_all(limit, None)
    assert limit.under_way == 0
    assert begun(limit) == FIRST


@pytest.mark.parametrize("clients", [1, 2, 4])
@pytest.mark.parametrize("seconds", [0.002, 0.01])
def test_clients_of_one_encoder_keep_its_queue_short_and_share_it(clients, seconds):
    """One text at a time, each takes ``seconds``; every client always has another question."""
    limits = [LoadLimit(WAIT) for _ in range(clients)]
    queue, now = deque[tuple[int, float]](), 0.0
    served, waits = [0] * clients, []
    for step in range(20_000):
        for client, limit in enumerate(limits):
            if limit.begin():
                queue.append((client, now))
        client, since = queue.popleft()
        waited, now = now - since, now + seconds
        limits[client].end(waited)
        served[client] += 1
        if step > 5_000:
            waits.append(waited)
    waits.sort()
    least = clients * LEAST * seconds
    assert waits[len(waits) // 2] <= max(WAIT, least) + seconds
    assert waits[-1] <= 2 * WAIT + least
    assert min(served) > 0.5 * max(served)
