"""Forwarded requests of one gateway worker: one upstream alone beside a pool of two.

Each request says ``no-store``, so that it is forwarded and nothing is looked up or stored. The
upstream answers at once. Gateways share core 0 (only one is loaded at a time), the upstream and
the load have core 1. Rounds alternate; a figure is the median of the rounds, a ratio that of the
rounds' own. What counts is the processor time that a gateway takes for a request, which other
work on the machine changes little. ``--against`` names a checkout whose code is measured beside,
with one upstream.
"""

import argparse
import json
import statistics
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

from load import question, run_wrk
from servers import CLIENT_CORE, await_url, free_port, processor_seconds, start, start_upstream

_IN = (
    "import os, sys; os.environ['PYTHONPATH'] = sys.argv[1]; "
    "os.execv(sys.executable, [sys.executable, '-m', 'gateway.cli', *sys.argv[2:]])"
)
NO_STORE = 'wrk.headers["Cache-Control"] = "no-store"'


def measure(
    rounds: int, seconds: float, connections: int, against: Path | None
) -> dict[str, float]:
    """Run the rounds and return the figures."""
    here = Path(__file__).resolve().parents[1]
    sides = {"one": (here, 1), "two": (here, 2)}
    if against is not None:
        sides["before"] = (against, 1)
    ports = {name: free_port() for name in sides}
    pids = {}
    with ExitStack() as stack:
        upstreams = [start_upstream(stack), start_upstream(stack)]
        for name, (tree, number) in sides.items():
            data = stack.enter_context(tempfile.TemporaryDirectory())
            argv = ["-c", _IN, str(tree), "serve", "--port", str(ports[name]), "--data-dir", data]
            for port in upstreams[:number]:
                argv += ["--upstream", f"http://127.0.0.1:{port}/v1"]
            pids[name] = start(stack, [*argv, "--log-level", "warning"], 0)
        for port in ports.values():
            await_url(f"http://127.0.0.1:{port}/readyz")
        loaded: dict[str, list[float]] = {name: [] for name in sides}
        rates: dict[str, list[float]] = {name: [] for name in sides}
        for number in range(rounds):
            print(f"round {number + 1} of {rounds}", file=sys.stderr)
            for name, port in ports.items():
                before = processor_seconds(pids[name])
                got = run_wrk(
                    port,
                    question(),
                    core=CLIENT_CORE,
                    connections=connections,
                    seconds=seconds,
                    vary=NO_STORE,
                )
                spent = processor_seconds(pids[name]) - before
                loaded[name].append(1e6 * spent / got.requests)
                rates[name].append(got.rate)
    return _figures(loaded, rates)


def _figures(spent: dict[str, list[float]], rates: dict[str, list[float]]) -> dict[str, float]:
    figures = {}
    for name, each in spent.items():
        figures[f"{name}_us"] = statistics.median(each)
        figures[f"{name}_per_second"] = statistics.median(rates[name])
        if name != "one":
            pairs = zip(each, spent["one"], strict=True)
            figures[f"one_over_{name}"] = statistics.median(one / other for other, one in pairs)
    return figures


def main() -> None:
    """Print a table and, last, one line of JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0, help="of load in each round")
    parser.add_argument("--connections", type=int, default=16)
    parser.add_argument("--against", type=Path, metavar="DIR", help="a checkout to compare with")
    options = parser.parse_args()
    figures = measure(options.rounds, options.seconds, options.connections, options.against)
    print(f"forwarded, {options.connections} connections, {len(question())} bytes asked, one core")
    print(f"{'':12}{'requests/s':>12}{'us of core':>14}")
    for name in ("one", "two", "before"):
        if f"{name}_per_second" in figures:
            print(f"{name:12}{figures[f'{name}_per_second']:>12.0f}{figures[f'{name}_us']:>14.0f}")
    told = {name: round(value, 3) for name, value in figures.items()}
    print(json.dumps({"benchmark": "upstream_pool", **told}))


if __name__ == "__main__":
    main()
