"""Misses of one gateway worker on one core, plain and streamed, beside a minimal aiohttp proxy.

Each request asks something new, so the gateway looks it up, forwards it, scans it and stores the
answer. The semantic cache is off (``semantic_hits.py`` measures misses with it). A streamed answer
has 40 tokens and an event before and after them, sent one by one. Each server has core 0 while it
is loaded; wrk and the upstream have the last core. The upstream alone, loaded the same way, is the
ceiling of that core. Rounds alternate; a ratio is the median of the rounds' ratios.
"""

import argparse
import json
import statistics
import sys
from contextlib import ExitStack

from load import NEW_QUESTIONS, WrkResult, question, run_wrk
from servers import (
    CLIENT_CORE,
    EXACT_ONLY,
    processor_seconds,
    start_bare,
    start_gateway,
    start_upstream,
)

EVENTS = 42
"""Events of a streamed answer: 40 tokens, one before them, one after."""
Results = dict[str, dict[str, list[tuple[WrkResult, float]]]]


def measure(rounds: int, seconds: float, connections: int, streams: int) -> Results:
    """Return for each case and server the results, each with the processor time of a request."""
    cases = {
        "misses": (question(), connections),
        "alone": (question(), 1),
        "streams": (question(stream=True), streams),
        "stream alone": (question(stream=True), 1),
    }
    with ExitStack() as stack:
        upstream = start_upstream(stack)
        proxy = start_bare(stack, "bare_proxy.py", f"http://127.0.0.1:{upstream}")
        gateway = start_gateway(stack, upstream, policy=EXACT_ONLY)
        sides = {"proxy": (proxy.port, proxy.process), "gateway": (gateway.port, gateway.process)}
        sides["upstream"] = (upstream, 0)
        results: Results = {name: {side: [] for side in sides} for name in cases}
        for number in range(rounds):
            print(f"round {number + 1} of {rounds}", file=sys.stderr)
            for name, (body, at_a_time) in cases.items():
                for side, (port, process) in sides.items():
                    before = processor_seconds(process) if process else 0.0
                    got = run_wrk(
                        port,
                        body,
                        core=CLIENT_CORE,
                        connections=at_a_time,
                        seconds=seconds,
                        vary=NEW_QUESTIONS,
                    )
                    spent = processor_seconds(process) - before if process else 0.0
                    results[name][side].append((got, spent / got.requests))
        return results


def figures(results: Results) -> dict[str, float]:
    """Return the figures."""
    found: dict[str, float] = {}
    for name, unit in (("misses", 1), ("streams", EVENTS)):
        of = results[name]
        for side in of:
            rate = statistics.median(each.rate for each, _ in of[side])
            found[f"{side}_{name}_per_second"] = rate * unit
            spent = statistics.median(spent for _, spent in of[side])
            found[f"{side}_{name}_cpu_us"] = 1e6 * spent
        pairs = zip(of["gateway"], of["proxy"], strict=True)
        ratios = [mine.rate / floor.rate for (mine, _), (floor, _) in pairs]
        found[f"{name}_ratio"] = statistics.median(ratios)
        found[f"{name}_ratio_worst"] = min(ratios)
        pairs = zip(of["gateway"], of["proxy"], strict=True)
        found[f"{name}_cpu_ratio"] = statistics.median(
            floor / mine for (_, mine), (_, floor) in pairs
        )
    for name, key in (("alone", "adds_us"), ("stream alone", "stream_adds_us")):
        p50 = {
            side: statistics.median(each.p50 for each, _ in of)
            for side, of in results[name].items()
        }
        for side in ("gateway", "proxy"):
            found[f"{side}_{key}"] = 1e6 * (p50[side] - p50["upstream"])
    return found


def main() -> None:
    """Print a table and, last, one line of JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0, help="of load for each figure")
    parser.add_argument("--connections", type=int, default=16)
    parser.add_argument("--streams", type=int, default=100, help="streamed misses at a time")
    options = parser.parse_args()
    found = figures(measure(options.rounds, options.seconds, options.connections, options.streams))
    print("one core for the server; adds: p50 alone beyond the upstream's; CPU: of a request")
    print(f"{'':10}{'misses/s':>10}{'CPU us':>8}{'adds us':>9}", end="")
    print(f"{'events/s':>11}{'CPU us':>8}{'adds us':>9}")
    for side in ("gateway", "proxy", "upstream"):
        print(f"{side:10}{found[f'{side}_misses_per_second']:>10.0f}", end="")
        print(
            f"{found[f'{side}_misses_cpu_us']:>8.0f}{found.get(f'{side}_adds_us', 0):>9.0f}", end=""
        )
        print(f"{found[f'{side}_streams_per_second']:>11.0f}", end="")
        print(
            f"{found[f'{side}_streams_cpu_us']:>8.0f}{found.get(f'{side}_stream_adds_us', 0):>9.0f}"
        )
    for name, aim in (("misses", 0.6), ("streams", 0.7)):
        print(f"{name}: {found[f'{name}_ratio']:.2f} of the proxy's rate", end=" ")
        print(f"(worst {found[f'{name}_ratio_worst']:.2f}, aim {aim});", end=" ")
        print(f"by processor time {found[f'{name}_cpu_ratio']:.2f}")
    print(json.dumps({"benchmark": "misses", **{k: round(v, 3) for k, v in found.items()}}))


if __name__ == "__main__":
    main()
