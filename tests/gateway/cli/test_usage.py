"""`refrain usage`: the same figures from a running gateway and from its files, in three forms."""

import asyncio
import csv
import io
import time

import orjson
import pytest

from gateway.cache.stores.counts import UsageRow
from gateway.cache.stores.sqlite.sums import SqliteUsage
from gateway.cli.main import main
from gateway.cli.operator.usage import table
from gateway.telemetry.savings import day_of, report


@pytest.fixture
def command(monkeypatch, capsys):
    """Run a command beside the gateway of this process; return code, output and errors."""
    monkeypatch.delenv("REFRAIN_ADMIN_TOKEN", raising=False)

    async def run(*arguments):
        code = await asyncio.to_thread(main, ["usage", *map(str, arguments)])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


@pytest.fixture
async def data_dir(tmp_path):
    store = SqliteUsage(tmp_path / "usage.sqlite3")
    day = day_of(time.time())
    used = {
        "requests": 10,
        "calls": 4,
        "call_seconds": 8.0,
        "prompt_tokens": 4_000,
        "completion_tokens": 1_000,
        "dollars": 1.5,
        "exact_requests": 5,
        "exact_tokens": 6_000,
        "exact_dollars": 2.25,
        "exact_seconds": 7_200.0,
        "compression_requests": 1,
        "prefix_requests": 2,
        "prefix_tokens": 300,
        "prefix_dollars": 0.001,
    }
    rows = [
        UsageRow(day, '{"holder":"ann","model":"gpt-4o","team":"search"}', used),
        UsageRow(
            day,
            '{"model":"own"}',
            {"requests": 1, "calls": 1, "prompt_tokens": 50, "unpriced_tokens": 50},
        ),
        UsageRow(
            day_of(time.time() - 100 * 86_400),
            '{"model":"old"}',
            {"requests": 7, "calls_without_usage": 7},
        ),
    ]
    await store.add("a", rows)
    await store.close()
    return tmp_path


async def test_a_table_shows_what_was_used_and_what_saved(data_dir, command):
    code, out, err = await command("--data-dir", data_dir)
    assert (code, err) == (0, "")
    lines = out.splitlines()
    head = ["model", "requests", "hits", "tokens", "used", "tokens", "saved", "spent", "saved"]
    assert lines[0].split() == [*head, "time", "saved"]
    cells = ["gpt-4o", "10", "50%", "5,000", "6,000", "$1.50", "$2.25", "2.0", "h"]
    assert lines[1].split() == cells
    assert lines[2].split() == ["own", "1", "0%", "50", "0", "no", "price", "$0.00", "0.0", "s"]
    assert lines[3].split()[:3] == ["all", "11", "45%"]
    assert "  exact hits               5 requests, 6,000 tokens, $2.25, 2.0 h" in lines
    assert "  compression              1 request, 0 tokens, $0.00" in lines
    apart = lines.index("cheaper by the upstreams' own caches, which is not part of saved")
    assert lines[apart + 1] == "  prefix caches            2 requests, 300 tokens, $0.001000"
    assert "50 of these tokens have no known price" in out
    assert "old" not in out


async def test_other_days_and_groups(data_dir, command):
    _, out, _ = await command("--data-dir", data_dir, "--since", "200d", "--by", "holder")
    assert [line.split()[0] for line in out.splitlines()[1:4]] == ["ann", "(none)", "all"]
    assert "7 answers came without usage" in out
    _, out, _ = await command("--data-dir", data_dir, "--by", "upstream")
    assert out.splitlines()[1].startswith("(no call) ")
    _, out, _ = await command("--data-dir", data_dir, "--by", "team")
    assert [line.split()[0] for line in out.splitlines()[1:4]] == ["search", "(none)", "all"]
    _, out, _ = await command("--data-dir", data_dir, "--by", "holder", "--team", "search")
    assert [line.split()[0] for line in out.splitlines()[1:3]] == ["ann", "all"]
    _, out, _ = await command("--data-dir", data_dir, "--team", "ads")
    assert out.startswith("nothing was counted since")


async def test_csv_and_json_have_all_figures(data_dir, command):
    _, out, _ = await command("--data-dir", data_dir, "--csv")
    first, second = csv.DictReader(io.StringIO(out))
    assert (first["model"], first["requests"], first["saved_exact_dollars"]) == (
        "gpt-4o",
        "10",
        "2.25",
    )
    assert (second["dollars"], second["unpriced_tokens"]) == ("", "50")
    _, out, _ = await command("--data-dir", data_dir, "--json")
    found = orjson.loads(out)
    assert found["total"]["saved_total"]["tokens"] == 6_000
    assert found["rows"][0]["saved"]["prefix"]["tokens"] == 300
    assert found["rows"][1]["dollars"] is None


async def test_a_running_gateway_and_its_files_agree(gateway, command):
    for _ in range(3):
        await gateway.ask("Hi?")
    code, asked, _ = await command("--gateway", gateway.url, "--json", "--since", "1d")
    assert code == 0
    _, read, _ = await command("--data-dir", gateway.data_dir, "--json", "--since", "1d")
    asked, read = orjson.loads(asked), orjson.loads(read)
    assert asked.pop("prices").startswith("litellm ")
    assert asked == read
    assert asked["total"]["requests"] == 3


async def test_where_nothing_was_counted_a_line_says_so(tmp_path, command):
    code, _, err = await command("--data-dir", tmp_path / "none")
    assert code == 2
    assert "there is no data directory" in err
    code, _, err = await command("--data-dir", tmp_path)
    assert code == 1
    assert "nothing was counted yet" in err
    assert not list(tmp_path.iterdir())
    store = SqliteUsage(tmp_path / "usage.sqlite3")
    await store.read("2020-01-01")
    await store.close()
    code, out, _ = await command("--data-dir", tmp_path, "--since", "2026-11-24")
    assert (code, out) == (0, "nothing was counted since 2026-11-24\n")


async def test_wrong_options_are_named(data_dir, gateway, command, monkeypatch):
    code, _, err = await command("--data-dir", data_dir, "--since", "monday")
    assert code == 2
    assert "--since: expected a day such as 2026-11-24" in err
    code, _, err = await command("--gateway", gateway.url, "--since", "monday")
    assert code == 1
    assert "since" in err
    (data_dir / "usage.sqlite3").unlink()
    (data_dir / "usage.sqlite3").mkdir()
    code, _, err = await command("--data-dir", data_dir)
    assert code == 1


def test_a_long_table_ends():
    rows = [UsageRow("2026-11-24", f'{{"model":"m{n}"}}', {"requests": 1}) for n in range(50)]
    lines = list(table({"since": "2026-11-01", **report(rows, "model")}))
    assert "... 10 more rows: --csv and --json have all" in lines


HOSTILE = (
    *(
        "\x1b[2J\x1b]0;owned\x07",
        "a\x00b",
        "gpt\nall   9",
        "a\rb",
        "\u202egpt",
        "\x9b31m",
        "a\u2028b",
    ),
    *("=cmd|' /C calc'!A0", "+1+1", "-2+3", "@SUM(A1)", "\t=1+1", "\r=1+1", " =1+1", "\uff1d1+1"),
)
"""Names that move a terminal's cursor, that forge a line, or that are formulas."""


@pytest.fixture
async def hostile_dir(tmp_path):
    store = SqliteUsage(tmp_path / "usage.sqlite3")
    names = ("model", "upstream", "holder", "team")
    rows = [
        UsageRow(
            day_of(time.time()), orjson.dumps(dict.fromkeys(names, each)).decode(), {"requests": 1}
        )
        for each in HOSTILE
    ]
    await store.add("a", rows)
    await store.close()
    return tmp_path


@pytest.mark.parametrize("by", ["model", "upstream", "holder", "team"])
@pytest.mark.parametrize("form", [(), ("--csv",), ("--json",)])
async def test_no_name_moves_a_cursor_forges_a_line_or_is_a_formula(hostile_dir, command, by, form):
    _, out, _ = await command("--data-dir", hostile_dir, "--by", by, *form)
    assert all(line.isprintable() for line in out.split("\n"))
    if not form:
        assert len([line for line in out.splitlines() if line.startswith("all ")]) == 1
    elif form == ("--csv",):
        rows = list(csv.reader(io.StringIO(out)))
        assert len(rows) == len(HOSTILE) + 1
        assert not any(
            cell.lstrip().startswith(tuple("=+-@\uff1d")) for row in rows for cell in row
        )
    else:
        assert {row[by] for row in orjson.loads(out)["rows"]} == set(HOSTILE)
