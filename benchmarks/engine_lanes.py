"""Long prompts among short ones: the scheduler's lanes beside first come, first served.

Lengths and arrivals of the Azure conversation trace, lengths scaled to the bundled model's context,
arrivals stretched so that the machine is busy for a given share of the time. The scheduler is
the real one, time is virtual (``engines.replay``); first come, first served is the same scheduler
with one lane. Long is what the scheduler calls so: more than a quarter of the budget.

    python benchmarks/engine_lanes.py [--trace FILE] [--requests N] [--load SHARE]
"""

import argparse
import json
import tempfile
from pathlib import Path

from engines.replay import Outcome, StepCost, replay
from engines.sides import bundled_or_random
from load import percentile
from traffic import TRACE, read_trace

from backend.scheduler.block_pool import BlockPool
from backend.scheduler.scheduler import Scheduler

BUDGET = 512
BATCH = 16
NUM_BLOCKS = 16 * 256
LONG = BUDGET // 4
MAX_WAIT = 30.0
SCALE = 0.25


def lanes(pool: BlockPool) -> Scheduler:
    return Scheduler(
        pool,
        max_num_seqs=BATCH,
        max_tokens_per_step=BUDGET,
        max_wait=MAX_WAIT,
        max_waiting=100_000,
    )


def first_come(pool: BlockPool) -> Scheduler:
    """One lane, by arrival."""
    return Scheduler(
        pool,
        max_num_seqs=BATCH,
        max_tokens_per_step=BUDGET,
        max_wait=1e9,
        max_waiting=100_000,
        long_prompt_tokens=10**9,
    )


def figures(outcomes: list[Outcome]) -> dict[str, float]:
    short = [each.ttft for each in outcomes if each.request.prompt_tokens <= LONG]
    long = [each.ttft for each in outcomes if each.request.prompt_tokens > LONG]
    return {
        "short_p50_s": round(percentile(short, 0.5), 3),
        "short_p99_s": round(percentile(short, 0.99), 3),
        "long_p50_s": round(percentile(long, 0.5), 3),
        "long_p99_s": round(percentile(long, 0.99), 3),
        "longest_wait_s": round(max(short + long), 3),
        "share_short": round(len(short) / len(outcomes), 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="lanes beside first come, first served")
    parser.add_argument("--trace", type=Path, default=TRACE)
    parser.add_argument("--requests", type=int, default=600)
    parser.add_argument("--load", type=float, default=0.9)
    options = parser.parse_args()
    if not options.trace.is_file():
        print(f"skipped: no trace at {options.trace}; give one with --trace")
        return
    requests = read_trace(options.trace, options.requests, scale=SCALE)
    with tempfile.TemporaryDirectory() as scratch:
        cost = StepCost.measure(bundled_or_random(Path(scratch)))
    busy = sum(cost.alone(each, BATCH) for each in requests)
    stretch = busy / options.load / requests[-1].at
    sides = {
        name: figures(replay(requests, cost, new, num_blocks=NUM_BLOCKS, stretch=stretch))
        for name, new in (("lanes", lanes), ("first come", first_come))
    }
    ratio = round(sides["first come"]["short_p99_s"] / sides["lanes"]["short_p99_s"], 1)
    print(
        f"{len(requests)} requests, lengths x {SCALE}, load {options.load}, batch {BATCH}, budget "
        f"{BUDGET}; step = {cost.base * 1e3:.2f} ms + {cost.prefill_token * 1e6:.0f} us a token of "
        f"prefill + {cost.decode * 1e6:.0f} us a sequence that decodes; time to first token, s"
    )
    names = ("short_p50_s", "short_p99_s", "long_p50_s", "long_p99_s", "longest_wait_s")
    print(f"{'':12}" + "".join(f"{name[:-2].replace('_', ' '):>14}" for name in names))
    for side, row in sides.items():
        print(f"{side:12}" + "".join(f"{row[name]:>14}" for name in names))
    print(f"p99 of the {sides['lanes']['share_short']:.0%} short ones: {ratio} times better")
    print(
        json.dumps(
            {"benchmark": "engine_lanes", "requests": len(requests), "load": options.load}
            | {"ageing_bound_s": MAX_WAIT, "ratio": ratio}
            | sides
        )
    )


if __name__ == "__main__":
    main()
