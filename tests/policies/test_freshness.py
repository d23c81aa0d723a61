"""Request directives and freshness (RFC 9111): in doubt, not fresh."""

import math

import pytest

from policies.freshness import (
    Directives,
    Freshness,
    Grace,
    Verdict,
    freshness,
    jittered,
    parse_directives,
)

FRESH, STALE, REFUSED = Verdict.FRESH, Verdict.STALE, Verdict.REFUSED
REVALIDATE = Verdict.REVALIDATE


@pytest.mark.parametrize(
    ("header", "directives"),
    [
        (None, Directives()),
        ("", Directives()),
        (" , ,", Directives()),
        ("no-store", Directives(no_store=True)),
        ("No-Cache", Directives(no_cache=True)),
        ("only-if-cached", Directives(only_if_cached=True)),
        (
            "no-store, no-cache ,only-if-cached",
            Directives(no_store=True, no_cache=True, only_if_cached=True),
        ),
        ('no-cache="x-field", no-store=1', Directives(no_store=True, no_cache=True)),
        ("max-age=60", Directives(max_age=60)),
        ('max-age="60"', Directives(max_age=60)),
        ("MAX-AGE = 60", Directives(max_age=60)),
        ("max-age=007", Directives(max_age=7)),
        ("max-age=99999999999999999999", Directives(max_age=2**31)),
        ("max-age=4294967296", Directives(max_age=2**31)),
        # malformed: as strict as it can be meant
        ("max-age", Directives(max_age=0)),
        ("max-age=", Directives(max_age=0)),
        ("max-age=-5", Directives(max_age=0)),
        ("max-age=+5", Directives(max_age=0)),
        ("max-age=1.5", Directives(max_age=0)),
        ("max-age=1e3", Directives(max_age=0)),
        ("max-age=soon", Directives(max_age=0)),
        ("max-age=\uff15", Directives(max_age=0)),
        ("max-age=5 6", Directives(max_age=0)),
        ("max-age='5'", Directives(max_age=0)),
        ("max-age=5;no-store", Directives(max_age=0)),
        ("min-fresh=30", Directives(min_fresh=30)),
        ("min-fresh", Directives(min_fresh=math.inf)),
        ("min-fresh=x", Directives(min_fresh=math.inf)),
        ("max-stale", Directives(max_stale=math.inf)),
        ("max-stale=30", Directives(max_stale=30)),
        ("max-stale=", Directives(max_stale=0)),
        ("max-stale=x", Directives(max_stale=0)),
        ("stale-if-error=60", Directives(stale_if_error=60)),
        ("stale-if-error", Directives(stale_if_error=0)),
        ("stale-if-error=x, stale-if-error=60", Directives(stale_if_error=0)),
        ("stale-while-revalidate=60", Directives()),
        # repeated: the strictest
        ("max-age=60, max-age=5, max-age=10", Directives(max_age=5)),
        ("max-age=60, max-age=x", Directives(max_age=0)),
        ("min-fresh=5, min-fresh=60", Directives(min_fresh=60)),
        ("max-stale, max-stale=5", Directives(max_stale=5)),
        # not ours, and not directives
        ("private, max-agee=5, no-transform, foo=bar", Directives()),
        ('foo="no-store, max-age=5"', Directives()),
        ('foo="a\\", no-store", no-cache', Directives(no_cache=True)),
        # an open quote hides nothing
        ('max-age="5, no-store', Directives(max_age=0, no_store=True)),
        ('foo="a\\", no-store', Directives(no_store=True)),
    ],
)
def test_parsing(header, directives):
    assert parse_directives(header) == directives


def judge(age, lifetime=100, **asked):
    return freshness(
        stored_at=1000.0,
        expires_at=1000.0 + lifetime,
        now=1000.0 + age,
        directives=Directives(**asked),
    )


@pytest.mark.parametrize(
    ("age", "asked", "found"),
    [
        (0, {}, Freshness(FRESH, 0, 100)),
        (10.75, {}, Freshness(FRESH, 10, 89)),
        (99.75, {}, Freshness(FRESH, 99, 0)),
        (100, {}, Freshness(STALE, 100, 0)),
        (100.25, {}, Freshness(STALE, 100, -1)),
        (112, {}, Freshness(STALE, 112, -12)),
        (10, {"no_cache": True}, Freshness(REFUSED, 10, 90)),
        (10, {"no_store": True}, Freshness(REFUSED, 10, 90)),
        (110, {"no_cache": True}, Freshness(STALE, 110, -10)),
        (10, {"only_if_cached": True}, Freshness(FRESH, 10, 90)),
        (10, {"max_age": 10}, Freshness(FRESH, 10, 90)),
        (10.5, {"max_age": 10}, Freshness(REFUSED, 10, 89)),
        (0.25, {"max_age": 0}, Freshness(REFUSED, 0, 99)),
        (70, {"min_fresh": 30}, Freshness(FRESH, 70, 30)),
        (71, {"min_fresh": 30}, Freshness(REFUSED, 71, 29)),
        (0, {"min_fresh": math.inf}, Freshness(REFUSED, 0, 100)),
        (112, {"max_stale": 12}, Freshness(FRESH, 112, -12)),
        (113, {"max_stale": 12}, Freshness(STALE, 113, -13)),
        (10_000, {"max_stale": math.inf}, Freshness(FRESH, 10_000, -9900)),
        (100, {"max_stale": 0}, Freshness(FRESH, 100, 0)),
        (112, {"max_stale": 60, "max_age": 50}, Freshness(STALE, 112, -12)),
        (112, {"max_stale": 60, "max_age": 120}, Freshness(FRESH, 112, -12)),
        (112, {"max_stale": 60, "min_fresh": 0}, Freshness(STALE, 112, -12)),
        (112, {"max_stale": 60, "no_cache": True}, Freshness(STALE, 112, -12)),
        # clocks that differ a little
        (-2, {}, Freshness(FRESH, 0, 100)),
        (-2, {"max_age": 0}, Freshness(FRESH, 0, 100)),
        # a clock that was set back
        (-2.5, {}, Freshness(STALE, 0, 0)),
        (-50, {"max_stale": math.inf}, Freshness(STALE, 0, 0)),
        (-1e9, {"stale_if_error": 60}, Freshness(STALE, 0, 0)),
    ],
)
def test_freshness(age, asked, found):
    assert judge(age, **asked) == found


def test_an_entry_without_lifetime_is_never_fresh():
    assert judge(0, lifetime=0).verdict is STALE
    assert judge(0, lifetime=-5) == Freshness(STALE, 0, -5)


def judge_graced(age, revalidate=0, error=0, **asked):
    return freshness(
        stored_at=1000.0,
        expires_at=1100.0,
        now=1000.0 + age,
        directives=Directives(**asked),
        grace=Grace(revalidate, error),
    )


@pytest.mark.parametrize(
    ("age", "asked", "verdict"),
    [
        (99, {}, FRESH),
        (100, {}, REVALIDATE),
        (159, {}, REVALIDATE),
        (160, {}, STALE),
        (110, {"no_cache": True}, STALE),
        (110, {"max_age": 200}, STALE),
        (110, {"max_age": 200, "max_stale": 10}, REVALIDATE),
        (110, {"max_age": 105, "max_stale": 10}, STALE),
        (110, {"min_fresh": 0}, STALE),
        (110, {"max_stale": 9}, STALE),
        (110, {"max_stale": 10}, REVALIDATE),
        (170, {"max_stale": 70}, FRESH),
        (110, {"only_if_cached": True}, REVALIDATE),
        (110, {"stale_if_error": 0}, REVALIDATE),
        (99, {"max_age": 10}, REFUSED),
    ],
)
def test_what_is_served_while_it_is_revalidated(age, asked, verdict):
    found = judge_graced(age, revalidate=60, **asked)
    assert found.verdict is verdict
    assert not found.if_error


@pytest.mark.parametrize(
    ("age", "asked", "usable"),
    [
        (100, {}, True),
        (159, {}, True),
        (160, {}, False),
        (110, {"no_cache": True}, False),
        (110, {"no_store": True}, False),
        (110, {"max_age": 200}, False),
        (110, {"min_fresh": 5}, False),
        (110, {"max_stale": 9}, False),
        # The request's own stale-if-error goes before its other bounds, within the policy's.
        (110, {"stale_if_error": 9}, False),
        (110, {"stale_if_error": 10}, True),
        (160, {"stale_if_error": 99}, False),
        (110, {"stale_if_error": 99, "no_cache": True}, False),
        (110, {"stale_if_error": 60, "max_age": 50}, True),
        (111, {"stale_if_error": 60, "max_age": 50}, False),
        (110, {"stale_if_error": 60, "min_fresh": 5}, True),
        # Fresh by policy, too old for the request.
        (70, {"max_age": 50}, False),
        (70, {"max_age": 50, "stale_if_error": 20}, True),
        (71, {"max_age": 50, "stale_if_error": 20}, False),
    ],
)
def test_what_stands_in_for_a_failed_upstream(age, asked, usable):
    assert judge_graced(age, error=60, **asked).if_error is usable


def test_without_a_grace_nothing_stale_stands_in():
    assert not judge_graced(100).if_error
    assert not judge_graced(100, stale_if_error=math.inf).if_error
    assert judge_graced(100).verdict is STALE


def test_jitter_is_a_share_of_the_lifetime_that_is_the_digests_own():
    assert jittered(100.0, 0.0, b"\xff" * 32) == 100.0
    assert jittered(100.0, 0.5, bytes(32)) == 100.0
    assert jittered(100.0, 0.5, b"\x80" + bytes(31)) == 75.0
    assert jittered(100.0, 0.5, b"\xff" * 32) == pytest.approx(50.0)
