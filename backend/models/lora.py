"""LoRA beside the linear maps: rows of several adapters and of the base in one step.

A linear map of several parts (q, k and v; gate and up) has the low ranks of all adapters in two
tensors. Rows take one of two ways, and the step says which:

- The mask. All adapters' A are one product, what belongs to other adapters is made zero, and one
  product for each part multiplies by all adapters' B. The shapes do not depend on who is in the
  batch, so CUDA graphs stay valid, and each weight is read once: best for decoding.
- Spans. Neighbouring rows of one adapter are multiplied by its own ranks alone: best for prompts.

Adapter 0 is the base: it has a mask of zeros and no spans. Only batches with adapters come here.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from backend.models.adapters import Adapter
from backend.models.config import DecoderConfig, ModelLoadError
from backend.models.decoder import MLP, Decoder, DecoderLayer, DecoderWeights
from backend.models.layers import DenseLinear, Linear
from backend.models.rope import interleave

# Up to so many rows all take the mask, beyond it only the rows that decode. Graphs of pieces have
# no more than that on CUDA.
_MASKED_ON_CPU, _MASKED_ON_CUDA = 64, 512

Numbers = np.ndarray[tuple[int], np.dtype[np.int32]]
"""Of adapters, 0 is the base."""

Parts = tuple[tuple[str, int], ...]
"""Modules that are one product here, and how many rows each has."""


class RowAdapters(NamedTuple):
    """The adapter of each row of a step; of the first ``num_singles`` each is a sequence's only."""

    numbers: Numbers
    num_singles: int


class Span(NamedTuple):
    """Rows ``start`` to ``stop`` of a step have ``adapter``, which is not the base."""

    adapter: int
    start: int
    stop: int


class AdapterRows:
    """Which adapter each row of the step in progress has; all of a decoder's linear maps look."""

    def __init__(self, num_adapters: int, most_rows: int, device: torch.device) -> None:
        """Make a mask that stays where it is, since graphs read it there."""
        self._mask = torch.ones(most_rows, num_adapters, device=device, dtype=torch.bool)
        self._numbers = torch.arange(1, num_adapters + 1, device=device, dtype=torch.int32)
        self.mask = self._mask
        """[rows, adapters], true where a row has not the adapter."""
        self.num_masked: int | None = None
        """So many of the first rows take the mask, None: all."""
        self.spans: tuple[Span, ...] = ()

    def start(self, rows: RowAdapters, sent: Tensor) -> None:
        """Begin a step of ``rows``, whose numbers are ``sent`` on the device."""
        self.mask_all()
        count, on_cpu = len(sent), self._mask.device.type == "cpu"
        self._mask[:count].copy_(sent.unsqueeze(1) != self._numbers)
        if on_cpu:
            spans = _spans(rows.numbers, 0)
            # A span costs calls, and the mask reads the weights of all adapters.
            if 2 * len(spans) <= len(self._numbers):
                self.num_masked, self.spans = 0, spans
                return
        if count > (_MASKED_ON_CPU if on_cpu else _MASKED_ON_CUDA):
            self.num_masked = rows.num_singles
            self.spans = _spans(rows.numbers, rows.num_singles)

    def pick(self, rows: Tensor) -> None:
        """Go on with some of the rows alone."""
        self.mask, self.num_masked, self.spans = self._mask.index_select(0, rows), None, ()

    def mask_all(self) -> None:
        """Let all rows take the mask."""
        self.mask, self.num_masked, self.spans = self._mask, None, ()


def _spans(numbers: Numbers, first: int) -> tuple[Span, ...]:
    """Return the spans from row ``first`` on."""
    bounds = [first, *(np.flatnonzero(np.diff(numbers[first:])) + first + 1).tolist(), len(numbers)]
    return tuple(
        Span(int(numbers[start]), start, stop)
        for start, stop in pairwise(bounds)
        if stop > start and numbers[start]
    )


@dataclass(frozen=True, slots=True)
class Ranks:
    """The low ranks of all adapters beside one linear map.

    ``a`` is [parts, adapters, rank, in]; ``b`` has a [adapters, rank, rows] for each part. Smaller
    ranks, and adapters that leave a part as it is, are filled up with zeros. To cut it by rows or
    columns, cut ``b`` by its last dimension, or ``a`` by its last.
    """

    a: Tensor
    b: tuple[Tensor, ...]

    def to(self, device: torch.device, dtype: torch.dtype) -> "Ranks":
        """Return the same on ``device`` in ``dtype``."""
        return Ranks(self.a.to(device, dtype), tuple(each.to(device, dtype) for each in self.b))

    @property
    def num_bytes(self) -> int:
        """What they take in memory."""
        return self.a.nbytes + sum(each.nbytes for each in self.b)


class AdaptedLinear:
    """A linear map, and beside it what adapters add."""

    def __init__(self, base: Linear, ranks: Ranks, step: AdapterRows) -> None:
        """Take a ``base`` with weights in any type; low ranks have the type of activations."""
        self._base, self._step, self._a = base, step, ranks.a
        self._all_a = DenseLinear(ranks.a.flatten(0, 2))
        self._shape = ranks.a.shape[:3]
        parts, stop = [], 0
        for b in ranks.b:
            start, stop = stop, stop + b.shape[2]
            parts.append((slice(start, stop), b.flatten(0, 1), b))
        self._parts = tuple(parts)
        self.num_bytes = base.num_bytes + ranks.num_bytes

    def __call__(self, rows: Tensor) -> Tensor:
        """Map [rows, in] to [rows, out]."""
        result, step = self._base(rows), self._step
        masked = len(rows) if step.num_masked is None else step.num_masked
        if masked:
            shape = self._shape
            inner = self._all_a(rows[:masked]).view(masked, *shape)
            # A product with 0 would let what is not finite reach the rows of others.
            inner = inner.masked_fill(step.mask[:masked, None, :, None], 0).flatten(2)
            for part, (columns, weight, _) in enumerate(self._parts):
                result[:masked, columns].addmm_(inner[:, part], weight)
        for adapter, start, stop in step.spans:
            inner = rows[start:stop]
            for part, (columns, _, b) in enumerate(self._parts):
                low = torch.mm(inner, self._a[part, adapter - 1].t())
                result[start:stop, columns].addmm_(low, b[adapter - 1])
        return result


class AdaptedDecoder(Decoder):
    """A decoder with adapters; ``rows`` must be started before each step."""

    def __init__(
        self, base: Decoder, config: DecoderConfig, weights: DecoderWeights, rows: AdapterRows
    ) -> None:
        """Compute as ``base`` with other ``weights``."""
        rotations, operations = base._rotations, base._operations  # noqa: SLF001 (its own class)
        super().__init__(config, weights, rotations, operations)
        self.rows = rows

    def leave(self, hidden: Tensor, attended: Tensor, logit_rows: Tensor | None) -> Tensor:
        if logit_rows is None:
            return super().leave(hidden, attended, None)
        self.rows.pick(logit_rows)
        left = super().leave(hidden, attended, logit_rows)
        self.rows.mask_all()
        return left


@dataclass(frozen=True, slots=True)
class Adapters:
    """Adapters 1, 2 … of a model: low ranks by layer, for each linear map that has some.

    A layer has them for its qkv, output, gate_up and down, in this order.
    """

    config: DecoderConfig
    weights: DecoderWeights
    dtype: torch.dtype
    number: int
    ranks: tuple[tuple[Ranks | None, ...], ...]

    @property
    def num_bytes(self) -> int:
        """What all low ranks take in memory."""
        return sum(each.num_bytes for layer in self.ranks for each in layer if each is not None)

    def decoder(self, base: Decoder, most_rows: int) -> AdaptedDecoder:
        """Return a decoder with adapters beside ``base``, whose weights it shares."""
        rows = AdapterRows(self.number, most_rows, base.device)
        layers = tuple(
            _adapted(layer, ranks, rows)
            for layer, ranks in zip(self.weights.layers, self.ranks, strict=True)
        )
        return AdaptedDecoder(base, self.config, replace(self.weights, layers=layers), rows)


def _adapted(layer: DecoderLayer, ranks: Sequence[Ranks | None], rows: AdapterRows) -> DecoderLayer:
    def beside(base: Linear, ranks: Ranks | None) -> Linear:
        return base if ranks is None else AdaptedLinear(base, ranks, rows)

    qkv, output, *others = ranks
    layer = replace(layer, qkv=beside(layer.qkv, qkv), output=beside(layer.output, output))
    if not isinstance(layer.mlp, MLP):
        return layer
    gate_up, down = others
    mlp = MLP(beside(layer.mlp.gate_up, gate_up), beside(layer.mlp.down, down))
    return replace(layer, mlp=mlp)


def adaptable_modules(config: DecoderConfig) -> dict[str, tuple[int, int]]:
    """Return the shapes [out, in] of all modules that adapters may change, by name."""
    return {
        name: (rows, size)
        for index in range(config.num_layers)
        for parts, size in _fused(config, index)
        for name, rows in parts
    }


def stack_adapters(
    config: DecoderConfig,
    weights: DecoderWeights,
    adapters: Sequence[Adapter],
    dtype: torch.dtype,
) -> Adapters:
    """Join ``adapters`` for the device of ``weights``; activations have ``dtype``.

    Raises ModelLoadError for values that it cannot hold: rows of others would compute with them.
    """
    for number, adapter in enumerate(adapters, 1):
        for module, low in adapter.items():
            if not all(each.to(dtype).isfinite().all() for each in (low.a, low.b)):
                raise ModelLoadError(
                    f"lora: adapter {number} of {len(adapters)}: {module}: its matrices, scaled by "
                    f"lora_alpha, are beyond {dtype}"
                )
    device = weights.embedding.rows.device
    layers = []
    for index in range(config.num_layers):
        joined = [_ranks(config, *each, adapters) for each in _fused(config, index)]
        layers.append(tuple(ranks and ranks.to(device, dtype) for ranks in joined))
    return Adapters(config, weights, dtype, len(adapters), tuple(layers))


def _fused(config: DecoderConfig, index: int) -> list[tuple[Parts, int]]:
    """Return what a layer's products are made of, and how many columns each has.

    As ``weights`` fuses them: qkv, output, and, where the layer has no experts, gate_up and down.
    """
    attention, mlp = (f"model.layers.{index}.{each}." for each in ("self_attn", "mlp"))
    queries, keys = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    hidden, inner = config.hidden_size, config.intermediate_size
    qkv: Mapping[str, int] = {"q_proj": queries, "k_proj": keys, "v_proj": keys}
    gate_up: Mapping[str, int] = {"gate_proj": inner, "up_proj": inner}
    if config.fused_projections:
        qkv, gate_up = {"qkv_proj": queries + 2 * keys}, {"gate_up_proj": 2 * inner}
    found: list[tuple[Parts, int]] = [
        (tuple((attention + name, rows) for name, rows in qkv.items()), hidden),
        (((f"{attention}o_proj", hidden),), queries),
    ]
    if config.experts is None or index not in config.experts.layers:
        found.append((tuple((mlp + name, rows) for name, rows in gate_up.items()), hidden))
        found.append((((f"{mlp}down_proj", hidden),), inner))
    return found


def _ranks(
    config: DecoderConfig, parts: Parts, size: int, adapters: Sequence[Adapter]
) -> Ranks | None:
    found = [len(each[name].a) for each in adapters for name, _ in parts if name in each]
    if not found:
        return None
    rank = max(found)
    a = torch.zeros(len(parts), len(adapters), rank, size)
    b = tuple(torch.zeros(len(adapters), rank, rows) for _, rows in parts)
    for part, (name, rows) in enumerate(parts):
        order = _order(config, name, rows)
        for number, adapter in enumerate(adapters):
            if (low := adapter.get(name)) is not None:
                a[part, number, : len(low.a)] = low.a
                b[part][number, : len(low.a)] = low.b[order].t()
    return Ranks(a, b)


def _order(config: DecoderConfig, name: str, rows: int) -> Tensor:
    """Return the order of a module's rows here: heads that turn are interleaved, see ``rope``."""
    order = torch.arange(rows)
    kind = name.rpartition(".")[2]
    if kind in {"q_proj", "k_proj", "qkv_proj"}:
        turning = rows
        if kind == "qkv_proj":
            turning -= config.num_kv_heads * config.head_dim
        order[:turning] = interleave(order[:turning].clone(), config.head_dim, config.rotary.dim)
    return order
