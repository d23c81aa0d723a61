"""The lines of a file of keys: what is read is written again, and what is wrong is said."""

from datetime import UTC, datetime

import pytest

from gateway.server.keys.auth import KeyRingError, read_key_ring
from gateway.server.keys.key_line import ForbiddenError, Key, format_key, read_key
from gateway.server.keys.limits import NANO, Budget, Limits

DIGEST = "0f" * 32


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("", Key("shop")),
        ("models=gpt-4o*,claude-3", Key("shop", models=("gpt-4o*", "claude-3"))),
        ("team=search", Key("shop", team="search")),
        ("expires=2027-01-31", Key("shop", expires=datetime(2027, 1, 31, tzinfo=UTC).timestamp())),
        (
            "rpm=60 tpm=100k concurrency=4",
            Key("shop", limits=Limits(rpm=60, tpm=100_000, concurrency=4)),
        ),
        (
            "budget=2.5Mtokens/day soft_budget=1Gtokens/month",
            Key(
                "shop",
                limits=Limits(
                    budget=(Budget(2_500_000, "day"),), soft_budget=(Budget(10**9, "month"),)
                ),
            ),
        ),
        (
            "budget=20USD/month,5Mtokens/day soft_budget=0.000001USD/day,1kUSD/month",
            Key(
                "shop",
                limits=Limits(
                    budget=(Budget(20 * NANO, "month", "USD"), Budget(5_000_000, "day")),
                    soft_budget=(Budget(1000, "day", "USD"), Budget(1000 * NANO, "month", "USD")),
                ),
            ),
        ),
        ("account=closed", Key("shop", account="closed")),
        (
            "expires=2027-01-31T12:30+01:00",
            Key("shop", expires=datetime(2027, 1, 31, 11, 30, tzinfo=UTC).timestamp()),
        ),
    ],
)
def test_a_line_is_read_and_written_again(text, key):
    digest, read = read_key(["shop", DIGEST, *text.split()])
    assert (digest.hex(), read) == (DIGEST, key)
    assert read_key(format_key(digest, read).split()) == (digest, read)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("model=gpt-4o", "keys:1: expected attributes such as models"),
        ("sk-secret", "keys:1: expected attributes such as models, expires"),
        ("rpm=0", "keys:1: rpm: expected a whole number from 1"),
        ("rpm=1.5", "keys:1: rpm: expected a whole number from 1"),
        ("tpm=sk-secret", "keys:1: tpm: expected a whole number from 1"),
        ("budget=5M/day", "keys:1: budget: expected a budget such as 5Mtokens/day"),
        ("budget=5Mtokens/week", "keys:1: budget: expected a budget such as"),
        ("budget=20EUR/month", "keys:1: budget: expected a budget such as"),
        ("budget=USD/month", "keys:1: budget: expected a budget such as"),
        ("budget=2MUSD/month", "keys:1: budget: expected dollars up to 1M"),
        ("budget=0USD/month", "keys:1: budget: expected dollars up to 1M"),
        ("budget=1USD/day,2USD/day", "keys:1: budget: expected one budget of each unit"),
        ("budget=1USD/day,", "keys:1: budget: expected a budget such as"),
        ("account=own", "keys:1: account: expected open or closed"),
        ("models=", "keys:1: models: expected names or globs"),
        ("models=a,,b", "keys:1: models: expected names or globs"),
        ("models=a models=b", "keys:1: models is there twice"),
        ("expires=sk-secret", "keys:1: expires: expected a date in UTC: 2027-01-31"),
        ("expires=0001-01-01T00:00+23:00", "keys:1: expires: expected a date in UTC"),
    ],
)
def test_a_wrong_attribute_is_named_without_its_value(words, told):
    with pytest.raises(KeyRingError) as raised:
        read_key_ring(f"shop {DIGEST} {words}\n".encode(), "keys")
    assert str(raised.value).startswith(told)
    assert "sk-secret" not in str(raised.value)


def test_a_key_may_use_the_models_that_its_globs_match():
    key = Key("shop", models=("gpt-4o*", "claude-3"))
    key.check_model("gpt-4o-mini")
    key.check_model("claude-3")
    for model in ("gpt-4", "claude-3-opus", "", "GPT-4o"):
        with pytest.raises(ForbiddenError, match=r"It may use: gpt-4o\*, claude-3"):
            key.check_model(model)
    Key("shop").check_model("anything")


def test_all_keys_of_a_holder_have_the_same_limits():
    lines = [f"shop {'0' * 63}{n} rpm={rpm}" for n, rpm in enumerate((60, 60, 70))]
    ring = read_key_ring("\n".join(lines[:2]).encode(), "keys")
    one, two = (key for ((_, key), *_) in [ring.by_prefix[bytes(8)]] for _ in (1, 2))
    assert one.limits is two.limits
    with pytest.raises(KeyRingError, match="keys:3: expected the team and the limits of line 1"):
        read_key_ring("\n".join(lines).encode(), "keys")


@pytest.mark.parametrize(
    ("method", "path", "may"),
    [
        ("GET", "/v1/models", True),
        ("HEAD", "/v1/models/org/model", True),
        ("DELETE", "/v1/models/mine", False),
        ("POST", "/v1/audio/speech", True),
        ("POST", "/v1/moderations", True),
        ("GET", "/v1/audio/speech", False),
        ("GET", "/v1/files", False),
        ("POST", "/v1/files", False),
        ("GET", "/v1/responses/resp_1", False),
        ("GET", "/v1/chat/completions", False),
        ("POST", "/v1/messages/batches", False),
        ("POST", "/v1/audio/speech/", False),
    ],
)
def test_with_a_closed_account_only_paths_that_store_nothing_are_open(method, path, may):
    Key("shop").check_other_path(method, path)
    Key("shop", account="open").check_other_path(method, path)
    key = Key("shop", account="closed")
    if may:
        key.check_other_path(method, path)
        return
    with pytest.raises(ForbiddenError, match="account=open") as raised:
        key.check_other_path(method, path)
    assert (raised.value.status, raised.value.code) == (403, "path_not_allowed")
