"""Open-loop replay of the Azure trace: TTFT, ITL and E2E of hits and misses apart.

Requests come when the trace says, at a rate that is chosen; latency counts from when a request was
due, so a gateway that falls behind is seen. All are streamed. Some ask again what was asked before,
in the same words or in others. The upstream is scripted: its first token takes time by the length
of the prompt, and each token a fixed time. With ``--engine`` it is the bundled engine with the demo
model. Before that the same requests go to the upstream alone: the floor of a miss.
"""

import argparse
import json
import sys
import tempfile
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from math import log10
from pathlib import Path
from typing import Any

from engines.sides import bundled_or_random
from load import Outcome, percentile, run_arrivals
from servers import CLIENT_CORE, pin, start_engine, start_gateway, start_upstream
from svg import FONT, GRID, INK, MUTED, line, text
from traffic import (
    TRACE,
    Asked,
    Pace,
    Shares,
    Traffic,
    at_rate,
    for_engine,
    kind_of,
    read_trace,
    script,
)

POLICY = """
version: 1
default:
  {exact: on, semantic: on, freshness: 1h, scope: tenant, pii: bypass,
   finish_reasons: [stop, length]}
"""
KINDS = {
    "exact": "exact hit",
    "semantic": "semantic hit",
    "miss": "miss",
    "direct": "miss, no gateway",
}
COLOURS = {"exact": "#1d5fd1", "semantic": "#0f9d76", "miss": "#d1661d", "direct": "#98a0ad"}
SHARES = (0.5, 0.9, 0.99)


def for_side(side: str, asked: Asked) -> dict[str, Any]:
    """Return the fields for the engine, whose prefix cache keeps both sides apart."""
    return for_engine(asked) | {"cache_salt": side}


@dataclass
class Figures:
    """Seconds of the requests of one kind."""

    ttft: list[float] = field(default_factory=list)
    itl: list[float] = field(default_factory=list)
    e2e: list[float] = field(default_factory=list)

    def add(self, outcome: Outcome) -> None:
        self.ttft.append(outcome.ttft)
        self.e2e.append(outcome.seconds)
        if outcome.reply:
            self.itl += outcome.reply.gaps()


@dataclass
class Replayed:
    """What became of each request, by its label, without a gateway and with it."""

    direct: dict[str, Outcome]
    gateway: dict[str, Outcome]
    failed: int
    wrong: int

    def figures(self) -> dict[str, Figures]:
        """Return the figures by kind; without a gateway, of the requests that are misses."""
        found: dict[str, Figures] = defaultdict(Figures)
        for label, outcome in self.gateway.items():
            kind = kind_of(outcome.reply) if outcome.reply else "other"
            found[kind].add(outcome)
            if kind == "miss" and label in self.direct:
                found["direct"].add(self.direct[label])
        return found

    def added(self) -> list[float]:
        """Return what misses took beyond the same requests without a gateway: TTFT, in seconds."""
        return [
            outcome.ttft - self.direct[label].ttft
            for label, outcome in self.gateway.items()
            if outcome.reply and kind_of(outcome.reply) == "miss" and label in self.direct
        ]


def measure(options: argparse.Namespace) -> Replayed:
    """Replay the trace without a gateway, and with it."""
    shares = Shares(options.exact, options.reworded, streamed=1.0)
    pace = Pace(options.prefill, options.gap)
    trace = read_trace(options.trace, 5000, scale=options.scale)
    failed = wrong = 0
    with ExitStack() as stack:
        if options.engine:
            scratch = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            named = ("--threads", "1", "--served-model-name", "bench")
            upstream = start_engine(stack, bundled_or_random(scratch / "model"), *named).port
        else:
            upstream = start_upstream(stack)
        gateway = start_gateway(stack, upstream, core=None, policy=POLICY)
        pin(0, CLIENT_CORE)
        replies: dict[str, dict[str, Outcome]] = {"direct": {}, "gateway": {}}
        for side, port in (("direct", upstream), ("gateway", gateway.port)):
            print(f"{options.seconds:g} s: {side}", file=sys.stderr)
            fields = partial(for_side, side) if options.engine else script
            traffic = Traffic(shares, pace, fields)
            outcomes: list[Outcome] = []
            arrivals = traffic.arrivals(at_rate(trace, options.rate), options.seconds)
            run_arrivals(port, arrivals, outcomes.append)
            for outcome in outcomes:
                label, reply = outcome.arrival.label, outcome.reply
                if reply is None or reply.status != 200:
                    failed += 1
                    continue
                replies[side][label] = outcome
                wrong += not (options.engine or traffic.by_label[label].name.encode() in reply.body)
    return Replayed(replies["direct"], replies["gateway"], failed, wrong)


def picture(found: Mapping[str, Figures], title: str) -> str:
    """Return how many requests had their first token, and their end, within how long."""
    width, height = 960, 370
    inside = [
        f'<rect width="{width}" height="{height}" rx="6" fill="#ffffff"/>',
        text(84, 42, "How long answers take, hits and misses", size=20, weight=600),
        text(84, 64, title, fill=MUTED, size=13),
    ]
    for place, (kind, label) in enumerate(KINDS.items()):
        x = 84 + 160 * place
        inside.append(
            f'<line x1="{x}" y1="86" x2="{x + 22}" y2="86" stroke="{COLOURS[kind]}" '
            'stroke-width="3"/>'
        )
        inside.append(text(x + 29, 90, label))
    for place, (name, label) in enumerate((("ttft", "first token"), ("e2e", "whole answer"))):
        of = {kind: sorted(getattr(found[kind], name)) for kind in KINDS if kind in found}
        inside += _panel(84 + 460 * place, 130, label, of)
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        f'height="{height}" font-family="{FONT}" font-size="12" role="img" aria-label="{title}">'
    )
    return "\n".join((head, *inside, "</svg>\n"))


def _panel(left: float, top: float, label: str, of: Mapping[str, Sequence[float]]) -> list[str]:
    width, height, least, most = 372, 190, 1e-4, 100.0

    def x(seconds: float) -> float:
        share = log10(min(max(seconds, least), most) / least) / log10(most / least)
        return left + width * share

    def y(share: float) -> float:
        return top + height * (1 - share)

    drawn = [text(left, top - 14, f"{label}: share of requests within", size=14, weight=600)]
    for share in (0, 0.5, 0.9, 1):
        drawn.append(line(left, y(share), left + width, y(share), GRID))
        drawn.append(text(left - 8, y(share) + 4, f"{100 * share:g} %", fill=MUTED, anchor="end"))
    for seconds, tick in (
        (1e-3, "1 ms"),
        (1e-2, "10 ms"),
        (0.1, "0.1 s"),
        (1, "1 s"),
        (10, "10 s"),
    ):
        drawn.append(line(x(seconds), top, x(seconds), top + height, GRID))
        drawn.append(text(x(seconds), top + height + 18, tick, fill=MUTED, anchor="middle"))
    for kind, values in of.items():
        steps = range(0, len(values), max(len(values) // 200, 1))
        points = " ".join(
            f"{x(values[each]):.1f},{y((each + 1) / len(values)):.1f}" for each in steps
        )
        dashes = ' stroke-dasharray="5 4"' if kind == "direct" else ""
        drawn.append(
            f'<polyline points="{points}" fill="none" stroke="{COLOURS[kind]}" '
            f'stroke-width="2.5"{dashes}/>'
        )
        half = x(percentile(values, 0.5))
        drawn.append(f'<circle cx="{half:.1f}" cy="{y(0.5):.1f}" r="4" fill="{COLOURS[kind]}"/>')
    drawn.append(line(left, top + height, left + width, top + height, INK))
    return drawn


def main() -> None:
    """Print a table and, last, one line of JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--trace", type=Path, default=TRACE)
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--rate", type=float, default=20.0, help="requests a second")
    parser.add_argument("--scale", type=float, default=0.3, help="times the trace's lengths")
    parser.add_argument("--exact", type=float, default=0.3, help="share asked again")
    parser.add_argument("--reworded", type=float, default=0.15, help="share in other words")
    parser.add_argument("--prefill", type=float, default=1e-3, help="seconds a prompt token")
    parser.add_argument("--gap", type=float, default=0.02, help="seconds between tokens")
    parser.add_argument("--engine", action="store_true", help="the bundled engine answers")
    parser.add_argument("--picture", type=Path, help="an SVG to write")
    options = parser.parse_args()
    if not options.trace.is_file():
        print(f"skipped: no trace at {options.trace}; give one with --trace")
        return
    replayed = measure(options)
    found, added = replayed.figures(), 1e3 * percentile(replayed.added(), 0.5)
    told: dict[str, float] = {}
    behind = "the bundled engine" if options.engine else "a scripted upstream"
    title = f"Azure trace at {options.rate:g} requests/s, open loop, in front of {behind}"
    print(f"{title}; ms, p50 p90 p99")
    print(f"{'':17}{'requests':>9}{'TTFT':>24}{'ITL':>24}{'E2E':>24}")
    for kind, label in KINDS.items():
        of = found.get(kind, Figures())
        cells = []
        for name in ("ttft", "itl", "e2e"):
            values = [1e3 * percentile(getattr(of, name), share) for share in SHARES]
            cells.append("".join(f"{value:>8.1f}" for value in values))
            for share, value in zip(SHARES, values, strict=True):
                if of.e2e:
                    told[f"{kind}_{name}_p{100 * share:g}_ms"] = round(value, 2)
        told[f"{kind}_requests"] = len(of.e2e)
        print(f"{label:17}{len(of.e2e):>9}" + "".join(cells))
    print(f"a miss beyond the same request without a gateway, TTFT: p50 {added:.1f} ms")
    print(f"failed: {replayed.failed}; answers to another question: {replayed.wrong}")
    if options.picture:
        options.picture.write_text(picture(found, title))
    told |= {"failed": replayed.failed, "wrong": replayed.wrong, "miss_added_ms": round(added, 2)}
    print(json.dumps({"benchmark": "replay", "rate": options.rate, **told}))


if __name__ == "__main__":
    main()
