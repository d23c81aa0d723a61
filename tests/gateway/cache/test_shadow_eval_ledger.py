"""What the lines of the journal teach: rates, rules switched off, aliases."""

import random
from dataclasses import asdict

import orjson
import pytest

from gateway.cache.quality.same_answer import Outcome
from gateway.cache.quality.shadow_eval import (
    MAX_ALIASES,
    WINDOW,
    Comparison,
    ComparisonLedger,
    Kind,
)

KEY, ENTRY = "aa" * 32, "bb" * 32


def line(outcome="equal", kind="served", **changes):
    return {
        "time": 1.0,
        "kind": kind,
        "rule": "a",
        "basis": "0/0.01/0.5",
        "budget": 0.01,
        "key": KEY,
        "entry": ENTRY,
        "similarity": 0.9,
        "score": 0.8,
        "verifier": "v",
        "alias": False,
        "outcome": outcome,
        "why": "text",
        "asked": "q",
        "promoted": False,
        "until": 100.0,
        **changes,
    }


def ledger_of(*lines):
    ledger = ComparisonLedger()
    for each in lines:
        ledger.take(each)
    return ledger


def off_basis(ledger, rule):
    """Return the basis for which a rule has no semantic hits, None if it has them."""
    found = ledger.rules.get(rule)
    return found.basis if found is not None and found.off else None


def test_a_comparison_is_read_back_as_it_was_written():
    given = line(kind=Kind.NEAR_MISS, outcome=Outcome.EQUAL, promoted=True)
    ledger = ledger_of(orjson.loads(orjson.dumps(asdict(Comparison(**given)))))
    assert ledger.report()["a"]["near_misses"] == {"equal": 1, "different": 0, "unsure": 0}
    assert ledger.report()["a"]["latest"] == 1.0
    assert is_alias(ledger)


@pytest.mark.parametrize("field", [name for name in line() if name != "promoted"])
def test_a_line_that_lacks_something_is_passed_over(field):
    broken = {name: value for name, value in line().items() if name != field}
    assert ledger_of(broken).report() == {}


@pytest.mark.parametrize(
    "odd",
    [
        {},
        line(promoted=1),
        line(alias="yes"),
        {"kind": []},
        {"kind": "off"},
        {"kind": "off", "rule": 3},
        {"kind": "reset"},
    ],
)
def test_other_lines_change_nothing(odd):
    assert ledger_of(odd).report() == {}


def test_near_misses_are_counted_apart_from_hits():
    ledger = ledger_of(line(), line("different", kind="near-miss"), line("unsure", kind="shadow"))
    report = ledger.report()["a"]
    assert (report["comparisons"], report["equal"], report["unsure"]) == (2, 1, 1)
    assert report["different"] == 0
    assert report["near_misses"] == {"equal": 0, "different": 1, "unsure": 0}


def test_the_interval_has_room_for_what_is_unsure():
    report = ledger_of(*[line()] * 90, *[line("unsure")] * 5, *[line("different")] * 5).report()
    low, high = report["a"]["interval"]
    assert report["a"]["wrong_hits"] == pytest.approx(5 / 95)
    assert low == pytest.approx(0.016432, abs=1e-5)  # 5 of 100
    assert high == pytest.approx(0.176223, abs=1e-5)  # 10 of 100


def switched(ledger):
    found = ledger.to_switch_off("a")
    if found is not None:
        ledger.take(found)
    return found


def test_one_wrong_hit_switches_nothing_off_and_two_at_once_do():
    ledger = ledger_of(line("different"))
    assert switched(ledger) is None
    assert off_basis(ledger, "a") != "0/0.01/0.5"
    ledger.take(line("different"))
    assert switched(ledger)["wrong"] == 2
    assert off_basis(ledger, "a") == "0/0.01/0.5"
    assert ledger.rules_off() == {"a": True}
    assert switched(ledger) is None


def test_a_rule_that_is_off_stays_so_until_the_basis_changes_or_it_is_reset():
    ledger = ledger_of(*[line("different")] * 2)
    switched(ledger)
    assert off_basis(ledger, "a") != "1/0.01/0.5"
    assert off_basis(ledger, "b") != "0/0.01/0.5"
    carried = ledger.lines_to_carry_over()
    assert off_basis(ledger_of(*carried), "a") == "0/0.01/0.5"
    for reset in ({"kind": "reset", "rule": "a"}, {"kind": "reset", "rule": None}):
        again = ledger_of(*carried, reset)
        assert off_basis(again, "a") != "0/0.01/0.5"
        assert again.report() == {}
    assert off_basis(ledger_of(*carried, {"kind": "reset", "rule": "b"}), "a") == "0/0.01/0.5"
    ledger.take(line(basis="1/0.01/0.5"))
    assert off_basis(ledger, "a") != "0/0.01/0.5"
    assert ledger.report()["a"]["comparisons"] == 1


def test_a_rate_that_rises_is_seen_after_a_long_good_time():
    ledger = ledger_of(*[line()] * 10_000)
    taken = 0
    while switched(ledger) is None:
        ledger.take(line("different" if taken % 10 == 0 else "equal"))
        taken += 1
        assert taken < WINDOW
    assert off_basis(ledger, "a") == "0/0.01/0.5"


def test_a_rule_at_its_budget_is_seldom_switched_off():
    """At the very rate that is allowed, asked 600 times: in 1 run of 20 at most."""
    drawn = random.Random(1)
    stopped = 0
    for _ in range(40):
        ledger = ComparisonLedger()
        for _ in range(600):
            wrong = drawn.random() < 0.01
            ledger.take(line("different" if wrong else "equal"))
            if wrong and switched(ledger):
                stopped += 1
                break
    assert stopped <= 2


def is_alias(ledger, asked="q", entry=ENTRY, *, until=100.0, now=1.0, barred=frozenset()):
    return ledger.alias(asked, entry, until, now=now, barred=barred.__contains__)


def test_an_alias_holds_until_its_entry_ends():
    ledger = ledger_of(line(kind="near-miss", promoted=True))
    assert is_alias(ledger, now=99.9)
    assert not is_alias(ledger, entry=KEY)
    assert not is_alias(ledger, "r")
    assert not is_alias(ledger, now=100.0)
    assert ledger.aliases == 0


def test_an_alias_that_is_found_different_ends():
    ledger = ledger_of(line(kind="near-miss", promoted=True), line("different"))
    assert ledger.aliases == 0


def test_an_alias_with_no_key_is_none():
    assert ledger_of(line(kind="near-miss", promoted=True, key="none")).aliases == 0


def test_aliases_are_bounded_and_the_oldest_goes():
    ledger = ComparisonLedger()
    for number in range(MAX_ALIASES + 5):
        ledger.take(line(kind="near-miss", promoted=True, asked=str(number)))
    assert ledger.aliases == MAX_ALIASES
    assert not is_alias(ledger, "4")
    assert is_alias(ledger, "5")


def test_what_to_do_next_is_told():
    def told(*lines):
        return ledger_of(*lines).report()["a"]["next"]

    assert "too few" in told(line())
    assert "kept" in told(*[line()] * 400)
    assert "not told yet" in told(*[line()] * 100)
    assert "unsure" in told(*[line()] * 400, *[line("unsure")] * 90)
    assert "over the budget" in told(*[line()] * 90, *[line("different")] * 10)
    assert "reset" in told({"kind": "off", "rule": "a", "basis": "b", "budget": 0.01})
