"""Files that only grow: whole lines, whoever writes and whatever crashes."""

import asyncio
import stat

import orjson
import pytest

from gateway.adapters.journal import Journal, QuarantineFile

KEY, OTHER = b"k" * 32, b"o" * 32


def lines(path):
    return [orjson.loads(line) for line in path.read_bytes().splitlines()]


async def test_many_writers_mix_no_lines_and_nobody_else_may_read_them(tmp_path):
    path = tmp_path / "journal.jsonl"
    journals = [Journal(path) for _ in range(4)]
    await asyncio.gather(
        *(journals[n % 4].append({"n": n, "filler": "x" * 500}) for n in range(200))
    )
    assert sorted(line["n"] for line in lines(path)) == list(range(200))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


async def test_the_half_line_of_a_crash_is_closed_off(tmp_path):
    path = tmp_path / "journal.jsonl"
    path.write_bytes(b'{"n":1}\n{"n":')
    await Journal(path).append({"n": 3})
    assert path.read_bytes() == b'{"n":1}\n{"n":\n{"n":3}\n'


async def test_a_key_in_quarantine_stays_there_for_every_worker_and_after_a_restart(tmp_path):
    path = tmp_path / "quarantine.jsonl"
    one, other = QuarantineFile(path), QuarantineFile(path)
    assert not one.holds(KEY)
    await one.add(KEY)
    await one.add(KEY)
    assert len(lines(path)) == 1
    for quarantine in (one, other, QuarantineFile(path)):
        assert quarantine.holds(KEY)
        assert not quarantine.holds(OTHER)


async def test_what_a_crash_left_of_a_line_hides_no_other(tmp_path):
    path = tmp_path / "quarantine.jsonl"
    path.write_bytes(b'{"key":"%s"}\n{"key":"6b\n[]\n{"key":5}\n' % KEY.hex().encode())
    quarantine = QuarantineFile(path)
    await quarantine.add(OTHER)
    assert quarantine.holds(KEY)
    assert quarantine.holds(OTHER)


async def test_a_list_that_cannot_be_read_holds_every_key(tmp_path):
    (tmp_path / "quarantine.jsonl").mkdir()
    assert QuarantineFile(tmp_path / "quarantine.jsonl").holds(KEY)
    with pytest.raises(OSError, match="directory"):
        await Journal(tmp_path / "quarantine.jsonl").append({})
