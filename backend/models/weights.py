"""A decoder's weights, fused: from a checkpoint, or random ones of the same shapes.

Tensors are read straight into the fused buffers: loading takes the memory of the weights and of
one tensor more.
"""

import logging
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from backend.models.checkpoint import Checkpoint, read_json
from backend.models.config import DecoderConfig, ExpertsConfig, ModelLoadError
from backend.models.decoder import MLP, DecoderLayer, DecoderWeights
from backend.models.families import parse_config
from backend.models.layers import Linear, RMSNorm
from backend.models.moe import Experts
from backend.models.rope import interleave

logger = logging.getLogger(__name__)

_RANDOM_SCALE = 0.02
_LARGE_BYTES = 2 * 2**30


def load_config(directory: Path) -> DecoderConfig:
    """Read ``config.json``. Raises ModelLoadError."""
    path = directory / "config.json"
    return parse_config(read_json(path), str(path))


def load_weights(
    directory: Path,
    config: DecoderConfig,
    *,
    device: torch.device,
    dtype: torch.dtype,
    tell: Callable[[str], None] = logger.debug,
) -> DecoderWeights:
    """Read all tensors, cast and move them. Raises ModelLoadError."""
    checkpoint = Checkpoint(directory)
    checkpoint.check_room(device, dtype)
    weights = _Builder(config, checkpoint, device, dtype, tell).build()
    checkpoint.close()
    return weights


def random_weights(
    config: DecoderConfig, *, device: torch.device, dtype: torch.dtype, seed: int = 0
) -> DecoderWeights:
    """Make weights of the right shapes out of nothing, the same for the same ``seed``.

    For measurements: a model's real shapes without its checkpoint.
    """
    return _Builder(config, _RandomTensors(device, seed), device, dtype, logger.debug).build()


class _Tensors(Protocol):
    @property
    def source(self) -> str: ...

    def expect(self, name: str, shape: tuple[int, ...]) -> None: ...

    def read_into(self, name: str, out: Tensor) -> None: ...


class _RandomTensors:
    def __init__(self, device: torch.device, seed: int) -> None:
        self.source = "random weights"
        self._generator = torch.Generator(device).manual_seed(seed)

    def expect(self, name: str, shape: tuple[int, ...]) -> None:
        pass

    def read_into(self, name: str, out: Tensor) -> None:
        if name.endswith("norm.weight"):
            out.fill_(1.0)
        else:
            out.normal_(0.0, _RANDOM_SCALE, generator=self._generator)


class _Builder:
    """Allocates fused buffers and has them filled."""

    def __init__(
        self,
        config: DecoderConfig,
        tensors: _Tensors,
        device: torch.device,
        dtype: torch.dtype,
        tell: Callable[[str], None],
    ) -> None:
        self._config = config
        self._tensors = tensors
        self._device = device
        self._dtype = dtype
        self._tell = tell
        self._bytes = 0

    def build(self) -> DecoderWeights:
        config = self._config
        shape = (config.vocab_size, config.hidden_size)
        embedding = self._single("model.embed_tokens.weight", shape)
        layers: list[DecoderLayer] = []
        tenth = max(config.num_layers // 10, 1)
        for index in range(config.num_layers):
            layers.append(self._layer(index))
            self._tell(f"{index + 1} of {config.num_layers} layers of {self._tensors.source}")
            if self._bytes > _LARGE_BYTES and (index + 1) % tenth == 0:
                logger.info(
                    "%s: %d of %d layers, %.1f GiB",
                    self._tensors.source,
                    index + 1,
                    config.num_layers,
                    self._bytes / 2**30,
                )
        return DecoderWeights(
            embedding=embedding,
            layers=tuple(layers),
            final_norm=self._norm("model.norm"),
            head=Linear(
                embedding if config.tied_embeddings else self._single("lm_head.weight", shape)
            ),
        )

    def _layer(self, index: int) -> DecoderLayer:
        config, prefix = self._config, f"model.layers.{index}."
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
        )

    def _qkv(self, attention: str) -> Linear:
        config = self._config
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
        weight, bias = self._fused(parts, config.hidden_size, bias=config.qkv_bias)
        for tensor in (weight, bias):
            if tensor is not None:
                rotated = tensor[: queries + keys]
                rotated.copy_(interleave(rotated, config.head_dim, config.rotary.dim))
        return Linear(weight, bias)

    def _head_norm(self, attention: str) -> RMSNorm:
        config = self._config
        query, key = (
            interleave(
                self._single(f"{attention}{name}.weight", (config.head_dim,)),
                config.head_dim,
                config.rotary.dim,
            )
            for name in ("q_norm", "k_norm")
        )
        each = [query] * config.num_heads + [key] * config.num_kv_heads
        return RMSNorm(torch.stack(each), config.rms_eps)

    def _mlp(self, mlp: str) -> MLP:
        config = self._config
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
        hidden, inner = self._config.hidden_size, experts.intermediate_size
        last = f"{module}experts.{experts.num_experts - 1}."
        gate, up, out = (f"{last}{name}.weight" for name in experts.projections)
        for name in (gate, up):
            self._tensors.expect(name, (inner, hidden))
        self._tensors.expect(out, (hidden, inner))
        gate_up = self._empty(gate, (experts.num_experts, 2 * inner, hidden))
        down = self._empty(out, (experts.num_experts, hidden, inner))
        for expert in range(experts.num_experts):
            buffers = (gate_up[expert, :inner], gate_up[expert, inner:], down[expert])
            for name, buffer in zip(experts.projections, buffers, strict=True):
                self._tensors.read_into(f"{module}experts.{expert}.{name}.weight", buffer)
        return Experts(
            router=self._single(f"{module}gate.weight", (experts.num_experts, hidden)),
            gate_up=gate_up,
            down=down,
            top_k=experts.top_k,
            normalised=experts.normalised,
        )

    def _linear(self, parts: Sequence[tuple[str, int]], size: int, *, bias: bool) -> Linear:
        return Linear(*self._fused(parts, size, bias=bias))

    def _fused(
        self, parts: Sequence[tuple[str, int]], size: int, *, bias: bool
    ) -> tuple[Tensor, Tensor | None]:
        """Join the linear maps ``parts``, name and number of rows of each, to one."""
        for name, count in parts:
            self._tensors.expect(f"{name}.weight", (count, size))
        first, rows = parts[0][0], sum(count for _, count in parts)
        weight = self._empty(f"{first}.weight", (rows, size))
        vector = self._empty(f"{first}.bias", (rows,)) if bias else None
        start = 0
        for name, count in parts:
            part = slice(start, start + count)
            self._tensors.read_into(f"{name}.weight", weight[part])
            if vector is not None:
                self._tensors.read_into(f"{name}.bias", vector[part])
            start += count
        return weight, vector

    def _norm(self, name: str) -> RMSNorm:
        return RMSNorm(
            self._single(f"{name}.weight", (self._config.hidden_size,)), self._config.rms_eps
        )

    def _single(self, name: str, shape: tuple[int, ...]) -> Tensor:
        self._tensors.expect(name, shape)
        tensor = self._empty(name, shape)
        self._tensors.read_into(name, tensor)
        return tensor

    def _empty(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """Allocate what the tensor ``name`` is the first part of."""
        size = math.prod(shape) * self._dtype.itemsize
        try:
            buffer = torch.empty(shape, device=self._device, dtype=self._dtype)
        except RuntimeError as error:  # torch.OutOfMemoryError is one; on CPU there is no other
            raise ModelLoadError(
                f"{self._tensors.source}: tensor {name}: out of memory on {self._device}: "
                f"{size / 2**20:.0f} MiB more, after {self._bytes / 2**20:.0f} MiB of weights"
            ) from error
        self._bytes += size
        return buffer
