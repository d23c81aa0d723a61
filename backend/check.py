"""`refrain backend check`: whether the kernels are right on this device, and how fast it is."""

import gc
import os
import re
import statistics
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import orjson
import torch

from backend.engine.loading import device_of
from backend.engine.model_files import resolve_model
from backend.executor.factory import KernelGroup, Kernels, kernels_for, make_runner
from backend.executor.input_batch import BatchLimits
from backend.executor.kv_cache import KVCache
from backend.executor.memory import context_length
from backend.kernels.available import c_compiler, unavailable_reason
from backend.models.config import DecoderConfig, ModelLoadError
from backend.models.dtypes import kv_cache_dtype
from backend.models.families import parse_config
from backend.models.loading import load_network
from backend.models.model import Network, network_of
from backend.models.weights import random_weights
from backend.scheduler.batch import AppendedBlocks, NewSequence, Row, StepBatch
from backend.scheduler.block_pool import blocks_for
from backend.scheduler.request import SamplingParams
from backend.settings import EngineOptions

QWEN3_600M: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"],
    "vocab_size": 151936,
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 40960,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1_000_000.0,
    "tie_word_embeddings": True,
}
_BUNDLED = Path(__file__).parent / "demo" / "model"
_DRIVER = Path("/proc/driver/nvidia/version")
_COPIED_BYTES = 2**30
_STEPS = 30
_DECODES = ((1, 1024), (16, 1024))
"""Sequences, and tokens that each of them has."""


def run(options: EngineOptions) -> int:
    """Print what is found, with one line of JSON at the end; return the exit code.

    An empty ``options.model`` stands for the bundled model and a random one of a common shape.
    """
    report: dict[str, Any] = {
        "check": "backend",
        "passed": None,
        "machine": {},
        "models": [],
        "copy_bytes_per_s": None,
    }
    try:
        _run(options, report)
    except ModelLoadError as error:
        _note_failure(report, " ".join(str(error).split()))
    except Exception as error:  # noqa: BLE001 (whatever a driver raises; the report names it)
        traceback.print_exc()
        _note_failure(report, f"{type(error).__name__}: {' '.join(str(error).split())}")
    print(orjson.dumps(report).decode())
    return 1 if report["passed"] is False else 0


def _note_failure(report: dict[str, Any], error: str) -> None:
    print(f"refrain backend check: {error}", file=sys.stderr)
    report |= {"passed": False, "error": error}


def _run(options: EngineOptions, report: dict[str, Any]) -> None:
    """Fill ``report`` in; ``passed`` stays None where nothing is compared."""
    device = device_of(options.device)
    directory = resolve_model(options.model) if options.model else None
    on_cuda = device.type == "cuda"
    interpreted = os.environ.get("TRITON_INTERPRET") == "1"
    facts = report["machine"] = _facts(device)
    print("\n".join(f"{name:<20}{value}" for name, value in facts.items()), end="\n\n")
    reason = None if interpreted else unavailable_reason()
    if not on_cuda and not interpreted:
        here = torch.cuda.is_available()
        why = "The GPU is not used" if here else "There is no GPU: torch finds no CUDA device"
        print(
            f"{why}. No kernel was run, and nothing was compared.\n"
            "PyTorch's attention, element-wise operations and sampling serve instead."
        )
        return
    if reason is not None:
        print(
            f"Triton cannot compile: {reason}. No kernel was run. PyTorch's attention,\n"
            "element-wise operations and sampling serve instead, which is slower."
        )
        report |= {"passed": False, "error": f"Triton cannot compile: {reason}"}
        return
    bandwidth = copy_bandwidth(device, _COPIED_BYTES) if on_cuda else None
    report["copy_bytes_per_s"] = bandwidth
    if bandwidth is not None:
        print(f"memory bandwidth    {bandwidth / 1e9:.0f} GB/s, read and written by a copy\n")
    models = report["models"]
    for name, network in _networks(options, device, directory):
        models.append(_check_model(name, network, options, device, bandwidth))
        del network  # the next one needs its memory
    compared = [each["passed"] for each in models if each["passed"] is not None]
    report["passed"] = all(compared) if compared else None


def _facts(device: torch.device) -> dict[str, Any]:
    facts: dict[str, Any] = {"device": str(device)}
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        told = _DRIVER.read_text() if _DRIVER.is_file() else ""
        driver = re.search(r"(\d+\.\d+(\.\d+)?)", told)
        facts |= {
            "name": properties.name,
            "compute capability": f"{properties.major}.{properties.minor}",
            "multiprocessors": properties.multi_processor_count,
            "memory": f"{properties.total_memory / 2**30:.1f} GiB",
            "driver": None if driver is None else driver[1],
        }
    try:
        triton = version("triton")
    except PackageNotFoundError:
        triton = "not installed"
    return facts | {
        "torch": torch.__version__,
        "triton": triton,
        "C compiler": c_compiler() or "none found",
    }


def _networks(
    options: EngineOptions, device: torch.device, directory: Path | None
) -> Iterator[tuple[str, Network]]:
    """Load one after the other, so that one alone takes memory."""

    def load(directory: Path) -> Network:
        return load_network(
            directory, device=device, dtype=options.dtype, quantization=options.quantization
        )

    if directory is not None:
        yield options.model, load(directory)
        return
    bundled = load(_BUNDLED)
    dtype = bundled.dtype
    yield "the bundled model", bundled
    del bundled
    config = parse_config(QWEN3_600M, "Qwen3-0.6B")
    int8 = options.quantization == "int8"
    weights = random_weights(config, device=device, dtype=dtype, int8=int8)
    yield "random weights of Qwen3-0.6B's shape", network_of(config, weights, dtype)


def _check_model(
    name: str,
    network: Network,
    options: EngineOptions,
    device: torch.device,
    bandwidth: float | None,
) -> dict[str, Any]:
    # Triton is not everywhere.
    from backend.executor.self_check import self_check

    kv_dtype = kv_cache_dtype(options.kv_dtype, network.dtype, device)
    length = context_length(network.shape, options.max_model_len)
    began = time.perf_counter()
    wanted = kernels_for(options.attention)
    proved = self_check(network, device, kv_dtype, length, wanted)
    seconds = time.perf_counter() - began
    print(f"{name}, {network.dtype}, KV in {kv_dtype}: compared in {seconds:.1f} s")
    rows = [("kernel", "shape", "difference", "allowed", "verdict")]
    rows += [
        (
            each.kernel,
            each.shape,
            "" if each.error else f"{each.difference:.1e}",
            f"{each.allowed:.1e}",
            each.error or ("pass" if each.passes else "DIFFERS"),
        )
        for each in proved.findings
    ]
    _print_table(rows)
    print("".join(f"replaced: {line}\n" for line in proved.detail))
    if not {KernelGroup.ATTENTION, KernelGroup.KV_8_BITS} <= proved.kernels:
        kv_dtype = network.dtype  # as the engine then does
    decodes = []
    for sequences, tokens in _DECODES if bandwidth else ():
        context = min(tokens, length - 1)
        took = decode_seconds(network, proved.kernels, device, kv_dtype, (sequences, context))
        read = step_bytes(network, kv_dtype, sequences, context)
        share = None if read is None or bandwidth is None else read / took / bandwidth
        shown = "" if share is None else f", {share:.0%} of the bandwidth bound"
        print(f"decode step of {sequences} x {context} tokens: {took * 1e3:.2f} ms{shown}")
        decodes.append(
            {"sequences": sequences, "tokens": context, "seconds": took, "share_of_bound": share}
        )
    print()
    findings = [asdict(each) | {"passed": each.passes} for each in proved.findings]
    return {"model": name, "passed": not proved.detail, "kernels": findings, "decode": decodes}


def _print_table(rows: Sequence[tuple[str, ...]]) -> None:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True))
        print("  ".join(cells).rstrip())


def copy_bandwidth(device: torch.device, num_bytes: int) -> float:
    """Return bytes read plus bytes written per second by copies of ``num_bytes`` on ``device``."""
    source = torch.ones(num_bytes, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    times = []
    for _ in range(10):
        _wait(device)
        began = time.perf_counter()
        target.copy_(source)
        _wait(device)
        times.append(time.perf_counter() - began)
    return 2 * num_bytes / statistics.median(times)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def decode_seconds(
    network: Network,
    kernels: Kernels,
    device: torch.device,
    kv_dtype: torch.dtype,
    size: tuple[int, int],
) -> float:
    """Return the median time of a decode step as the engine takes it, the host's part included."""
    sequences, context = size
    blocks = blocks_for(context)
    gc.collect()
    cache = KVCache(network.shape, sequences * blocks, device=device, dtype=kv_dtype)
    limits = BatchLimits(sequences, sequences, max(64, sequences), context + 1)
    runner = make_runner(network, cache, limits, kernels=kernels)
    runner.warm_up()
    slots, greedy = range(sequences), SamplingParams(temperature=0.0)
    tables = [tuple(range(1 + slot * blocks, 1 + (slot + 1) * blocks)) for slot in slots]
    rows = tuple(Row(slot, context - 1, 1, samples=True) for slot in slots)
    first = StepBatch(
        tuple(NewSequence(slot, (0,) * context, 1, greedy, 0, frozenset()) for slot in slots),
        tuple(AppendedBlocks(slot, 0, table) for slot, table in enumerate(tables)),
        rows,
    )
    times = []
    for step in (first, *[StepBatch((), (), rows)] * _STEPS):
        began = time.perf_counter()
        runner.collect(runner.sample(runner.launch(step)))
        times.append(time.perf_counter() - began)
    return statistics.median(times[1:])


def step_bytes(network: Network, kv_dtype: torch.dtype, sequences: int, context: int) -> int | None:
    """Return what a step must read of weights and KV; None: that depends on the experts picked."""
    config, weights = network.shape, network.weights
    if weights is None or not isinstance(config, DecoderConfig) or config.experts is not None:
        return None
    keys = sum(min(context, window or context) for window in config.windows)
    per_key = 2 * config.num_kv_heads * config.head_dim * kv_dtype.itemsize
    return weights.streamed_bytes + sequences * keys * per_key
