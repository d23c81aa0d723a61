"""The engine beside ``transformers``: tokens per second alone and 16 at a time.

Peers are ``generate`` and transformers' continuous batching; the floor is a bare eager loop with
contiguous KV (``engines/sides.py``). All compute with the same weights in float32 on CPU
with the same threads, warmed up, inference mode on, greedy, and interleaved: other work on the
machine hits all alike, and ratios are medians over rounds.

    python benchmarks/engine.py [--rounds N] [--threads N]
    python benchmarks/engine.py --shape qwen3-0.5b --rounds 3     random weights of that size
"""

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
import transformers
from engines.sides import (
    BUNDLED,
    BareLoopSide,
    ContinuousTransformersSide,
    EngineSide,
    Prompts,
    TransformersSide,
    bundled_or_random,
    random_prompts,
    write_random_qwen3,
)

PROMPT_TOKENS = 64
NEW_TOKENS = {"bundled": 128, "qwen3-0.5b": 16}
BATCHES = (1, 16)
# Transformers' continuous batching is so slow on CPU that fewer tokens must do.
CONTINUOUS_TOKENS = 32

Run = Callable[[Prompts, int], list[str]]


def rate(run: Run, prompts: Prompts, new_tokens: int) -> float:
    """Return generated tokens per second."""
    start = time.perf_counter()
    run(prompts, new_tokens)
    return len(prompts) * new_tokens / (time.perf_counter() - start)


def compare(
    sides: Mapping[str, Run], prompts: Prompts, new_tokens: int, rounds: int
) -> dict[str, Any]:
    """Time all ``sides`` in turn, the engine first; ratios are the engine's to each other one."""
    # The first run of each warms it up, and shows that all compute the same.
    answers = {name: run(prompts, new_tokens) for name, run in sides.items()}
    samples = [
        {name: rate(run, prompts, new_tokens) for name, run in sides.items()} for _ in range(rounds)
    ]
    result: dict[str, Any] = {}
    for name in sides:
        rates = [sample[name] for sample in samples]
        result[name] = {"tokens_per_s": round(statistics.median(rates))}
        if name != "engine":
            ratios = sorted(sample["engine"] / sample[name] for sample in samples)
            same = zip(answers[name], answers["engine"], strict=True)
            result[name] |= {
                "ratio": round(statistics.median(ratios), 2),
                "ratio_range": [round(ratios[0], 2), round(ratios[-1], 2)],
                "equal_answers": f"{sum(a == b for a, b in same)}/{len(prompts)}",
            }
    return result


def measure(shape: str, directory: Path, threads: int, rounds: int) -> dict[str, Any]:
    """Return what ``compare`` finds, by batch."""
    peer = TransformersSide(directory)
    floor = BareLoopSide(peer)
    prompts = random_prompts(max(BATCHES), PROMPT_TOKENS, vocabulary=peer.model.config.vocab_size)
    result: dict[str, Any] = {}
    with ExitStack() as stack:
        engine = stack.enter_context(EngineSide(directory, threads=threads))
        for size in BATCHES:
            sides = {"engine": engine.run, "generate": peer.run, "bare loop": floor.run}
            row = compare(sides, prompts[:size], NEW_TOKENS[shape], rounds)
            if shape == "bundled":
                continuous = ContinuousTransformersSide(peer, directory)
                few = {"engine": engine.run, "continuous batching": continuous.run}
                few_row = compare(few, prompts[:size], CONTINUOUS_TOKENS, max(rounds // 2, 1))
                row["continuous batching"] = few_row["continuous batching"]
            result[f"batch_{size}"] = row
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description="engine beside transformers, on CPU")
    parser.add_argument("--shape", choices=NEW_TOKENS, default="bundled")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    torch.set_num_threads(options.threads)
    with tempfile.TemporaryDirectory() as scratch:
        if options.shape == "bundled":
            directory = bundled_or_random(Path(scratch))
        else:
            directory = Path(scratch)
            write_random_qwen3(directory)
        result = measure(options.shape, directory, options.threads, options.rounds)
    weights = "bundled" if directory == BUNDLED else f"random {options.shape}"
    print(
        f"{PROMPT_TOKENS} in, {NEW_TOKENS[options.shape]} out "
        f"({CONTINUOUS_TOKENS} beside continuous batching), "
        f"greedy, float32, {weights} weights, {options.threads} threads; medians"
    )
    print(f"{'batch':>5} {'':20} {'tokens/s':>9} {'engine to it':>13}  {'range':14} equal answers")
    for size in BATCHES:
        for name, row in result[f"batch_{size}"].items():
            low, high = row.get("ratio_range", ("", ""))
            print(
                f"{size:>5} {name:20} {row['tokens_per_s']:>9} {row.get('ratio', ''):>13}  "
                f"{low!s:>5} to {high!s:<5} {row.get('equal_answers', '')}"
            )
    print(
        json.dumps({"benchmark": "engine", "threads": options.threads, "weights": weights} | result)
    )


if __name__ == "__main__":
    main()
