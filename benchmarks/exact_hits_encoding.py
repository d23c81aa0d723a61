"""Exact hits while semantic lookups keep the encoder busy, beside the same hits without.

The gateway is the real one, started by its command with the default policy and the real encoder; it
has all cores. Exact hits come over one connection, one at a time; the lookups over as many as it
takes to keep the encoder busy, each with a question of its own: encoded, not found, forwarded,
stored. Rounds alternate; the figure is the median of the rounds' ratios of p99.
"""

import argparse
import itertools
import json
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import orjson
from load import LoadResult, post, run_load
from load import question as exact_question
from servers import processes, processor_seconds, role, start_gateway, start_upstream

SUBJECTS = (
    "order",
    "invoice",
    "phone",
    "account",
    "address",
    "garden",
    "recipe",
    "bicycle",
    "holiday",
)
VERBS = ("change", "cancel", "find", "repair", "improve", "describe", "compare", "plan", "explain")


def question(number: int) -> bytes:
    """Return a request that nobody made before, of some twelve words."""
    words = random.Random(number)
    first, second = words.sample(SUBJECTS, 2)
    text = f"How do I {words.choice(VERBS)} the {first} of my {second} {chr(97 + number % 26)}"
    text += "".join(f" and {chr(97 + int(digit))}" for digit in str(number)) + "?"
    body = {"model": "bench", "messages": [{"role": "user", "content": text}]}
    return post(orjson.dumps(body))


@contextmanager
def asking(port: int, connections: int) -> Iterator[None]:
    """Have another process ask new questions meanwhile."""
    process = subprocess.Popen(
        [sys.executable, __file__, "--ask", str(port), "--connections", str(connections)]
    )
    try:
        yield
    finally:
        process.terminate()
        process.wait(20)


def embeddings_of(gateway: int) -> int:
    """Return the embeddings process of a gateway."""
    found = [process for process in processes(gateway) if role(process) == "embeddings"]
    if not found:
        raise SystemExit("the gateway has no embeddings process")
    return found[0]


def measure(rounds: int, seconds: float, connections: int) -> dict[str, float]:
    """Run the rounds and return the figures."""
    results: dict[str, list[LoadResult]] = {"quiet": [], "busy": []}
    busy_shares = []
    with ExitStack() as stack:
        gateway = start_gateway(stack, start_upstream(stack, core=None), core=None)
        encoder, exact = embeddings_of(gateway.process), post(exact_question())

        def hits() -> LoadResult:
            return run_load(gateway.port, exact, connections=1, seconds=seconds)

        hits()
        for number in range(rounds):
            print(f"round {number + 1} of {rounds}", file=sys.stderr)
            results["quiet"].append(hits())
            with asking(gateway.port, connections):
                time.sleep(1.0)  # until its interpreter has started and all connections ask
                used, began = processor_seconds(encoder), time.monotonic()
                results["busy"].append(hits())
                took = time.monotonic() - began
                busy_shares.append((processor_seconds(encoder) - used) / took)
    figures = {
        "p99_ratio": statistics.median(
            b.percentile(0.99) / q.percentile(0.99)
            for q, b in zip(results["quiet"], results["busy"], strict=True)
        ),
        "encoder_cores": statistics.median(busy_shares),
    }
    for name, found in results.items():
        figures[f"{name}_p50_ms"] = 1e3 * statistics.median(each.percentile(0.5) for each in found)
        figures[f"{name}_p99_ms"] = 1e3 * statistics.median(each.percentile(0.99) for each in found)
    return figures


def main() -> None:
    """Print a table and, last, one line of JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3.0, help="of load in each round")
    parser.add_argument("--connections", type=int, default=8, help="that ask new questions")
    parser.add_argument("--ask", type=int, metavar="PORT", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.ask is not None:
        numbers = itertools.count(int(time.time()) * 1000)
        run_load(options.ask, map(question, numbers), connections=options.connections)
    figures = measure(options.rounds, options.seconds, options.connections)
    print(f"exact hits on one connection; load {os.getloadavg()[0]:.1f}")
    print(f"{'':34}{'p50 ms':>10}{'p99 ms':>10}")
    for name, label in (("quiet", "nothing else asked (floor)"), ("busy", "encoder kept busy")):
        print(f"{label:34}{figures[f'{name}_p50_ms']:>10.2f}{figures[f'{name}_p99_ms']:>10.2f}")
    print(f"p99 ratio {figures['p99_ratio']:.2f} (target 2); ", end="")
    print(f"cores used by the encoder {figures['encoder_cores']:.2f}")
    rounded = {name: round(value, 3) for name, value in figures.items()}
    print(json.dumps({"benchmark": "exact_hits_encoding", **rounded}))


if __name__ == "__main__":
    main()
