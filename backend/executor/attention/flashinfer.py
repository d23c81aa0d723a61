"""Attention of spans by FlashInfer, which reads our paged layout as it is.

The library knows half precision on CUDA only, and heads of some sizes.
"""

import logging
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from torch import Tensor

from backend.executor.attention.backend import HostRows, StepTensors
from backend.scheduler.block_pool import BLOCK_SIZE

logger = logging.getLogger(__name__)

_HEAD_DIMS = (64, 128, 256)
_WORKSPACE_BYTES = 128 * 2**20


def flashinfer_prefill(
    shape: tuple[int, int, int],
    dtype: torch.dtype,
    device: torch.device,
    find: Callable[[str], object | None] = find_spec,
    load: Callable[[str], Any] = import_module,
) -> "FlashInferPrefill | None":
    """Return FlashInfer's prefill where it is installed and knows the model, else None.

    ``shape`` is (heads, kv_heads, head_dim). A library that is there and cannot be imported is
    named in the log.
    """
    known = dtype in {torch.float16, torch.bfloat16} and shape[2] in _HEAD_DIMS
    if device.type != "cuda" or not known or find("flashinfer") is None:
        return None
    try:
        return FlashInferPrefill(load("flashinfer"), shape, dtype, device)
    except Exception as error:  # noqa: BLE001 (whatever an import runs may raise)
        logger.warning("FlashInfer cannot be used, our own kernel attends instead: %s", error)
        return None


class FlashInferPrefill:
    """``PrefillAttention``; it plans once for each step and window.

    A plan is laid out in the wrapper's own pinned memory and copied without waiting, so the next
    one may be made only once that copy has ended.
    """

    def __init__(
        self, library: Any, shape: tuple[int, int, int], dtype: torch.dtype, device: torch.device
    ) -> None:
        """``library`` is the module flashinfer, ``shape`` (heads, kv_heads, head_dim)."""
        self._make = library.BatchPrefillWithPagedKVCacheWrapper
        self._heads, self._kv_heads, self._head_dim = shape
        self._dtype = dtype
        # Steps run one after the other, so all wrappers share what kernels leave for one another.
        self._workspace = torch.empty(_WORKSPACE_BYTES, device=device, dtype=torch.uint8)
        self._wrappers: dict[int | None, Any] = {}
        self._planned: set[int | None] = set()
        self._copied: Any = torch.cuda.Event() if device.type == "cuda" else None  # type: ignore[no-untyped-call]
        self._arguments: tuple[Any, ...] = ()

    def plan(self, rows: HostRows, tensors: StepTensors) -> None:
        """Lay out the spans; each window is planned when its first layer attends."""
        spans = slice(rows.num_singles, None)
        counts = rows.counts[spans]
        lengths = rows.starts[spans] + counts
        blocks = -(-lengths // BLOCK_SIZE)
        width = rows.tables.shape[1]
        tables = [
            tensors.tables[slot * width : slot * width + count]
            for slot, count in zip(rows.slots[spans].tolist(), blocks.tolist(), strict=True)
        ]
        self._planned = set()
        self._arguments = (
            _bounds(counts),
            _bounds(blocks),
            torch.cat(tables),
            torch.from_numpy((lengths - 1) % BLOCK_SIZE + 1).int(),
        )

    def attend(self, queries: Tensor, cache: Tensor, window: int | None, output: Tensor) -> None:
        """Attend with [tokens, heads, head_dim] and write ``output``, of the same shape."""
        wrapper = self._wrappers.get(window)
        if wrapper is None:
            wrapper = self._wrappers[window] = self._make(self._workspace, "HND")
        if window not in self._planned:
            self._plan(wrapper, window)
        shape = (len(cache), 2, self._kv_heads, BLOCK_SIZE, self._head_dim)
        output.copy_(wrapper.run(queries.contiguous(), cache.view(shape)))

    def _plan(self, wrapper: Any, window: int | None) -> None:
        if self._copied is not None:
            self._copied.synchronize()
        wrapper.plan(
            *self._arguments,
            self._heads,
            self._kv_heads,
            self._head_dim,
            BLOCK_SIZE,
            causal=True,
            window_left=-1 if window is None else window - 1,
            q_data_type=self._dtype,
        )
        if self._copied is not None:
            self._copied.record()
        self._planned.add(window)


def _bounds(counts: Any) -> Tensor:
    return torch.from_numpy(np.concatenate([[0], np.cumsum(counts)])).int()
