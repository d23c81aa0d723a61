"""A decoder's weights, fused: from a checkpoint, or random ones of the same shapes.

Tensors are read straight into the fused buffers: loading takes the memory of the weights and of
one tensor more.
"""

import logging
import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from backend.models.checkpoint import FLOATS, Checkpoint, Tensors
from backend.models.config import DecoderConfig, ExpertsConfig, ModelLoadError, read_json
from backend.models.decoder import MLP, DecoderLayer, DecoderWeights
from backend.models.layers import DenseLinear, Embedding, Linear, RMSNorm
from backend.models.moe import Experts
from backend.models.quantization.formats import CheckpointFormat, checkpoint_format, has_quantized
from backend.models.quantization.linears import quantized_embedding, quantized_linear
from backend.models.quantization.weight import QuantizedWeight, quantize
from backend.models.rope import interleave

logger = logging.getLogger(__name__)

_RANDOM_SCALE = 0.02
_LARGE_BYTES = 2 * 2**30


def load_weights(
    directory: Path,
    config: DecoderConfig,
    *,
    device: torch.device,
    dtype: torch.dtype,
    int8: bool = False,
    tell: Callable[[str], None] = logger.debug,
) -> DecoderWeights:
    """Read all tensors, cast and move them. Raises ModelLoadError.

    ``int8`` makes embedding and matrices int8, one after the other.
    """
    source = directory / "config.json"
    held = checkpoint_format(read_json(source), str(source))
    checkpoint = Checkpoint(directory)
    if held is None:
        checkpoint.check_room(device, torch.int8 if int8 else dtype)
    elif has_quantized(checkpoint.names):
        checkpoint.check_room(device, dtype, held.bits, held.code_bytes(device, dtype))
    else:
        raise ModelLoadError(f"{source}: quantization_config: none of the tensors are quantised")
    weights = _Builder(config, checkpoint, device, dtype, tell, held=held, int8=int8).build()
    checkpoint.close()
    return weights


def random_weights(
    config: DecoderConfig,
    *,
    device: torch.device,
    dtype: torch.dtype,
    int8: bool = False,
    seed: int = 0,
) -> DecoderWeights:
    """Make weights of the right shapes out of nothing, the same for the same ``seed``.

    For measurements: a model's real shapes without its checkpoint.
    """
    tensors = _RandomTensors(device, seed)
    return _Builder(config, tensors, device, dtype, logger.debug, held=None, int8=int8).build()


class _RandomTensors:
    def __init__(self, device: torch.device, seed: int) -> None:
        self.source = "random weights"
        self._generator = torch.Generator(device).manual_seed(seed)

    def has(self, name: str) -> bool:  # noqa: ARG002 (of what is quantised there is nothing)
        return False

    def expect(self, name: str, shape: tuple[int, ...]) -> None:
        pass

    def read(
        self, name: str, shapes: Sequence[tuple[int, ...]], dtypes: Collection[torch.dtype]
    ) -> Tensor:
        raise NotImplementedError

    def read_into(self, name: str, out: Tensor) -> None:
        if name.endswith("norm.weight"):
            out.fill_(1.0)
        else:
            out.normal_(0.0, _RANDOM_SCALE, generator=self._generator)


@dataclass(slots=True)
class _Builder:
    """Allocates fused buffers and has them filled."""

    config: DecoderConfig
    tensors: Tensors
    device: torch.device
    dtype: torch.dtype
    tell: Callable[[str], None]
    held: CheckpointFormat | None
    int8: bool
    num_bytes: int = 0

    def build(self) -> DecoderWeights:
        config = self.config
        embedding, head = self._embedding((config.vocab_size, config.hidden_size))
        layers: list[DecoderLayer] = []
        source, total = self.tensors.source, config.num_layers
        for count in range(1, total + 1):
            layers.append(self._layer(count - 1))
            self.tell(f"{count} of {total} layers of {source}")
            if self.num_bytes > _LARGE_BYTES and count % max(total // 10, 1) == 0:
                gib = self.num_bytes / 2**30
                logger.info("%s: %d of %d layers, %.1f GiB", source, count, total, gib)
        return DecoderWeights(embedding, tuple(layers), self._norm("model.norm"), head)

    def _embedding(self, shape: tuple[int, int]) -> tuple[Embedding, Linear]:
        rows = self._single("model.embed_tokens.weight", shape)
        tied, dtype = self.config.tied_embeddings, self.dtype
        if not self.int8:
            matrix = rows if tied else self._single("lm_head.weight", shape)
            return Embedding(rows, dtype, shape[1], shared=tied), DenseLinear(matrix)
        codes = quantize(rows)
        del rows
        if not tied:
            head = self._linear((("lm_head", shape[0]),), shape[1], bias=False)
            return quantized_embedding(codes, dtype), head
        head = quantized_linear(codes, None, dtype)
        return quantized_embedding(codes, dtype, head), head

    def _layer(self, index: int) -> DecoderLayer:
        config, prefix = self.config, f"model.layers.{index}."
        attention = prefix + "self_attn."
        query_rows = config.num_heads * config.head_dim
        experts = config.experts
        return DecoderLayer(
            input_norm=self._norm(f"{prefix}input_layernorm"),
            qkv=self._qkv(attention),
            head_norm=self._head_norm(attention) if config.qk_norm else None,
            output=self._linear(
                ((f"{attention}o_proj", config.hidden_size),), query_rows, bias=config.output_bias
            ),
            mlp_norm=self._norm(f"{prefix}post_attention_layernorm"),
            mlp=self._mlp(f"{prefix}mlp.")
            if experts is None or index not in experts.layers
            else self._experts(f"{prefix}{experts.module}.", experts),
            kv_scales=self._kv_scales(attention),
        )

    def _qkv(self, attention: str) -> Linear:
        config = self.config
        queries, keys = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
        parts = (
            ((f"{attention}qkv_proj", queries + 2 * keys),)
            if config.fused_projections
            else (
                (f"{attention}q_proj", queries),
                (f"{attention}k_proj", keys),
                (f"{attention}v_proj", keys),
            )
        )
        heads = torch.arange(queries + 2 * keys, device=self.device)
        turning = heads[: queries + keys]
        turning.copy_(interleave(turning, config.head_dim, config.rotary.dim))
        return self._linear(parts, config.hidden_size, bias=config.qkv_bias, order=heads)

    def _head_norm(self, attention: str) -> RMSNorm:
        config, size = self.config, self.config.head_dim
        query, key = (
            interleave(self._single(f"{attention}{name}.weight", (size,)), size, config.rotary.dim)
            for name in ("q_norm", "k_norm")
        )
        each = [query] * config.num_heads + [key] * config.num_kv_heads
        return RMSNorm(torch.stack(each), config.rms_eps)

    def _kv_scales(self, attention: str) -> Tensor | None:
        heads = self.config.num_kv_heads
        scales = torch.ones(2, heads)
        names = [f"{attention}{each}_scale" for each in ("k", "v")]
        found = [name for name in names if self.tensors.has(name)]
        for name in found:
            shapes = ((1,), (), (heads,), (heads, 1, 1))
            read = self.tensors.read(name, shapes, FLOATS).float().flatten()
            if not bool((read > 0).all()):
                raise ModelLoadError(f"{self.tensors.source}: tensor {name} is not above 0")
            scales[names.index(name)] = read
        return scales.flatten().to(self.device) if found else None

    def _mlp(self, mlp: str) -> MLP:
        config = self.config
        hidden, inner = config.hidden_size, config.intermediate_size
        parts = (
            ((f"{mlp}gate_up_proj", 2 * inner),)
            if config.fused_projections
            else ((f"{mlp}gate_proj", inner), (f"{mlp}up_proj", inner))
        )
        return MLP(
            gate_up=self._linear(parts, hidden, bias=config.mlp_bias),
            down=self._linear(((f"{mlp}down_proj", hidden),), inner, bias=config.mlp_bias),
        )

    def _experts(self, module: str, experts: ExpertsConfig) -> Experts:
        hidden, inner = self.config.hidden_size, experts.intermediate_size
        gate, up, down = experts.projections
        router = self._single(f"{module}gate.weight", (experts.num_experts, hidden))
        if self._is_quantized(f"{module}experts.0.{gate}"):
            each = [f"{module}experts.{expert}." for expert in range(experts.num_experts)]
            return Experts(
                router,
                tuple(
                    self._linear(((name + gate, inner), (name + up, inner)), hidden, bias=False)
                    for name in each
                ),
                tuple(self._linear(((name + down, hidden),), inner, bias=False) for name in each),
                top_k=experts.top_k,
                normalised=experts.normalised,
            )
        last = f"{module}experts.{experts.num_experts - 1}."
        for name in (gate, up):
            self.tensors.expect(f"{last}{name}.weight", (inner, hidden))
        self.tensors.expect(f"{last}{down}.weight", (hidden, inner))
        gates_ups = self._empty(f"{last}{gate}.weight", (experts.num_experts, 2 * inner, hidden))
        downs = self._empty(f"{last}{down}.weight", (experts.num_experts, hidden, inner))
        for expert in range(experts.num_experts):
            buffers = (gates_ups[expert, :inner], gates_ups[expert, inner:], downs[expert])
            for name, buffer in zip(experts.projections, buffers, strict=True):
                self.tensors.read_into(f"{module}experts.{expert}.{name}.weight", buffer)
        return Experts(router, gates_ups, downs, top_k=experts.top_k, normalised=experts.normalised)

    def _is_quantized(self, name: str) -> bool:
        return self.int8 or (self.held is not None and self.held.holds(self.tensors, name))

    def _linear(
        self,
        parts: Sequence[tuple[str, int]],
        size: int,
        *,
        bias: bool,
        order: Tensor | None = None,
    ) -> Linear:
        """Join the linear maps ``parts``, name and number of rows of each; ``order`` their rows."""
        held = self.held
        weight: Tensor | QuantizedWeight
        if held is not None and held.holds(self.tensors, parts[0][0]):
            read = [held.read(self.tensors, name, (count, size)) for name, count in parts]
            weight = QuantizedWeight.join(read).to(self.device)
            if order is not None:
                weight = weight.take(order)
        else:
            weight = self._fused(parts, "weight", (size,))
            if order is not None:
                weight.copy_(weight.index_select(0, order))
            if self.int8:
                weight = quantize(weight)
        vector = self._fused(parts, "bias", ()) if bias else None
        if vector is not None and order is not None:
            vector = vector.index_select(0, order)
        if isinstance(weight, Tensor):
            return DenseLinear(weight, vector)
        return quantized_linear(weight, vector, self.dtype)

    def _fused(self, parts: Sequence[tuple[str, int]], kind: str, size: tuple[int, ...]) -> Tensor:
        """Join the weights or biases of ``parts``."""
        for name, count in parts:
            self.tensors.expect(f"{name}.{kind}", (count, *size))
        rows = sum(count for _, count in parts)
        fused = self._empty(f"{parts[0][0]}.{kind}", (rows, *size))
        start = 0
        for name, count in parts:
            self.tensors.read_into(f"{name}.{kind}", fused[start : start + count])
            start += count
        return fused

    def _norm(self, name: str) -> RMSNorm:
        weight = self._single(f"{name}.weight", (self.config.hidden_size,))
        return RMSNorm(weight, self.config.rms_eps)

    def _single(self, name: str, shape: tuple[int, ...]) -> Tensor:
        self.tensors.expect(name, shape)
        tensor = self._empty(name, shape)
        self.tensors.read_into(name, tensor)
        return tensor

    def _empty(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """Allocate what the tensor ``name`` is the first part of."""
        size = math.prod(shape) * self.dtype.itemsize
        try:
            buffer = torch.empty(shape, device=self.device, dtype=self.dtype)
        except RuntimeError as error:  # torch.OutOfMemoryError is one; on CPU there is no other
            raise ModelLoadError(
                f"{self.tensors.source}: tensor {name}: out of memory on {self.device}: "
                f"{size / 2**20:.0f} MiB more, after {self.num_bytes / 2**20:.0f} MiB of weights"
            ) from error
        self.num_bytes += size
        return buffer
