"""What a request used and saved is counted once, kept over failures of the store, and summed."""

import logging
from dataclasses import replace

import orjson
import pytest
from observations import observation_of

from gateway.cache.lookup import Hit
from gateway.cache.ports import StoreError
from gateway.cache.stores.conformance import example_entry
from gateway.cache.stores.counts import USAGE_OTHER, USAGE_ROWS, UsageRow
from gateway.prompts.outcome import Compression, Step
from gateway.protocol.http.cache_status import HitStatus, Reason
from gateway.protocol.tokens import NOTHING_SAID, PromptUsage
from gateway.telemetry.observation import CallFacts, Lookup
from gateway.telemetry.prices import Price, Prices
from gateway.telemetry.savings import (
    OTHERS,
    Labels,
    account,
    day_of,
    entry_usage,
    first_day,
    report,
)
from gateway.telemetry.usage import RepeatedHit, UsageLedger

NOW = 1_800_000_000.0
DAY = "2027-01-15"
PRICE = Price(1e-6, 10e-6, 0.1e-6)
USAGE = PromptUsage(1_000, 100, 400)


def seen_by(**values):
    defaults = {"model": "m", "rule": "default", "holder": "ann", "outcome": "miss", "status": 200}
    return observation_of(started=5.0, clock=lambda: 9.0, **(defaults | values))


def call_of(started, ended, usage=NOTHING_SAID):
    return CallFacts(started, ended=ended, usage=usage)


def hit_by(reason=Reason.EXACT, usage=None):
    result = {"usage": usage or {"prompt_tokens": 1_000, "completion_tokens": 100}}
    entry = replace(
        example_entry(b"k" * 32), endpoint="/v1/chat/completions", result=orjson.dumps(result)
    )
    return Hit(entry, HitStatus(reason, 5), 1)


def counted(price=PRICE, hit=NOTHING_SAID, seconds=None, **values):
    return account(seen_by(**values), hit, price, seconds, "only")


def test_a_call_uses_its_tokens_and_the_upstream_s_cache_makes_them_cheaper():
    found = counted(whole=call_of(1.0, 3.5, USAGE))
    assert found.labels == Labels("ann", "m", "default", "only")
    assert found.figures == {
        "requests": 1,
        "calls": 1,
        "call_seconds": 2.5,
        "prompt_tokens": 1_000,
        "completion_tokens": 100,
        "dollars": pytest.approx(600e-6 + 40e-6 + 1_000e-6),
        "prefix_requests": 1,
        "prefix_tokens": 400,
        "prefix_dollars": pytest.approx(360e-6),
    }


@pytest.mark.parametrize("reason", [Reason.EXACT, Reason.SEMANTIC])
def test_a_hit_saves_the_call_that_made_it(reason):
    hit = hit_by(reason)
    seen = seen_by(outcome="hit")
    seen.lookup = Lookup(hit=hit)
    found = account(seen, entry_usage(hit.entry), PRICE, 1.5, "only")
    assert found.labels.upstream == ""
    assert found.figures == {
        "requests": 1,
        f"{reason}_requests": 1,
        f"{reason}_tokens": 1_100,
        f"{reason}_dollars": pytest.approx(2_000e-6),
        f"{reason}_seconds": 1.5,
    }


def test_who_joins_a_call_saves_one_and_what_had_passed_of_it():
    found = counted(followed=call_of(3.0, 8.0, USAGE._replace(cached=None))).figures
    assert found == {
        "requests": 1,
        "coalescing_requests": 1,
        "coalescing_tokens": 1_100,
        "coalescing_dollars": pytest.approx(2_000e-6),
        "coalescing_seconds": 2.0,
    }


def test_a_follower_that_then_hit_or_pays_for_the_call_is_counted_once():
    facts = call_of(3.0, 8.0, USAGE)
    seen = seen_by(outcome="hit", followed=facts)
    seen.lookup = Lookup(hit=hit_by())
    found = account(seen, USAGE, PRICE, None, "").figures
    assert "coalescing_requests" not in found
    assert found["exact_requests"] == 1
    paid = counted(followed=facts, whole=facts).figures  # the leader has left
    assert "coalescing_requests" not in paid
    assert paid["calls"] == 1


def test_compression_saves_on_calls_alone():
    shorter = Compression((Step.MINIFIED,), 500, 200)
    called = counted(whole=call_of(1.0, 2.0, USAGE), compression=shorter).figures
    assert called["compression_tokens"] == 200
    assert called["compression_dollars"] == pytest.approx(200e-6)
    followed = counted(followed=call_of(1.0, 2.0, USAGE), compression=shorter).figures
    assert "compression_tokens" not in followed
    failed = counted(whole=call_of(1.0, 2.0, USAGE), compression=shorter, status=500).figures
    assert "compression_tokens" not in failed


def test_without_a_price_tokens_are_counted_and_no_dollars():
    found = counted(price=None, whole=call_of(1.0, 2.0, USAGE)).figures
    assert (found["unpriced_tokens"], found["prefix_unpriced_tokens"]) == (1_100, 400)
    assert "dollars" not in found
    half = counted(price=Price(1e-6), whole=call_of(1.0, 2.0, USAGE)).figures
    assert half["unpriced_tokens"] == 1_100


def test_an_answer_without_usage_is_named():
    found = counted(whole=call_of(1.0, 2.0)).figures
    assert found == {"requests": 1, "calls": 1, "call_seconds": 1.0, "calls_without_usage": 1}


@pytest.mark.parametrize(
    ("values", "figures"),
    [
        ({"outcome": "error", "status": 502}, {"requests": 1, "errors": 1}),
        ({"status": 404}, {"requests": 1, "errors": 1}),
        ({"outcome": "refused", "status": 504}, {"requests": 1}),
        ({"outcome": "bypass"}, {"requests": 1}),
        ({"status": 500, "whole": call_of(1.0, 2.0)}, {"requests": 1, "errors": 1}),
    ],
)
def test_a_request_without_a_whole_answer_uses_nothing(values, figures):
    assert counted(**values).figures == figures


@pytest.mark.parametrize("outcome", ["invalid", "pass", "refresh", "sample"])
def test_what_is_no_request_to_a_model_counts_nowhere(outcome):
    assert counted(outcome=outcome) is None


def test_a_call_of_the_gateway_itself_is_no_request():
    found = counted(outcome="refresh", whole=call_of(1.0, 2.0, USAGE)).figures
    assert "requests" not in found
    assert found["calls"] == 1


def test_the_model_that_answered_and_the_local_encoder_are_named():
    call = call_of(1.0, 2.0, USAGE)
    assert counted(whole=call, fallback_model="small").labels.model == "small"
    assert counted(whole=call, upstream="b").labels.upstream == "b"
    assert counted(whole=call, reason=Reason.LOCAL).labels.upstream == "local"
    assert len(counted(model="m" * 5_000).labels.model) == 128


@pytest.mark.parametrize("result", [b"", b"[]", b"{", b'{"usage": 3}', b'{"usage": null}'])
def test_an_entry_of_any_shape_has_usage_or_none(result):
    entry = replace(example_entry(b"k" * 32), endpoint="/v1/chat/completions", result=result)
    assert entry_usage(entry) == NOTHING_SAID
    assert entry_usage(replace(entry, endpoint="/v1/unknown")) == NOTHING_SAID


def test_days():
    assert day_of(NOW) == DAY
    assert day_of(0) == "1970-01-01"
    assert first_day(None, NOW) == "2026-12-17"
    assert first_day("1d", NOW) == DAY
    assert first_day("2026-02-28", NOW) == "2026-02-28"
    for wrong in ("0d", "-1d", "1000d", "2026-02-30", "x", "1w"):
        with pytest.raises(ValueError, match="a day such as 2026-11-24, or a number of days"):
            first_day(wrong, NOW)


class FakeStore:
    """A store that adds rows up in memory, and fails on demand."""

    def __init__(self):
        self.rows, self.batches, self.fails = [], [], False

    async def add(self, batch, rows):
        if self.fails:
            raise StoreError("down")
        self.batches.append(batch)
        self.rows += rows

    async def read(self, since):
        return [row for row in self.rows if row.day >= since]

    async def close(self):
        pass


class Rig:
    def __init__(self, prices=None):
        self.store, self.now, self.metrics = FakeStore(), NOW, {}
        prices = Prices({"m": PRICE} if prices is None else prices, "a table")
        self.ledger = UsageLedger(
            self.store, prices, self.count, now=lambda: self.now, upstream="only"
        )

    def count(self, *labels, by):
        self.metrics[labels] = self.metrics.get(labels, 0) + by


async def test_figures_are_summed_by_each_group():
    rig = Rig()
    call = call_of(1.0, 2.0, USAGE)
    for holder, model in (("ann", "m"), ("bob", "m"), ("bob", "n")):
        rig.ledger.observe(seen_by(whole=call, holder=holder, model=model))
    rig.ledger.collect()
    rig.now += 86_400
    rig.ledger.observe(seen_by(outcome="error", status=500))
    by_model = await rig.ledger.report(DAY, "model")
    assert [(row["model"], row["requests"]) for row in by_model["rows"]] == [("m", 3), ("n", 1)]
    assert by_model["rows"][1]["dollars"] is None
    assert by_model["rows"][1]["unpriced_tokens"] == 1_100
    assert by_model["total"]["calls"] == 3
    assert by_model["total"]["errors"] == 1
    assert by_model["total"]["saved_total"]["tokens"] == 0
    assert by_model["total"]["saved"]["prefix"]["tokens"] == 1_200
    assert by_model["prices"] == "a table"
    by_day = await rig.ledger.report(DAY, "day")
    days = [(row["day"], row["requests"]) for row in by_day["rows"]]
    assert days == [(DAY, 3), ("2027-01-16", 1)]
    by_holder = await rig.ledger.report("2027-01-16", "holder")
    assert [(row["holder"], row["requests"]) for row in by_holder["rows"]] == [("ann", 1)]
    by_upstream = await rig.ledger.report(DAY, "upstream")
    upstreams = [(row["upstream"], row["calls"]) for row in by_upstream["rows"]]
    assert upstreams == [("only", 3), ("", 0)]


async def test_figures_wait_for_a_store_that_fails_and_are_added_once(caplog):
    rig = Rig()
    rig.store.fails = True
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            rig.ledger.observe(seen_by())
            await rig.ledger.flush()
    assert len(caplog.records) == 1
    rig.store.fails = False
    await rig.ledger.flush()
    await rig.ledger.flush()
    await rig.ledger.flush()
    found = await rig.ledger.report(DAY, "model")
    assert found["total"]["requests"] == 3
    assert sum(row.figures["requests"] for row in rig.store.rows) == 3
    assert len(rig.store.batches) == len(set(rig.store.batches)) == 2


async def test_an_answer_that_is_lost_leads_to_the_same_batch_again():
    rig, names = Rig(), []

    async def add(batch, rows):
        names.append(batch)
        if len(names) == 1:
            raise StoreError("no answer in time")

    rig.store.add = add
    rig.ledger.observe(seen_by())
    await rig.ledger.flush()
    rig.ledger.observe(seen_by())
    await rig.ledger.flush()
    await rig.ledger.flush()
    assert names[0] == names[1] != names[2]


async def test_labels_that_clients_make_up_take_bounded_memory():
    rig = Rig()
    for number in range(USAGE_ROWS + 500):
        rig.ledger.observe(seen_by(model=f"m{number}", whole=call_of(1.0, 2.0, USAGE)))
    await rig.ledger.flush()
    assert len(rig.store.rows) == USAGE_ROWS + 1
    assert rig.store.rows[-1].labels == USAGE_OTHER
    found = await rig.ledger.report(DAY, "model")
    assert found["rows"][0]["model"] == "other"
    assert found["rows"][0]["requests"] == 500
    series = {labels[1] for labels in rig.metrics if labels[0] == "tokens_used"}
    assert len(series) == 257
    assert "other" in series


async def test_metrics_have_what_was_used_and_saved():
    rig = Rig()
    rig.ledger.observe(seen_by(whole=call_of(1.0, 3.0, USAGE)))
    for _ in range(2):
        seen = seen_by(outcome="hit")
        seen.lookup = Lookup(hit=hit_by())
        rig.ledger.observe(seen)
    rig.ledger.collect()
    assert rig.metrics == {
        ("tokens_used", "m", "only", "prompt"): 1_000,
        ("tokens_used", "m", "only", "completion"): 100,
        ("tokens_saved", "prefix"): 400,
        ("cost_saved_dollars", "prefix"): pytest.approx(360e-6),
        ("tokens_saved", "exact"): 2_200,
        ("cost_saved_dollars", "exact"): pytest.approx(4_000e-6),
        ("seconds_saved", "exact"): 4.0,  # as long as the call of this model
    }


async def test_seconds_of_hits_are_the_median_of_calls_and_after_a_restart_the_mean():
    rig = Rig()
    for seconds in (1.0, 2.0, 60.0):
        rig.ledger.observe(seen_by(whole=call_of(0.0, seconds, USAGE)))
    rig.ledger.collect()
    seen = seen_by(outcome="hit")
    seen.lookup = Lookup(hit=hit_by())
    assert rig.ledger.account(seen).figures["exact_seconds"] == 2.0
    await rig.ledger.flush()
    again = Rig()
    again.store = again.ledger._store = rig.store
    assert "exact_seconds" not in again.ledger.account(seen).figures
    await again.ledger.seed()
    assert again.ledger.account(seen).figures["exact_seconds"] == 21.0
    again.ledger.observe(seen_by(whole=call_of(0.0, 5.0, USAGE)))
    again.ledger.collect()
    assert again.ledger.account(seen).figures["exact_seconds"] == 5.0


async def test_a_report_has_what_the_store_could_not_take_yet():
    rig = Rig()
    rig.ledger.observe(seen_by())
    rig.store.fails = True
    await rig.ledger.flush()
    rig.ledger.observe(seen_by())
    assert (await rig.ledger.report(DAY, "model"))["total"]["requests"] == 2


def test_a_row_of_a_later_version_is_summed_too():
    rows = [UsageRow(DAY, '{"model":"m","region":"x"}', {"requests": 1, "later": 5})]
    assert report(rows, "model")["rows"][0]["requests"] == 1


async def test_a_report_of_one_team_leaves_out_all_others():
    rig = Rig()
    for holder, team in (("ann", "search"), ("bob", "search"), ("cy", "ads"), ("dan", "")):
        rig.ledger.observe(seen_by(whole=call_of(1.0, 2.0, USAGE), holder=holder, team=team))
    by_team = await rig.ledger.report(DAY, "team")
    teams = {row["team"]: row["requests"] for row in by_team["rows"]}
    assert teams == {"search": 2, "ads": 1, "": 1}
    of_search = await rig.ledger.report(DAY, "holder", "search")
    assert {row["holder"] for row in of_search["rows"]} == {"ann", "bob"}
    assert of_search["total"]["calls"] == 2
    assert [row["holder"] for row in (await rig.ledger.report(DAY, "holder", ""))["rows"]] == [
        "dan"
    ]
    assert OTHERS.text() == USAGE_OTHER


def test_the_hits_of_the_entries_hit_last_are_counted(monkeypatch):
    monkeypatch.setattr("gateway.telemetry.usage.COUNTED_ENTRIES", 2)
    rig = Rig()

    def hit(key):
        found = hit_by()
        found = replace(found, entry=replace(found.entry, key=key * 32))
        rig.ledger.observe(seen_by(outcome="hit", reason=Reason.EXACT, hit=found))

    for key in (b"a", b"a", b"b", b"a"):
        hit(key)
    assert [rig.ledger.hits_of(key * 32) for key in (b"a", b"b", b"c")] == [3, 1, 0]
    hit(b"c")
    hit(b"a")
    assert [rig.ledger.hits_of(key * 32) for key in (b"a", b"b", b"c")] == [4, 0, 1]
    repeated = RepeatedHit()
    first = replace(hit_by(), entry=replace(hit_by().entry, key=b"a" * 32))
    rig.ledger.remembered.append((repeated, seen_by(outcome="hit", hit=first)))
    rig.ledger.repeated[repeated] += 6
    assert rig.ledger.hits_of(b"a" * 32) == 10
