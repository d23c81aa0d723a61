"""KV tiers: how many prompt tokens are computed when the pool holds an eighth of the working set.

Conversations that grow by a question and an answer a turn take turns in random order, as users do
who read before they go on. The same requests go to a pool that holds everything, which is the
floor, to one of an eighth, and to that with host memory, with host memory and disk, and with disk
alone. All texts must be equal. After a restart the last turns are asked once more: the disk must
still have what it had. Then the Mooncake trace of conversations, if it is there, goes through the
scheduler alone, a block of the trace as a block of the pool; an unlimited cache is the floor again.

    python benchmarks/engine_tiers.py [--conversations N] [--turns N] [--threads N] [--trace FILE]
"""

import argparse
import asyncio
import json
import random
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from engines.sides import EngineSide, bundled_or_random

from backend.scheduler.block_pool import BLOCK_SIZE, BlockPool, blocks_for
from backend.scheduler.prefix_cache import PrefixCache
from backend.scheduler.request import GenerationRequest, SamplingParams
from backend.scheduler.scheduler import Scheduler
from backend.scheduler.sequence import Sequence as Continuation
from backend.scheduler.tiers import Tiers, TransferReport

TRACE = Path(__file__).parents[2] / "shared" / "data" / "mooncake_conversation_trace.jsonl"
SYSTEM_TOKENS = 160
TURN_TOKENS = 112
NEW_TOKENS = 8
SHARE = 8
"""The working set is so many times the pool."""

Prompt = tuple[int, ...]


def conversations(count: int, turns: int) -> list[Prompt]:
    """Return prompts in the order they are asked in."""
    chance = random.Random(7)
    system = [chance.randrange(2, 4000) for _ in range(SYSTEM_TOKENS)]
    histories = [list(system) for _ in range(count)]
    prompts: list[Prompt] = []
    for _ in range(turns):
        for number in chance.sample(range(count), count):
            histories[number] += [chance.randrange(2, 4000) for _ in range(TURN_TOKENS)]
            prompts.append(tuple(histories[number]))
    return prompts


@dataclass(slots=True)
class Run:
    """What came of some requests."""

    computed: int = 0
    seconds: float = 0.0
    texts: tuple[str, ...] = ()


def ask(engine: EngineSide, prompts: Sequence[Prompt]) -> Run:
    """Ask one after the other."""
    run, texts = Run(), []
    began = time.perf_counter()
    for prompt in prompts:
        text, cached = asyncio.run(_answer(engine, prompt))
        texts.append(text)
        run.computed += len(prompt) - cached
    run.seconds, run.texts = time.perf_counter() - began, tuple(texts)
    return run


async def _answer(engine: EngineSide, prompt: Prompt) -> tuple[str, int]:
    sampling = SamplingParams(temperature=0.0, max_tokens=NEW_TOKENS, ignore_eos=True)
    request = GenerationRequest("benchmark", prompt, sampling, stream=False)
    deltas = [delta async for delta in engine.engine.generate(request)]
    return "".join(each.text for each in deltas), deltas[-1].cached_tokens


def block_bytes(directory: Path) -> int:
    config = json.loads((directory / "config.json").read_text())
    heads = config["num_attention_heads"]
    head_dim = config.get("head_dim") or config["hidden_size"] // heads
    kv_heads = config.get("num_key_value_heads") or heads
    return int(2 * config["num_hidden_layers"] * kv_heads * head_dim * 4 * BLOCK_SIZE)


def engines(
    directory: Path, scratch: Path, prompts: Sequence[Prompt], last: Sequence[Prompt], threads: int
) -> dict[str, Any]:
    """Return prompt tokens computed and seconds of each kind of engine."""
    per_block = block_bytes(directory)
    working_set = blocks_for(SYSTEM_TOKENS) + sum(
        blocks_for(len(each) + NEW_TOKENS) - SYSTEM_TOKENS // BLOCK_SIZE for each in last
    )
    eighth = max(working_set // SHARE, blocks_for(len(last[0]) + NEW_TOKENS) + 1)
    host, disk = 2 * working_set * per_block, 4 * working_set * (per_block + 8192)
    kinds: dict[str, dict[str, Any]] = {
        "unlimited": {"kv_bytes": 2 * working_set * per_block},
        "eighth": {},
        "host": {"kv_host_bytes": host},
        "host_and_disk": {"kv_host_bytes": host // 4, "kv_disk_bytes": disk},
        "disk": {"kv_disk_bytes": disk},
    }
    result: dict[str, Any] = {"working_set_blocks": working_set, "pool_blocks": eighth}
    runs: dict[str, Run] = {}
    for name, others in kinds.items():
        options = {
            "kv_bytes": eighth * per_block,
            "kv_disk_dir": str(scratch / name),
            "speculation": "off",
            **others,
        }
        with EngineSide(directory, threads=threads, **options) as engine:
            runs[name] = ask(engine, prompts)
            before = ask(engine, last)
        result[name] = {
            "computed_tokens": runs[name].computed,
            "seconds": round(runs[name].seconds, 2),
        }
        if "kv_disk_bytes" in options:
            with EngineSide(directory, threads=threads, **options) as engine:
                after = ask(engine, last)
            if after.texts != before.texts:
                raise RuntimeError("the texts after a restart are others")
            asked = sum(map(len, last))
            result[name]["cached_after_restart"] = round(
                (asked - after.computed) / (asked - before.computed), 4
            )
    if any(run.texts != runs["unlimited"].texts for run in runs.values()):
        raise RuntimeError("the texts differ")
    result["prompt_tokens"] = sum(map(len, prompts))
    for name in ("host", "host_and_disk", "disk"):
        result[name]["beside_eighth"] = round(runs[name].computed / runs["eighth"].computed, 3)
        result[name]["beside_unlimited"] = round(
            runs[name].computed / runs["unlimited"].computed, 3
        )
    return result


def replay(trace: Path, count: int) -> dict[str, float]:
    """Return the share of prompt blocks that is computed, by kind of cache."""
    with trace.open() as lines:
        requests = [json.loads(line)["hash_ids"] for line in islice(lines, count)]
    everything = len({each for ids in requests for each in ids})
    longest = max(map(len, requests)) + 2
    pool = max(everything // SHARE, longest)
    kinds = {
        "unlimited": (everything + 2 * longest, None),
        "eighth": (pool, None),
        "host": (pool, Tiers(host_blocks=everything, disk_blocks=0)),
    }
    shares: dict[str, float] = {}
    for name, (num_blocks, tiers) in kinds.items():
        blocks = BlockPool(num_blocks)
        cache = PrefixCache(blocks, tiers=tiers)
        scheduler = Scheduler(blocks, max_num_seqs=1, max_tokens_per_step=1 << 20, cache=cache)
        for number, ids in enumerate(requests):
            # The last token is always computed, so a block's worth of none follows.
            tokens = [token for each in ids for token in (each,) * BLOCK_SIZE] + [0]
            _run(scheduler, Continuation(number, tokens, len(tokens) + 1))
        shares[name] = round(1 - cache.hits / cache.queries, 4)
    return shares


def _run(scheduler: Scheduler, sequence: Continuation) -> None:
    now = float(sequence.sequence_id)
    scheduler.add(sequence, now)
    while scheduler.has_work:
        step = scheduler.schedule(now)
        loads = scheduler.take_transfers().loads
        scheduler.take_in(TransferReport([(load.block, True) for load in loads]))
        if step:
            now += 1.0  # any time: loads are taken to cost none
            scheduler.complete(step, [(1,) for each in step if each.samples], now)
            if len(sequence.tokens) == sequence.max_length:
                scheduler.finish(sequence)


def main() -> None:
    parser = argparse.ArgumentParser(description="KV tiers, on CPU")
    parser.add_argument("--conversations", type=int, default=20)
    parser.add_argument("--turns", type=int, default=6)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--trace", type=Path, default=TRACE)
    parser.add_argument("--requests", type=int, default=4000)
    options = parser.parse_args()
    prompts = conversations(options.conversations, options.turns)
    last = prompts[-options.conversations :]
    with tempfile.TemporaryDirectory() as scratch:
        directory = bundled_or_random(Path(scratch))
        result: dict[str, Any] = {
            "benchmark": "engine_tiers",
            **engines(directory, Path(scratch) / "kv", prompts, last, options.threads),
        }
    print(
        f"{options.conversations} conversations of {options.turns} turns, "
        f"{result['prompt_tokens']} prompt tokens; working set {result['working_set_blocks']} "
        f"blocks, pool {result['pool_blocks']}"
    )
    for name in ("unlimited", "eighth", "host", "host_and_disk", "disk"):
        each = result[name]
        line = f"  {name}: {each['computed_tokens']} tokens computed, {each['seconds']} s"
        if "beside_eighth" in each:
            line += f"; {each['beside_eighth']} of the eighth's, {each['beside_unlimited']} of all"
        if "cached_after_restart" in each:
            line += f"; after a restart {each['cached_after_restart']} of the hits before"
        print(line)
    if options.trace.is_file():
        shares = result["trace"] = replay(options.trace, options.requests)
        print(f"share of blocks computed, {options.requests} requests of the Mooncake trace")
        print("  " + ", ".join(f"{name} {share:.1%}" for name, share in shares.items()))
    else:
        print(f"trace skipped: none at {options.trace}; give one with --trace")
    print(json.dumps(result))


if __name__ == "__main__":
    main()
