"""The replay on simulated replicas: made conversations keep the goal, and can miss it."""

import random
from dataclasses import replace

import pytest
from routing.peers import Aibrix, BoundedHashing, Dynamo, Sglang
from routing.simulation import Fleet, RoundRobin, Traced, imbalance, one_cache, simulate

from gateway.upstream.pool.routing import LeastLoaded, PrefixAware

REPLICAS = 4
CAPACITY = 400
FLEET = Fleet(REPLICAS, CAPACITY, tokens_a_second=4000)


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
        simulate(requests, [routing], FLEET) for routing in (PrefixAware(), RoundRobin())
    )
    assert by_prefix.hit_share > 0.95 * best > 1.5 * by_turns.hit_share
    assert max(by_prefix.imbalance_tokens, by_prefix.imbalance_requests) < 1.3


def test_gateways_that_know_nothing_of_one_another_find_most_of_it_too():
    requests = conversations()
    best = one_cache(requests, REPLICAS * CAPACITY)
    apart = simulate(requests, [PrefixAware(block_tokens=512) for _ in range(3)], FLEET)
    assert apart.hit_share > 0.9 * best


def test_a_replica_that_dies_is_sent_nothing_meanwhile_and_comes_back_with_nothing():
    requests = conversations()
    end = requests[-1].at
    gone = simulate(requests, [LeastLoaded()], replace(FLEET, gone=(0.0, end)))
    assert gone.imbalance_requests > REPLICAS / (REPLICAS - 1)
    back = simulate(requests, [PrefixAware()], replace(FLEET, gone=(end / 2, end / 2)))
    assert back.hit_share < simulate(requests, [PrefixAware()], FLEET).hit_share


def test_a_stronger_replica_is_given_more():
    fleet = replace(FLEET, weights=(1.0, 1.0, 2.0, 4.0), tokens_a_second=1000)
    by_weight = simulate(conversations(), [PrefixAware()], fleet)
    assert by_weight.imbalance_tokens < 1.6


@pytest.mark.parametrize(
    "peer", [BoundedHashing(), Sglang(CAPACITY), Dynamo(CAPACITY), Aibrix(CAPACITY)], ids=type
)
def test_a_peer_finds_more_than_chance_does(peer: LeastLoaded):
    requests = conversations()[:300]
    by_turns = simulate(requests, [RoundRobin()], FLEET).hit_share
    assert simulate(requests, [peer], FLEET).hit_share > by_turns


def test_imbalance_is_the_most_over_the_mean():
    assert imbalance([1, 1, 4]) == 2.0
