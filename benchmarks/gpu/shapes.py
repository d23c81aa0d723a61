"""Models of real shapes with random weights, and engines around them, without a checkpoint."""

import gc
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from backend.check import QWEN3_600M
from backend.engine.core import EngineCore, EngineLimits
from backend.engine.messages import Submit
from backend.executor.factory import ALL_KERNELS, Kernels, make_runner
from backend.executor.input_batch import BatchLimits
from backend.executor.kv_cache import KVCache
from backend.grammar.compiler import GrammarCompiler
from backend.models.config import DecoderConfig
from backend.models.decoder import MLP, DecoderLayer, DecoderWeights
from backend.models.families import parse_config
from backend.models.layers import DenseLinear, Linear
from backend.models.model import Network, network_of
from backend.models.quantization.linears import KernelLinear, quantized_linear
from backend.models.quantization.weight import FP8, QuantizedWeight
from backend.models.weights import random_weights
from backend.scheduler.block_pool import blocks_for
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
# Weights 15.0, KV of 64 sequences of 576 tokens and some blocks 4.75, steps and graphs 2.75.
_BYTES_FOR_8B = int(22.5 * 2**30)
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


def card_shape(machine: Machine) -> tuple[str, dict[str, Any]]:
    """Return the shape that this card is measured with, and its name."""
    if machine.smoke:
        return "tiny", LLAMA_8B
    free = machine.free_bytes()
    if free >= _BYTES_FOR_8B:
        return "Llama 8B", LLAMA_8B
    least = f"8B needs {_BYTES_FOR_8B / 2**30:.1f} GiB, {free / 2**30:.1f} are free"
    return f"Qwen3 0.6B ({least})", QWEN3_600M


def random_model(
    machine: Machine, values: dict[str, Any], weights_in: str | None = None
) -> RandomModel:
    """Return a model of the shape ``values``; ``weights_in`` is fp8, int4, or None for neither."""
    config = parse_config(shape_for(machine, values), "config")
    weights = random_weights(config, device=machine.device, dtype=machine.dtype)
    if weights_in is not None:
        layers = list(weights.layers)
        weights = replace(weights, layers=())
        # One after the other, and each layer's memory is free before the next is made.
        while len(weights.layers) < config.num_layers:
            layer = _quantised(machine, layers.pop(0), weights_in)
            weights = replace(weights, layers=(*weights.layers, layer))
    return RandomModel(config, weights, network_of(config, weights, machine.dtype))


def _quantised(machine: Machine, layer: DecoderLayer, weights_in: str) -> DecoderLayer:
    """Return ``layer`` as published checkpoints have it: norms stay as they are."""

    def linear(dense: Linear) -> Linear:
        if not isinstance(dense, DenseLinear):
            raise TypeError(f"{dense} is not dense")
        weight = quantised_weight(dense.weight, weights_in)
        # The interpreter's tensors lie where torch's own products of bytes would be taken.
        if machine.smoke:
            return KernelLinear(weight, dense.bias)
        return quantized_linear(weight, dense.bias, machine.dtype)

    if not isinstance(layer.mlp, MLP):
        raise TypeError("experts have no random weights in fewer bits")
    return replace(
        layer,
        qkv=linear(layer.qkv),
        output=linear(layer.output),
        mlp=MLP(linear(layer.mlp.gate_up), linear(layer.mlp.down)),
    )


def quantised_weight(weight: Tensor, weights_in: str) -> QuantizedWeight:
    """Return FP8 with a scale for each row, or symmetric int4 with one for each group of 128."""
    rows, columns = weight.shape
    size, most = (columns, 448) if weights_in == "fp8" else (min(128, columns), 7)
    groups = weight.float().view(rows, -1, size)
    scales = groups.abs().amax(dim=2, keepdim=True) / most
    codes = (groups / scales).view(rows, columns)
    scales = scales.squeeze(2)
    if weights_in == "fp8":
        return QuantizedWeight(codes.to(FP8), scales, None, size)
    return QuantizedWeight(codes.round_().to(torch.int8), scales, None, size, bits=4)


@contextmanager
def engine(
    machine: Machine,
    model: RandomModel,
    *,
    max_num_seqs: int,
    max_model_len: int,
    num_blocks: int | None = None,
    graphs: bool = True,
    overlap: bool = True,
    kernels: Kernels = ALL_KERNELS,
    kv_dtype: torch.dtype | None = None,
) -> Iterator[EngineCore]:
    """Warm an engine up and hold its memory for the time of the context.

    ``num_blocks`` None: all sequences have room for their whole length.
    """
    # An engine and its loop know one another: what the last one held is freed here at the latest.
    gc.collect()
    if not machine.smoke:
        torch.cuda.empty_cache()
    tokens_per_step = 64 if machine.smoke else 8192
    if num_blocks is None:
        num_blocks = max_num_seqs * (blocks_for(max_model_len) + 2)
    kv_dtype = kv_dtype or machine.dtype
    cache = KVCache(model.config, num_blocks, device=machine.device, dtype=kv_dtype)
    batches = BatchLimits(
        num_slots=slots_for(max_num_seqs),
        max_num_seqs=max_num_seqs,
        max_tokens_per_step=tokens_per_step,
        max_model_len=max_model_len,
    )
    captures = graphs and not machine.smoke
    runner = make_runner(model.network, cache, batches, kernels=kernels, graphs=captures)
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


def submit(
    core: EngineCore,
    prompts: Sequence[Sequence[int]],
    new_tokens: Sequence[int],
    sampling: SamplingParams = GREEDY,
) -> None:
    """Ask for all at once."""
    arrived = time.monotonic()
    for number, (prompt, count) in enumerate(zip(prompts, new_tokens, strict=True)):
        own = replace(sampling, max_tokens=count, ignore_eos=True)
        request = GenerationRequest("benchmark", tuple(prompt), own, stream=False)
        core.submit(Submit(number, request, arrived))


def generate(
    core: EngineCore,
    prompts: Sequence[Sequence[int]],
    new_tokens: Sequence[int],
    sampling: SamplingParams = GREEDY,
) -> list[list[int]]:
    """Ask for all at once and step until all have ended."""
    submit(core, prompts, new_tokens, sampling)
    results: list[list[int]] = [[] for _ in prompts]
    while core.scheduler.has_work:
        for number, tokens in advance(core):
            results[number] += tokens
    return results


def advance(core: EngineCore) -> list[tuple[int, tuple[int, ...]]]:
    """Take a step, and return the tokens that requests got, by number; a failure is raised."""
    core.step()
    got = []
    for number, item in core.take_items():
        if isinstance(item, Exception):
            raise item
        got.append((number, tuple(item.tokens)))
    return got


def random_prompts(vocab: int, lengths: Sequence[int], seed: int = 2) -> list[list[int]]:
    generator = torch.Generator().manual_seed(seed)
    drawn: list[Tensor] = [torch.randint(0, vocab, (n,), generator=generator) for n in lengths]
    return [each.tolist() for each in drawn]
