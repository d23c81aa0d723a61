"""Headers of an upstream's reply that clients get: none of them passes for one of the gateway."""

import pytest

from gateway.protocol.http.headers import reply_fields, with_cache_status

OURS = "refrain; fwd=miss"


@pytest.mark.parametrize(
    ("upstreams", "shown"),
    [
        ("edge; fwd=miss", f"edge; fwd=miss, {OURS}"),
        ('a; x=1.5, b,c;d="x, y"', f'a; x=1.5, b, c;d="x, y", {OURS}'),
        ("refrain; hit; ttl=5", OURS),
        ('"refrain"; hit', OURS),
        ("Refrain;hit", OURS),
        ("edge; hit, refrain ; hit", f"edge; hit, {OURS}"),
        ('edge; detail="refrain; hit"', OURS),
        ('edge; detail="', OURS),
        ("a b c", OURS),
        ("", OURS),
    ],
)
def test_a_cache_status_of_an_upstream_does_not_pass_for_ours(upstreams, shown):
    fields = with_cache_status([("Cache-Status", upstreams)], OURS)
    assert fields == (("Cache-Status", shown),)


@pytest.mark.parametrize(
    "name", ["Refrain-Entry", "refrain-other", "X-Refrain-Upstream", "x_refrain_model"]
)
def test_an_upstream_sends_no_header_of_the_gateway(name):
    assert reply_fields([(name, "forged"), ("X-Real", "1")]) == (("X-Real", "1"),)
