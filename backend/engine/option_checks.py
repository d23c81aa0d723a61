"""Options that contradict each other, the device or the model: refused before weights are read."""

from pathlib import Path

from backend.models.config import ModelLoadError, read_json
from backend.models.qwen3_next import hybrid_family
from backend.settings import EngineOptions

_LEAST_SECRET = 16
"""An engine sends its proof to strangers too, and a stranger could guess a short secret."""


def check_hybrid(options: EngineOptions, directory: Path) -> None:
    """Raise ModelLoadError where ``options`` take a model without recurrent states."""
    source = directory / "config.json"
    family = hybrid_family(read_json(source))
    if family is None:
        return
    refused = {
        "tensor-parallel-size": options.tensor_parallel_size > 1,
        "kv-host-bytes": options.kv_host_bytes,
        "kv-disk-bytes": options.kv_disk_bytes,
        "role": options.role != "both",
        "lora": options.lora,
        "quantization": options.quantization,
        "speculative-model": options.speculative_model,
    }
    if named := next((name for name, given in refused.items() if given), None):
        raise ModelLoadError(
            f"{source}: architectures: {family} has recurrent states beside KV, which {named} does "
            "not support; leave it out"
        )


def _check_role(options: EngineOptions) -> None:
    role, others = options.role, options.kv_transfer
    if role == "both":
        if others or options.kv_transfer_secret:
            raise ModelLoadError("kv-transfer: say with role whether this is prefill or decode")
        return
    if not others or options.kv_transfer_secret is None:
        missing = "kv-transfer-secret-file" if others else "kv-transfer"
        raise ModelLoadError(f"role {role}: {missing} is missing")
    if len(options.kv_transfer_secret) < _LEAST_SECRET:
        raise ModelLoadError(
            f"kv-transfer-secret-file: expected {_LEAST_SECRET} characters or more, such as of "
            "`head -c 32 /dev/urandom | base64`"
        )
    if role == "prefill" and len(others) > 1:
        raise ModelLoadError(f"role prefill: it listens at one kv-transfer, got {len(others)}")
    if role == "decode" and not options.kv_host_bytes:
        raise ModelLoadError(
            "role decode: blocks come by way of host memory; say with kv-host-bytes how much"
        )
    if options.tensor_parallel_size > 1:
        raise ModelLoadError(
            f"role {role}: blocks of one rank are sent, not those of tensor-parallel-size "
            f"{options.tensor_parallel_size}; leave one of them out"
        )


def check_options(options: EngineOptions, *, on_cuda: bool) -> None:
    """Raise ModelLoadError where ``options`` contradict each other or the device."""
    if options.max_num_seqs is not None and options.max_num_seqs < 1:
        raise ModelLoadError(f"max-num-seqs must be at least 1, got {options.max_num_seqs}")
    utilization = options.gpu_memory_utilization
    if not 0 < utilization <= 1:
        raise ModelLoadError(
            f"gpu-memory-utilization must be above 0 and at most 1, got {utilization}"
        )
    if options.speculative_model is not None and options.tensor_parallel_size > 1:
        raise ModelLoadError(
            f"speculative-model: a draft model is computed by one rank, not by "
            f"tensor-parallel-size {options.tensor_parallel_size}; leave one of them out"
        )
    if options.lora and options.tensor_parallel_size > 1:
        raise ModelLoadError(
            "lora: adapters are computed by one rank, not by tensor-parallel-size "
            f"{options.tensor_parallel_size}; leave one of them out"
        )
    if (options.kv_host_bytes or options.kv_disk_bytes) and options.tensor_parallel_size > 1:
        raise ModelLoadError(
            "kv-host-bytes and kv-disk-bytes: blocks of one rank are kept, not those of "
            f"tensor-parallel-size {options.tensor_parallel_size}; leave one of them out"
        )
    _check_role(options)
    if not on_cuda and options.attention == "triton":
        raise ModelLoadError("attention triton needs a CUDA device")
    if options.attention == "torch" and options.kv_dtype == "fp8":
        raise ModelLoadError("kv-dtype fp8 is read by kernels alone; attention torch has none")
