"""The engine with the kernels' runner on CPU tensors, driven step by step.

For the interpreter's process: functions take and return plain values. On a GPU they run anywhere.
"""

from collections.abc import Sequence as SequenceOf
from pathlib import Path
from typing import Any

import torch

from backend.engine.core import EngineCore, EngineLimits
from backend.engine.messages import Submit
from backend.executor.cuda_engine import make_cuda_runner
from backend.executor.kv_cache import KVCache
from backend.grammar.compiler import GrammarCompiler
from backend.models.registry import load_network
from backend.scheduler.block_pool import blocks_for
from backend.scheduler.request import GenerationRequest, SamplingParams
from backend.scheduler.sequence import ScheduledSequence, Sequence

MAX_LENGTH = 256


def make_runner(
    directory: str,
    *,
    num_blocks: int = 64,
    max_num_seqs: int = 8,
    max_tokens_per_step: int = 64,
    device: str = "cpu",
    dtype: torch.dtype = torch.float32,
    **options: Any,
):
    """Return a runner for the checkpoint in ``directory``."""
    network = load_network(
        Path(directory), device=torch.device(device), dtype=str(dtype).removeprefix("torch.")
    )
    cache = KVCache(network.shape, num_blocks, device=torch.device(device), dtype=dtype)
    return make_cuda_runner(
        network,
        cache,
        max_num_seqs=max_num_seqs,
        max_tokens_per_step=max_tokens_per_step,
        max_model_len=MAX_LENGTH,
        **options,
    )


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
    runner = make_runner(directory, **options)
    if warms_up:
        runner.warm_up()
    core = EngineCore(runner, frozenset(), limits, GrammarCompiler(_no_vocabulary))
    params = {"temperature": 0.0, "max_tokens": new_tokens, "ignore_eos": True} | (sampling or {})
    for number, prompt in enumerate(prompts):
        request = GenerationRequest("r", tuple(prompt), SamplingParams(**params))
        core.submit(Submit(number, request, 0.0))
    tokens: dict[int, list[int]] = {number: [] for number in range(len(prompts))}
    while core.has_work:
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
    runner = make_runner(directory, **options)
    greedy = SamplingParams(temperature=0.0)
    sequences = []
    first_block = 1
    for number, prompt in enumerate(prompts):
        sequence = Sequence(number, list(prompt), len(prompt) + new_tokens, sampling=greedy)
        count = blocks_for(len(prompt) + new_tokens)
        sequence.block_table = list(range(first_block, first_block + count))
        first_block += count
        sequences.append(sequence)
    in_flight = runner.launch(
        tuple(
            ScheduledSequence(sequence, 0, len(sequence.tokens), samples=True)
            for sequence in sequences
        )
    )
    for number in range(new_tokens):
        following = None
        if number + 1 < new_tokens:
            following = runner.launch(
                tuple(
                    # Its last token is chosen, and known to the device alone.
                    ScheduledSequence(sequence, len(sequence.tokens), 1, samples=True)
                    # The order changes, so that tokens must find their rows.
                    for sequence in (sequences[::-1] if number % 2 else sequences)
                )
            )
        for sequence, sampled in runner.collect(in_flight):
            assert sampled is not None
            sequence.tokens.append(sampled.token)
        in_flight = following
    return [sequence.tokens[sequence.num_prompt_tokens :] for sequence in sequences]
