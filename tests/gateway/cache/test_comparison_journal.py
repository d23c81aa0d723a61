"""The journal of comparisons: shared, bounded, and what it says of rules that are off."""

import stat
from dataclasses import replace

import orjson
import pytest

from gateway.cache.quality.comparison_journal import ComparisonJournal
from gateway.cache.quality.quarantine import QuarantineFile
from policies.decision import Decision, PiiAction, Scope

DECISION = replace(
    Decision("a", True, True, 0.75, 60.0, Scope.TENANT, PiiAction.BYPASS, 0), max_wrong_hits=0.01
)
OFF = {"kind": "off", "rule": "a", "basis": "0/0.01/0.5", "budget": 0.01}


@pytest.fixture
def open_journal(tmp_path):
    def opened(**options):
        quarantine = QuarantineFile(tmp_path / "quarantine.jsonl")
        return ComparisonJournal(tmp_path / "checks.jsonl", quarantine, **options)

    return opened


async def test_what_one_worker_writes_another_knows(open_journal):
    one, other = open_journal(), open_journal()
    assert not other.off(DECISION, lambda _: 0.5)
    await one.append(OFF)
    assert one.off(DECISION, lambda _: 0.5)
    assert other.off(DECISION, lambda _: 0.5)
    await other.append({"kind": "reset", "rule": "a"})
    assert not one.off(DECISION, lambda _: 0.5)
    assert stat.S_IMODE(one.path.stat().st_mode) == 0o600


async def test_it_is_bounded_and_the_new_file_says_what_is_off(open_journal):
    one, other = open_journal(max_bytes=2000), open_journal(max_bytes=2000)
    assert not other.off(DECISION, lambda _: 0.5)
    await one.append(OFF)
    for number in range(300):
        await one.append({"kind": "other", "number": number})
        assert one.path.stat().st_size <= 2100
        if number % 7 == 0:
            assert other.off(DECISION, lambda _: 0.5)
    assert orjson.loads(one.path.read_bytes().splitlines()[0])["kind"] == "off"
    assert open_journal().off(DECISION, lambda _: 0.5)
    assert {path.name for path in one.path.parent.iterdir()} == {
        "checks.jsonl",
        "checks.jsonl.1",
        "checks.jsonl.lock",
    }


async def test_half_a_line_is_passed_over_and_the_next_is_its_own(open_journal):
    one = open_journal()
    one.path.write_bytes(b'{"kind": "of')
    assert not one.off(DECISION, lambda _: 0.5)
    await one.append(OFF)
    assert one.off(DECISION, lambda _: 0.5)
    assert open_journal().off(DECISION, lambda _: 0.5)


async def test_where_the_journal_cannot_be_read_nothing_is_served_by_meaning(open_journal, caplog):
    one = open_journal()
    one.path.mkdir()
    assert one.off(DECISION, lambda _: 0.5)
    assert one.off(DECISION, lambda _: 0.5)
    assert caplog.text.count("cannot be read") == 1
    one.path.rmdir()
    assert not one.off(DECISION, lambda _: 0.5)


async def test_lines_of_other_kinds_and_no_objects_teach_nothing(open_journal):
    one = open_journal()
    one.path.write_bytes(b'[]\n3\n{"kind": 7}\n\xff\n{"rule": []}\n')
    assert not one.off(DECISION, lambda _: 0.5)
    assert one.report() == {"rules": {}, "aliases": 0}


async def test_a_line_that_could_not_be_written_is_learnt_from(open_journal):
    one = open_journal()
    one.path.mkdir()
    with pytest.raises(OSError, match="directory"):
        await one.append(OFF)
    assert one.ledger.rules_off() == {"a": True}
    one.path.rmdir()
