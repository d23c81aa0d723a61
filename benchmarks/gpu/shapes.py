"""Models of real shapes with random weights, and engines around them, without a checkpoint."""

import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from backend.engine.core import EngineCore, EngineLimits
from backend.engine.messages import Submit
from backend.executor.factory import ALL_KERNELS, make_runner
from backend.executor.input_batch import BatchLimits
from backend.executor.kv_cache import KVCache
from backend.grammar.compiler import GrammarCompiler
from backend.models.config import DecoderConfig
from backend.models.decoder import DecoderWeights
from backend.models.families import parse_config
from backend.models.model import Network, network_of
from backend.models.weights import random_weights
from backend.scheduler.request import GenerationRequest, SamplingParams
from backend.scheduler.scheduler import slots_for
from gpu.machine import Machine

LLAMA_8B: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 128256,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500_000.0,
    "rope_scaling": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    },
    "tie_word_embeddings": False,
}
_TINY = {
    "vocab_size": 320,
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "max_position_embeddings": 256,
}


def shape_for(machine: Machine, values: dict[str, Any]) -> dict[str, Any]:
    """Return ``values``, or in a smoke run the same architecture in small."""
    return values | _TINY if machine.smoke else values


@dataclass(frozen=True)
class RandomModel:
    """Weights on the device and what they are shaped by."""

    config: DecoderConfig
    weights: DecoderWeights
    network: Network


def random_model(machine: Machine, values: dict[str, Any]) -> RandomModel:
    config = parse_config(shape_for(machine, values), "config")
    weights = random_weights(config, device=machine.device, dtype=machine.dtype)

    return RandomModel(config, weights, network_of(config, weights, machine.dtype))


@contextmanager
def engine(
    machine: Machine,
    model: RandomModel,
    *,
    max_num_seqs: int,
    max_model_len: int,
    num_blocks: int,
    graphs: bool,
    overlap: bool,
) -> Iterator[EngineCore]:
    """Warm an engine up and hold its memory for the time of the context."""
    # An engine and its loop know one another: what the last one held is freed here at the latest.
    gc.collect()
    if not machine.smoke:
        torch.cuda.empty_cache()
    tokens_per_step = 64 if machine.smoke else 8192
    cache = KVCache(model.config, num_blocks, device=machine.device, dtype=machine.dtype)
    batches = BatchLimits(
        num_slots=slots_for(max_num_seqs),
        max_num_seqs=max_num_seqs,
        max_tokens_per_step=tokens_per_step,
        max_model_len=max_model_len,
    )
    captures = graphs and not machine.smoke
    runner = make_runner(model.network, cache, batches, kernels=ALL_KERNELS, graphs=captures)
    limits = EngineLimits(
        num_blocks=num_blocks,
        max_num_seqs=max_num_seqs,
        max_model_len=max_model_len,
        max_tokens_per_step=tokens_per_step,
        overlap=overlap,
    )
    core = EngineCore(runner, frozenset(), limits, GrammarCompiler(_no_vocabulary))
    if not machine.smoke:
        core.runner.warm_up()
    yield core


def _no_vocabulary() -> Any:
    raise AssertionError("no grammar is asked for")


GREEDY = SamplingParams(temperature=0.0)
SAMPLED = SamplingParams(temperature=0.7, top_k=20, top_p=0.95, seed=1)
"""As Qwen 3's checkpoints recommend."""


def generate(
    core: EngineCore,
    prompts: Sequence[Sequence[int]],
    new_tokens: Sequence[int],
    arrived: float,
    sampling: SamplingParams = GREEDY,
) -> list[list[int]]:
    """Ask for all at once and step until all have ended."""
    for number, (prompt, count) in enumerate(zip(prompts, new_tokens, strict=True)):
        own = replace(sampling, max_tokens=count, ignore_eos=True)
        request = GenerationRequest("benchmark", tuple(prompt), own, stream=False)
        core.submit(Submit(number, request, arrived))
    results: list[list[int]] = [[] for _ in prompts]
    while core.has_work:
        core.step()
        for number, item in core.take_items():
            if isinstance(item, Exception):
                raise item
            results[number] += item.tokens
    return results


def random_prompts(vocab: int, lengths: Sequence[int]) -> list[list[int]]:
    generator = torch.Generator().manual_seed(2)
    drawn: list[Tensor] = [torch.randint(0, vocab, (n,), generator=generator) for n in lengths]
    return [each.tolist() for each in drawn]
