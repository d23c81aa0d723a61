"""The engine with the kernels' runner on CPU tensors, driven step by step.

For the interpreter's process: functions take and return plain values. On a GPU they run anywhere.
"""

from collections.abc import Sequence as SequenceOf
from pathlib import Path
from typing import Any

import torch

from backend.engine.core import EngineCore, EngineLimits
from backend.engine.messages import Submit
from backend.executor import factory
from backend.executor.factory import ALL_KERNELS, NO_KERNELS, Kernels, make_runner
from backend.executor.input_batch import BatchLimits
from backend.executor.kv_cache import KVCache, LayerKV
from backend.grammar.compiler import GrammarCompiler
from backend.models.loading import load_network
from backend.scheduler.batch import batch_of
from backend.scheduler.block_pool import blocks_for
from backend.scheduler.request import GenerationRequest, SamplingParams
from backend.scheduler.scheduler import slots_for
from backend.scheduler.sequence import ScheduledSequence, Sequence

MAX_LENGTH = 256


class Rerun:
    """Stands for CUDA's graphs on CPU: a replay runs what was captured again."""

    def record(self, run: Any) -> tuple[Any, Any]:
        output = run()

        def replay() -> None:
            again = run()
            if output is not None:
                output.copy_(again)

        return replay, output


def runner_for(
    directory: str,
    *,
    num_blocks: int = 64,
    max_num_seqs: int = 8,
    max_tokens_per_step: int = 64,
    device: str = "cpu",
    dtype: torch.dtype = torch.float32,
    kernels: bool | Kernels = True,
    kv_scale: float | None = None,
    **options: Any,
):
    """Return a runner for the checkpoint in ``directory``.

    ``kv_scale`` keeps keys and values in int8, each head with this scale: as FP8 is kept on CUDA.
    """
    network = load_network(
        Path(directory), device=torch.device(device), dtype=str(dtype).removeprefix("torch.")
    )
    cache = KVCache(network.shape, num_blocks, device=torch.device(device), dtype=dtype)
    if kv_scale is not None:
        heads = 2 * network.shape.num_kv_heads
        cache.dtype = torch.int8
        cache.layers = tuple(
            LayerKV(layer.blocks.to(torch.int8), torch.full((heads,), kv_scale))
            for layer in cache.layers
        )
    limits = BatchLimits(
        num_slots=slots_for(max_num_seqs),
        max_num_seqs=max_num_seqs,
        max_tokens_per_step=max_tokens_per_step,
        max_model_len=MAX_LENGTH,
    )
    if isinstance(kernels, bool):
        kernels = ALL_KERNELS if kernels else NO_KERNELS
    if options.get("graphs") and device == "cpu":
        factory.CudaRecorder = Rerun
    return make_runner(network, cache, limits, kernels=kernels, pads=bool(kernels), **options)


def generate(
    directory: str,
    prompts: SequenceOf[SequenceOf[int]],
    new_tokens: int,
    sampling: dict[str, Any] | None = None,
    *,
    overlap: bool = False,
    warms_up: bool = False,
    **options: Any,
) -> tuple[list[list[int]], int]:
    """Return the continuations of ``prompts``, all asked for at once, and the preemptions."""
    limits = EngineLimits(
        num_blocks=options.get("num_blocks", 64),
        max_num_seqs=options.get("max_num_seqs", 8),
        max_model_len=MAX_LENGTH,
        max_tokens_per_step=options.get("max_tokens_per_step", 64),
        overlap=overlap,
    )
    runner = runner_for(directory, **options)
    if warms_up:
        runner.warm_up()
    core = EngineCore(runner, frozenset(), limits, GrammarCompiler(_no_vocabulary))
    params = {"temperature": 0.0, "max_tokens": new_tokens, "ignore_eos": True} | (sampling or {})
    for number, prompt in enumerate(prompts):
        request = GenerationRequest("r", tuple(prompt), SamplingParams(**params))
        core.submit(Submit(number, request, 0.0))
    tokens: dict[int, list[int]] = {number: [] for number in range(len(prompts))}
    while core.scheduler.has_work:
        core.step()
        for number, item in core.take_items():
            if isinstance(item, Exception):
                raise item
            tokens[number] += item.tokens
    return list(tokens.values()), core.stats().preemptions


def _no_vocabulary():
    raise AssertionError("no grammar is asked for")


def generate_ahead(
    directory: str, prompts: SequenceOf[SequenceOf[int]], new_tokens: int, **options: Any
) -> list[list[int]]:
    """The same, each step launched before the one before it is collected."""
    runner = runner_for(directory, **options)
    greedy = SamplingParams(temperature=0.0)
    sequences = []
    first_block = 1
    for number, prompt in enumerate(prompts):
        sequence = Sequence(number, list(prompt), len(prompt) + new_tokens, sampling=greedy)
        sequence.slot = number
        count = blocks_for(len(prompt) + new_tokens)
        sequence.block_table = list(range(first_block, first_block + count))
        first_block += count
        sequences.append(sequence)

    def launch(number: int) -> tuple[list[Sequence], Any]:
        # The order changes, so that tokens must find their rows.
        order = sequences[::-1] if number % 2 else sequences
        step = tuple(
            # Behind the first step its token is chosen, and known to the device alone.
            ScheduledSequence(sequence, sequence.num_prompt_tokens + number - 1, 1, samples=True)
            if number
            else ScheduledSequence(sequence, 0, len(sequence.tokens), samples=True)
            for sequence in order
        )
        return order, runner.sample(runner.launch(batch_of(step)))

    launched = launch(0)
    for number in range(1, new_tokens + 1):
        following = launch(number) if number < new_tokens else None
        for sequence, sampled in zip(launched[0], runner.collect(launched[1]), strict=True):
            assert sampled is not None
            sequence.tokens += sampled.tokens
        launched = following
    return [sequence.tokens[sequence.num_prompt_tokens :] for sequence in sequences]
