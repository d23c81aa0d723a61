"""One model on two ranks beside one process with the same threads in all, on CPU by gloo.

The shape is Qwen2-0.5B's, with random weights in float32. Both engines are processes as `refrain
backend` has them, and stay loaded; they take turns with the same batch. Memory is what a process
has resident behind the runs: weights, KV and libraries. A rank's memory has 1 / ranks as its floor.
The ratio of tokens a second would be 1 where the machine is idle, and threads of one process shared
each operation for nothing. Where other work takes cores away it is far above: threads of one
process wait for each other at every operation, ranks only at the sums.

    python benchmarks/engine_parallel.py [--model DIR] [--ranks N] [--threads N] [--rounds N]
"""

import argparse
import asyncio
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from engines.sides import random_prompts, write_random_qwen2

from backend.engine.supervisor import EngineSupervisor
from backend.scheduler.request import GenerationRequest, SamplingParams
from backend.settings import EngineOptions
from backend.tokenizer.tokenizer import Tokenizer

BATCH = 16
PROMPT_TOKENS = 32


def silent(stage: str) -> None:
    del stage


class Side:
    """An engine in its own processes."""

    def __init__(self, directory: Path, **options: Any) -> None:
        self.host = EngineSupervisor(EngineOptions(str(directory), device="cpu", **options), silent)
        self._directory = directory

    async def start(self) -> None:
        before = set(children("self"))
        await self.host.start()
        self.host.open(Tokenizer.load(self._directory))
        (rank_0,) = set(children("self")) - before
        self.pids = [rank_0, *children(rank_0)]

    async def tokens_per_s(self, new_tokens: int, seed: int) -> float:
        """Return how many tokens a second a batch of answers comes at, prompts included."""
        prompts = random_prompts(BATCH, PROMPT_TOKENS, vocabulary=256, seed=seed)
        began = time.perf_counter()
        await asyncio.gather(*(self._answer(prompt, new_tokens) for prompt in prompts))
        return BATCH * new_tokens / (time.perf_counter() - began)

    async def _answer(self, prompt: Any, new_tokens: int) -> None:
        sampling = SamplingParams(temperature=0.0, max_tokens=new_tokens, ignore_eos=True)
        request = GenerationRequest("benchmark", tuple(prompt), sampling, stream=False)
        async for _ in self.host.client.generate(request):
            pass

    def resident_mib(self) -> list[int]:
        """Return the memory of each of its processes that computes."""
        return [resident(pid) for pid in self.pids]


def children(pid: int | str) -> list[int]:
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return [int(each) for task in tasks for each in (task / "children").read_text().split()]


def resident(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) // 1024
    return 0


async def measure(directory: Path, options: argparse.Namespace) -> dict[str, Any]:
    shared = {"threads": options.threads, "max_num_seqs": BATCH, "max_model_len": 512}
    sides = [
        Side(directory, **shared, speculation="off"),
        Side(directory, **shared, speculation="off", tensor_parallel_size=options.ranks),
    ]
    try:
        for side in sides:
            await side.start()
            await side.tokens_per_s(4, 0)
        pairs = []
        for number in range(options.rounds):
            # The first of a pair changes, for other work on the machine comes and goes.
            order = sides if number % 2 else sides[::-1]
            rates = {side: await side.tokens_per_s(options.tokens, number + 1) for side in order}
            pairs.append([rates[side] for side in sides])
        memory = [side.resident_mib() for side in sides]
    finally:
        for side in sides:
            await side.host.stop()
    one, ranks = (round(statistics.median(rates), 1) for rates in zip(*pairs, strict=True))
    return {
        "one": {"tokens_per_s": one, "resident_mib": memory[0][0]},
        "ranks": {"tokens_per_s": ranks, "resident_mib": memory[1]},
        "ratio": round(statistics.median(b / a for a, b in pairs), 2),
        "ratios": [round(b / a, 2) for a, b in pairs],
        "memory_ratio": round(max(memory[1]) / memory[0][0], 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="tensor parallelism beside one process, on CPU")
    parser.add_argument("--model", type=Path, help="a directory  [default: random weights]")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=24)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        directory = options.model or Path(scratch)
        if options.model is None:
            write_random_qwen2(directory)
        result = asyncio.run(measure(directory, options))
    print(
        f"{BATCH} sequences, {options.threads} threads in all; medians of {options.rounds} rounds"
    )
    print(f"{'':16}{'tokens/s':>10}{'resident MiB':>18}")
    for name, side in (("one process", result["one"]), ("ranks", result["ranks"])):
        print(f"{name:16}{side['tokens_per_s']:>10}{side['resident_mib']!s:>18}")
    print(
        f"{result['ratio']} times the tokens a second (1 on an ideal, idle machine), in each rank "
        f"{result['memory_ratio']} of the memory (floor {1 / options.ranks:.2f})"
    )
    print(json.dumps({"benchmark": "engine_parallel", "ranks": options.ranks} | result))


if __name__ == "__main__":
    main()
