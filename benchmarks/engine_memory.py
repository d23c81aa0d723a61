"""KV memory that nobody uses, at the lengths of the Azure conversation trace.

The scheduler itself runs the trace, every step as long as the one before: sequences arrive as soon
as there is room, as under full load. After each step the slots of all held blocks are compared
with the tokens whose KV is in them. ``reserved`` are slots of prompt tokens that a later step will
fill; ``wasted`` those that no token will fill before another block is taken. The peer is what a
cache without blocks must hold: each sequence's room at its full length from the start, and, as
engines without paging do that do not know it, at the context's.

    python benchmarks/engine_memory.py [--requests N] [--trace FILE]
"""

import argparse
import json
from collections import deque
from dataclasses import dataclass
from pathlib import Path

from engine_replay import TRACE, TracedRequest, read_trace

from backend.core.block_pool import BLOCK_SIZE, BlockPool
from backend.core.scheduler import Scheduler
from backend.core.sequence import Sequence

POOL_TOKENS = 400_000
MAX_NUM_SEQS = 256
TOKENS_PER_STEP = 8192


@dataclass
class Slots:
    """Summed over steps: slots held, and what they hold."""

    held: int = 0
    filled: int = 0
    reserved: int = 0
    full_length: int = 0
    context: int = 0

    def add(self, sequence: Sequence, context: int) -> None:
        self.held += len(sequence.block_table) * BLOCK_SIZE
        self.filled += sequence.num_computed_tokens
        self.reserved += len(sequence.tokens) - sequence.num_computed_tokens
        self.full_length += sequence.max_length
        self.context += context


def run(trace: list[TracedRequest]) -> tuple[Slots, int, int]:
    """Return the slots, the steps taken and the preemptions."""
    context = max(each.prompt_tokens + each.new_tokens for each in trace)
    scheduler = Scheduler(
        BlockPool(POOL_TOKENS // BLOCK_SIZE),
        max_num_seqs=MAX_NUM_SEQS,
        max_tokens_per_step=TOKENS_PER_STEP,
    )
    waiting = deque(enumerate(trace))
    running: set[Sequence] = set()
    slots = Slots()
    steps = 0
    while waiting or running:
        while waiting and len(running) < MAX_NUM_SEQS:
            number, each = waiting.popleft()
            # Tokens of its own, so that nothing is shared: sharing would only make waste less.
            tokens = [number] * each.prompt_tokens
            sequence = Sequence(number, tokens, each.prompt_tokens + max(each.new_tokens, 1))
            scheduler.add(sequence, float(steps))
            running.add(sequence)
        step = scheduler.schedule(float(steps))
        sampling = [scheduled.sequence for scheduled in step if scheduled.samples]
        sampled = [(sequence.sequence_id,) for sequence in sampling]
        scheduler.complete(step, sampled, float(steps))
        for sequence in sampling:
            if len(sequence.tokens) >= sequence.max_length:
                scheduler.finish(sequence)
                running.discard(sequence)
        for sequence in running:
            if sequence.block_table:
                slots.add(sequence, context)
        steps += 1
    scheduler.check_integrity()
    return slots, steps, scheduler.num_preemptions


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--requests", type=int, default=2000, help="of the trace, from its start")
    parser.add_argument("--trace", type=Path, default=TRACE)
    options = parser.parse_args()
    if not options.trace.is_file():
        print(f"skipped: no trace at {options.trace}; give one with --trace")
        return
    trace = read_trace(options.trace, options.requests)
    slots, steps, preemptions = run(trace)
    wasted = slots.held - slots.filled - slots.reserved
    shares = {
        "wasted": wasted / slots.held,
        "reserved": slots.reserved / slots.held,
        "wasted_at_full_length": 1 - slots.filled / slots.full_length,
        "wasted_at_context": 1 - slots.filled / slots.context,
    }
    print(f"{len(trace)} requests, {steps} steps, {preemptions} preemptions; means over steps")
    print(f"blocks of {BLOCK_SIZE}: wasted               {shares['wasted']:7.2%}")
    print(f"              to be filled         {shares['reserved']:7.2%}")
    print(f"room for the full length: unused   {shares['wasted_at_full_length']:7.2%}")
    print(f"room for the context: unused       {shares['wasted_at_context']:7.2%}")
    rounded = {name: round(share, 4) for name, share in shares.items()}
    line = {"benchmark": "engine_memory", "requests": len(trace), "preemptions": preemptions}
    print(json.dumps(line | rounded))


if __name__ == "__main__":
    main()
