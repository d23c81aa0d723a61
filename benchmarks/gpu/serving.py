"""Whole models: decode steps beside copy rate, prefill beside products, many beside a peer."""

import gc
import time
from typing import Any

import torch

from backend.check import QWEN3_600M, step_bytes
from backend.engine.core import EngineCore
from backend.executor.factory import ALL_KERNELS, KernelGroup
from backend.executor.kv_cache import FP8
from backend.executor.self_check import self_check
from backend.models.config import ModelLoadError
from backend.models.dtypes import kv_cache_dtype
from backend.models.layers import DenseLinear
from backend.scheduler.block_pool import blocks_for
from gpu.checks import short
from gpu.machine import Machine, Note
from gpu.shapes import (
    GREEDY,
    SAMPLED,
    RandomModel,
    card_shape,
    engine,
    generate,
    random_model,
    random_prompts,
    shape_for,
)

BATCHES = (1, 64)
CONTEXT = 512
_NEW_TOKENS = 64


def decode(machine: Machine, note: Note, form: str) -> None:
    """Decode alone and with 64 sequences; ``form`` is bf16, fp8, int4 or fp8-kv.

    Kernels are those that pass the self-check, as in the engine.
    """
    bandwidth = machine.copy_rate()
    note("copy_bytes_per_s", bandwidth)
    name, values = card_shape(machine)
    note("shape", name)
    kv_dtype = machine.dtype
    if form == "fp8-kv":
        try:
            kv_dtype = FP8 if machine.smoke else kv_cache_dtype("fp8", kv_dtype, machine.device)
        except ModelLoadError as error:
            note("skipped", str(error))
            return
    model = random_model(machine, values, form if form in {"fp8", "int4"} else None)
    context, new_tokens = (8, 3) if machine.smoke else (CONTEXT, _NEW_TOKENS)
    # The self-check has sequences of 70 tokens.
    longest = max(context + new_tokens, 128)
    kernels = ALL_KERNELS
    # The interpreter rounds to FP8 wrongly.
    if not (machine.smoke and kv_dtype is FP8):
        proved = self_check(model.network, machine.device, kv_dtype, longest)
        note("self_check", short(proved))
        kernels = proved.kernels
    if kv_dtype is FP8 and KernelGroup.KV_8_BITS not in kernels:
        note("skipped", "no kernel reads FP8 here, see self_check")
        return
    for count in (1, 2) if machine.smoke else BATCHES:
        with engine(
            machine,
            model,
            max_num_seqs=count,
            max_model_len=longest,
            kernels=kernels,
            kv_dtype=kv_dtype,
        ) as core:
            prompts = random_prompts(model.config.vocab_size, [context] * count)
            seconds = _step_seconds(core, prompts, new_tokens, 1 if machine.smoke else 3)
        del core
        read = step_bytes(model.network, kv_dtype, count, context + new_tokens // 2)
        if read is None:
            raise TypeError("a mixture of experts has no floor")
        note(
            f"{count} x {context}",
            {
                "step_ms": seconds * 1e3,
                "tokens_per_s": count / seconds,
                "read_bytes": read,
                "floor_ms": read / bandwidth * 1e3,
                "share_of_floor": read / bandwidth / seconds,
            },
        )


def _step_seconds(
    core: EngineCore, prompts: list[list[int]], new_tokens: int, repetitions: int
) -> float:
    """Return the time of a decode step: the difference leaves prompts, which are cached, out."""
    generate(core, prompts, [1] * len(prompts))
    least = {}
    for count in (1, new_tokens):
        seconds = []
        for _ in range(repetitions):
            start = time.perf_counter()
            generate(core, prompts, [count] * len(prompts))
            seconds.append(time.perf_counter() - start)
        least[count] = min(seconds)
    return max(least[new_tokens] - least[1], 1e-9) / (new_tokens - 1)


def prefill(machine: Machine, note: Note) -> None:
    """Compute long prompts alone; operations are those of products and of causal attention."""
    products = machine.product_rate()
    note("product_flops_per_s", products)
    note("peak_flops_per_s", machine.peak_flops)
    name, values = card_shape(machine)
    note("shape", name)
    model = random_model(machine, values)
    lengths = (40, 100) if machine.smoke else (8192, 32_768)
    longest = lengths[-1] + 16
    with engine(
        machine, model, max_num_seqs=1, max_model_len=longest, num_blocks=blocks_for(longest)
    ) as core:
        for length in lengths:
            # Prompts of their own: none is found in the prefix cache. The first one warms up.
            vocab = model.config.vocab_size
            prompts = random_prompts(vocab, [length] * 2, seed=length)
            times = []
            for prompt in prompts:
                start = time.perf_counter()
                generate(core, [prompt], [1])
                times.append(time.perf_counter() - start)
            rate = _operations(model, length) / times[-1]
            result = {
                "seconds": times[-1],
                "tokens_per_s": length / times[-1],
                "flops_per_s": rate,
                "share_of_product": rate / products,
            }
            if machine.peak_flops is not None:
                result["share_of_peak"] = rate / machine.peak_flops
            note(f"{length} tokens", result)


def _operations(model: RandomModel, length: int) -> int:
    """Return the operations of a prompt; of its logits only the last row's are computed."""
    config = model.config
    _, *linears = model.weights.linears  # the head is first
    sizes = [each.weight.numel() for each in linears if isinstance(each, DenseLinear)]
    attention = 2 * config.num_layers * config.num_heads * config.head_dim * length**2
    head = 2 * config.vocab_size * config.hidden_size
    return 2 * sum(sizes) * length + attention + head


def _ways(machine: Machine) -> tuple[tuple[bool, bool], ...]:
    """Graphs, overlap."""
    if machine.smoke:
        return (True, True), (True, False)
    return (True, True), (True, False), (False, True), (False, False)


def _name(graphs: bool, overlap: bool) -> str:
    return f"graphs_{'on' if graphs else 'off'}_overlap_{'on' if overlap else 'off'}"


def many(machine: Machine, note: Note) -> None:
    """256 requests of 100 to 1,024 tokens in and out, all there at once."""
    model = random_model(machine, QWEN3_600M)
    count = 2 if machine.smoke else 256
    least, most = (2, 5) if machine.smoke else (100, 1024)
    generator = torch.Generator().manual_seed(3)
    lengths, new_tokens = (
        torch.randint(least, most + 1, (count,), generator=generator).tolist() for _ in range(2)
    )
    prompts = random_prompts(model.config.vocab_size, lengths)
    note("requests", count)
    note("prompt_tokens", sum(lengths))
    note("output_tokens", sum(new_tokens))
    answers = {}
    rates = {}
    for graphs, overlap in _ways(machine):
        with engine(
            machine,
            model,
            max_num_seqs=count,
            max_model_len=64 if machine.smoke else 2048,
            num_blocks=16 if machine.smoke else 20_000,
            graphs=graphs,
            overlap=overlap,
        ) as core:
            # Other prompts, so that the measured ones are not found in the prefix cache.
            warm = [prompt[::-1] for prompt in prompts[: len(prompts) // 4]]
            generate(core, warm, [8] * len(warm))
            name = _name(graphs, overlap)
            start = time.perf_counter()
            answers[name] = generate(core, prompts, new_tokens)
            seconds = time.perf_counter() - start
            rates[name] = sum(new_tokens) / seconds
            note(name, {"seconds": seconds, "output_tokens_per_s": rates[name]})
            if graphs and overlap and not machine.smoke:
                note("sampled", _sampled(core, prompts, new_tokens))
        del core
    first, *others = answers.values()
    # Rounding differs with the batch, so some may part; graphs and overlap change no arithmetic.
    equal = [
        sum(ours == theirs for ours, theirs in zip(first, other, strict=True)) for other in others
    ]
    note("equal_answers", equal)
    del model
    if machine.smoke:
        return  # on CPU the peer takes a minute to start
    gc.collect()
    torch.cuda.empty_cache()
    peer = _peer(machine, prompts, new_tokens)
    note("transformers", peer)
    if theirs := peer.get("output_tokens_per_s"):
        note("ratio_to_transformers", rates[_name(graphs=True, overlap=True)] / theirs)


def _sampled(core: EngineCore, prompts: list[list[int]], new_tokens: list[int]) -> dict[str, float]:
    """Return the seconds of the same requests, sampled and greedy: both find their prompts."""
    seconds = {}
    for name, sampling in (("greedy", GREEDY), ("sampled", SAMPLED)):
        start = time.perf_counter()
        generate(core, prompts, new_tokens, sampling)
        seconds[name] = time.perf_counter() - start
    return {
        "greedy_seconds": seconds["greedy"],
        "sampled_seconds": seconds["sampled"],
        "sampled_beside_greedy": seconds["sampled"] / seconds["greedy"],
    }


def _peer(machine: Machine, prompts: list[list[int]], new_tokens: list[int]) -> dict[str, Any]:
    """transformers' continuous batching over the same shape; what stops it is told, not raised."""
    try:
        return _transformers(machine, prompts, new_tokens)
    except Exception as error:  # noqa: BLE001 (the peer's, and our figures stand without it)
        return {"error": f"{type(error).__name__}: {error}"[:500]}


def _transformers(
    machine: Machine, prompts: list[list[int]], new_tokens: list[int]
) -> dict[str, Any]:
    import transformers  # noqa: PLC0415 (takes seconds)

    values = {
        key: value
        for key, value in shape_for(machine, QWEN3_600M).items()
        if key not in {"architectures", "rope_theta"}
    }
    config = transformers.Qwen3Config(
        **values, rope_parameters={"rope_type": "default", "rope_theta": 1_000_000.0}
    )
    with machine.device:
        model = transformers.Qwen3ForCausalLM(config)
    model = model.to(machine.dtype).eval()
    settings = transformers.GenerationConfig(
        do_sample=False, eos_token_id=-1, pad_token_id=0, max_new_tokens=max(new_tokens)
    )
    manager = model.init_continuous_batching(generation_config=settings)
    manager.start()
    try:
        # Once to warm up: graphs are captured, kernels are compiled.
        for _ in range(1 if machine.smoke else 2):
            start = time.perf_counter()
            for prompt, count in zip(prompts, new_tokens, strict=True):
                manager.add_request(prompt, max_new_tokens=count)
            produced = finished = 0
            while finished < len(prompts):
                output = manager.get_result(timeout=120)
                if output is None:
                    raise TimeoutError(f"{finished} of {len(prompts)} requests finished")
                if output.is_finished():
                    finished += 1
                    produced += len(output.generated_tokens)
            seconds = time.perf_counter() - start
    finally:
        manager.stop(block=True, timeout=30)
    return {
        "version": transformers.__version__,
        "seconds": seconds,
        "output_tokens": produced,
        "output_tokens_per_s": produced / seconds,
    }
