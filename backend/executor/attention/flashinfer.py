"""Attention by FlashInfer, which reads our paged layout as it is: of spans, and of single tokens.

The library knows half precision on CUDA only, and heads of some sizes. Each of its wrappers is
planned for one step and one window. A wrapper that a CUDA graph was captured with keeps its buffers
and is planned anew before each replay.
"""

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from torch import Tensor

from backend.executor.attention.backend import HostRows, Ints, StepTensors
from backend.models.config import ModelShape
from backend.scheduler.block_pool import BLOCK_SIZE, PADDING_BLOCK

logger = logging.getLogger(__name__)

_HEAD_DIMS = (64, 128, 256)
_WORKSPACE_BYTES = 128 * 2**20


def load_flashinfer(
    shape: ModelShape,
    dtype: torch.dtype,
    device: torch.device,
    find: Callable[[str], object | None] = find_spec,
    load: Callable[[str], Any] = import_module,
) -> "FlashInfer | None":
    """Return FlashInfer where it is installed and knows the model, else None.

    A library that is there and cannot be imported is named in the log.
    """
    known = dtype in {torch.float16, torch.bfloat16} and shape.head_dim in _HEAD_DIMS
    if device.type != "cuda" or not known or find("flashinfer") is None:
        return None
    try:
        return FlashInfer(load("flashinfer"), shape, dtype, device)
    except Exception as error:  # noqa: BLE001 (whatever an import runs may raise)
        logger.warning("FlashInfer cannot be used, our own kernel attends instead: %s", error)
        return None


@dataclass(frozen=True, slots=True)
class _Pages:
    """Where the KV of some sequences lies: FlashInfer's page table, in CSR form.

    ``starts`` [sequences + 1] and ``last`` [sequences], the tokens in the last page, are on the
    host; ``blocks`` are on the device.
    """

    starts: Tensor
    blocks: Tensor
    last: Tensor


class FlashInfer:
    """``LibraryAttention`` by FlashInfer.

    A plan is laid out in the library's own pinned memory and copied without waiting, so the next
    one may be made only once that copy has ended.
    """

    def __init__(
        self, library: Any, shape: ModelShape, dtype: torch.dtype, device: torch.device
    ) -> None:
        """``library`` is the module flashinfer; ``dtype`` is that of queries and KV."""
        self._library = library
        self._kv_shape = (2, shape.num_kv_heads, BLOCK_SIZE, shape.head_dim)
        self._sizes = (shape.num_heads, shape.num_kv_heads, shape.head_dim, BLOCK_SIZE)
        self._windows = set(shape.windows)
        self._max_blocks = -(-shape.max_positions // BLOCK_SIZE)
        self._dtype = dtype
        self._device = device
        # Steps run one after the other, so all wrappers share what kernels leave for one another.
        self._workspace = torch.empty(_WORKSPACE_BYTES, device=device, dtype=torch.uint8)
        self._prefill: dict[int | None, Any] = {}
        self._decode: dict[tuple[int | None, int | None], Any] = {}
        self._planned: set[Any] = set()
        self._copied: Any = torch.cuda.Event() if device.type == "cuda" else None  # type: ignore[no-untyped-call]
        self._spans: tuple[Tensor, _Pages] | None = None
        self._singles: _Pages | None = None
        self._fixed_size: int | None = None

    def plan(self, rows: HostRows, tensors: StepTensors) -> None:
        """Lay out a step; each wrapper is planned when its first layer attends."""
        self._planned = set()
        self._fixed_size = rows.num_padded if rows.is_fixed else None
        first = rows.num_singles
        self._singles = None
        if rows.num_padded:
            lengths = np.ones(rows.num_padded, np.int32)
            lengths[:first] = rows.starts[:first] + 1
            self._singles = _pages(rows, rows.slots[:first], lengths, tensors)
        self._spans = None
        if len(rows.slots) > first:
            counts = rows.counts[first:]
            pages = _pages(rows, rows.slots[first:], rows.starts[first:] + counts, tensors)
            self._spans = _bounds(counts), pages

    def attend_spans(
        self, queries: Tensor, cache: Tensor, window: int | None, output: Tensor
    ) -> None:
        """Attend with the rows of the spans, [tokens, heads, head_dim], and write ``output``."""
        if self._spans is None:
            raise RuntimeError("the step has no spans")
        wrapper = self._prefill.get(window)
        if wrapper is None:
            make = self._library.BatchPrefillWithPagedKVCacheWrapper
            wrapper = self._prefill[window] = make(self._workspace, "HND")
        bounds, pages = self._spans
        self._plan(wrapper, window, (bounds, pages.starts, pages.blocks, pages.last), causal=True)
        output.copy_(wrapper.run(queries.contiguous(), cache.view(len(cache), *self._kv_shape)))

    def attend_singles(
        self, queries: Tensor, cache: Tensor, window: int | None, output: Tensor
    ) -> None:
        """Attend with single tokens [sequences, heads, head_dim] and write ``output``."""
        wrapper = self._planned_decode(window)
        output.copy_(wrapper.run(queries.contiguous(), cache.view(len(cache), *self._kv_shape)))

    def capture(self) -> None:
        """Plan what the graph will run: nothing may be planned while it is captured."""
        for window in self._windows:
            self._planned_decode(window)

    def replay(self) -> None:
        """Plan for the step what the graph runs."""
        self.capture()

    def _planned_decode(self, window: int | None) -> Any:
        if self._singles is None:
            raise RuntimeError("the step has no single tokens")
        place = (self._fixed_size, window)
        wrapper = self._decode.get(place)
        if wrapper is None:
            wrapper = self._decode[place] = self._make_decode()
        pages = self._singles
        self._plan(wrapper, window, (pages.starts, pages.blocks, pages.last))
        return wrapper

    def _make_decode(self) -> Any:
        make, size = self._library.BatchDecodeWithPagedKVCacheWrapper, self._fixed_size
        if size is None:
            return make(self._workspace, "HND")
        buffers = [
            torch.zeros(count, dtype=torch.int32, device=self._device)
            for count in (size + 1, size * self._max_blocks, size)
        ]
        return make(
            self._workspace,
            "HND",
            use_cuda_graph=True,
            paged_kv_indptr_buffer=buffers[0],
            paged_kv_indices_buffer=buffers[1],
            paged_kv_last_page_len_buffer=buffers[2],
        )

    def _plan(
        self, wrapper: Any, window: int | None, arguments: Iterable[Tensor], **options: Any
    ) -> None:
        if id(wrapper) in self._planned:
            return
        if self._copied is not None:
            self._copied.synchronize()
        wrapper.plan(
            *arguments,
            *self._sizes,
            window_left=-1 if window is None else window - 1,
            q_data_type=self._dtype,
            **options,
        )
        if self._copied is not None:
            self._copied.record()
        self._planned.add(id(wrapper))


def _pages(rows: HostRows, slots: Ints, lengths: Ints, tensors: StepTensors) -> _Pages:
    """Return the pages of ``slots``; lengths beyond them are of padding, one token each."""
    counts = -(-lengths // BLOCK_SIZE)
    width = rows.tables.shape[1]
    tables = [
        tensors.tables[slot * width : slot * width + count]
        for slot, count in zip(slots.tolist(), counts.tolist(), strict=False)
    ]
    if len(slots) < len(lengths):
        tables.append(tensors.tables.new_full((len(lengths) - len(slots),), PADDING_BLOCK))
    last = torch.from_numpy((lengths - 1) % BLOCK_SIZE + 1).int()
    return _Pages(_bounds(counts), torch.cat(tables), last)


def _bounds(counts: Any) -> Tensor:
    return torch.from_numpy(np.concatenate([[0], np.cumsum(counts)])).int()
