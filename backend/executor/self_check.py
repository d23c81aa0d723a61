"""Compares each kernel in use with its oracle on this device, before anybody is served.

Inputs are small and random, in the type, heads, windows and vocabulary of the model; the oracles
compute in float64 (``kernels.reference``). Attention is checked as the engine runs it, from a
step's value to the result of a layer, over a KV cache of its own. A group of kernels of which one
differs or raises is replaced by the group's ``instead``.
"""

import logging
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from backend.executor.attention.triton import attention_options
from backend.executor.factory import ALL_KERNELS, KernelGroup, Kernels, make_attention
from backend.executor.input_batch import BatchLimits, InputBatchBuilder
from backend.executor.kernel_operations import KernelOperations
from backend.executor.kv_cache import KVCache
from backend.kernels import reference
from backend.kernels.attention import BlockTables
from backend.kernels.grouped_matmul import FEW_PAIRS, MANY_PAIRS, grouped_matmul
from backend.kernels.quantized_matmul import PackedWeight, quantized_matmul
from backend.kernels.sampling import SamplingRows, sample_tokens
from backend.models.attention import AttentionLayer, ScoreRules
from backend.models.config import DecoderConfig, ModelLoadError
from backend.models.layers import RMSNorm
from backend.models.model import Network
from backend.models.quantization.linears import Float8Linear, KernelLinear
from backend.scheduler.batch import AppendedBlocks, NewSequence, Row, StepBatch
from backend.scheduler.block_pool import BLOCK_SIZE, blocks_for
from backend.scheduler.request import SamplingParams

logger = logging.getLogger(__name__)

_ALLOWED = {torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}
"""Greatest difference in a row, as a share of the row's largest value.

Half precision rounds the softmax's weights, the kernel's result and the oracle's: three times its
step beside 1, and a little more. In float32 sums of thousands of terms in another order, and the
hardware's exp2 and rsqrt, move the last six bits. A wrong index, mask or scale moves far more.
"""
_FP8_STEP = 0.13
"""FP8 has three bits behind the first: where two roundings part, they part by an eighth."""
_DRAWS = 16
_ALLOWED_DRAWS = 1 / _DRAWS
"""So many rows may differ: rounding may decide between two tokens that are almost equal."""
_SOME = 64
_LONG = 1100
"""Keys that make several splits, of decode and of prefill."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What came of one comparison; ``error`` is what the kernel raised."""

    group: KernelGroup
    kernel: str
    shape: str
    difference: float
    allowed: float
    error: str = ""

    @property
    def passes(self) -> bool:
        """Whether the kernel computes what it should; NaN does not pass."""
        return not self.error and self.difference <= self.allowed

    def __str__(self) -> str:
        what = f"{self.kernel} ({self.shape})"
        if self.error:
            return f"{what}: {self.error}"
        return f"{what}: greatest difference {self.difference:.1e}, allowed {self.allowed:.1e}"


@dataclass(frozen=True, slots=True)
class SelfCheck:
    """All findings, the kernels that may be used, and a line for each group that may not."""

    findings: tuple[Finding, ...]
    kernels: Kernels
    detail: tuple[str, ...]


def self_check(
    network: Network,
    device: torch.device,
    kv_dtype: torch.dtype,
    max_model_len: int,
    kernels: Kernels = ALL_KERNELS,
) -> SelfCheck:
    """Compare those of ``kernels`` that ``network`` uses on ``device``.

    ``kv_dtype`` is that of the KV cache, ``max_model_len`` the engine's longest sequence. Raises
    ModelLoadError where a kernel leaves the device unusable, or memory does not suffice.
    """
    began = time.perf_counter()
    check = _Check(network, device, max_model_len)
    with torch.inference_mode():
        kernels = check.attention(kernels, kv_dtype)
        check.operations()
        check.sampling()
        check.products()
        check.experts()
    failed = [each for each in check.findings if not each.passes]
    kernels -= {each.group for each in failed}
    seconds = time.perf_counter() - began
    logger.info("self-check: %d comparisons in %.1f s", len(check.findings), seconds)
    detail: list[str] = []
    for group in KernelGroup:
        if worst := [each for each in failed if each.group is group]:
            first = max(worst, key=lambda each: (bool(each.error), each.difference))
            detail.append(f"{group}: {group.instead}, because of {first}")
            logger.error("SELF-CHECK FAILED on %s: %s", device, detail[-1])
    return SelfCheck(tuple(check.findings), kernels, tuple(detail))


@dataclass(slots=True)
class _Check:
    network: Network
    device: torch.device
    max_model_len: int
    findings: list[Finding] = field(default_factory=list)
    # One of its own: the process's random numbers stay as they are.
    generator: torch.Generator = field(default_factory=lambda: torch.Generator().manual_seed(0))

    def random(self, *shape: int) -> Tensor:
        numbers = torch.randn(shape, generator=self.generator)
        return numbers.to(self.device, self.network.dtype)

    def compare(
        self,
        group: KernelGroup,
        kernel: str,
        shape: str,
        difference: Callable[[], float],
        allowed: float | None = None,
    ) -> None:
        """Run ``difference`` and note what it returns or raises."""
        greatest, error = float("nan"), ""
        try:
            greatest = difference()
        except torch.OutOfMemoryError as raised:
            raise ModelLoadError(f"out of device memory in the self-check of {kernel}") from raised
        except Exception as raised:  # noqa: BLE001 (whatever a compiler or driver raises)
            error = _told(raised)
            self._expect_device(f"{kernel}: {error}")
        if allowed is None:
            allowed = _ALLOWED[self.network.dtype]
        self.findings.append(Finding(group, kernel, shape, greatest, allowed, error))

    def _expect_device(self, what: str) -> None:
        if self.device.type == "cuda":
            try:
                torch.cuda.synchronize(self.device)
            except RuntimeError as lost:
                raise ModelLoadError(f"{self.device} was lost in the self-check; {what}") from lost

    def attention(self, kernels: Kernels, kv_dtype: torch.dtype) -> Kernels:
        """Compare attention; what differs is left out, and what replaces it is compared."""
        network = self.network
        if kv_dtype is network.dtype:
            kernels -= {KernelGroup.KV_8_BITS}
        windows = network.shape.windows
        while KernelGroup.ATTENTION in kernels:
            before = len(self.findings)
            dtype = kv_dtype if KernelGroup.KV_8_BITS in kernels else network.dtype
            for index in _distinct(windows, network.rules):
                layer = AttentionLayer(0, windows[index])
                if network.weights is not None:
                    layer = replace(layer, head_norm=network.weights.layers[index].head_norm)
                if network.rules:
                    layer = replace(layer, rules=network.rules[index])
                self._layer(layer, kernels, dtype)
            failed = {each.group for each in self.findings[before:] if not each.passes}
            if not failed:
                break
            kernels -= failed
        return kernels

    def _layer(self, layer: AttentionLayer, kernels: Kernels, kv_dtype: torch.dtype) -> None:
        shape, longest = self.network.shape, min(_LONG, self.max_model_len - 1)
        about = f"{shape.num_heads}/{shape.num_kv_heads} heads of {shape.head_dim}" + (
            "" if layer.window is None else f", window {layer.window}"
        )
        if layer.rules is not None:
            about += ", sinks" if layer.rules.softcap is None else f", cap {layer.rules.softcap:g}"
        own, allowed = KernelGroup.ATTENTION, None
        if kv_dtype is not self.network.dtype:
            own, allowed = KernelGroup.KV_8_BITS, _FP8_STEP
        for kernel, cases in (
            ("decode attention, one split", ((0, 1), (16, 1), (69, 1))),
            ("decode attention, several splits", ((longest, 1), (3, 1))),
            ("prefill attention", ((0, 20), (min(90, longest // 2), 9), (max(longest - 5, 0), 5))),
        ):
            # A short context has no room for all keys.
            starts = [min(start, longest) for start, _ in cases]
            spans = [
                (start, min(count, self.max_model_len - start))
                for start, (_, count) in zip(starts, cases, strict=True)
            ]
            shown = f"{about}, {'/'.join(str(start + count) for start, count in spans)} keys"
            step = _Step(self, layer, kv_dtype, spans)
            written = partial(step.write, kernels)
            self.compare(own, "norm, rotation, KV write", shown, written, allowed)
            if step.output is not None:
                self.compare(own, kernel, shown, step.attend)

    def operations(self) -> None:
        """Compare what a decoder of ours does beside products and attention."""
        config, kernels = self.network.shape, KernelOperations()
        if not isinstance(config, DecoderConfig):
            return
        hidden, eps = config.hidden_size, config.rms_eps
        rows, stream, weight = self.random(5, hidden), self.random(5, hidden), self.random(hidden)
        norm = RMSNorm(weight, eps)

        def rms_norm() -> float:
            return _difference(kernels.norm(rows, norm), reference.rms_norm(rows, weight, eps))

        def add_norm() -> float:
            exact = stream.clone()
            expected = reference.add_rms_norm(rows, exact, weight, eps)
            total, normed = kernels.add_norm(stream, rows, norm)
            return _difference(torch.stack([total, normed]), torch.stack([exact, expected]))

        def silu_mul(gate_up: Tensor) -> float:
            return _difference(kernels.gated(gate_up), reference.silu_mul(gate_up))

        group = KernelGroup.OPERATIONS
        self.compare(group, "rms_norm", f"5 x {hidden}", rms_norm)
        self.compare(group, "add_rms_norm", f"5 x {hidden}", add_norm)
        inner = config.intermediate_size
        sizes = {inner} if config.experts is None else {inner, config.experts.intermediate_size}
        for size in sorted(sizes):
            gated = partial(silu_mul, self.random(5, 2 * size))
            self.compare(group, "silu_mul", f"5 x {size}", gated)

    def sampling(self) -> None:
        """Compare draws: the share of rows that get another token."""
        vocab = self.network.shape.vocab_size
        logits = 3 * self.random(_DRAWS, vocab)
        keys = torch.randint(-(2**31), 2**31 - 1, (_DRAWS, 2), generator=self.generator)

        def column(value: float) -> Tensor:
            return torch.full((_DRAWS, 1), value, device=self.device)

        def draw(how: SamplingRows) -> float:
            differ = sample_tokens(logits, how) != reference.sample_tokens(logits, how)
            return float(differ.double().mean())

        for name, temperature, top_k, top_p, min_p in (
            ("greedy", 0.0, vocab, 1.0, 0.0),
            ("temperature", 1.0, vocab, 1.0, 0.0),
            ("top_k", 0.8, min(20, vocab), 1.0, 0.0),
            ("top_p, min_p", 0.8, vocab, 0.9, 0.01),
        ):
            how = SamplingRows(
                column(temperature),
                column(top_k),
                column(top_p),
                column(min_p).log(),
                keys.to(self.device, torch.int32),
            )
            allowed = 0.0 if name == "greedy" else _ALLOWED_DRAWS
            shape = f"{_DRAWS} x {vocab}"
            drawn = partial(draw, how)
            self.compare(KernelGroup.SAMPLING, f"sampling, {name}", shape, drawn, allowed)

    def products(self) -> None:
        """Compare products with the model's quantised weights, one of each layout and size."""
        weights = self.network.weights
        linears = () if weights is None else (*weights.linears,)
        packed = [each.packed for each in linears if isinstance(each, KernelLinear)]
        layouts = {
            (each.codes.shape, each.kind, each.group_size, each.zeros is None): each
            for each in packed
        }

        def multiply(rows: Tensor, weight: PackedWeight) -> float:
            some = self._some(weight.codes.shape[1])
            expected = reference.quantized_matmul(rows, _cut(weight, some))
            return _difference(quantized_matmul(rows, weight)[:, some], expected)

        def multiply_in_fp8(rows: Tensor, linear: Float8Linear) -> float:
            some = self._some(len(linear.weight.codes))
            codes, scales = reference.quantize_rows(rows)
            exact = codes.double() * scales @ linear.weight.take(some).dequantized().double().t()
            if linear.bias is not None:
                exact += linear.bias[some]
            return _difference(linear(rows)[:, some], exact)

        for weight in layouts.values():
            for tokens in (3, 40, 200):
                product = partial(multiply, self.random(tokens, weight.columns), weight)
                shape = f"{tokens} x {weight.columns} x {weight.codes.shape[1]}"
                name = f"product with {weight.kind}"
                self.compare(KernelGroup.MATMUL, name, shape, product)
        in_fp8 = [each for each in linears if isinstance(each, Float8Linear)]
        for size, linear in {each.weight.codes.shape: each for each in in_fp8}.items():
            for tokens in (3, 40):
                product = partial(multiply_in_fp8, self.random(tokens, size[1]), linear)
                shape = f"{tokens} x {size[1]} x {size[0]}"
                # Values near the middle of two codes may get either.
                allowed = _ALLOWED[torch.bfloat16]
                self.compare(KernelGroup.MATMUL, "product in FP8", shape, product, allowed)

    def experts(self) -> None:
        """Compare products of experts that the kernel computes, of each size and in each tiling."""
        weights = self.network.weights
        every = () if weights is None else weights.experts
        ours = [each for each in every if each.product is grouped_matmul]
        stacks: list[Any] = [stack for each in ours for stack in (each.gate_up, each.down)]

        def multiply(pairs: Tensor, stack: Tensor, ends: Tensor) -> float:
            some = self._some(stack.shape[1])
            expected = reference.grouped_matmul(pairs, stack[:, some], ends)
            return _difference(grouped_matmul(pairs, stack, ends)[:, some], expected)

        for (experts, rows, columns), stack in {each.shape: each for each in stacks}.items():
            for count in (3, FEW_PAIRS * experts + 1, MANY_PAIRS * experts + 1):
                picked = torch.randint(experts, (count,), generator=self.generator)
                ends = picked.bincount(minlength=experts).cumsum(0).to(self.device, torch.int32)
                product = partial(multiply, self.random(count, columns), stack, ends)
                shape = f"{experts} experts, {count} x {columns} x {rows}"
                self.compare(KernelGroup.EXPERTS, "product of experts", shape, product)

    def _some(self, size: int) -> Tensor:
        """Return the first and last of ``size`` columns: all are computed, these are compared."""
        every = torch.arange(size, device=self.device)
        return every[(every < _SOME) | (every >= size - _SOME)]


def _distinct(windows: Sequence[int | None], rules: Sequence[ScoreRules | None]) -> Iterable[int]:
    """Return one layer for each way of attending."""
    first: dict[Any, int] = {}
    for index, window in enumerate(windows):
        own = rules[index] if rules else None
        first.setdefault((window, own and (own.softcap, own.sinks is None)), index)
    return first.values()


class _Step:
    """One layer's attention in one step, over a cache of random numbers of its own.

    ``spans`` says how many tokens of each sequence are cached, and how many are new.
    """

    def __init__(
        self,
        check: _Check,
        layer: AttentionLayer,
        kv_dtype: torch.dtype,
        spans: Sequence[tuple[int, int]],
    ) -> None:
        self._check, self._layer, self._spans = check, layer, spans
        shape: Any = check.network.shape
        counts = [blocks_for(start + count) for start, count in spans]
        one = replace(shape, num_layers=1, windows=(layer.window,))
        self._cache = KVCache(one, sum(counts), device=check.device, dtype=kv_dtype)
        self._kv = self._cache.layers[0]
        self._kv.blocks.copy_(check.random(*self._kv.blocks.shape))
        order = torch.randperm(sum(counts), generator=check.generator) + 1
        self._tables = [each.tolist() for each in torch.split(order, counts)]
        self._positions = [
            (slot, start + at) for slot, (start, count) in enumerate(spans) for at in range(count)
        ]
        tokens, heads = len(self._positions), shape.num_heads
        self._qkv = check.random(tokens, heads + 2 * shape.num_kv_heads, shape.head_dim)
        self._queries = self._qkv[:, :heads]
        self._rotations: Tensor | None = None
        if check.network.weights is not None:
            angles = 3 * torch.randn(tokens, 1, shape.head_dim // 2, generator=check.generator)
            self._rotations = torch.polar(torch.ones_like(angles), angles).to(check.device)
        self.output: Tensor | None = None

    def write(self, kernels: Kernels) -> float:
        """Run the layer; return the difference of its queries and of the cache."""
        qkv, blocks, norm = self._qkv.clone(), self._kv.blocks.clone(), self._layer.head_norm
        slots = self._integers(
            self._tables[slot][position // BLOCK_SIZE] * BLOCK_SIZE + position % BLOCK_SIZE
            for slot, position in self._positions
        )
        heads = self._queries.shape[1]
        if self._rotations is None:
            reference.write_kv(qkv[:, heads:], blocks, slots, self._kv.scales)
        else:
            reference.rotate_and_write(
                qkv,
                torch.view_as_real(self._rotations.squeeze(1)),
                slots,
                blocks,
                head_weights=None if norm is None else norm.weight,
                eps=0.0 if norm is None else norm.eps,
                scales=self._kv.scales,
            )
        count = len(self._spans)
        limits = BatchLimits(count, count, len(qkv), self._check.max_model_len)
        attention = make_attention(self._check.network, self._cache, limits, kernels)
        InputBatchBuilder(limits, attention, self._check.device).build(self._batch())
        self.output = attention.forward(self._layer, self._qkv, self._rotations)
        queries = _difference(self._queries, qkv[:, :heads])
        # Unlike Python's own, this maximum keeps NaN.
        return float(torch.tensor([queries, _difference(self._kv.blocks, blocks)]).max())

    def attend(self) -> float:
        """Return the difference of the layer's result, given its queries and cache."""
        if self.output is None:
            raise RuntimeError("attend before write")
        firsts = [sum(map(len, self._tables[:slot])) for slot, _ in self._positions]
        flat = [block for table in self._tables for block in table]
        expected = reference.decode_attention(
            self._queries,
            self._kv.blocks,
            BlockTables(self._integers(flat), self._integers(firsts)),
            self._integers(position + 1 for _, position in self._positions),
            **attention_options(self._layer),
            scales=self._kv.scales,
        )
        return _difference(self.output.view(expected.shape), expected)

    def _batch(self) -> StepBatch:
        greedy, spans = SamplingParams(temperature=0.0), list(enumerate(self._spans))
        return StepBatch(
            tuple(
                NewSequence(slot, (0,) * sum(span), 1, greedy, 0, frozenset())
                for slot, span in spans
            ),
            tuple(AppendedBlocks(slot, 0, (*table,)) for slot, table in enumerate(self._tables)),
            tuple(Row(slot, *span, samples=True) for slot, span in spans),
        )

    def _integers(self, values: Iterable[int]) -> Tensor:
        return torch.tensor(list(values), dtype=torch.int32, device=self._check.device)


def _difference(result: Tensor, expected: Tensor) -> float:
    """Return the greatest difference in a row, as a share of the row's largest value; NaN stays."""
    exact = expected.double()
    largest = exact.abs().amax(-1).clamp(min=1e-30)
    return float(((result.double() - exact).abs().amax(-1) / largest).max())


def _told(error: Exception) -> str:
    """Return which kernel raised ``error``, and its first line."""
    names = [
        frame.name
        for frame in traceback.extract_tb(error.__traceback__)
        if "/backend/kernels/" in frame.filename and frame.name != "launch"
    ]
    words = (str(error).strip() or type(error).__name__).splitlines()[0]
    return f"{names[-1] if names else 'it'} raised {type(error).__name__}: {words}"


def _cut(weight: PackedWeight, rows: Tensor) -> PackedWeight:
    return replace(
        weight,
        codes=weight.codes.index_select(1, rows),
        scales=weight.scales.index_select(1, rows),
        zeros=None if weight.zeros is None else weight.zeros.index_select(1, rows),
    )
