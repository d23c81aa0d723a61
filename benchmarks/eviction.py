"""Hit rates of eviction policies at a tenth of the capacity that would keep everything.

Prefix blocks of the Mooncake traces (one size), and Zipf traces of answers with and without scans
of questions asked once, whose sizes and costs are log-normal. Floor: LRU; ceiling: the offline
optimum. Prints a table and one line of JSON.
"""

import argparse
import json
import random
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from pathlib import Path

from eviction_policies import Access, Request, WTinyLfu, gdsf, lru, optimum, s3_fifo

DATA = Path(__file__).parents[2] / "shared" / "data"
BLOCK = 512


def mooncake(name: str) -> list[Request]:
    path = DATA / f"mooncake_{name}_trace.jsonl"
    lines = path.read_text().splitlines()
    ids = [block for line in lines for block in json.loads(line)["hash_ids"]]
    return [(block.to_bytes(8, "big"), BLOCK, BLOCK) for block in ids]


def zipf(requests: int, *, keys: int, alpha: float, scan_share: float, seed: int) -> list[Request]:
    """Questions by popularity; ``scan_share`` of them, in runs of 500, are asked this once."""
    rng = random.Random(seed)
    weights = list(accumulate(1 / rank**alpha for rank in range(1, keys + 1)))
    popular = rng.choices(range(keys), cum_weights=weights, k=requests)
    once = iter(range(keys, keys + 2 * requests))

    def shaped(key: int) -> Request:
        own = random.Random(key * 7919 + seed)
        tokens = max(5, int(own.lognormvariate(5.3, 0.9)))
        # A long prompt is answered in few tokens, or a short one in many: cost is both.
        prompt = max(5, int(own.lognormvariate(5.0, 1.2)))
        return key.to_bytes(8, "big"), 300 + 4 * tokens, tokens + prompt

    def mixed() -> Iterator[Request]:
        for at, key in enumerate(popular):
            if scan_share and rng.random() < scan_share / 500:
                for _ in range(500):
                    yield shaped(next(once))
            if at:
                yield shaped(key)

    return list(mixed())


def measure(access: Access, requests: Sequence[Request]) -> tuple[float, float]:
    hits = tokens = 0
    for key, size, cost in requests:
        if access(key, size, cost):
            hits += 1
            tokens += cost
    return hits / len(requests), tokens / sum(cost for _, _, cost in requests)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=200_000, help="of each Zipf trace")
    parser.add_argument("--capacity", type=float, default=0.1, help="share of all distinct bytes")
    options = parser.parse_args()
    traces: dict[str, list[Request]] = {}
    for name in ("conversation", "synthetic"):
        try:
            traces[f"mooncake {name}"] = mooncake(name)
        except OSError as error:
            print(f"mooncake {name}: left out, {error.strerror}")
    for share in (0.0, 0.5):
        title = f"zipf 0.9{', scans' if share else ''}"
        traces[title] = zipf(options.requests, keys=50_000, alpha=0.9, scan_share=share, seed=1)
    policies: dict[str, Callable[[int], Access]] = {
        "LRU (floor)": lru,
        "S3-FIFO (shipped)": s3_fifo,
        "W-TinyLFU": WTinyLfu,
        "GDSF, tokens per byte": gdsf,
    }
    figures: dict[str, dict[str, list[float]]] = {}
    for title, requests in traces.items():
        whole = sum({key: size for key, size, _ in requests}.values())
        max_bytes = int(whole * options.capacity)
        print(f"\n{title}: {len(requests):,} requests, {options.capacity:.0%} of {whole:,} bytes")
        print(f"  {'policy':<24}{'hit rate':>10}{'tokens saved':>14}")
        figures[title] = {}
        for name, make in policies.items():
            figures[title][name] = list(measure(make(max_bytes), requests))
        hits, tokens = optimum(requests, max_bytes)
        every = sum(cost for _, _, cost in requests)
        figures[title]["optimum (offline)"] = [hits / len(requests), tokens / every]
        for name, (rate, saved) in figures[title].items():
            print(f"  {name:<24}{rate:>10.3f}{saved:>14.3f}")
    rounded = {
        title: {name: [round(value, 4) for value in both] for name, both in rows.items()}
        for title, rows in figures.items()
    }
    print(json.dumps({"benchmark": "eviction", "capacity": options.capacity, "rates": rounded}))


if __name__ == "__main__":
    main()
