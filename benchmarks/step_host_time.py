"""The host's part of a step: 256 sequences that decode behind 8,192 tokens, the device simulated.

Scheduler, model runner and input batch are the engine's own, laid out for its Triton kernels; the
model returns zeros and the drawn tokens are given, so nothing but bookkeeping is left. All times
are processor time of one thread, medians over steps. Overlap hides the host's part behind the
device's while it is shorter. The floor is what the smallest possible bookkeeping costs: one Python
call for each sequence.

    python benchmarks/step_host_time.py [--sequences N] [--tokens N] [--steps N]
"""

import argparse
import json
import statistics
import time
from typing import Any

import torch
from torch import Tensor

from backend.engine.core import EngineCore, EngineLimits
from backend.engine.messages import Submit
from backend.executor.attention.triton import TritonAttention
from backend.executor.input_batch import BatchLimits
from backend.executor.kv_cache import KVCache
from backend.executor.model_runner import ModelRunner, RunnerParts
from backend.executor.sampler.batch import DrawGroup
from backend.grammar.compiler import GrammarCompiler
from backend.models.attention import Attention
from backend.models.families import parse_config
from backend.scheduler.block_pool import blocks_for
from backend.scheduler.request import GenerationRequest, SamplingParams
from backend.scheduler.scheduler import slots_for

VOCABULARY = 32
SHAPE: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 16,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-5,
}


class NoModel:
    """Stands for a model whose device computes while the host does other things."""

    device = torch.device("cpu")
    dtype = torch.float32

    def forward(
        self, tokens: Tensor, positions: Tensor, attention: Attention, logit_rows: Tensor | None
    ) -> Tensor:
        del positions, attention
        return torch.zeros(len(tokens) if logit_rows is None else len(logit_rows), 1)

    def logits(self, hidden: Tensor) -> Tensor:
        return hidden.expand(-1, VOCABULARY)


def draw(logits: Tensor, group: DrawGroup, keys: Tensor) -> Tensor:
    del group, keys
    return torch.zeros(len(logits), dtype=torch.int64)


def engine(num_sequences: int, length: int) -> EngineCore:
    limits = BatchLimits(
        num_slots=slots_for(num_sequences),
        max_num_seqs=num_sequences,
        max_tokens_per_step=8192,
        max_model_len=length,
    )
    config = parse_config(SHAPE, "config")
    cache = KVCache(config, 1, device=NoModel.device, dtype=NoModel.dtype)
    attention = TritonAttention(cache, config, limits, dtype=NoModel.dtype)
    parts = RunnerParts(NoModel(), VOCABULARY, cache, attention, draw)
    return EngineCore(
        ModelRunner(parts, limits, pads=True),
        frozenset(),
        EngineLimits(
            num_blocks=(num_sequences + 1) * blocks_for(length),
            max_num_seqs=num_sequences,
            max_model_len=length,
            max_tokens_per_step=8192,
            overlap=True,
        ),
        GrammarCompiler(no_vocabulary),
    )


def no_vocabulary() -> Any:
    raise AssertionError("no grammar is asked for")


class Stopwatch:
    """Sums up the processor time of some methods within one step."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    def time(self, owner: Any, method: str, name: str) -> None:
        call = getattr(owner, method)

        def timed(*args: Any, **options: Any) -> Any:
            start = time.thread_time()
            try:
                return call(*args, **options)
            finally:
                spent = time.thread_time() - start
                self.seconds[name] = self.seconds.get(name, 0.0) + spent

        setattr(owner, method, timed)


def decoding(num_sequences: int, prompt_tokens: int, num_steps: int) -> EngineCore:
    """Return an engine in which every sequence is past its prompt, with so many steps to go."""
    num_prefill_steps = num_sequences * prompt_tokens // 8192 + num_sequences + 2
    new_tokens = num_prefill_steps + num_steps
    core = engine(num_sequences, prompt_tokens + new_tokens + 2)
    sampling = SamplingParams(temperature=0.0, max_tokens=new_tokens, ignore_eos=True)
    for number in range(num_sequences):
        # No two begin alike, so that nothing is found in the prefix cache.
        prompt = (number % VOCABULARY, number // VOCABULARY, *[0] * (prompt_tokens - 2))
        request = GenerationRequest("benchmark", prompt, sampling, stream=True)
        core.submit(Submit(number, request, time.monotonic()))
    num_decoding = 0
    while num_decoding < num_sequences:
        core.step()
        num_decoding = len(core.take_items())
    return core


def step_time(core: EngineCore) -> float:
    start = time.thread_time()
    core.step()
    seconds = time.thread_time() - start
    core.take_items()
    return seconds


def measure(num_sequences: int, prompt_tokens: int, num_steps: int) -> dict[str, float]:
    """Return median milliseconds of a step and, of others, of its parts."""
    core = decoding(num_sequences, prompt_tokens, 2 * num_steps)
    samples: list[dict[str, float]] = [{"step": step_time(core)} for _ in range(num_steps)]
    result = medians(samples)
    watch = Stopwatch()
    watch.time(core.scheduler, "schedule", "schedule")
    watch.time(core.runner, "launch", "build")
    watch.time(core.runner, "sample", "sample")
    watch.time(core.runner, "collect", "collect")
    watch.time(core.scheduler, "complete", "complete")
    watch.time(core, "_advance", "answers")
    samples = []
    for _ in range(num_steps):
        watch.seconds = {}
        step_time(core)
        samples.append(watch.seconds)
    return result | medians(samples)


def medians(samples: list[dict[str, float]]) -> dict[str, float]:
    return {
        name: round(1000 * statistics.median(sample[name] for sample in samples), 3)
        for name in samples[0]
    }


def floor(num_sequences: int) -> float:
    """Return milliseconds of one call of Python for each sequence."""

    def nothing(number: int) -> int:
        return number

    times = []
    for _ in range(100):
        start = time.thread_time()
        for number in range(num_sequences):
            nothing(number)
        times.append(time.thread_time() - start)
    return round(1000 * statistics.median(times), 3)


def main() -> None:
    parser = argparse.ArgumentParser(description="the host's part of a step, device simulated")
    parser.add_argument("--sequences", type=int, default=256)
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--steps", type=int, default=100)
    options = parser.parse_args()
    torch.set_num_threads(1)
    parts = measure(options.sequences, options.tokens, options.steps)
    least = floor(options.sequences)
    print(f"{options.sequences} sequences of {options.tokens} tokens; processor time, medians")
    for name, milliseconds in parts.items():
        print(f"{name:10}{milliseconds:8.2f} ms")
    print(f"{'floor':10}{least:8.2f} ms")
    print(
        json.dumps(
            {
                "benchmark": "step_host_time",
                "sequences": options.sequences,
                "tokens": options.tokens,
                "ms": parts,
                "floor_ms": least,
            }
        )
    )


if __name__ == "__main__":
    main()
