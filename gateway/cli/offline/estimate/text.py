"""An estimate in words: a table, and the sentences that say how far its figures hold."""

import textwrap
import time
from collections.abc import Iterator, Mapping
from typing import Any

from gateway.cli.terminal import printable
from policies.format.values import percent_text

WAYS = {
    "exact": "exact hits",
    "semantic": "hits by meaning",
    "coalesced": "joined a call under way",
}
"""Each way of saving a call, in words."""
MOST_ROWS = 10
_LONGEST = 28
_COLUMNS = 88
_LEAST_DOLLARS = 0.0001


def text(result: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines for a terminal; names come from the log and cannot move its cursor."""
    yield from map(printable, _lines(result))


def _lines(result: Mapping[str, Any]) -> Iterator[str]:
    total = result["total"]
    yield f"{result['log']}: {headline(result)}"
    yield f"policy: {result['policy']}"
    yield ""
    yield _cells("would have been saved", "requests", "tokens", "dollars", "waiting")
    yield from (_cells(name, *cells(sums, total)) for name, sums in saved_rows(result))
    yield ""
    for note in notes(result):
        yield from textwrap.wrap(note, _COLUMNS, break_on_hyphens=False)
    for title, name in (("model", "models"), ("rule", "rules")):
        yield ""
        yield from _rows(title, result[name])
    for title, reasons in reasons_of(result).items():
        yield ""
        yield f"{title:<40}{'requests':>10}"
        yield from (f"{reason:<40}{count:>10,}" for reason, count in reasons.items())


def reasons_of(result: Mapping[str, Any]) -> dict[str, Mapping[str, int]]:
    """Return the requests by reason, under a title for each kind of reasons."""
    found = {"not looked up, because of": result["bypass_reasons"]}
    if result["semantic"]["left_out"] is None:
        found["not looked up by meaning, because of"] = result["ineligible"]
    found["answer not stored, because of"] = result["not_stored"]
    return {title: reasons for title, reasons in found.items() if reasons}


def headline(result: Mapping[str, Any]) -> str:
    """Return the size and the time of the log, and what its requests used."""
    total = result["total"]
    parts = [counted(result["requests"], "request")]
    if result["first"] is not None:
        parts.append(f"{moment(result['first'])} to {moment(result['last'])} UTC")
    parts.append(f"{tokens_of(total):,} tokens")
    if total["dollars"]:
        parts.append(dollars(total["dollars"]))
    return ", ".join(parts)


def notes(result: Mapping[str, Any]) -> Iterator[str]:
    """Yield the sentences that say what the figures mean, and what the log does not tell."""
    minutes, semantic = result["prefix_minutes"], result["semantic"]
    yield "Each request counts in one row alone."
    yield (
        "Prefix caching is about the prompts that would still have been sent. It counts the tokens "
        f"of their beginnings that were sent within {minutes:g} minutes before, less the tokens "
        "that the upstream found in its cache. It is an upper bound."
    )
    if semantic["risk"] is None:
        yield "Hits by meaning are left out: --risk 1% looks for them."
    elif semantic["left_out"] is not None:
        yield f"Hits by meaning are left out: {semantic['left_out']}."
    else:
        risk = percent_text(semantic["risk"])
        yield f"At most {risk} of the hits by meaning are wrong, by the calibration in use."
    told = (
        ("estimated", "had no usage: their tokens are estimated, one for 4 bytes"),
        ("without_answer", "had no answer in the log: it counts as one that is stored"),
        ("without_time", "had no time: nothing goes stale for them"),
        ("without_latency", "had no duration: they join no call, and their waiting is unknown"),
    )
    for name, what in told:
        if result[name]:
            yield f"{counted(result[name], 'request')} {what}."
    if unpriced := result["total"]["unpriced_tokens"]:
        yield f"{unpriced:,} tokens are of models without a price: they count in no dollars."
    if result["evictions"]:
        yield f"{result['evictions']:,} entries were evicted for want of memory: hits may be more."
    if result["skipped_lines"]:
        yield f"{counted(result['skipped_lines'], 'line')} held no request."


def saved_rows(result: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the rows of the table of what would have been saved: names and sums."""
    for way, name in WAYS.items():
        if way != "semantic" or result["semantic"]["left_out"] is None:
            yield name, result["ways"][way]
    yield "together", result["saved"]
    yield "prefix caching, at most", result["prefix"]


def cells(
    sums: Mapping[str, Any], total: Mapping[str, Any], form: str = "{:,} ({})"
) -> tuple[str, str, str, str]:
    """Return requests, tokens, dollars and waiting of a row; ``form`` is for sum and share."""
    used = tokens_of(sums)
    return (
        form.format(sums["requests"], share(sums["requests"], total["requests"])),
        form.format(used, share(used, tokens_of(total))),
        dollars(sums["dollars"]) if total["dollars"] else "-",
        span(sums["seconds"]) if sums["seconds"] else "-",
    )


def _cells(name: str, requests: str, tokens: str, money: str, waiting: str) -> str:
    return f"{name:<26}{requests:>18}{tokens:>22}{money:>12}{waiting:>10}"


def _rows(title: str, rows: Mapping[str, Any]) -> Iterator[str]:
    yield f"{title:<30}{'requests':>10}{'saved':>18}{'tokens saved':>22}{'dollars':>12}"
    for name, row in list(rows.items())[:MOST_ROWS]:
        whole, saved = row["all"], row["saved"]
        requests = f"{saved['requests']:,} ({share(saved['requests'], whole['requests'])})"
        used = tokens_of(saved)
        tokens = f"{used:,} ({share(used, tokens_of(whole))})"
        money = dollars(saved["dollars"]) if whole["dollars"] else "-"
        shown = (name or "-")[:_LONGEST]
        yield f"{shown:<30}{whole['requests']:>10,}{requests:>18}{tokens:>22}{money:>12}"
    if (more := len(rows) - MOST_ROWS) > 0:
        yield f"and {more:,} more (--json has all)"


def tokens_of(sums: Mapping[str, Any]) -> int:
    """Return prompt and completion tokens together."""
    return int(sums["prompt_tokens"] + sums["completion_tokens"])


def counted(number: int, noun: str) -> str:
    """Return a number with its noun."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def share(part: float, whole: float) -> str:
    """Return a share as a percentage."""
    return f"{part / whole:.1%}" if whole else "0.0%"


def dollars(amount: float) -> str:
    """Return an amount of money; small ones with more digits."""
    if 0 < amount < _LEAST_DOLLARS:
        return f"<${_LEAST_DOLLARS}"
    return f"${amount:,.2f}" if amount >= 1 or not amount else f"${amount:.4f}"


def moment(seconds: float) -> str:
    """Return a time of UTC to the minute."""
    return time.strftime("%Y-%m-%d %H:%M", time.gmtime(seconds))


def span(seconds: float) -> str:
    """Return a duration in its two largest units."""
    if seconds < 60:
        return f"{seconds:.1f}s"
    minutes = round(seconds / 60)
    if minutes < 60:
        return f"{minutes}m"
    hours, minutes = divmod(minutes, 60)
    return f"{hours:,}h {minutes}m"
