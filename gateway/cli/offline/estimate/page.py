"""An estimate as one page of HTML: figures and plots, in light or dark, without a script.

Law: nothing comes from elsewhere, and nothing of a prompt or an answer is on the page. Names of
models and rules are escaped.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from typing import Any, NamedTuple

from gateway.cli.offline.estimate.text import (
    MOST_ROWS,
    WAYS,
    cells,
    counted,
    dollars,
    headline,
    moment,
    notes,
    reasons_of,
    saved_rows,
    share,
    span,
    tokens_of,
)
from gateway.cli.terminal import printable

_WIDTH, _HEIGHT = 720, 190
_LONGEST_BAR = 60.0
"""Percent of the width; the figure stands behind."""
_STACK = ("exact", "semantic", "coalesced", "miss", "bypass")
_WORDS = {**WAYS, "miss": "sent to the upstream", "bypass": "not looked up"}
_STYLE = """
:root { color-scheme: light dark; --back: #fff; --text: #1c1e21; --soft: #667; --line: #d8dbe0;
  --card: #f5f6f8; --exact: #1a7f5a; --semantic: #3b6fd4; --coalesced: #b7791f; --miss: #b9bec8;
  --bypass: #8a90a0; }
@media (prefers-color-scheme: dark) { :root { --back: #15171b; --text: #e7e9ee; --soft: #9aa1ae;
  --line: #343942; --card: #1e2127; --exact: #3fbf8f; --semantic: #7aa2f7; --coalesced: #e0af68;
  --miss: #454b57; --bypass: #6b7280; } }
body { margin: 0 auto; padding: 2rem 1rem 4rem; max-width: 46rem; background: var(--back);
  color: var(--text); font: 16px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.5rem; margin: 0; } h2 { font-size: 1.1rem; margin: 2.2rem 0 .5rem; }
p { margin: .4rem 0; } .soft, figcaption { color: var(--soft); font-size: .9rem; }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(9rem, 1fr)); gap: .75rem;
  margin: 1.25rem 0; }
.cards div { background: var(--card); border-radius: .5rem; padding: .75rem 1rem; }
.cards b { display: block; font-size: 1.4rem; line-height: 1.3; }
table { border-collapse: collapse; width: 100%; font-size: .95rem; }
th, td { text-align: right; padding: .35rem .5rem; border-bottom: 1px solid var(--line);
  font-variant-numeric: tabular-nums; }
th:first-child, td:first-child { text-align: left; } tr.sum td { font-weight: 600; }
td small { font-size: inherit; }
.wide { overflow-x: auto; } figure { margin: 0; }
svg { width: 100%; height: 12rem; display: block; } svg line { stroke: var(--line); }
.axis { display: flex; justify-content: space-between; font-size: .8rem; color: var(--soft); }
.bars { display: grid; grid-template-columns: 13rem 1fr; gap: .3rem 1rem; align-items: center; }
.bars b { font-weight: 400; overflow-wrap: anywhere; font-size: .9rem; line-height: 1.25; }
.bars div { display: flex; align-items: center; }
.bars i { height: 1.05rem; flex: none; }
.bars span { margin-left: .6rem; font-size: .85rem; line-height: 1.25; color: var(--soft); }
.key { display: flex; flex-wrap: wrap; gap: .25rem 1rem; margin-top: .5rem; font-size: .9rem;
  color: var(--soft); }
.key i { display: inline-block; width: .8em; height: .8em; border-radius: 2px; margin-right: .4em; }
@media (max-width: 36rem) { table { font-size: .75rem; } th, td { padding: .35rem .15rem; }
  .key, .bars span { font-size: .8rem; } td small { display: block; }
  .bars { grid-template-columns: 1fr; gap: .1rem; }
  .bars div { margin-bottom: .5rem; } }
"""


class _Bar(NamedTuple):
    """A bar of a list: ``parts`` are (way, length) from the left."""

    name: str
    parts: tuple[tuple[str, float], ...]
    figure: str


def page(result: Mapping[str, Any]) -> str:
    """Return the page of an estimate; ``result`` is what ``--json`` prints."""
    return "\n".join(_page(result)) + "\n"


def _page(result: Mapping[str, Any]) -> Iterator[str]:
    yield "<!doctype html>"
    yield '<html lang="en"><head><meta charset="utf-8">'
    yield (
        '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; '
        "style-src 'unsafe-inline'\">"
    )
    yield '<meta name="viewport" content="width=device-width, initial-scale=1">'
    yield f"<title>What Refrain would have saved</title><style>{_STYLE}</style></head><body>"
    yield "<h1>What Refrain would have saved</h1>"
    yield f'<p class="soft">{escape(result["log"])}: {escape(headline(result))}<br>'
    yield f"policy: {escape(result['policy'])}</p>"
    yield from _cards(result)
    yield from _table(result)
    yield from (f'<p class="soft">{escape(note)}</p>' for note in notes(result))
    if result["timeline"]:
        yield from _figure("Requests over time", _timeline(result))
    for title, rows in (("model", result["models"]), ("rule of the policy", result["rules"])):
        yield from _figure(f"Saved, by {title}", _bars(_rows(rows)))
        yield from _key({"exact": "saved", "miss": "all else"})
    for title, reasons in reasons_of(result).items():
        yield from _figure(f"Requests {title}", _bars(_reasons(reasons)))
    yield from _figure("How often the same request came", _bars(_repeats(result["repeats"])))
    yield "</body></html>"


def _cards(result: Mapping[str, Any]) -> Iterator[str]:
    total, saved = result["total"], result["saved"]
    cards = [
        (share(saved["requests"], total["requests"]), "of requests answered without a call"),
        (f"{tokens_of(saved):,}", "tokens saved"),
    ]
    if total["dollars"]:
        part = share(saved["dollars"], total["dollars"])
        cards.append((dollars(saved["dollars"]), f"saved, {part} of the cost"))
    if saved["seconds"]:
        cards.append((span(saved["seconds"]), "of waiting avoided"))
    yield '<div class="cards">'
    yield from (f"<div><b>{figure}</b>{words}</div>" for figure, words in cards)
    yield "</div>"


def _table(result: Mapping[str, Any]) -> Iterator[str]:
    yield '<div class="wide"><table><tr><th>would have been saved</th><th>requests</th>'
    yield "<th>tokens</th><th>dollars</th><th>waiting</th></tr>"
    for name, sums in saved_rows(result):
        kind = ' class="sum"' if sums is result["saved"] else ""
        found = cells(sums, result["total"], "{:,} <small>({})</small>")
        yield f"<tr{kind}><td>{name}</td>" + "".join(f"<td>{cell}</td>" for cell in found) + "</tr>"
    yield "</table></div>"


def _figure(title: str, drawing: Iterable[str]) -> Iterator[str]:
    yield f"<h2>{title}</h2><figure>"
    yield from drawing
    yield "</figure>"


def _timeline(result: Mapping[str, Any]) -> Iterator[str]:
    steps: Sequence[Mapping[str, int]] = result["timeline"]
    most = max(1, *(sum(step.values()) for step in steps))
    width = _WIDTH / len(steps)
    span_of = (result["last"] - result["first"]) / len(steps)
    yield f'<div class="axis"><span>{most:,} requests</span></div>'
    yield (
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" preserveAspectRatio="none" role="img" '
        'aria-label="Requests over time, by how they would have been answered" '
        'xmlns="http://www.w3.org/2000/svg">'
    )
    for y in (0, _HEIGHT / 2, _HEIGHT):
        yield f'<line x1="0" x2="{_WIDTH}" y1="{y:g}" y2="{y:g}"/>'
    for number, step in enumerate(steps):
        bottom = float(_HEIGHT)
        when = moment(result["first"] + number * span_of)
        for way in _STACK:
            if not (count := step.get(way, 0)):
                continue
            size = _HEIGHT * count / most
            bottom -= size
            x, wide = number * width + 0.5, max(1.0, width - 1)
            yield (
                f'<rect x="{x:.1f}" y="{bottom:.1f}" width="{wide:.1f}" height="{size:.1f}" '
                f'fill="var(--{way})"><title>{when}: {count:,} {_WORDS[way]}</title></rect>'
            )
    yield "</svg>"
    first, last = moment(result["first"]), moment(result["last"])
    yield f'<div class="axis"><span>{first}</span><span>{last} UTC</span></div>'
    used = [way for way in _STACK if any(step.get(way) for step in steps)]
    yield from _key({way: _WORDS[way] for way in used})


def _key(words: Mapping[str, str]) -> Iterator[str]:
    yield '<div class="key">'
    yield from (
        f'<span><i style="background: var(--{way})"></i>{word}</span>'
        for way, word in words.items()
    )
    yield "</div>"


def _bars(bars: Sequence[_Bar]) -> Iterator[str]:
    """Draw a list of bars, each as long as its parts together; the longest leaves room for text."""
    most = max((sum(length for _, length in bar.parts) for bar in bars), default=0) or 1
    yield '<div class="bars">'
    for bar in bars:
        yield f"<b>{escape(printable(bar.name))}</b><div>"
        for way, length in bar.parts:
            if length > 0:
                wide = _LONGEST_BAR * length / most
                yield f'<i style="width: {wide:.2f}%; background: var(--{way})"></i>'
        yield f"<span>{bar.figure}</span></div>"
    yield "</div>"


def _rows(rows: Mapping[str, Any]) -> list[_Bar]:
    bars = []
    for name, row in list(rows.items())[:MOST_ROWS]:
        whole, saved = row["all"]["requests"], row["saved"]["requests"]
        figure = f"{saved:,} of {whole:,} ({share(saved, whole)})"
        bars.append(_Bar(name or "-", (("exact", saved), ("miss", whole - saved)), figure))
    return bars


def _reasons(reasons: Mapping[str, int]) -> list[_Bar]:
    return [
        _Bar(name, (("bypass", count),), f"{count:,}")
        for name, count in list(reasons.items())[:MOST_ROWS]
    ]


def _repeats(groups: Sequence[Mapping[str, Any]]) -> list[_Bar]:
    bars = []
    for group in groups:
        if not group["distinct"]:
            continue
        least, most = group["from"], group["to"]
        name = (
            "once"
            if most == 1
            else f"{least} times"
            if least == most
            else f"{least} to {most} times"
        )
        if most is None:
            name = f"{least} times and more"
        figure = f"{counted(group['distinct'], 'request')}, sent {group['requests']:,} times"
        bars.append(_Bar(name, (("exact", group["requests"]),), figure))
    return bars
