import math

import http_sf
import pytest

from gateway.protocol.http.cache_status import (
    Forwarded,
    ForwardStatus,
    HitStatus,
    Reason,
    refused_header,
)
from gateway.protocol.http.headers import with_cache_status

MISS, STALE, REQUEST, BYPASS = Forwarded.MISS, Forwarded.STALE, Forwarded.REQUEST, Forwarded.BYPASS


def hit(*args):
    return HitStatus(*args).header()


def forward(*args, **kwargs):
    return ForwardStatus(*args).header(**kwargs)


EXACTLY = [
    (hit(Reason.EXACT, 2931), "refrain; hit; ttl=2931; detail=exact"),
    (hit(Reason.EXACT, -12), "refrain; hit; ttl=-12; detail=exact"),
    (
        hit(Reason.SEMANTIC, 120, 0.973),
        'refrain; hit; ttl=120; detail="semantic; similarity=0.973"',
    ),
    (
        hit(Reason.EXACT, -12, None, Reason.STALE_WHILE_REVALIDATE),
        'refrain; hit; ttl=-12; detail="exact; stale-while-revalidate"',
    ),
    (
        hit(Reason.EXACT, -12, None, Reason.STALE_IF_ERROR),
        'refrain; hit; ttl=-12; detail="exact; stale-if-error"',
    ),
    (forward(MISS), "refrain; fwd=miss"),
    (forward(MISS, stored=True), "refrain; fwd=miss; stored"),
    (forward(STALE), "refrain; fwd=stale"),
    (
        forward(REQUEST, Reason.NO_CACHE, stored=True),
        "refrain; fwd=request; stored; detail=no-cache",
    ),
    (forward(BYPASS, Reason.PII), "refrain; fwd=bypass; detail=pii"),
    (forward(BYPASS, Reason.NO_STORE), "refrain; fwd=bypass; detail=no-store"),
    (forward(BYPASS, Reason.STORE_TRUE), "refrain; fwd=bypass; detail=store-true"),
    # Personal data in a plain answer, found before the head is sent.
    (forward(MISS, declined=Reason.PII), "refrain; fwd=miss; detail=pii"),
    (
        forward(REQUEST, Reason.NO_CACHE, declined=Reason.PII),
        'refrain; fwd=request; detail="no-cache; pii"',
    ),
    (refused_header(Reason.ONLY_IF_CACHED), "refrain; detail=only-if-cached"),
]


@pytest.mark.parametrize(("header", "expected"), EXACTLY)
def test_a_status_is_spelt_as_in_the_contract(header, expected):
    assert header == expected


@pytest.mark.parametrize("header", [header for header, _ in EXACTLY])
def test_a_status_is_one_member_of_a_structured_list(header):
    [(name, parameters)] = http_sf.parse(header.encode(), tltype="list")
    assert str(name) == "refrain"
    assert set(parameters) <= {"hit", "fwd", "stored", "ttl", "detail"}
    assert ("hit" in parameters) + ("fwd" in parameters) <= 1
    assert parameters.get("hit", True) is True
    assert isinstance(parameters.get("ttl", 0), int)
    assert str(parameters.get("fwd", "miss")) in {"miss", "stale", "request", "bypass"}


@pytest.mark.parametrize("reason", Reason)
def test_every_reason_is_a_token_and_the_first_word_of_its_detail(reason):
    for header in (forward(BYPASS, reason), forward(MISS, declined=reason)):
        [(_, parameters)] = http_sf.parse(header.encode(), tltype="list")
        assert isinstance(parameters["detail"], http_sf.Token)
        assert str(parameters["detail"]) == reason
    [(_, parameters)] = http_sf.parse(
        forward(REQUEST, reason, declined=Reason.PII).encode(), tltype="list"
    )
    assert parameters["detail"].split("; ") == [reason, "pii"]


@pytest.mark.parametrize(
    ("similarity", "shown"),
    [
        (1.0, "1.000"),
        (0.9999, "0.999"),
        (math.nextafter(1, 0), "0.999"),
        (0.97, "0.970"),
        (1.0000001, "1.000"),
        (0.0, "0.000"),
    ],
)
def test_a_similarity_is_rounded_down(similarity, shown):
    assert hit(Reason.SEMANTIC, 1, similarity).endswith(f'similarity={shown}"')


@pytest.mark.parametrize("thousandths", range(0, 1001, 7))
def test_a_similarity_of_three_digits_is_shown_as_it_is(thousandths):
    shown = f"{thousandths / 1000:.3f}"
    assert hit(Reason.SEMANTIC, 1, thousandths / 1000).endswith(f'similarity={shown}"')


@pytest.mark.parametrize("theirs", ["cdn; hit", "edge; fwd=miss, cdn; fwd=miss"])
def test_ours_is_the_last_member(theirs):
    fields = with_cache_status([("cache-status", theirs)], forward(MISS))
    [(_, value)] = fields
    members = http_sf.parse(value.encode(), tltype="list")
    assert str(members[-1][0]) == "refrain"
    assert len(members) == theirs.count(",") + 2


@pytest.mark.parametrize("theirs", [(), [("Cache-Status", "")]])
def test_ours_may_be_the_only_member(theirs):
    assert with_cache_status(theirs, "refrain; hit") == (("Cache-Status", "refrain; hit"),)
