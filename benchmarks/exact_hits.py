"""Exact hits per second of one gateway worker on one core, beside a bare aiohttp handler.

The gateway is the real one, started by its command, with the default policy, the store on disk
and its memory tier; the floor parses, hashes, looks up in a dict and replies with as many bytes.
Servers share core 0 (only one is loaded at a time), the load generator has core 1. Rounds
alternate; the figure is the median of the rounds' ratios.
"""

import argparse
import json
import statistics
import sys
import tempfile
from contextlib import ExitStack

import orjson
from load import LoadResult, post, run_load
from servers import await_url, free_port, pin, start

BODY = orjson.dumps(
    {
        "model": "bench",
        "messages": [
            {"role": "system", "content": "You are a helpful assistant."},
            {"role": "user", "content": "How do I reset my password on a new phone?"},
        ],
        "temperature": 0.7,
    }
)


def measure(rounds: int, seconds: float, connections: int) -> dict[str, float]:
    """Run the rounds and return the figures."""
    bare, gateway, upstream = free_port(), free_port(), free_port()
    request = post("/v1/chat/completions", BODY)
    with ExitStack() as stack:
        data = stack.enter_context(tempfile.TemporaryDirectory())
        start(stack, ["fake_upstream.py", str(upstream)], 1)
        url = f"http://127.0.0.1:{upstream}/v1"
        options = ["--port", str(gateway), "--data-dir", data, "--log-level", "warning"]
        start(stack, ["-m", "gateway.cli", "serve", "--upstream", url, *options], 0)
        await_url(f"http://127.0.0.1:{gateway}/readyz")
        pin(0, 1)
        first = run_load(gateway, request, connections=1, seconds=0.3)
        head, _, answer = first.last_reply.partition(b"\r\n\r\n")
        if b"refrain; hit" not in head:
            raise SystemExit(f"the gateway does not hit: {head.decode()}")
        start(stack, ["bare_handler.py", str(bare), str(len(answer))], 0)
        await_url(f"http://127.0.0.1:{bare}/")
        results: dict[str, list[LoadResult]] = {"gateway": [], "bare": []}
        alone: dict[str, list[LoadResult]] = {"gateway": [], "bare": []}
        for number in range(rounds):
            print(f"round {number + 1} of {rounds}", file=sys.stderr)
            for name, port in (("gateway", gateway), ("bare", bare)):
                loaded = run_load(port, request, connections=connections, seconds=seconds)
                results[name].append(loaded)
                alone[name].append(run_load(port, request, connections=1, seconds=seconds / 3))
    ratios = [g.rate / b.rate for g, b in zip(results["gateway"], results["bare"], strict=True)]
    figures = {"ratio": statistics.median(ratios), "ratio_min": min(ratios)}
    for name in ("gateway", "bare"):
        figures[f"{name}_per_second"] = statistics.median(r.rate for r in results[name])
        figures[f"{name}_p99_ms"] = 1e3 * statistics.median(
            r.percentile(0.99) for r in results[name]
        )
        figures[f"{name}_alone_p50_us"] = 1e6 * statistics.median(
            r.percentile(0.5) for r in alone[name]
        )
    return figures


def main() -> None:
    """Print a table and, last, one line of JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3.0, help="of load in each round")
    parser.add_argument("--connections", type=int, default=32)
    options = parser.parse_args()
    figures = measure(options.rounds, options.seconds, options.connections)
    print(f"exact hits, {options.connections} connections, {len(BODY)} bytes asked, one core")
    print(f"{'':24}{'hits/s':>10}{'p99 ms':>10}{'alone p50 us':>14}")
    for name, label in (("gateway", "refrain serve"), ("bare", "bare handler (floor)")):
        print(
            f"{label:24}{figures[f'{name}_per_second']:>10.0f}{figures[f'{name}_p99_ms']:>10.2f}"
            f"{figures[f'{name}_alone_p50_us']:>14.0f}"
        )
    print(f"ratio {figures['ratio']:.2f} (target 0.5)")
    print(json.dumps({"benchmark": "exact_hits", **{k: round(v, 3) for k, v in figures.items()}}))


if __name__ == "__main__":
    main()
