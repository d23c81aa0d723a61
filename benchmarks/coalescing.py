"""500 clients ask the same at once: time to first token beside a bare aiohttp fan-out.

Each client has a connection of its own and streams. The gateway is the real one, started by its
command; the floor (``bare_fanout.py``) makes one call and copies its pieces. Servers share core 0
(only one is loaded at a time), clients and upstream have core 1. Rounds alternate, each with a
prompt of its own; a figure is the median over the rounds. TTFT runs from a client's request to the
first event it gets. ``--think`` is what the upstream takes before its first token: with 0 it is all
overhead, with half a second what clients of a busy model see.
"""

import argparse
import json
import statistics
import sys
import urllib.request
from contextlib import ExitStack
from dataclasses import dataclass

import orjson
from load import Arrival, Outcome, percentile, post, run_arrivals
from servers import CLIENT_CORE, pin, start_bare, start_gateway, start_upstream

GAP_SECONDS = 0.02
"""Between tokens of the upstream."""


@dataclass(frozen=True)
class _Round:
    first_p50: float
    first_p99: float
    all_over: float


def _round(port: int, request: bytes, clients: int, tokens: int) -> _Round:
    outcomes: list[Outcome] = []
    run_arrivals(port, [Arrival(0, request)] * clients, outcomes.append, ready=clients, patience=20)
    replies = [each.reply for each in outcomes if each.reply is not None]
    texts = [f" token{number}".encode() for number in range(tokens)]
    if len(replies) < clients or not all(t in each.body for each in replies for t in texts):
        raise SystemExit("a client did not get the whole answer")
    waited = [each.first - each.sent for each in replies]
    return _Round(
        percentile(waited, 0.5),
        percentile(waited, 0.99),
        max(each.last for each in replies) - min(each.sent for each in replies),
    )


def _request(prompt: str, think: float, tokens: int) -> bytes:
    body = {
        "model": "bench",
        "stream": True,
        "messages": [{"role": "user", "content": prompt}],
        "metadata": {"seconds": str(think), "tokens": str(tokens), "gap": str(GAP_SECONDS)},
    }
    return post(orjson.dumps(body))


def _calls(upstream: int) -> int:
    with urllib.request.urlopen(f"http://127.0.0.1:{upstream}/calls", timeout=5) as reply:
        return int(reply.read())


def measure(
    thinks: list[float], rounds: int, clients: int, tokens: int
) -> dict[float, dict[str, list[_Round]]]:
    """Run the rounds for each time that the upstream thinks."""
    results: dict[float, dict[str, list[_Round]]] = {}
    with ExitStack() as stack:
        upstream = start_upstream(stack)
        gateway = start_gateway(stack, upstream).port
        bare = start_bare(stack, "bare_fanout.py", f"http://127.0.0.1:{upstream}/v1").port
        pin(0, CLIENT_CORE)
        for think in thinks:
            mine = results[think] = {"gateway": [], "bare": []}
            for number in range(-1, rounds):  # the first of them warms up
                for name, port in (("gateway", gateway), ("bare", bare)):
                    before = _calls(upstream)
                    request = _request(f"{name} {think} {number}", think, tokens)
                    got = _round(port, request, clients, tokens)
                    made = _calls(upstream) - before
                    if made != 1 and name == "gateway":  # the floor forgets a call at its end
                        raise SystemExit(f"{name} made {made} calls")
                    if number >= 0:
                        mine[name].append(got)
                print(f"think {think:g} s, round {number + 1} of {rounds}", file=sys.stderr)
    return results


def main() -> None:
    """Print a table and, last, one line of JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--clients", type=int, default=500)
    parser.add_argument("--tokens", type=int, default=50)
    parser.add_argument("--think", type=float, nargs="+", default=[0.0, 0.5], metavar="SECONDS")
    options = parser.parse_args()
    results = measure(options.think, options.rounds, options.clients, options.tokens)
    print(f"{options.clients} identical streamed misses at once, {options.tokens} tokens, one call")
    print(f"{'':32}{'TTFT p50 ms':>12}{'p99 ms':>10}{'all over ms':>13}")
    figures: dict[str, float] = {}
    for think, rounds in results.items():
        middle: dict[str, list[float]] = {}
        for name, label in (("gateway", "refrain serve"), ("bare", "bare fan-out (floor)")):
            columns = ("first_p50", "first_p99", "all_over")
            medians = [
                1e3 * statistics.median(getattr(one, column) for one in rounds[name])
                for column in columns
            ]
            middle[name] = medians
            print(
                f"{f'{label}, think {think:g} s':32}"
                f"{medians[0]:>12.1f}{medians[1]:>10.1f}{medians[2]:>13.0f}"
            )
            for column, value in zip(columns, medians, strict=True):
                figures[f"think_{think:g}_{name}_{column}_ms"] = value
        pairs = zip(rounds["gateway"], rounds["bare"], strict=True)
        figures[f"think_{think:g}_ratio_p50"] = statistics.median(
            mine.first_p50 / floor.first_p50 for mine, floor in pairs
        )
        figures[f"think_{think:g}_ratio_p99"] = middle["gateway"][1] / middle["bare"][1]
        print(
            f"ratio {figures[f'think_{think:g}_ratio_p50']:.2f}, "
            f"p99 {figures[f'think_{think:g}_ratio_p99']:.2f} (target 1.5)"
        )
    print(json.dumps({"benchmark": "coalescing", **{k: round(v, 3) for k, v in figures.items()}}))


if __name__ == "__main__":
    main()
