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
import os
import statistics
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

from exact_hits import question
from load import post, run_load
from servers import await_url, free_port, pin, start

_IN = (
    "import os, sys; os.environ['PYTHONPATH'] = sys.argv[1]; "
    "os.execv(sys.executable, [sys.executable, '-m', 'gateway', *sys.argv[2:]])"
)
REQUEST = post("/v1/chat/completions", question(1)).replace(
    b"\r\n\r\n", b"\r\nCache-Control: no-store\r\n\r\n", 1
)


def measure(
    rounds: int, seconds: float, connections: int, against: Path | None
) -> dict[str, float]:
    """Run the rounds and return the figures."""
    here = Path(__file__).resolve().parents[1]
    sides = {"one": (here, 1), "two": (here, 2)}
    if against is not None:
        sides["before"] = (against, 1)
    ports = {name: free_port() for name in sides}
    upstreams, pids = [free_port(), free_port()], {}
    with ExitStack() as stack:
        for port in upstreams:
            start(stack, ["fake_upstream.py", str(port)], 1)
        for name, (tree, number) in sides.items():
            data = stack.enter_context(tempfile.TemporaryDirectory())
            argv = ["-c", _IN, str(tree), "serve", "--port", str(ports[name]), "--data-dir", data]
            for port in upstreams[:number]:
                argv += ["--upstream", f"http://127.0.0.1:{port}/v1"]
            pids[name] = start(stack, [*argv, "--log-level", "warning"], 0)
        for port in ports.values():
            await_url(f"http://127.0.0.1:{port}/readyz")
        pin(0, 1)
        loaded: dict[str, list[float]] = {name: [] for name in sides}
        rates: dict[str, list[float]] = {name: [] for name in sides}
        for number in range(rounds):
            print(f"round {number + 1} of {rounds}", file=sys.stderr)
            for name, port in ports.items():
                before = _processor_seconds(pids[name])
                got = run_load(port, REQUEST, connections=connections, seconds=seconds)
                spent = _processor_seconds(pids[name]) - before
                loaded[name].append(1e6 * spent / got.requests)
                rates[name].append(got.rate)
    return _figures(loaded, rates)


def _processor_seconds(pid: int) -> float:
    """Return what a process and its children have taken of the processors so far."""
    stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    own = (int(stat[11]) + int(stat[12])) / os.sysconf("SC_CLK_TCK")
    return own + sum(_processor_seconds(int(child)) for child in children)


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
    print(f"forwarded, {options.connections} connections, {len(question(1))} bytes asked, one core")
    print(f"{'':12}{'requests/s':>12}{'us of core':>14}")
    for name in ("one", "two", "before"):
        if f"{name}_per_second" in figures:
            print(f"{name:12}{figures[f'{name}_per_second']:>12.0f}{figures[f'{name}_us']:>14.0f}")
    told = {name: round(value, 3) for name, value in figures.items()}
    print(json.dumps({"benchmark": "upstream_pool", **told}))


if __name__ == "__main__":
    main()
