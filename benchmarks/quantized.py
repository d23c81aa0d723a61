"""Weights in int8 beside bfloat16 and float32, on CPU: tokens a second, and memory.

One random model of half a billion parameters in Qwen 3's shape, on the same engine in each type, in
turn within a round. Alone: one sequence decodes. Together: 16 do. Memory is what the process grows
by, less the KV pool. The floor is what one pass over the weights takes at the speed at which this
machine reads memory. Sequences are those of 256 tokens that fit into a KV pool of 256 MiB.

    python benchmarks/quantized.py [--rounds N] [--tokens N] [--threads N]
"""

import argparse
import gc
import json
import os
import statistics
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

import torch
from engines.sides import EngineSide, random_prompts, write_random_qwen3

from backend.engine.loading import load_model
from backend.settings import EngineOptions

BATCH = 16
PROMPT_TOKENS = 16
KV_BYTES = 2**28
SEQUENCE_TOKENS = 256
KINDS = {
    "float32": {"dtype": "float32"},
    "bfloat16": {"dtype": "bfloat16"},
    "int8": {"dtype": "float32", "quantization": "int8"},
}
Figures = dict[str, float]


def resident_bytes() -> int:
    """Return what this process has in memory."""
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def read_speed() -> float:
    """Return the bytes a second that a sum over memory larger than any cache reads."""
    values = torch.ones(2**26)
    best = float("inf")
    for _ in range(5):
        start = time.perf_counter()
        values.sum()
        best = min(best, time.perf_counter() - start)
    return values.nbytes / best


def num_sequences(directory: Path, dtype: str, kv_dtype: str = "auto") -> int:
    """Return how many sequences the KV pool holds."""
    options = EngineOptions(
        str(directory), device="cpu", dtype=dtype, kv_dtype=kv_dtype, kv_bytes=KV_BYTES
    )
    return load_model(options).core.limits.num_blocks * 16 // SEQUENCE_TOKENS


def rate(side: EngineSide, count: int, tokens: int) -> float:
    """Return the tokens a second that ``count`` sequences get together."""
    prompts = random_prompts(count, PROMPT_TOKENS)
    start = time.perf_counter()
    side.run(prompts, tokens)
    return count * tokens / (time.perf_counter() - start)


def measure(directory: Path, *, rounds: int, tokens: int, threads: int) -> dict[str, Figures]:
    """Return the best of all rounds: other work on the machine only takes away."""
    with ExitStack() as stack:
        sides: dict[str, EngineSide] = {}
        figures: dict[str, Figures] = {}
        for name, options in KINDS.items():
            before = resident_bytes()
            side = EngineSide(
                directory, threads=threads, max_num_seqs=BATCH, kv_bytes=KV_BYTES, **options
            )
            figures[name] = {"memory_mb": round((resident_bytes() - before - KV_BYTES) / 1e6)}
            sides[name] = stack.enter_context(side)
            side.run(random_prompts(1, PROMPT_TOKENS), 2)
        alone: dict[str, list[float]] = {name: [] for name in sides}
        together: dict[str, list[float]] = {name: [] for name in sides}
        for _ in range(rounds):
            for name, side in sides.items():
                alone[name].append(rate(side, 1, tokens))
                together[name].append(rate(side, BATCH, tokens))
        for name in sides:
            figures[name] |= {
                "alone": round(max(alone[name]), 1),
                "alone_median": round(statistics.median(alone[name]), 1),
                "batch_16": round(max(together[name]), 1),
            }
        return figures


def main() -> None:
    parser = argparse.ArgumentParser(description="int8 beside bfloat16 and float32, on CPU")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=24)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    with tempfile.TemporaryDirectory() as scratch:
        write_random_qwen3(Path(scratch))
        size = (Path(scratch) / "model.safetensors").stat().st_size // 2
        floor = read_speed() / size
        fit = {kind: num_sequences(Path(scratch), kind) for kind in ("float32", "bfloat16")}
        fit["int8"] = num_sequences(Path(scratch), "float32", "int8")
        figures = measure(
            Path(scratch), rounds=options.rounds, tokens=options.tokens, threads=options.threads
        )
    print(f"{size / 1e6:.0f}M parameters, {options.threads} threads; tokens/s, best of rounds")
    print(f"{'':10}{'alone':>8}{'batch 16':>10}{'memory, MB':>12}")
    for name, each in figures.items():
        print(f"{name:10}{each['alone']:>8}{each['batch_16']:>10}{each['memory_mb']:>12}")
    print(f"one pass over the weights in int8 alone: {floor:.1f} tokens/s")
    print("sequences in the KV pool: " + ", ".join(f"{n} in {kind}" for kind, n in fit.items()))
    int8 = figures["int8"]
    ratios = {
        f"{key}_beside_{name}": round(int8[key] / figures[name][key], 2)
        for name in ("float32", "bfloat16")
        for key in ("alone", "batch_16", "memory_mb")
    }
    ratios |= {
        f"kv_sequences_beside_{name}": round(fit["int8"] / fit[name], 2)
        for name in ("float32", "bfloat16")
    }
    result = {"benchmark": "quantized", "floor_alone": round(floor, 1), "kv_sequences": fit}
    print(json.dumps(result | figures | ratios))


if __name__ == "__main__":
    main()
