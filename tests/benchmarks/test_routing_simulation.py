"""The replay on simulated replicas: made conversations keep the goal, and can miss it."""

import random

from routing_simulation import RoundRobin, Traced, imbalance, one_cache, simulate

from gateway.core.prefix_routing import PrefixAware

REPLICAS = 4
CAPACITY = 400


def conversations() -> list[Traced]:
    """240 conversations of one to six turns that begin with the same two blocks, interleaved."""
    draw = random.Random(3)
    requests = []
    for number in range(240):
        blocks, at = [0, 1], draw.uniform(0, 600)
        for _ in range(draw.randint(1, 6)):
            blocks += [
                1000 * (number + 1) + len(blocks) + more for more in range(draw.randint(1, 9))
            ]
            requests.append(Traced(at, 512 * len(blocks), draw.randint(1, 400), tuple(blocks)))
            at += draw.uniform(5, 60)
    return sorted(requests, key=lambda each: each.at)


def test_by_prefix_most_of_what_one_large_cache_finds_is_found_and_load_is_even():
    requests = conversations()
    best = one_cache(requests, REPLICAS * CAPACITY)
    by_prefix, by_turns = (
        simulate(requests, [routing], replicas=REPLICAS, capacity=CAPACITY, tokens_a_second=4000)
        for routing in (PrefixAware(), RoundRobin())
    )
    assert by_prefix.hit_share > 0.95 * best > 1.5 * by_turns.hit_share
    assert max(by_prefix.imbalance_tokens, by_prefix.imbalance_requests) < 1.3


def test_gateways_that_know_nothing_of_one_another_find_most_of_it_too():
    requests = conversations()
    best = one_cache(requests, REPLICAS * CAPACITY)
    apart = simulate(
        requests,
        [PrefixAware() for _ in range(3)],
        replicas=REPLICAS,
        capacity=CAPACITY,
        tokens_a_second=4000,
    )
    assert apart.hit_share > 0.85 * best


def test_imbalance_is_the_most_over_the_mean():
    assert imbalance([1, 1, 4]) == 2.0
