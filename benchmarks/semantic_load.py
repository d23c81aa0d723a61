"""What a semantic lookup costs the requests beside it, if there are more than the encoder can read.

Questions that people asked (QQP), each once, go to a gateway with semantic lookup, and to one
without it, in turn. The upstream answers at once, and all processes may use every core. For each
number of connections: misses a second of both, what the lookup adds to the median, and how many
lookups a second were done and skipped (``semantic-busy``).
"""

import argparse
import json
import os
import re
import statistics
import urllib.request
from contextlib import ExitStack
from pathlib import Path

import orjson
from load import question, run_wrk
from semantic_misses import ASK_NEXT
from servers import EXACT_ONLY, start_gateway, start_upstream

DATA = Path(__file__).parent.parent.parent / "shared" / "data" / "qqp_pairs.jsonl"

_SKIPPED = re.compile(r'refrain_semantic_faults_total\{reason="semantic-busy"\} ([0-9.e+]+)')
_PLAIN = re.compile(r"[A-Za-z0-9 ,.'?-]{20,120}")
"""What neither JSON nor Lua reads as anything else."""
_FAULTS = re.compile(r"refrain_semantic_faults_total\{[^}]*\} ([0-9.e+]+)")


def skipped_and_failed(port: int) -> tuple[float, float]:
    """Return how many lookups a gateway has skipped so far, and how many failed otherwise."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as reply:
        page = reply.read().decode()
    skipped = sum(map(float, _SKIPPED.findall(page)))
    return skipped, sum(map(float, _FAULTS.findall(page))) - skipped


def questions() -> list[str]:
    """Return questions in an order that is always the same. Raises SystemExit without the data."""
    if not DATA.exists():
        raise SystemExit(f"{DATA} is not there: see its README for where it comes from")
    rows = map(orjson.loads, DATA.read_bytes().splitlines())
    texts = dict.fromkeys(row["a"] for row in rows)
    return [text for text in texts if _PLAIN.fullmatch(text)]


def measure(rounds: int, seconds: float, connections: int, texts: list[str]) -> dict[str, float]:
    """Return the medians of some rounds; rates a second, times in milliseconds."""
    found: dict[str, list[float]] = {}
    with ExitStack() as stack:
        upstream = start_upstream(stack, None)
        policies = {"off": EXACT_ONLY, "on": EXACT_ONLY.replace("semantic: off", "semantic: on")}
        ports = {
            name: start_gateway(stack, upstream, core=None, policy=policy).port
            for name, policy in policies.items()
        }
        for number in range(rounds):
            some = round(4000 * seconds)
            new = ", ".join(map(json.dumps, texts[number * some : (number + 1) * some]))
            for name, port in ports.items():
                before = skipped_and_failed(port)
                ran = run_wrk(
                    port,
                    question(),
                    connections=connections,
                    seconds=seconds,
                    vary=ASK_NEXT % new,
                    timeout=10,
                )
                skipped, failed = (
                    now - then for now, then in zip(skipped_and_failed(port), before, strict=True)
                )
                took = ran.requests / ran.rate
                values = {"rate": ran.rate, "p50": 1e3 * ran.p50, "p99": 1e3 * ran.p99}
                values |= {"skipped": skipped / took, "failed": failed / took}
                values["looked_up"] = ran.rate - values["skipped"] - values["failed"]
                for figure, value in values.items():
                    found.setdefault(f"{name}_{figure}", []).append(value)
    medians = {name: statistics.median(values) for name, values in found.items()}
    ratios = [on / off for on, off in zip(found["on_rate"], found["off_rate"], strict=True)]
    return medians | {"ratio": statistics.median(ratios)}


def main() -> None:
    """Print a line for each number of connections and, last, one line of JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=3.0, help="of load for each figure")
    parser.add_argument("--connections", type=int, nargs="+", default=[16, 64, 256])
    options = parser.parse_args()
    rows, texts = {}, questions()
    for connections in options.connections:
        row = rows[connections] = measure(options.rounds, options.seconds, connections, texts)
        on, off = (
            {name.removeprefix(key): value for name, value in row.items() if name.startswith(key)}
            for key in ("on_", "off_")
        )
        print(
            f"{connections} connections: {on['rate']:.0f} misses/s with the lookup,"
            f" {off['rate']:.0f} without ({row['ratio']:.2f});"
            f" p50 {on['p50']:.1f} and {off['p50']:.1f} ms, p99 {on['p99']:.0f} and"
            f" {off['p99']:.0f}; lookups/s: {on['looked_up']:.0f} done,"
            f" {on['skipped']:.0f} skipped, {on['failed']:.0f} failed"
        )
    rounded = {
        str(number): {name: round(value, 3) for name, value in row.items()}
        for number, row in rows.items()
    }
    print(json.dumps({"benchmark": "semantic_load", "load": os.getloadavg()[0], **rounded}))


if __name__ == "__main__":
    main()
