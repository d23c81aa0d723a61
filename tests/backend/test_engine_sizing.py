"""How many KV blocks a device gets: the arithmetic, with numbers."""

from dataclasses import dataclass, replace

import pytest
import torch

from backend.executor.memory import MemoryReading, Sizing, size_cache
from backend.models.config import ModelLoadError

GIB = 2**30


@dataclass(frozen=True)
class Shape:
    """Of Llama 3.1 8B: 131,072 bytes of KV a token in half precision, 2 MiB a block."""

    vocab_size: int = 128256
    num_layers: int = 32
    num_heads: int = 32
    num_kv_heads: int = 8
    head_dim: int = 128
    max_positions: int = 131072
    windows: tuple[int | None, ...] = (None,) * 32
    checkpoint_dtype: str = "bfloat16"


READING = MemoryReading(
    total=140 * GIB, free=124 * GIB, weights=15 * GIB, step=5 * GIB, utilization=0.9
)


def size(**changes):
    arguments = {
        "device": torch.device("cuda"),
        "dtype": torch.bfloat16,
        "max_num_seqs": 256,
        "max_model_len": None,
        "kv_bytes": None,
        "reading": READING,
    }
    return size_cache(Shape(), **(arguments | changes))


def test_the_pool_takes_what_weights_and_the_largest_step_leave_of_the_share():
    # 126 (nine tenths of 140) - 15 - 5 = 106 GiB in blocks of 2 MiB.
    assert size() == Sizing(106 * 512, 131072)


def test_a_smaller_share_leaves_room_for_another_process():
    # 70 (half of 140) - 15 - 5 = 50 GiB.
    assert size(reading=replace(READING, utilization=0.5)) == Sizing(50 * 512, 131072)


def test_what_other_processes_hold_is_not_counted_on():
    assert size(reading=replace(READING, free=45 * GIB)) == Sizing(40 * 512, 131072)


def test_the_cpu_gives_no_more_than_full_contexts_need():
    cpu = torch.device("cpu")
    assert size(device=cpu, max_num_seqs=2, max_model_len=1000) == Sizing(2 * 63, 1000)


def test_a_gpu_gives_all_to_the_prefix_cache_however_few_sequences_run():
    assert size(max_num_seqs=2, max_model_len=1000) == Sizing(106 * 512, 1000)


def test_kv_bytes_overrides_what_was_measured():
    assert size(kv_bytes=GIB) == Sizing(512, 8192)


def test_the_context_is_no_longer_than_the_pool():
    reading = replace(READING, free=2 * GIB, step=GIB)
    assert size(reading=reading) == Sizing(512, 8192)


def test_a_step_that_leaves_nothing_is_refused():
    with pytest.raises(ModelLoadError, match="no memory for one KV block of 2097152 bytes"):
        size(reading=replace(READING, free=2 * GIB, step=2 * GIB))


def test_the_arithmetic_can_be_read():
    assert str(READING) == (
        "0.9 of 143360 MiB, less 15360 for weights, at most 126976 that are free, "
        "less 5120 for the largest step = 108544 MiB"
    )
