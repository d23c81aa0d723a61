"""Whole models: one sequence against copy bandwidth, many beside transformers' batching."""

import gc
import time
from typing import Any

import torch

from backend.check import QWEN3_600M
from backend.engine.core import EngineCore
from gpu.machine import Machine
from gpu.shapes import (
    GREEDY,
    LLAMA_8B,
    SAMPLED,
    engine,
    generate,
    random_model,
    random_prompts,
    shape_for,
)


def alone(machine: Machine, bandwidth: float) -> dict[str, Any]:
    """Decode one sequence of the 8B shape: each token reads all weights once."""
    model = random_model(machine, LLAMA_8B)
    length, new_tokens = (8, 2) if machine.smoke else (64, 256)
    prompts = random_prompts(model.config.vocab_size, [length])
    weights = model.weights.streamed_bytes
    result: dict[str, Any] = {
        "weight_bytes": weights,
        "floor_tokens_per_s": bandwidth / weights,
    }
    for graphs, overlap in _ways(machine):
        with engine(
            machine,
            model,
            max_num_seqs=1,
            max_model_len=2048 if not machine.smoke else 64,
            num_blocks=128 if not machine.smoke else 4,
            graphs=graphs,
            overlap=overlap,
        ) as core:
            times = {}
            # The difference leaves the prompt out.
            for count in (1, new_tokens):
                seconds = []
                for _ in range(1 if machine.smoke else 4):
                    start = time.perf_counter()
                    generate(core, prompts, [count], time.monotonic())
                    seconds.append(time.perf_counter() - start)
                times[count] = min(seconds)
        del core
        rate = (new_tokens - 1) / max(times[new_tokens] - times[1], 1e-9)
        result[_name(graphs, overlap)] = {
            "tokens_per_s": rate,
            "share_of_copy": rate * weights / bandwidth,
        }
    return result


def _ways(machine: Machine) -> tuple[tuple[bool, bool], ...]:
    """Graphs, overlap."""
    if machine.smoke:
        return (True, True), (True, False)
    return (True, True), (True, False), (False, True), (False, False)


def _name(graphs: bool, overlap: bool) -> str:
    return f"graphs_{'on' if graphs else 'off'}_overlap_{'on' if overlap else 'off'}"


def many(machine: Machine) -> dict[str, Any]:
    """256 requests of 100 to 1,024 tokens in and out, all there at once."""
    model = random_model(machine, QWEN3_600M)
    count = 2 if machine.smoke else 256
    least, most = (2, 5) if machine.smoke else (100, 1024)
    generator = torch.Generator().manual_seed(3)
    lengths, new_tokens = (
        torch.randint(least, most + 1, (count,), generator=generator).tolist() for _ in range(2)
    )
    prompts = random_prompts(model.config.vocab_size, lengths)
    result: dict[str, Any] = {
        "requests": count,
        "prompt_tokens": sum(lengths),
        "output_tokens": sum(new_tokens),
    }
    answers = {}
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
            generate(core, warm, [8] * len(warm), time.monotonic())
            name = _name(graphs, overlap)
            start = time.perf_counter()
            answers[name] = generate(core, prompts, new_tokens, time.monotonic())
            seconds = time.perf_counter() - start
            result[name] = {
                "seconds": seconds,
                "output_tokens_per_s": sum(new_tokens) / seconds,
            }
            if graphs and overlap and not machine.smoke:
                result["sampled"] = _sampled(core, prompts, new_tokens)
        del core
    first, *others = answers.values()
    # Rounding differs with the batch, so some may part; graphs and overlap change no arithmetic.
    result["equal_answers"] = [
        sum(ours == theirs for ours, theirs in zip(first, other, strict=True)) for other in others
    ]
    del model
    if machine.smoke:
        return result  # on CPU the peer takes a minute to start
    gc.collect()
    torch.cuda.empty_cache()
    result["transformers"] = _peer(machine, prompts, new_tokens)
    theirs = result["transformers"].get("output_tokens_per_s")
    if theirs:
        ours = result[_name(graphs=True, overlap=True)]["output_tokens_per_s"]
        result["ratio_to_transformers"] = ours / theirs
    return result


def _sampled(core: EngineCore, prompts: list[list[int]], new_tokens: list[int]) -> dict[str, float]:
    """Return the seconds of the same requests, sampled and greedy: both find their prompts."""
    seconds = {}
    for name, sampling in (("greedy", GREEDY), ("sampled", SAMPLED)):
        start = time.perf_counter()
        generate(core, prompts, new_tokens, time.monotonic(), sampling)
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
