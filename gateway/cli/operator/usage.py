"""``refrain usage``: what was used and what was saved, from a running gateway or its files.

The figures of gateways that share a Redis are there, so only a running gateway has them.
"""

import asyncio
import csv
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from gateway.cache.ports import StoreError
from gateway.cache.stores.sqlite.sums import SqliteUsage
from gateway.cli.operator.admin_api import ask_gateway
from gateway.cli.terminal import CommandError, FailedError, printable, show, show_json
from gateway.server.open.store import USAGE
from gateway.telemetry.savings import Way, first_day, report

_MOST_ROWS = 40
"""Rows of a table; --csv and --json have all."""

_COLUMNS = ("requests", "hits", "tokens used", "tokens saved", "spent", "saved", "time saved")
_WIDTHS = (11, 7, 14, 14, 12, 12, 12)
_FORMULA = tuple("=+-@\uff1d\uff0b\uff0d\uff20")
"""How formulas begin, in narrow and in wide letters."""
_WAYS = {
    Way.EXACT: "exact hits",
    Way.SEMANTIC: "semantic hits",
    Way.COALESCING: "shared calls",
    Way.COMPRESSION: "compression",
    Way.PREFIX: "prefix caches",
}


def usage(
    *,
    by: str,
    since: str | None,
    team: str | None,
    as_csv: bool,
    as_json: bool,
    url: str | None,
    data_dir: Path,
) -> int:
    """Print a report of usage; return the exit code."""
    if url is None:
        found = _report_of(data_dir, by, _since(since), team)
    else:
        given = {"by": by, "since": since, "team": team}
        query = {name: value for name, value in given.items() if value is not None}
        found = ask_gateway(url, f"usage?{urlencode(query)}")
    if as_json:
        show_json(found)
    elif as_csv:
        _write_csv(found)
    else:
        show(table(found))
    return 0


def _since(text: str | None) -> str:
    try:
        return first_day(text, time.time())
    except ValueError as error:
        raise CommandError(f"--since: expected {error}, got {text!r}") from None


def _report_of(data_dir: Path, by: str, since: str, team: str | None) -> dict[str, Any]:
    path = data_dir / USAGE
    if not data_dir.is_dir():
        raise CommandError(f"{data_dir}: there is no data directory; --data-dir names another")
    if not path.is_file():
        raise FailedError(
            f"{path}: not there: nothing was counted yet, or the gateways share a Redis (--gateway)"
        )

    async def read() -> dict[str, Any]:
        store = SqliteUsage(path)
        try:
            return {"since": since, **report(await store.read(since), by, team)}
        finally:
            await store.close()

    try:
        return asyncio.run(read())
    except StoreError as error:
        raise FailedError(f"{path}: cannot be read: {error}") from None


def table(found: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines of a report for a terminal."""
    by, rows, total = found["by"], found["rows"], found["total"]
    if not rows:
        yield f"nothing was counted since {found['since']}"
        return
    unnamed = "(no call)" if by == "upstream" else "(none)"
    names = [printable(str(row[by])) or unnamed for row in rows[:_MOST_ROWS]]
    width = max(map(len, (*names, by, "all"))) + 1
    yield by.ljust(width) + _cells(_COLUMNS)
    for name, row in zip(names, rows, strict=False):
        yield name.ljust(width) + _cells(_row(row))
    if len(rows) > _MOST_ROWS:
        yield f"... {len(rows) - _MOST_ROWS:,} more rows: --csv and --json have all"
    yield "all".ljust(width) + _cells(_row(total))
    yield ""
    yield f"saved since {found['since']} by"
    for way, name in _WAYS.items():
        part = total["saved"][way.value]
        if part["requests"]:
            if way is Way.PREFIX:
                yield "cheaper by the upstreams' own caches, which is not part of saved"
            unit = "tokens"
            requests = "request" if part["requests"] == 1 else "requests"
            seconds = f", {time_text(part['seconds'])}" if part["seconds"] else ""
            yield (
                f"  {name:<15}{part['requests']:>11,} {requests}, {part['tokens']:,} {unit}, "
                f"{dollars_text(part['dollars'])}{seconds}"
            )
    unpriced = total["unpriced_tokens"] + total["saved_total"]["unpriced_tokens"]
    if unpriced:
        yield (
            f"{unpriced:,} of these tokens have no known price: dollars leave them out "
            "(prices: FILE in refrain.yaml adds prices)"
        )
    if without := total["calls_without_usage"]:
        yield f"{without:,} answers came without usage: their tokens are unknown"


def _row(row: Mapping[str, Any]) -> tuple[str, ...]:
    saved, ways = row["saved_total"], row["saved"]
    hits = sum(ways[way]["requests"] for way in (Way.EXACT, Way.SEMANTIC, Way.COALESCING))
    return (
        f"{row['requests']:,}",
        f"{hits / row['requests']:.0%}" if row["requests"] else "-",
        f"{row['prompt_tokens'] + row['completion_tokens']:,}",
        f"{saved['tokens']:,}",
        dollars_text(row["dollars"]),
        dollars_text(saved["dollars"]),
        time_text(saved["seconds"]),
    )


def _cells(cells: tuple[str, ...]) -> str:
    return "".join(cell.rjust(width) for cell, width in zip(cells, _WIDTHS, strict=True))


def dollars_text(dollars: float | None) -> str:
    """Write an amount; None where no price is known."""
    if dollars is None:
        return "no price"
    return f"${dollars:,.2f}" if dollars >= 0.01 or not dollars else f"${dollars:.6f}"


def time_text(seconds: float) -> str:
    """Write a time in the unit that suits it."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:,.1f} min" if seconds < 3600 else f"{seconds / 3600:,.1f} h"


def _write_csv(found: Mapping[str, Any]) -> None:
    writer = csv.writer(sys.stdout, lineterminator="\n")
    rows = [dict(_flat(row)) for row in found["rows"]]
    names = [found["by"], *dict(_flat(found["total"]))]
    writer.writerow(names)
    writer.writerows([_cell(row[name]) for name in names] for row in rows)


def _cell(value: Any) -> Any:
    """Return a cell that no spreadsheet takes for a formula."""
    if not isinstance(value, str):
        return value
    text = printable(value)
    return f"'{text}" if text.lstrip().startswith(_FORMULA) else text


def _flat(figures: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the columns of a row: ``saved_exact_tokens`` and the like."""
    for name, value in figures.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}_")
        else:
            yield f"{prefix}{name}", value
