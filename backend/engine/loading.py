"""Builds an engine from its options: tokenizer, network, KV cache, runner and core."""

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

import torch

from backend.engine.core import EngineCore, EngineLimits
from backend.engine.draft_loading import load_draft
from backend.engine.engine import Engine
from backend.engine.kv_loading import (
    make_pool,
    make_role,
    make_transfer,
    rotary_factors,
)
from backend.engine.kv_transfer.fetches import Fetches
from backend.engine.kv_transfer.offers import Offers
from backend.engine.messages import EngineDescription
from backend.engine.model_files import check_adapters, resolve_model
from backend.engine.option_checks import check_hybrid, check_options
from backend.engine.ranks import Ranks
from backend.executor.draft_runner import DraftRunner
from backend.executor.factory import (
    NO_KERNELS,
    KernelGroup,
    Kernels,
    kernels_for,
    make_runner,
    read_memory,
)
from backend.executor.input_batch import BatchLimits
from backend.executor.memory import context_length, size_cache
from backend.executor.model_runner import ModelRunner
from backend.executor.parallel import Group, LeadingRunner
from backend.executor.states import state_pool_bytes
from backend.grammar.compiler import GrammarCompiler
from backend.grammar.worker import Vocabulary
from backend.kernels.available import unavailable_reason
from backend.models.adapters import adapter_digest
from backend.models.checkpoint import model_fingerprint
from backend.models.config import ModelLoadError, read_json
from backend.models.dtypes import kv_cache_dtype
from backend.models.loading import load_network
from backend.models.model import Network
from backend.models.parallel import ALONE, check_sharded
from backend.scheduler.scheduler import slots_for
from backend.settings import EngineOptions, device_name
from backend.tokenizer.tokenizer import Tokenizer

logger = logging.getLogger(__name__)

# One of these is there where a driver runs.
_DRIVER_FILES = (Path("/proc/driver/nvidia"), Path("/dev/nvidia0"))
# A chunk of prefill delays everybody's next token by the time that it takes to compute.
_TOKENS_PER_STEP = {"cpu": 512, "cuda": 8192}
_MAX_NUM_SEQS = {"cpu": 16, "cuda": 256}
# Each has a recurrent state, which takes as much as KV of thousands of tokens.
_MAX_HYBRID_SEQS = {"cpu": 16, "cuda": 32}
_SNAPSHOTS_OF_A_SEQUENCE = 4


@dataclass(frozen=True, slots=True)
class LoadedEngine:
    """An engine that is ready for its first step, and the tokenizer of its model."""

    core: EngineCore
    tokenizer: Tokenizer
    description: EngineDescription
    role: Offers | Fetches | None = None


def load_engine(model: str, **options: Any) -> tuple[Engine, Tokenizer]:
    """Load ``model`` and return an engine in this process that is yet to be started.

    ``options`` are those of EngineOptions. Raises ModelLoadError, whose text names what is wrong.
    """
    loaded = load_model(EngineOptions(model, **options))
    engine = Engine(loaded.core, loaded.tokenizer, loaded.description, loaded.role)
    return engine, loaded.tokenizer


def load_model(
    options: EngineOptions,
    progress: Callable[[str], None] = logger.debug,
    ranks: Ranks | None = None,
) -> LoadedEngine:
    """Load what ``options`` name; ``progress`` is called with the stage of loading, for people.

    ``ranks`` are the other processes, where the model is computed by several. Raises
    ModelLoadError, whose text names what is wrong.
    """
    size = options.tensor_parallel_size
    if size > 1 and ranks is None:
        raise ModelLoadError(
            f"tensor-parallel-size {size}: ranks are processes, which `refrain backend` starts; an "
            "engine in a thread has one"
        )
    loaded = load_runner(options, progress, join=None if ranks is None else ranks.join)
    tokenizer, vocab_size = loaded.tokenizer, loaded.runner.vocab_size
    on_cuda = loaded.runner.device.type == "cuda"
    limits = EngineLimits(
        num_blocks=loaded.num_blocks,
        max_num_seqs=loaded.batches.max_num_seqs,
        max_model_len=loaded.batches.max_model_len,
        max_tokens_per_step=loaded.batches.max_tokens_per_step,
        max_waiting=options.max_waiting,
        queue_seconds=options.queue_timeout,
        target_ttft=options.target_ttft_ms and options.target_ttft_ms / 1000,
        target_itl=options.target_itl_ms and options.target_itl_ms / 1000,
        overlap=on_cuda if options.overlap is None else options.overlap,
        speculation=options.speculation != "off" and not loaded.has_states,
        num_speculative_tokens=options.num_speculative_tokens,
        num_snapshots=loaded.batches.num_snapshots if loaded.has_states else None,
    )
    grammars = GrammarCompiler(lambda: _vocabulary(tokenizer, vocab_size))
    fingerprint = loaded.fingerprint
    adapters = tuple(
        fingerprint + adapter_digest(each.name, Path(each.directory).expanduser())
        for each in options.lora
    )
    core = EngineCore(
        loaded.runner if ranks is None else LeadingRunner(loaded.runner, ranks.tell, ranks.end),
        tokenizer.eos_token_ids,
        limits,
        grammars,
        fingerprint=fingerprint,
        adapters=adapters,
        cache_events=options.kv_events,
        draft=loaded.draft,
    )
    description = EngineDescription(
        limits.max_model_len, vocab_size, fingerprint, loaded.detail, adapters
    )
    return LoadedEngine(core, tokenizer, description, make_role(options, core))


@dataclass(frozen=True, slots=True)
class LoadedRunner:
    """What computes on one rank; ``fingerprint`` tells apart what is computed."""

    runner: ModelRunner
    draft: DraftRunner | None
    batches: BatchLimits
    num_blocks: int
    tokenizer: Tokenizer
    fingerprint: bytes
    detail: tuple[str, ...]
    has_states: bool


def load_runner(
    options: EngineOptions,
    progress: Callable[[str], None],
    *,
    rank: int = 0,
    join: Callable[[torch.device], Group] | None = None,
) -> LoadedRunner:
    """Load the part of ``rank``. Raises ModelLoadError, whose text names what is wrong.

    ``join`` lets it meet the other ranks, None: there are none.
    """
    torch_device = _device_of_rank(options, rank)
    on_cuda = torch_device.type == "cuda"
    check_options(options, on_cuda=on_cuda)
    utilization = options.gpu_memory_utilization
    if options.threads is not None or join is not None:
        threads = options.threads or torch.get_num_threads()
        torch.set_num_threads(max(threads // options.tensor_parallel_size, 1))
    directory = resolve_model(options.model)
    check_hybrid(options, directory)
    check_adapters(options.lora)
    tokenizer = Tokenizer.load(directory, options.chat_template)
    group = None
    if join is not None:
        # Before the others begin: what is refused here is refused once.
        source = directory / "config.json"
        check_sharded(read_json(source), str(source), options.tensor_parallel_size)
        progress("waiting for all ranks")
        group = join(torch_device)
    progress(f"reading the weights of {directory}")
    network = load_network(
        directory,
        device=torch_device,
        dtype=options.dtype,
        quantization=options.quantization,
        adapters=[Path(each.directory).expanduser() for each in options.lora],
        tell=progress,
        ranks=group or ALONE,
    )
    kv_dtype = kv_cache_dtype(options.kv_dtype, network.dtype, torch_device)
    shape = network.shape
    has_kernels = on_cuda and _triton_compiles()
    batches = _batch_limits(options, network, torch_device.type)
    kernels: Kernels = NO_KERNELS
    detail: tuple[str, ...] = ()
    if has_kernels:
        progress("comparing the kernels with their references")
        kernels, detail = _proved(options, network, kv_dtype, batches.max_model_len, group)
    if on_cuda and not {KernelGroup.ATTENTION, KernelGroup.KV_8_BITS} <= kernels:
        # PyTorch's attention cannot read FP8.
        detail += _without_fp8(kv_dtype, network.dtype)
        kv_dtype = network.dtype
    draft = load_draft(
        options,
        network,
        tokenizer,
        device=torch_device,
        kernels=kernels,
        kv_dtype=kv_dtype,
        limits=batches,
        tell=progress,
    )
    reading = None
    if KernelGroup.ATTENTION in kernels and options.kv_bytes is None:
        progress("measuring the memory of the largest step")
        try:
            reading = read_memory(
                network,
                batches,
                device=torch_device,
                kv_dtype=kv_dtype,
                utilization=utilization,
                kernels=kernels,
            )
            reading = reading if draft is None else draft.reading(reading)
        except torch.OutOfMemoryError as error:
            raise ModelLoadError(
                f"a step of {batches.max_tokens_per_step} tokens does not fit into device memory; "
                "take less with max-tokens-per-step or max-num-seqs"
            ) from error
    sizing = size_cache(
        shape,
        device=torch_device,
        dtype=kv_dtype,
        max_num_seqs=batches.max_num_seqs,
        max_model_len=options.max_model_len,
        kv_bytes=options.kv_bytes,
        reading=reading,
        utilization=utilization,
        ranks=options.tensor_parallel_size,
        draft_block_bytes=0 if draft is None else draft.block_bytes,
        state_bytes=state_pool_bytes(network, batches),
    )
    if group is not None:
        # One scheduler decides for all, so the smallest pool is everybody's.
        sizing = min(group.exchange(sizing), key=lambda each: each.num_blocks)
    progress("making the KV pool")
    cache = make_pool(network, sizing, torch_device, kv_dtype, directory)
    batches = replace(batches, max_model_len=sizing.max_model_len)
    fingerprint = model_fingerprint(
        directory,
        # Our own code and transformers' have a key's dimensions in different orders.
        f"{network.dtype} {kv_dtype} {options.quantization}"
        + ("" if network.weights else " transformers")
        + rotary_factors(network, sizing.max_model_len),
    )
    transfer, without = make_transfer(options, cache, fingerprint, directory)
    return LoadedRunner(
        runner=make_runner(network, cache, batches, kernels=kernels, transfer=transfer),
        draft=None if draft is None else draft.runner(sizing.num_blocks),
        batches=batches,
        num_blocks=sizing.num_blocks,
        tokenizer=tokenizer,
        fingerprint=fingerprint,
        detail=detail + without,
        has_states=network.states is not None,
    )


def _batch_limits(options: EngineOptions, network: Network, kind: str) -> BatchLimits:
    has_states = network.states is not None
    most_seqs = _MAX_HYBRID_SEQS if has_states else _MAX_NUM_SEQS
    max_num_seqs = options.max_num_seqs or most_seqs[kind]
    max_tokens = options.max_tokens_per_step or _TOKENS_PER_STEP[kind]
    return BatchLimits(
        num_slots=slots_for(max_num_seqs),
        max_num_seqs=max_num_seqs,
        max_tokens_per_step=max(max_tokens, max_num_seqs),
        max_model_len=context_length(network.shape, options.max_model_len),
        num_snapshots=_SNAPSHOTS_OF_A_SEQUENCE * max_num_seqs if has_states else 0,
    )


def _proved(
    options: EngineOptions,
    network: Network,
    kv_dtype: torch.dtype,
    length: int,
    group: Group | None,
) -> tuple[Kernels, tuple[str, ...]]:
    """Return the kernels that compute as their references do, and what is said of the others."""
    kernels: Kernels = kernels_for(options.attention)
    if not options.self_check:
        return kernels, ()
    # Triton is not everywhere.
    from backend.executor.self_check import self_check  # noqa: PLC0415

    device = torch.device("cuda", torch.cuda.current_device())
    proved = self_check(network, device, kv_dtype, length, kernels)
    if group is None:
        return proved.kernels, proved.detail
    # What one rank replaces all replace, or they would compute in different orders.
    detail = dict.fromkeys(chain.from_iterable(group.exchange(proved.detail)))
    return proved.kernels.intersection(*group.exchange(proved.kernels)), tuple(detail)


def _device_of_rank(options: EngineOptions, rank: int) -> torch.device:
    size = options.tensor_parallel_size
    if size == 1:
        return device_of(options.device)
    if ":" in options.device:
        raise ModelLoadError(
            f"device {options.device} is one GPU, and tensor-parallel-size {size} takes "
            f"cuda:0 to cuda:{size - 1}: say device cuda"
        )
    device = device_of(options.device)
    if device.type != "cuda":
        return device
    if (count := torch.cuda.device_count()) < size:
        raise ModelLoadError(f"tensor-parallel-size {size}: torch finds {count} CUDA devices")
    return device_of(f"cuda:{rank}")


def _without_fp8(wanted: torch.dtype, instead: torch.dtype) -> tuple[str, ...]:
    if wanted is instead:
        return ()
    text = f"the KV cache is kept in {instead}, not in FP8: no kernel can read it"
    logger.warning("%s", text)
    return (text,)


def _triton_compiles() -> bool:
    reason = unavailable_reason()
    if reason is not None:
        logger.warning("Triton kernels are off, attention runs in PyTorch: %s", reason)
    return reason is None


def _vocabulary(tokenizer: Tokenizer, size: int) -> Vocabulary:
    tokens = tuple(tokenizer.visible_bytes(token) for token in range(size))
    ends = frozenset(each for each in tokenizer.eos_token_ids if each < size)
    ids = tokenizer.special_tokens.items()
    special = {name: each for name, each in ids if each < size and each not in ends}
    return Vocabulary(tokens, size, ends, special)


def device_of(name: str) -> torch.device:
    """Return the device that ``name`` means; this thread launches kernels there from now on.

    Raises ModelLoadError.
    """
    try:
        kind, _, number = device_name(name).partition(":")
    except ValueError as error:
        raise ModelLoadError(f"device: {error}") from error
    if kind == "cpu":
        return torch.device("cpu")
    if not torch.cuda.is_available():
        why = f"torch finds no CUDA device: {_no_cuda_reason()}"
        if kind == "cuda":
            raise ModelLoadError(f"device {name}: {why}")
        if any(path.exists() for path in _DRIVER_FILES):
            logger.warning("computing on the CPU though there is an NVIDIA driver: %s", why)
        return torch.device("cpu")
    count = torch.cuda.device_count()
    index = int(number) if number else torch.cuda.current_device()
    if index >= count:
        raise ModelLoadError(
            f"device {name}: torch finds {count} CUDA devices, counted from cuda:0"
        )
    torch.cuda.set_device(index)
    return torch.device("cuda", index)


def _no_cuda_reason() -> str:
    """Return why torch cannot use CUDA, and what to do about that."""
    if torch.version.cuda is None:
        return "it is built without CUDA; install the extra gpu: pip install 'refrain-gateway[gpu]'"
    try:
        torch.cuda.init()  # type: ignore[no-untyped-call]
    except (AssertionError, RuntimeError) as error:
        if "No CUDA GPUs" not in str(error):
            return " ".join(str(error).split())
    return "it shows no GPU to this process; look at CUDA_VISIBLE_DEVICES and at the container"
