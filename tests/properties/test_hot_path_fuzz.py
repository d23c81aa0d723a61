"""What hostile clients send gets the same replies with the hot path and without it."""

import random

from hostile_requests import Exchange, every_split, plain_request
from hot_path_fuzz import Both, check_bounds, compare, fuzz, running
from hypothesis import settings

from gateway.server.hot_path import MAX_HEADS


async def test_hostile_bytes_get_the_same_replies_both_ways(tmp_path, patient):
    seed = 0 if settings().derandomize else random.randrange(1 << 32)
    done = await fuzz(tmp_path, 20 * settings().max_examples, seed)
    assert done["repeated"] > done["exchanges"] / 20


async def test_a_request_may_be_cut_in_two_anywhere(tmp_path, patient):
    draw = random.Random(1)
    request = plain_request(draw, 0)
    async with running(tmp_path, "disk") as rig:
        both = Both(rig.runners)
        for given in (Exchange((request,), "whole", clean=True),) * 2:
            await compare(rig, both, given)
        for given in every_split(request):
            await compare(rig, both, given)
        both.close()
    cuts_in_body = len(request) - request.index(b"\r\n\r\n") - 4
    assert rig.counts["repeated"] >= cuts_in_body


async def test_no_number_of_different_heads_outgrows_the_tables(tmp_path, patient):
    async with running(tmp_path, "memory") as rig:
        for number in range(100_000):
            assert rig.hot.head(b"POST /v1/chat/completions HTTP/1.1\r\nX: %d" % number)
        check_bounds(rig.hot)
        assert 0 < len(rig.hot._heads) <= MAX_HEADS
