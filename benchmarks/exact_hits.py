"""Exact hits per second of one gateway worker on one core, beside three floors.

The gateway is the real one, started by its command, with the store on disk and its memory tier. The
bare handler parses, hashes, looks up in a dict and replies with as many bytes; *twice* only hashes
the body's bytes, twice. nginx, where it is installed, answers a cached POST. Each server has core 0
while it is loaded, and wrk has the last core. Rounds alternate; a figure is the median of the
rounds' ratios.
"""

import argparse
import json
import shutil
import statistics
import sys
from contextlib import ExitStack
from dataclasses import dataclass

from load import TRACE_HEADERS, Client, WrkResult, post, question, run_wrk
from servers import (
    CLIENT_CORE,
    EXACT_ONLY,
    start_bare,
    start_gateway,
    start_nginx,
    start_upstream,
)

NAN = float("nan")


@dataclass(frozen=True, slots=True)
class Case:
    """Requests to all servers: ``vary`` as in ``run_wrk``."""

    name: str
    body: bytes
    connections: int
    vary: str = ""


def cases(connections: int) -> list[Case]:
    """Return what is measured."""
    return [
        Case("plain", question(), connections),
        Case("trace headers that vary", question(), connections, TRACE_HEADERS),
        Case("alone", question(), 1),
        Case("streamed, alone", question(stream=True), 1),
        Case("prompt of 20 KB, alone", question(465), 1),
        Case("prompt of 200 KB, alone", question(4650), 1),
    ]


def measure(rounds: int, seconds: float, connections: int) -> dict[str, dict[str, list[WrkResult]]]:
    """Return the results of each server in each case."""
    with ExitStack() as stack:
        upstream = start_upstream(stack)
        ports = {"gateway": start_gateway(stack, upstream, policy=EXACT_ONLY).port}
        with Client(ports["gateway"]) as client:
            client.ask(post(question()))
            first = client.ask(post(question()))
        if "refrain; hit" not in first.cache_status:
            raise SystemExit(f"the gateway does not hit: {first.head.decode()}")
        size = str(len(first.body))
        ports["bare"] = start_bare(stack, "bare_handler.py", size, "parse").port
        ports["twice"] = start_bare(stack, "bare_handler.py", size, "twice").port
        if shutil.which("nginx"):
            ports["nginx"] = start_nginx(stack, upstream)[0].port
        results: dict[str, dict[str, list[WrkResult]]] = {}
        for number in range(rounds):
            print(f"round {number + 1} of {rounds}", file=sys.stderr)
            for case in cases(connections):
                for name, port in ports.items():
                    got = run_wrk(
                        port,
                        case.body,
                        core=CLIENT_CORE,
                        connections=case.connections,
                        seconds=seconds,
                        vary=case.vary,
                    )
                    results.setdefault(case.name, {}).setdefault(name, []).append(got)
        return results


def figures(results: dict[str, list[WrkResult]]) -> dict[str, float]:
    """Return the figures of a case: medians, and the medians of the rounds' ratios."""
    found: dict[str, float] = {}
    for name in ("gateway", "bare", "twice", "nginx"):
        of = results.get(name, [])
        found[name] = statistics.median(each.rate for each in of) if of else NAN
        found[f"{name}_p50_us"] = 1e6 * statistics.median(each.p50 for each in of) if of else NAN
        if of and name != "gateway":
            pairs = list(zip(results["gateway"], of, strict=True))
            ratios = [mine.rate / floor.rate for mine, floor in pairs]
            found[f"to_{name}"], found[f"to_{name}_worst"] = statistics.median(ratios), min(ratios)
            found[f"p50_to_{name}"] = statistics.median(a.p50 / b.p50 for a, b in pairs)
    return found


def main() -> None:
    """Print a table and, last, one line of JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0, help="of load for each figure")
    parser.add_argument("--connections", type=int, default=32)
    options = parser.parse_args()
    results = measure(options.rounds, options.seconds, options.connections)
    print(
        f"{'hits a second, one core':25}{'gateway':>9}{'bare':>8}{'twice':>8}{'nginx':>8}", end=""
    )
    print(f"{'/ bare':>8}{'worst':>7}{'/ twice':>9}{'/ nginx':>9}", end="")
    print(f"{'p50 us':>8}{'bare':>7}{'twice':>7}")
    told: dict[str, float] = {}
    for name, of in results.items():
        found = figures(of)
        print(f"{name:25}{found['gateway']:>9.0f}{found['bare']:>8.0f}", end="")
        print(f"{found['twice']:>8.0f}{found['nginx']:>8.0f}{found['to_bare']:>8.2f}", end="")
        print(f"{found['to_bare_worst']:>7.2f}{found['to_twice']:>9.2f}", end="")
        print(f"{found.get('to_nginx', NAN):>9.2f}{found['gateway_p50_us']:>8.0f}", end="")
        print(f"{found['bare_p50_us']:>7.0f}{found['twice_p50_us']:>7.0f}")
        key = name.replace(",", "").replace(" ", "_")
        shown = ("to_bare", "to_bare_worst", "to_twice", "to_nginx", "gateway", "gateway_p50_us")
        told |= {f"{key}_{each}": round(found[each], 3) for each in shown if each in found}
    print(json.dumps({"benchmark": "exact_hits", **told}))


if __name__ == "__main__":
    main()
