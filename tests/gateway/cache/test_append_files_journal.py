"""Files that only grow: whole lines, whoever writes and whatever crashes."""

import asyncio
import stat

import orjson

from gateway.cache.append_files import Journal


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
