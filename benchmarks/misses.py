"""Misses per second of one gateway worker on one core, beside a minimal aiohttp proxy.

Each request asks something new, so the gateway looks it up, forwards it, scans it and stores the
answer. The semantic cache is off. Each server has core 0 while it is loaded; wrk and the upstream
have core 1. Rounds alternate; a figure is the median of the rounds' ratios.
"""

import argparse
import json
import os
import shutil
import statistics
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

from exact_hits import PATH, POLICY, question
from load import NEW_QUESTIONS, WrkResult, run_wrk
from servers import await_url, free_port, start

CORES = sorted(os.sched_getaffinity(0))


def measure(rounds: int, seconds: float, connections: int) -> dict[str, list[WrkResult]]:
    """Return the results of each server, under load and alone."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        policy = folder / "policy.yaml"
        policy.write_text(POLICY)
        ports = {"proxy": free_port(), "gateway": free_port()}
        upstream = free_port()
        start(stack, ["fake_upstream.py", str(upstream)], 1)
        url = f"http://127.0.0.1:{upstream}"
        start(stack, ["bare_proxy.py", str(ports["proxy"]), url], 0)
        options = ["--port", str(ports["gateway"]), "--data-dir", str(folder / "data")]
        options += ["--policy", str(policy), "--log-level", "error"]
        start(stack, ["-m", "gateway.cli", "serve", "--upstream", f"{url}/v1", *options], 0)
        await_url(f"http://127.0.0.1:{ports['gateway']}/readyz")
        await_url(f"http://127.0.0.1:{ports['proxy']}/")
        results: dict[str, list[WrkResult]] = {}
        for number in range(rounds):
            print(f"round {number + 1} of {rounds}", file=sys.stderr)
            for name, port in (*ports.items(), ("upstream", upstream)):
                for suffix, count in (("", connections), (" alone", 1)):
                    got = run_wrk(
                        port,
                        PATH,
                        question(1),
                        core=CORES[-1],
                        connections=count,
                        seconds=seconds,
                        vary=NEW_QUESTIONS,
                    )
                    results.setdefault(name + suffix, []).append(got)
        return results


def main() -> None:
    """Print a table and, last, one line of JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0, help="of load for each figure")
    parser.add_argument("--connections", type=int, default=16)
    options = parser.parse_args()
    if shutil.which("wrk") is None:
        raise SystemExit("wrk is not installed: apt-get install wrk")
    results = measure(options.rounds, options.seconds, options.connections)
    rate = {name: statistics.median(each.rate for each in of) for name, of in results.items()}
    p50 = {name: statistics.median(each.p50 for each in of) for name, of in results.items()}
    pairs = zip(results["gateway"], results["proxy"], strict=True)
    ratios = [mine.rate / floor.rate for mine, floor in pairs]
    print(f"misses, {options.connections} connections, one core; alone: p50 beyond the upstream's")
    print(f"{'':20}{'misses/s':>10}{'alone, adds us':>16}")
    added = {}
    for name in ("gateway", "proxy"):
        added[name] = 1e6 * (p50[f"{name} alone"] - p50["upstream alone"])
        print(f"{name:20}{rate[name]:>10.0f}{added[name]:>16.0f}")
    ratio = statistics.median(ratios)
    print(f"ratio {ratio:.2f} (worst {min(ratios):.2f})")
    figures = {"ratio": ratio, "ratio_worst": min(ratios), "gateway_adds_us": added["gateway"]}
    figures |= {"proxy_adds_us": added["proxy"], "gateway_per_second": rate["gateway"]}
    print(json.dumps({"benchmark": "misses", **{k: round(v, 3) for k, v in figures.items()}}))


if __name__ == "__main__":
    main()
