"""A gateway under mixed load for long: errors, p99 and memory, minute by minute.

Requests come as in the Azure trace, open loop: new questions, the same again, the same in other
words (looked up by meaning), streams, bad requests, and clients that leave. The upstream is
scripted. An error is a reply that breaks off or has another status than it should, and an answer to
another question; the last is counted by itself if it came from the semantic cache. Latency of hits
is whole, from when a request was due; that of misses is what they took beyond the upstream. Memory
is told once the bounds are reached, which the first requests see to.

Flat means: in the last third of the minutes, the median is at most so much above that of the middle
third.
"""

import argparse
import itertools
import json
import math
import random
import statistics
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import orjson
from load import Arrival, Outcome, percentile, post, run_arrivals, run_load
from memory_bound import resident
from servers import CLIENT_CORE, pin, start_gateway, start_upstream
from traffic import TRACE, Pace, Shares, Traffic, at_rate, kind_of, read_trace

BAD = (
    (400, post(b'{"model": "bench", "messages": [')),
    (400, post(b'{"model": "bench"}')),
    (400, post(b'{"model": "bench", "messages": "hello"}')),
    (404, post(b"{}", path="/v2/nothing")),
    (404, b"DELETE /v1/chat/completions HTTP/1.1\r\nHost: bench\r\nContent-Length: 0\r\n\r\n"),
    (400, b"POST /v1/chat/completions HTTP/1.1\r\nHost: bench\r\nContent-Length: x\r\n\r\n"),
)
"""Requests that are refused, and with what."""
MAX_GROWTH = {"hit": 1.5, "miss": 1.5, "all": 1.05}
"""How much p99 of hits, of misses, and memory may grow."""


class Minutes:
    """What happened in each minute."""

    def __init__(self, traffic: Traffic, gateway: int) -> None:
        self._traffic, self._gateway = traffic, gateway
        self._began: float | None = None
        self.counts: dict[int, Counter[str]] = defaultdict(Counter)
        self.seconds: dict[tuple[int, str], list[float]] = defaultdict(list)
        self.memory: dict[int, dict[str, float]] = {}
        self.errors: Counter[str] = Counter()

    def report(self, outcome: Outcome) -> None:
        """Note what became of a request."""
        began = self._began = self._began or outcome.due - outcome.arrival.at
        minute = int((outcome.due - began) / 60)
        if minute not in self.memory:
            self.memory[minute] = resident(self._gateway)
            print(f"minute {minute + 1}", file=sys.stderr)
        kind, error = self._judge(outcome, minute)
        self.counts[minute][kind] += 1
        if error:
            self.counts[minute]["errors"] += 1
            self.errors[error] += 1

    def _judge(self, outcome: Outcome, minute: int) -> tuple[str, str]:
        """Return the kind of a reply, and what is wrong with it."""
        label, reply = outcome.arrival.label, outcome.reply
        asked = self._traffic.by_label.pop(label, None)
        if reply is None:
            left = outcome.error == "left"
            return ("left", "") if left else ("broken", f"{outcome.error}: {label.split()[0]}")
        if label.startswith("bad"):
            wanted = int(label.split()[1])
            return "bad", "" if reply.status == wanted else f"{reply.status} for {wanted}"
        if reply.status != 200 or asked is None:
            return "refused", f"status {reply.status}: {label.split()[0]}"
        kind = kind_of(reply)
        if kind in ("exact", "semantic"):
            self.seconds[minute, "hit"].append(outcome.seconds)
        elif kind == "miss":
            self.seconds[minute, "miss"].append(asked.beyond(reply, outcome.due))
        if asked.name.encode() not in reply.body:
            if kind == "semantic":
                return "wrong", ""
            return kind, f"another answer: {kind}"
        if asked.stream and b"data: [DONE]" not in reply.body:
            return kind, "a stream broke off"
        return kind, ""


def mixed(
    traffic: Traffic, arrivals: Iterator[Arrival], bad: float, left: float
) -> Iterator[Arrival]:
    """Yield the arrivals with bad requests among them, and clients that leave."""
    chance, refused = random.Random(2), itertools.cycle(BAD)
    for arrival in arrivals:
        drawn = chance.random()
        if drawn < bad:
            status, request = next(refused)
            yield Arrival(arrival.at, request, f"bad {status}")
        if traffic.by_label[arrival.label].stream and chance.random() < left:
            yield Arrival(arrival.at, arrival.request, arrival.label, chance.uniform(0.01, 0.5))
        else:
            yield arrival


def fill(number: int) -> Iterator[bytes]:
    """Yield requests whose entries fill the memory tier."""
    for each in range(number):
        text = f"What is entry {each} of the catalogue?"
        body = {"model": "bench", "messages": [{"role": "user", "content": text}]}
        yield post(orjson.dumps(body | {"metadata": {"tokens": "600", "id": f"f{each}-"}}))


def growth(values: list[float]) -> float:
    """Return the median of the last third beside that of the middle third."""
    if not values:
        return float("nan")
    third = max(len(values) // 3, 1)
    middle = values[-2 * third : -third] or values
    return statistics.median(values[-third:]) / statistics.median(middle)


def main() -> None:
    """Run it, print a table and, last, one line of JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--rate", type=float, default=20.0, help="requests a second, on average")
    parser.add_argument("--trace", type=Path, default=TRACE)
    parser.add_argument("--scale", type=float, default=0.3, help="times the trace's lengths")
    parser.add_argument("--exact", type=float, default=0.4, help="share asked again")
    parser.add_argument("--reworded", type=float, default=0.15, help="share in other words")
    parser.add_argument("--streamed", type=float, default=0.5, help="share of streams")
    parser.add_argument("--bad", type=float, default=0.05, help="share of bad requests")
    parser.add_argument("--left", type=float, default=0.05, help="share of streams left early")
    parser.add_argument("--memory-mib", type=int, default=8, help="memory_bytes")
    options = parser.parse_args()
    try:
        trace = read_trace(options.trace, 5000, scale=options.scale)
    except FileNotFoundError:
        print(f"skipped: no trace at {options.trace}; give one with --trace")
        return
    shares = Shares(options.exact, options.reworded, options.streamed)
    traffic = Traffic(shares, Pace())
    with ExitStack() as stack:
        gateway = start_gateway(
            stack,
            start_upstream(stack),
            core=None,
            settings={"memory_bytes": f"{options.memory_mib}MiB", "store_bytes": "64MiB"},
        )
        pin(0, CLIENT_CORE)
        run_load(gateway.port, fill(400 * options.memory_mib), connections=8)
        minutes = Minutes(traffic, gateway.process)
        arrivals = traffic.arrivals(at_rate(trace, options.rate), 60 * options.minutes)
        arrivals = mixed(traffic, arrivals, options.bad, options.left)
        run_arrivals(gateway.port, arrivals, minutes.report)
    show(minutes, options.minutes)


def show(minutes: Minutes, asked: float) -> None:
    """Print the table and the line of JSON."""
    kinds = ("exact", "semantic", "miss", "other", "bad", "left", "wrong", "errors")
    names = list(minutes.memory[0])
    print(f"{'minute':>6}" + "".join(f"{kind:>9}" for kind in kinds), end="")
    print(f"{'hit p99':>9}{'miss +':>9}" + "".join(f"{name:>12}" for name in names))
    p99: dict[str, list[float]] = {"hit": [], "miss": []}
    for minute in sorted(minutes.counts):
        for name, of in p99.items():
            of.append(1e3 * percentile(minutes.seconds[minute, name], 0.99))
        print(f"{minute + 1:>6}", end="")
        print("".join(f"{minutes.counts[minute][kind]:>9}" for kind in kinds), end="")
        print(f"{p99['hit'][-1]:>9.1f}{p99['miss'][-1]:>9.1f}", end="")
        print("".join(f"{minutes.memory[minute][name]:>12.1f}" for name in names))
    print("hit p99 and miss + (p99 beyond the upstream) in ms, memory in MiB")
    grown = {
        name: growth([each for each in of if not math.isnan(each)]) for name, of in p99.items()
    }
    memory = [minutes.memory[minute] for minute in sorted(minutes.memory)]
    grown["all"] = growth([each["all"] for each in memory])
    flat = {name: grown[name] <= most for name, most in MAX_GROWTH.items()}
    for name, label in (("hit", "p99 of hits"), ("miss", "p99 of misses"), ("all", "memory")):
        verdict = "flat" if flat[name] else "NOT flat"
        print(f"{label}: {grown[name]:.2f} of what it was (at most {MAX_GROWTH[name]}): {verdict}")
    print(f"errors: {dict(minutes.errors) or 'none'}")
    whole = sum(minutes.counts.values(), Counter())
    report = {"minutes": asked, **{kind: whole[kind] for kind in kinds}}
    report |= {f"{name}_growth": round(grown[name], 3) for name in grown}
    print(json.dumps({"benchmark": "soak", **report, "flat": all(flat.values())}))


if __name__ == "__main__":
    main()
