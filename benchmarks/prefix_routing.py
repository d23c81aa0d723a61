"""Misses sent where their prefix lies: what is found, beside blind routing, peers, one big cache.

The Mooncake traces over four simulated replicas (``routing/simulation.py``) of several capacities.
Floor: round robin and least loaded. Peers: how four other routers choose (``routing/peers.py``).
Ceiling: one replica with the memory of all. Imbalance is the most that a replica had over the mean:
prompt tokens computed, and requests. The rate at which replicas compute is such that the ceiling
would keep them busy for 60 % of the time. Also: several gateways that know nothing of one another;
what the router takes with a million blocks, and the time of each miss.

    python benchmarks/prefix_routing.py [--data DIR] [--replicas N] [--held-out]
    python benchmarks/prefix_routing.py --only-engines --engines N [--gateways N]

``--held-out`` prints instead what nothing was chosen on (``routing/cases.py``). ``--engines N``
replays a shortened trace on so many processes of the engine (``routing/engines.py``).
"""

import argparse
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

from routing.cases import Case, case, cases
from routing.engines import replay, shortened
from routing.memory import measure
from routing.peers import Aibrix, BoundedHashing, Dynamo, Sglang
from routing.simulation import BLOCK_TOKENS, RoundRobin, Traced, imbalance, read_trace, simulate

from gateway.upstream.pool.routing import LeastLoaded, PrefixAware, PrefixIndex

DATA = Path(os.environ.get("REFRAIN_DATA", Path(__file__).parents[2] / "shared" / "data"))
TRACES = ("conversation", "synthetic")
CAPACITIES = (1_000, 4_000, 16_000)
ENGINE_SHARE = 0.02
"""Of the conversations, on real engines; their caches hold so much of its blocks together:"""
ENGINE_CAPACITY = 0.7
BLIND = 65_536 * 128 // BLOCK_TOKENS
"""Blocks that a replica is believed to hold where nothing is known: more than it does."""


def aware(believed: int = BLIND) -> LeastLoaded:
    return PrefixAware(PrefixIndex(capacity=believed), block_tokens=BLOCK_TOKENS)


def ways(capacity: int) -> dict[str, Callable[[], list[LeastLoaded]]]:
    return {
        "round robin (floor)": lambda: [RoundRobin()],
        "least loaded (floor)": lambda: [LeastLoaded()],
        "bounded hashing": lambda: [BoundedHashing()],
        "as SGLang's": lambda: [Sglang(BLIND)],
        "as Dynamo's": lambda: [Dynamo(capacity)],
        "as AIBrix's": lambda: [Aibrix(capacity)],
        "prefix-aware (shipped)": lambda: [aware()],
        "  2 gateways apart": lambda: [aware() for _ in range(2)],
        "  4 gateways apart": lambda: [aware() for _ in range(4)],
        "  as AIBrix's, 4 apart": lambda: [Aibrix(capacity) for _ in range(4)],
    }


def measured(one: Case) -> dict[str, dict[str, float]]:
    """Print a table and return its figures by way."""
    print(f"\n  {one.name}: {len(one.requests):,} requests; one big cache finds {one.ceiling:.1%}")
    print(
        f"    {'':<26}{'of ceiling':>12}{'tokens max/mean':>17}{'requests':>10}"
        f"{'TTFT mean':>12}{'p50':>9}{'p99':>9}"
    )
    rows: dict[str, dict[str, float]] = {"one cache": {"hit_share": round(one.ceiling, 4)}}
    for way, gateways in ways(one.fleet.capacity).items():
        result = simulate(one.requests, gateways(), one.fleet)
        share = result.hit_share / one.ceiling
        rows[way.strip()] = {name: round(value, 4) for name, value in asdict(result).items()}
        rows[way.strip()]["of_ceiling"] = round(share, 4)
        print(
            f"    {way:<26}{share:>12.1%}{result.imbalance_tokens:>17.2f}"
            f"{result.imbalance_requests:>10.2f}{result.ttft_mean:>10.2f} s"
            f"{result.ttft_p50:>7.2f} s{result.ttft_p99:>7.1f} s"
        )
    return rows


def replayed(
    requests: Sequence[Traced], engines: int, gateways: int
) -> dict[str, dict[str, float]]:
    """Print a table of a shortened replay on real engines, and return its figures."""
    short = shortened(requests, ENGINE_SHARE)
    blocks = len({block for each in short for block in each.blocks})
    capacity = int(blocks * ENGINE_CAPACITY / engines)
    print(
        f"\nReal engines: {engines} processes of {capacity:,} blocks each, {gateways} gateway(s), "
        f"{len(short):,} requests with {blocks:,} different blocks"
    )
    print(f"    {'':<14}{'cached':>8}{'tokens max/mean':>17}{'requests':>10}{'p50':>10}{'p99':>10}")
    rows: dict[str, dict[str, float]] = {}
    for way, result in replay(short, engines=engines, capacity=capacity, gateways=gateways).items():
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


def read_traces(folder: Path) -> dict[str, list[Traced]]:
    """Return the traces that there are, by name."""
    found = {}
    for name in TRACES:
        path = folder / f"mooncake_{name}_trace.jsonl"
        try:
            found[name] = read_trace(path)
        except OSError as error:
            print(f"skipped: no trace at {path} ({error.strerror}); give its folder with --data")
    return found


def simulated(
    traces: dict[str, list[Traced]], replicas: int, *, held_out: bool
) -> dict[str, object]:
    """Print all tables of one kind and return their figures by case."""
    if held_out:
        chosen = list(cases(traces))
    else:
        chosen = [
            case(f"{name}, {size:,} blocks each", trace, replicas=replicas, capacity=size)
            for name, trace in traces.items()
            for size in CAPACITIES
        ]
    return {one.name: measured(one) for one in chosen}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=DATA, help="folder of the Mooncake traces")
    parser.add_argument("--replicas", type=int, default=4)
    parser.add_argument("--engines", type=int, default=0, help="real engines to replay on")
    parser.add_argument("--gateways", type=int, default=1, help="processes before real engines")
    parser.add_argument("--only-engines", action="store_true", help="no simulation")
    parser.add_argument("--held-out", action="store_true", help="other fleets, faults and traffic")
    options = parser.parse_args()
    report: dict[str, object] = {"benchmark": "prefix_routing", "replicas": options.replicas}
    traces = read_traces(options.data)
    if traces and not options.only_engines:
        report["cases"] = simulated(traces, options.replicas, held_out=options.held_out)
    if traces and options.engines:
        report["engines"] = replayed(traces["conversation"], options.engines, options.gateways)
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
