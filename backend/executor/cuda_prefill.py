"""Prefill attention on CUDA: our kernel, or FlashInfer or flash-attn where they can be imported.

FlashInfer reads our paged layout as it is. flash-attn does not (its blocks are larger), so it takes
steps whose spans all begin their sequences; what is left goes to the kernel.
"""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from itertools import pairwise
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn import functional

from backend.kernels.prefill_attention import prefill_attention

BACKENDS = ("flashinfer", "flash_attn", "triton", "torch")
_HEAD_DIMS = {"flashinfer": (64, 128, 256), "flash_attn": range(8, 257, 8)}
_WORKSPACE_BYTES = 128 * 2**20


@dataclass(frozen=True, slots=True)
class PrefillSpans:
    """Spans of several tokens, the last rows of a step from ``first_row`` on.

    ``blocks`` are the step's block tables; ``tiles`` those of the kernel. ``starts`` are the rows
    at which spans begin, and the end; ``prefixes`` the tokens cached before each, and ``tables``
    where their block tables begin in ``blocks``.
    """

    first_row: int
    blocks: Tensor
    tiles: Tensor
    starts: tuple[int, ...]
    prefixes: tuple[int, ...]
    tables: tuple[int, ...]

    @property
    def is_fresh(self) -> bool:
        """Whether no span has anything cached before it."""
        return not any(self.prefixes)


class Prefill(Protocol):
    """Attention of the spans of one step, for each layer in turn."""

    @property
    def reads_new_keys(self) -> bool:
        """Whether keys are read from the projection too, and not from the cache alone."""
        ...

    def attend(
        self,
        queries: Tensor,
        keys_values: Tensor,
        cache: Tensor,
        spans: PrefillSpans,
        *,
        window: int | None,
        output: Tensor,
    ) -> None:
        """Attend with the rows of ``spans``, writing the same rows of ``output``.

        ``queries`` is [tokens, heads, head_dim], ``keys_values`` [tokens, 2 * kv_heads, head_dim];
        both are in ``cache`` already.
        """
        ...


def choose_backend(
    find: Callable[[str], object | None] = find_spec,
    *,
    device: str,
    dtype: torch.dtype,
    head_dim: int,
) -> str:
    """Return the first of BACKENDS that can be had; ``find`` looks for a module.

    The libraries know half precision on CUDA only, and heads of some sizes.
    """
    if device == "cuda" and dtype in {torch.float16, torch.bfloat16}:
        for name, sizes in _HEAD_DIMS.items():
            if head_dim in sizes and find(name) is not None:
                return name
    return "triton" if find("triton") is not None else "torch"


def make_prefill(
    name: str, load: Callable[[str], Any] = import_module, *, device: torch.device
) -> Prefill:
    """Return the backend ``name``, whose library ``load`` imports. Raises ValueError."""
    match name:
        case "flashinfer":
            return FlashInferPrefill(load("flashinfer"), device)
        case "flash_attn":
            return FlashAttnPrefill(load("flash_attn"))
        case "triton":
            return KernelPrefill()
        case "torch":
            return TorchPrefill()
    raise ValueError(f"prefill {name}: expected one of {', '.join(BACKENDS)}")


class KernelPrefill:
    """Our kernel."""

    reads_new_keys = False

    def attend(
        self,
        queries: Tensor,
        keys_values: Tensor,  # noqa: ARG002 (the interface's; the cache has them)
        cache: Tensor,
        spans: PrefillSpans,
        *,
        window: int | None,
        output: Tensor,
    ) -> None:
        """See Prefill."""
        prefill_attention(queries, cache, spans.blocks, spans.tiles, window=window, output=output)


class TorchPrefill:
    """torch's scaled dot-product attention, span by span."""

    reads_new_keys = False

    def __init__(self) -> None:
        self._spans: PrefillSpans | None = None
        self._masks: dict[tuple[int, int | None], Tensor | None] = {}
        """Of one step, by first row and window."""

    def attend(
        self,
        queries: Tensor,
        keys_values: Tensor,
        cache: Tensor,
        spans: PrefillSpans,
        *,
        window: int | None,
        output: Tensor,
    ) -> None:
        """See Prefill."""
        if self._spans is not spans:
            self._spans, self._masks = spans, {}
        kv_heads, block_size = keys_values.shape[1] // 2, cache.shape[2]
        bounds = pairwise(spans.starts)
        for (start, stop), prefix, table in zip(bounds, spans.prefixes, spans.tables, strict=True):
            num_keys = prefix + stop - start
            blocks = spans.blocks[table : table - (-num_keys // block_size)]
            rows = cache.index_select(0, blocks).transpose(0, 1).flatten(1, 2)[:, :num_keys]
            mask = self._mask(start, prefix, num_keys, window, queries.device)
            attended = functional.scaled_dot_product_attention(
                queries[start:stop].transpose(0, 1).unsqueeze(0),
                rows[:kv_heads].unsqueeze(0),
                rows[kv_heads:].unsqueeze(0),
                attn_mask=mask,
                is_causal=mask is None,
                enable_gqa=kv_heads != queries.shape[1],
            )
            output[start:stop] = attended[0].transpose(0, 1)

    def _mask(
        self, start: int, prefix: int, num_keys: int, window: int | None, device: torch.device
    ) -> Tensor | None:
        """Return which keys each token of a span sees, None where that is plainly causal."""
        place = (start, window)
        if place not in self._masks:
            mask = None
            if prefix or window is not None:
                keys = torch.arange(num_keys, device=device)
                ages = keys[prefix:].unsqueeze(1) - keys
                mask = (ages >= 0) & (ages < (num_keys if window is None else window))
            self._masks[place] = mask
        return self._masks[place]


class FlashAttnPrefill:
    """flash-attn for steps whose spans all begin their sequences, our kernel for the others."""

    reads_new_keys = True

    def __init__(self, library: Any) -> None:
        """``library`` is the module flash_attn."""
        self._attend = library.flash_attn_varlen_func
        self._others = KernelPrefill()

    def attend(
        self,
        queries: Tensor,
        keys_values: Tensor,
        cache: Tensor,
        spans: PrefillSpans,
        *,
        window: int | None,
        output: Tensor,
    ) -> None:
        """See Prefill."""
        if not spans.is_fresh:
            self._others.attend(queries, keys_values, cache, spans, window=window, output=output)
            return
        rows = slice(spans.first_row, spans.starts[-1])
        starts = [start - spans.first_row for start in spans.starts]
        bounds = torch.tensor(starts, dtype=torch.int32).to(queries.device, non_blocking=True)
        longest = max(stop - start for start, stop in pairwise(starts))
        keys, values = keys_values[rows].chunk(2, dim=1)
        output[rows] = self._attend(
            queries[rows],
            keys,
            values,
            bounds,
            bounds,
            longest,
            longest,
            causal=True,
            window_size=(-1 if window is None else window - 1, 0),
        )


class _Planned:
    """A wrapper of FlashInfer and the step that it is planned for.

    A plan is laid out in the wrapper's own pinned memory and copied without waiting, so the next
    one may be made only once that copy has ended.
    """

    def __init__(self, wrapper: Any, device: torch.device) -> None:
        self.wrapper = wrapper
        self._spans: PrefillSpans | None = None
        self._copied: Any = torch.cuda.Event() if device.type == "cuda" else None  # type: ignore[no-untyped-call]

    def is_for(self, spans: PrefillSpans) -> bool:
        return self._spans is spans

    def plan(self, spans: PrefillSpans, *arguments: Any, **options: Any) -> None:
        if self._copied is not None:
            self._copied.synchronize()
        self.wrapper.plan(*arguments, **options)
        if self._copied is not None:
            self._copied.record()
        self._spans = spans


class FlashInferPrefill:
    """FlashInfer over our blocks; it plans once for each step and window."""

    reads_new_keys = False

    def __init__(self, library: Any, device: torch.device) -> None:
        """``library`` is the module flashinfer."""
        self._library = library
        self._device = device
        # Steps run one after the other, so all wrappers share what kernels leave for one another.
        self._workspace = torch.empty(_WORKSPACE_BYTES, device=device, dtype=torch.uint8)
        self._planned: dict[int | None, _Planned] = {}

    def attend(
        self,
        queries: Tensor,
        keys_values: Tensor,
        cache: Tensor,
        spans: PrefillSpans,
        *,
        window: int | None,
        output: Tensor,
    ) -> None:
        """See Prefill."""
        kv_heads, head_dim = keys_values.shape[1] // 2, keys_values.shape[2]
        planned = self._planned.get(window)
        if planned is None:
            wrapper = self._library.BatchPrefillWithPagedKVCacheWrapper(self._workspace, "HND")
            planned = self._planned[window] = _Planned(wrapper, self._device)
        if not planned.is_for(spans):
            _plan(planned, queries, cache, spans, window)
        paged = cache.view(len(cache), 2, kv_heads, cache.shape[2], head_dim)
        rows = slice(spans.first_row, spans.starts[-1])
        output[rows] = planned.wrapper.run(queries[rows].contiguous(), paged)


def _plan(
    planned: _Planned,
    queries: Tensor,
    cache: Tensor,
    spans: PrefillSpans,
    window: int | None,
) -> None:
    kv_heads, block_size = cache.shape[1] // 2, cache.shape[2]
    lengths = [
        prefix + stop - start
        for (start, stop), prefix in zip(pairwise(spans.starts), spans.prefixes, strict=True)
    ]
    counts = [-(-length // block_size) for length in lengths]
    # The spans' tables are the last of the step's, and end to end.
    first = spans.tables[0]
    ends = [table - first + count for table, count in zip(spans.tables, counts, strict=True)]
    int32 = torch.int32
    planned.plan(
        spans,
        torch.tensor([start - spans.first_row for start in spans.starts], dtype=int32),
        torch.tensor([0, *ends], dtype=int32),
        spans.blocks[first : first + ends[-1]],
        torch.tensor([(length - 1) % block_size + 1 for length in lengths], dtype=int32),
        queries.shape[1],
        kv_heads,
        queries.shape[2],
        block_size,
        causal=True,
        window_left=-1 if window is None else window - 1,
        q_data_type=queries.dtype,
    )
