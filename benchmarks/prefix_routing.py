"""Misses sent where their prefix lies: prefix blocks found, beside blind routing and one big cache.

The Mooncake traces over four simulated replicas (``routing_simulation``) of several capacities.
Floor: round robin and least loaded. Ceiling: one replica with the memory of all. Imbalance is the
most that a replica had over the mean: prompt tokens computed, and requests. The rate at which
replicas compute is such that the ceiling would keep them busy for 60 % of the time. Also:

- several gateways that know nothing of one another;
- a belief of half the capacity and of eight times as much, which is what exact knowledge of
  evictions could correct;
- what the router takes with a million blocks, and the time of each miss.

    python benchmarks/prefix_routing.py [--data DIR] [--replicas N] [--engines N] [--only-engines]

``--engines N`` replays a shortened trace on so many processes of the engine (``routing_engines``).
"""

import argparse
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

from routing_engines import replay, shortened
from routing_memory import measure
from routing_simulation import (
    Result,
    RoundRobin,
    Traced,
    imbalance,
    one_cache,
    read_trace,
    simulate,
)

from gateway.core.prefix_index import PrefixIndex
from gateway.core.prefix_routing import PrefixAware
from gateway.core.routing import LeastLoaded, Routing

DATA = Path(os.environ.get("REFRAIN_DATA", Path(__file__).parents[2] / "shared" / "data"))
TRACES = ("conversation", "synthetic")
CAPACITIES = (1_000, 4_000, 16_000)
BUSY = 0.6
ENGINE_SHARE = 0.02
"""Of the conversations, on real engines; their caches hold so much of its blocks together:"""
ENGINE_CAPACITY = 0.7
BLIND = 65_536
"""Blocks that a replica is believed to hold where nothing is known: more than it does."""


def aware(believed: int) -> Routing:
    return PrefixAware(PrefixIndex(capacity=believed))


def ways(capacity: int) -> dict[str, Callable[[], list[Routing]]]:
    return {
        "round robin (floor)": lambda: [RoundRobin()],
        "least loaded (floor)": lambda: [LeastLoaded()],
        "prefix-aware (shipped)": lambda: [aware(BLIND)],
        "  capacity known": lambda: [aware(capacity)],
        "  half the capacity believed": lambda: [aware(capacity // 2)],
        "  eight times the capacity": lambda: [aware(capacity * 8)],
        "  4 gateways apart": lambda: [aware(BLIND) for _ in range(4)],
    }


def measured(requests: Sequence[Traced], replicas: int) -> dict[str, dict[str, dict[str, float]]]:
    """Print a table and return its figures by capacity and way."""
    tokens = sum(each.prompt_tokens for each in requests)
    figures: dict[str, dict[str, dict[str, float]]] = {}
    for capacity in CAPACITIES:
        best = one_cache(requests, replicas * capacity)
        rate = tokens * (1 - best) / requests[-1].at / replicas / BUSY
        print(f"\n  {capacity:,} blocks each; one with {replicas * capacity:,} finds {best:.1%}")
        print(
            f"    {'':<30}{'found':>8}{'of ceiling':>12}{'tokens max/mean':>17}"
            f"{'requests':>10}{'TTFT p50':>10}{'p99':>8}"
        )
        rows = figures[str(capacity)] = {"one cache": {"hit_share": round(best, 4)}}
        for way, gateways in ways(capacity).items():
            result = simulate(
                requests, gateways(), replicas=replicas, capacity=capacity, tokens_a_second=rate
            )
            rows[way.strip()] = _rounded(result) | {"of_ceiling": round(result.hit_share / best, 4)}
            print(
                f"    {way:<30}{result.hit_share:>8.1%}{result.hit_share / best:>12.1%}"
                f"{result.imbalance_tokens:>17.2f}{result.imbalance_requests:>10.2f}"
                f"{result.ttft_p50:>8.2f} s{result.ttft_p99:>6.1f} s"
            )
    return figures


def replayed(requests: Sequence[Traced], engines: int) -> dict[str, dict[str, float]]:
    """Print a table of a shortened replay on real engines, and return its figures."""
    short = shortened(requests, ENGINE_SHARE)
    blocks = len({block for each in short for block in each.blocks})
    capacity = int(blocks * ENGINE_CAPACITY / engines)
    print(
        f"\nReal engines: {engines} processes of {capacity:,} blocks each, {len(short):,} requests "
        f"with {blocks:,} different blocks"
    )
    print(f"    {'':<14}{'cached':>8}{'tokens max/mean':>17}{'requests':>10}{'p50':>10}{'p99':>10}")
    rows: dict[str, dict[str, float]] = {}
    for way, result in replay(short, engines=engines, capacity=capacity).items():
        times = sorted(result.seconds)
        row = rows[way] = {
            "cached_share": round(result.share, 4),
            "imbalance_tokens": round(imbalance(list(result.computed.values())), 4),
            "imbalance_requests": round(imbalance(list(result.requests.values())), 4),
            "p50_s": round(times[len(times) // 2], 4),
            "p99_s": round(times[int(len(times) * 0.99)], 4),
        }
        print(
            f"    {way:<14}{row['cached_share']:>8.1%}{row['imbalance_tokens']:>17.2f}"
            f"{row['imbalance_requests']:>10.2f}{row['p50_s']:>8.2f} s{row['p99_s']:>8.2f} s"
        )
    return rows


def _rounded(result: Result) -> dict[str, float]:
    return {name: round(value, 4) for name, value in asdict(result).items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=DATA, help="folder of the Mooncake traces")
    parser.add_argument("--replicas", type=int, default=4)
    parser.add_argument("--engines", type=int, default=0, help="real engines to replay on")
    parser.add_argument("--only-engines", action="store_true", help="no simulation")
    options = parser.parse_args()
    report: dict[str, object] = {"benchmark": "prefix_routing", "replicas": options.replicas}
    traces: dict[str, object] = {}
    for name in TRACES:
        path = options.data / f"mooncake_{name}_trace.jsonl"
        try:
            requests = read_trace(path)
        except OSError as error:
            print(f"skipped: no trace at {path} ({error.strerror}); give its folder with --data")
            continue
        if not options.only_engines:
            print(f"\nMooncake {name}: {len(requests):,} requests, {options.replicas} replicas")
            traces[name] = measured(requests, options.replicas)
        if options.engines and name == "conversation":
            report["engines"] = replayed(requests, options.engines)
    report["traces"] = traces
    cost = measure()
    print(
        f"\nThe router: knows {cost.blocks:,} blocks of {cost.blocks_seen:,} seen, at "
        f"{cost.bytes_a_block:.0f} bytes each; a miss of 40 blocks (20 KB) costs "
        f"{cost.digest_us:.0f} us for digests, {cost.order_us:.0f} us to choose, "
        f"{cost.sent_us:.0f} us from sent to ended"
    )
    report["router"] = {name: round(value, 1) for name, value in asdict(cost).items()}
    print(json.dumps(report))


if __name__ == "__main__":
    main()
