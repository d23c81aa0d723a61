"""What upstreams say of their prefix caches, read in every provider's words and folded by route."""

import pytest

from gateway.protocol.tokens import NOTHING_SAID, PromptUsage, prompt_usage
from gateway.telemetry.prefix_metrics import ENOUGH, OTHERS, PrefixShares


@pytest.mark.parametrize(
    ("usage", "said"),
    [
        (
            {
                "prompt_tokens": 9,
                "completion_tokens": 2,
                "prompt_tokens_details": {"cached_tokens": 5, "cache_write_tokens": 4},
            },
            PromptUsage(9, 2, 5, 4),
        ),
        (
            {"input_tokens": 9, "output_tokens": 2, "input_tokens_details": {"cached_tokens": 5}},
            PromptUsage(9, 2, 5),
        ),
        (
            {
                "input_tokens": 1,
                "output_tokens": 2,
                "cache_read_input_tokens": 5,
                "cache_creation_input_tokens": 4,
            },
            PromptUsage(10, 2, 5, 4),
        ),
        (
            {
                "prompt_tokens": 9,
                "completion_tokens": 2,
                "prompt_tokens_details": None,
                "cache_read_input_tokens": 5,
                "cache_creation_input_tokens": 4,
            },
            PromptUsage(9, 2, 5, 4),
        ),
        (
            {"prompt_tokens": 9, "completion_tokens": 2, "prompt_cache_hit_tokens": 0},
            PromptUsage(9, 2, 0),
        ),
        ({"prompt_tokens": 9, "prompt_tokens_details": {}}, PromptUsage(9)),
        ({"prompt_tokens": -1, "prompt_tokens_details": {"cached_tokens": True}}, NOTHING_SAID),
        ({"prompt_tokens": 2**60, "prompt_tokens_details": "x"}, NOTHING_SAID),
        ({"prompt_tokens": "9", "input_tokens": 1.5}, NOTHING_SAID),
        (None, NOTHING_SAID),
        ([], NOTHING_SAID),
    ],
)
def test_usage_is_read_in_every_providers_words(usage, said):
    assert prompt_usage(usage) == said


def call(shares: PrefixShares, *, cached: int, hinted: bool = True) -> bool:
    route = shares.route("r", "m")
    return shares.add(route, prompt=100, cached=cached, written=7, hinted=hinted)


def test_a_route_has_its_share():
    shares = PrefixShares()
    for cached in (0, 50):
        call(shares, cached=cached, hinted=False)
    assert shares.report() == {
        "routes": [
            {
                "rule": "r",
                "model": "m",
                "calls": 2,
                "prompt_tokens": 200,
                "cached_tokens": 50,
                "written_tokens": 14,
                "share": 0.25,
                "hinted_calls": 0,
                "hints_never_hit": False,
            }
        ]
    }


def test_hints_that_never_hit_are_told_once_and_forgiven_by_the_first_hit():
    shares = PrefixShares()
    assert not any(call(shares, cached=0, hinted=False) for _ in range(ENOUGH))
    told = [call(shares, cached=0) for _ in range(ENOUGH + 5)]
    assert told.index(True) == ENOUGH - 1
    assert told.count(True) == 1
    assert shares.never_hit() == ["r m"]
    assert not call(shares, cached=1)
    assert shares.never_hit() == []


def test_the_number_of_routes_is_bounded():
    shares = PrefixShares(most=2)
    for number in range(9):
        route = shares.route("r", f"m{number}")
        shares.add(route, prompt=1, cached=0, written=0, hinted=False)
    assert list(shares.routes) == [("r", "m0"), ("r", "m1"), ("r", OTHERS)]
    assert shares.route("r", "m1") == ("r", "m1")
