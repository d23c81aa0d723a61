"""Qwen3-Next and Qwen3.5: gated delta nets, with full attention in every fourth layer or so.

Full attention has a gate for each number that it returns, and turns a part of each head. A mixture
of experts has one expert more, which every token goes through. Norms scale by 1 + weight.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn import functional

from backend.models.attention import Attention, AttentionLayer
from backend.models.checkpoint import Checkpoint, Span
from backend.models.config import (
    ConfigKeys,
    DecoderConfig,
    ExpertsConfig,
    ModelLoadError,
    parse_rotary,
)
from backend.models.decoder import MLP
from backend.models.dtypes import compute_dtype
from backend.models.families import qwen3, qwen3_moe
from backend.models.gated_delta import DeltaInputs, RecurrentAttention, StateShape
from backend.models.layers import Embedding, Linear, Operations, RMSNorm
from backend.models.model import Network
from backend.models.moe import Experts
from backend.models.rope import interleave, rotation_table
from backend.models.weights import Builder, Part

logger = logging.getLogger(__name__)

HYBRIDS: dict[str, bool] = {
    "Qwen3NextForCausalLM": True,
    "Qwen3_5ForCausalLM": False,
    "Qwen3_5MoeForCausalLM": True,
    "Qwen3_5ForConditionalGeneration": False,
    "Qwen3_5MoeForConditionalGeneration": True,
}
"""Which architectures these are, and whether they have experts. Of the last two the text alone."""

# What transformers takes absent keys to mean.
_DEFAULTS = {
    "partial_rotary_factor": 0.25,
    "head_dim": 256,
    "intermediate_size": 1,
    "num_experts": 512,
    "num_experts_per_tok": 10,
    "moe_intermediate_size": 512,
    "norm_topk_prob": True,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class HybridConfig(DecoderConfig):
    """``num_layers`` and ``windows`` are those of full attention, which have KV.

    ``has_attention`` says which of all layers these are; the others have states. ``shared_size``
    is the inner size of the expert that is always picked. ``grouped``: the checkpoint keeps a delta
    net's projections in two tensors, key head by key head.
    """

    has_attention: tuple[bool, ...]
    states: StateShape
    shared_size: int
    grouped: bool


def hybrid_family(values: Mapping[str, Any]) -> str | None:
    """Return which of ``HYBRIDS`` a parsed ``config.json`` describes, if any."""
    names = values.get("architectures")
    return next((each for each in names if each in HYBRIDS), None) if names else None


def parse_hybrid(values: Mapping[str, Any], source: str) -> HybridConfig:
    """Read a parsed ``config.json`` of one of ``HYBRIDS``. Raises ModelLoadError."""
    family = hybrid_family(values)
    text = values.get("text_config", values)
    if family is None or not isinstance(text, dict):
        raise ModelLoadError(f"{source}: text_config is no object, or architectures are others")
    tied = text.get("tie_word_embeddings", values.get("tie_word_embeddings"))
    named = {key: value for key, value in text.items() if value is not None}
    keys = ConfigKeys({**_DEFAULTS, **named, "tie_word_embeddings": tied}, source)
    has_experts = HYBRIDS[family] and keys.get("num_experts", int) > 0
    plain = ("layer_types", "rope_parameters", "rope_scaling", "partial_rotary_factor")
    rest = {key: value for key, value in keys.values.items() if key not in plain}
    base = (qwen3_moe if has_experts else qwen3)(ConfigKeys(rest, source))
    has_attention = _attention_layers(keys, base.num_layers)
    count = sum(has_attention)
    own = {each.name: getattr(base, each.name) for each in fields(DecoderConfig)}
    own |= {
        "num_layers": count,
        "windows": (None,) * count,
        "rotary": parse_rotary(
            keys, head_dim=base.head_dim, default_theta=10_000.0, is_phi3=False, partial=True
        ),
    }
    return HybridConfig(
        **own,
        has_attention=has_attention,
        states=_state_shape(keys, base.num_layers - count),
        shared_size=keys.positive("shared_expert_intermediate_size", 512) if has_experts else 0,
        grouped=family == "Qwen3NextForCausalLM",
    )


def _attention_layers(keys: ConfigKeys, num_layers: int) -> tuple[bool, ...]:
    every = keys.positive("full_attention_interval", 4)
    types = keys.names("layer_types") or [
        "linear_attention" if (layer + 1) % every else "full_attention"
        for layer in range(num_layers)
    ]
    if len(types) != num_layers or not {"full_attention", "linear_attention"} >= set(types):
        raise keys.refusal("layer_types", f"expected {num_layers} of full and linear attention")
    if "full_attention" not in types:
        raise keys.refusal("layer_types", "a model without full attention is not supported")
    return tuple(kind == "full_attention" for kind in types)


def _state_shape(keys: ConfigKeys, num_layers: int) -> StateShape:
    defaults = {"num_key_heads": 16, "num_value_heads": 32, "key_head_dim": 128}
    defaults |= {"value_head_dim": 128, "conv_kernel_dim": 4}
    numbers = [keys.positive(f"linear_{key}", default) for key, default in defaults.items()]
    if numbers[1] % numbers[0]:
        problem = f"{numbers[1]} heads do not share {numbers[0]} key heads"
        raise keys.refusal("linear_num_value_heads", problem)
    return StateShape(num_layers, *numbers)


@dataclass(frozen=True, slots=True)
class GatedAttention:
    """Full attention; queries, keys, values and gates are one product."""

    layer: AttentionLayer
    projection: Linear
    output: Linear
    num_heads: int
    """Heads of queries, keys and values together; gates follow."""
    head_dim: int

    def __call__(self, rows: Tensor, attention: RecurrentAttention, rotations: Tensor) -> Tensor:
        """Map [tokens, hidden] to the same shape."""
        width = self.num_heads * self.head_dim
        projected = self.projection(rows)
        qkv = projected[:, :width].contiguous().view(len(rows), -1, self.head_dim)
        attended = attention.forward(self.layer, qkv, rotations)
        return self.output(attended * torch.sigmoid(projected[:, width:]))


@dataclass(frozen=True, slots=True)
class DeltaNet:
    """A gated delta net; what is convolved, output gates, betas and decays are one product.

    ``rate`` and ``bias`` are float32 [value_heads]: a head fades by rate * softplus(input + bias).
    """

    index: int
    projection: Linear
    convolution: Tensor
    rate: Tensor
    bias: Tensor
    norm: RMSNorm
    output: Linear
    shape: StateShape

    def __call__(self, rows: Tensor, attention: RecurrentAttention, _rotations: Tensor) -> Tensor:
        """Map [tokens, hidden] to the same shape."""
        heads, size = self.shape.num_value_heads, self.shape.value_dim
        mixed, gate, beta, fading = torch.split(
            self.projection(rows), [self.shape.channels, heads * size, heads, heads], dim=1
        )
        decay = self.rate * functional.softplus(fading.float() + self.bias)
        inputs = DeltaInputs(mixed, decay, torch.sigmoid(beta).float())
        found = attention.recur(self.index, self.convolution, inputs).to(rows.dtype)
        gates = functional.silu(gate.float()).view(len(rows), heads, size)
        return self.output((self.norm(found) * gates).to(rows.dtype).flatten(1))


@dataclass(frozen=True, slots=True)
class SharedExperts:
    """A mixture of experts, and one that every token goes through, as far as its gate opens."""

    experts: Experts
    shared: MLP
    gate: Tensor

    def __call__(self, rows: Tensor, operations: Operations) -> Tensor:
        """Map [tokens, hidden] to the same shape."""
        share = torch.sigmoid(functional.linear(rows, self.gate))
        return self.experts(rows, operations) + share * self.shared(rows, operations)


@dataclass(frozen=True, slots=True)
class HybridLayer:
    """One layer."""

    input_norm: RMSNorm
    mixer: GatedAttention | DeltaNet
    mlp_norm: RMSNorm
    mlp: MLP | SharedExperts


class HybridModel:
    """Implements ``Model``; its attention is a ``RecurrentAttention``."""

    def __init__(
        self,
        embedding: Embedding,
        layers: Sequence[HybridLayer],
        final_norm: RMSNorm,
        head: Linear,
        *,
        rotations: Tensor,
        operations: Operations,
    ) -> None:
        """``rotations`` comes from ``rope.rotation_table`` and bounds the context."""
        self.device = embedding.rows.device
        self._embedding, self.logits = embedding, head
        self._layers = layers
        # The norm after a layer is the next one's first, so that it fuses with the addition.
        self._norms = [*(each.input_norm for each in layers[1:]), final_norm]
        self._rotations, self._operations = rotations, operations

    def forward(
        self, tokens: Tensor, positions: Tensor, attention: Attention, logit_rows: Tensor | None
    ) -> Tensor:
        operations, last = self._operations, self._layers[-1]
        recurrent = cast("RecurrentAttention", attention)
        rotations = self._rotations.index_select(0, positions).unsqueeze(1)
        hidden = self._embedding(tokens)
        normed = operations.norm(hidden, self._layers[0].input_norm)
        for layer, next_norm in zip(self._layers, self._norms, strict=True):
            mixed = layer.mixer(normed, recurrent, rotations)
            if layer is last and logit_rows is not None:
                mixed, hidden = (each.index_select(0, logit_rows) for each in (mixed, hidden))
                if not len(logit_rows):
                    return hidden
            hidden, normed = operations.add_norm(hidden, mixed, layer.mlp_norm)
            hidden, normed = operations.add_norm(hidden, layer.mlp(normed, operations), next_norm)
        return normed


@dataclass
class _HybridBuilder(Builder):
    """Reads what differs from other decoders."""

    config: HybridConfig

    def read(self) -> tuple[Embedding, list[HybridLayer], RMSNorm, Linear]:
        """Read all that ``HybridModel`` takes of a checkpoint."""
        embedding, head = self._embedding()
        has_attention, layers = self.config.has_attention, list[HybridLayer]()
        for index, attends in enumerate(has_attention):
            prefix, place = f"model.layers.{index}.", has_attention[:index].count(attends)
            layer = HybridLayer(
                self._norm(f"{prefix}input_layernorm"),
                (self._attention if attends else self._delta_net)(prefix, place),
                self._norm(f"{prefix}post_attention_layernorm"),
                self._experts_or_mlp(index, f"{prefix}mlp."),
            )
            layers.append(layer)
            self.tell(f"{index + 1} of {len(has_attention)} layers of {self.tensors.source}")
        return embedding, layers, self._norm("model.norm"), head

    def _attention(self, prefix: str, place: int) -> GatedAttention:
        config, size = self.config, self.config.head_dim
        queries, keys = config.num_heads * size, config.num_kv_heads * size
        attention = f"{prefix}self_attn."
        query_spans, gate_spans = _grouped(config.num_heads, (size, size))
        parts: list[Part] = [
            (f"{attention}q_proj", 2 * queries, query_spans),
            (f"{attention}k_proj", keys, ((0, keys),)),
            (f"{attention}v_proj", keys, ((0, keys),)),
            (f"{attention}q_proj", 2 * queries, gate_spans),
        ]
        order = torch.arange(2 * (queries + keys), device=self.device)
        turning = order[: queries + keys]
        turning.copy_(interleave(turning, size, config.rotary.dim))
        return GatedAttention(
            AttentionLayer(place, None, self._head_norm(attention)),
            self._linear(parts, config.hidden_size, bias=config.qkv_bias, order=order),
            self._row_parallel(f"{attention}o_proj", queries, bias=config.output_bias),
            config.num_heads + 2 * config.num_kv_heads,
            size,
        )

    def _delta_net(self, prefix: str, place: int) -> DeltaNet:
        shape, net = self.config.states, f"{prefix}linear_attn.in_proj_"
        heads, values = shape.num_value_heads, shape.num_value_heads * shape.value_dim
        names = {"qkv": shape.channels, "z": values, "b": heads, "a": heads}
        parts: list[Part] = [(net + name, rows, ((0, rows),)) for name, rows in names.items()]
        if self.config.grouped:
            count, key = shape.num_key_heads, shape.key_dim
            sizes, few = (key, key, values // count, values // count), (heads // count,) * 2
            rows = shape.channels + values
            parts = [(f"{net}qkvz", rows, spans) for spans in _grouped(count, sizes)]
            parts += [(f"{net}ba", 2 * heads, spans) for spans in _grouped(count, few)]
        net = f"{prefix}linear_attn."
        norm = self._single(f"{net}norm.weight", (shape.value_dim,))
        kernel = (shape.channels, 1, shape.kernel)
        return DeltaNet(
            index=place,
            projection=self._linear(parts, self.config.hidden_size, bias=False),
            convolution=self._single(f"{net}conv1d.weight", kernel).squeeze(1),
            rate=-self._single(f"{net}A_log", (heads,)).float().exp(),
            bias=self._single(f"{net}dt_bias", (heads,)).float(),
            norm=RMSNorm(norm, self.config.rms_eps),
            output=self._row_parallel(f"{net}out_proj", values, bias=False),
            shape=shape,
        )

    def _experts_or_mlp(self, index: int, mlp: str) -> MLP | SharedExperts:
        experts = self.config.experts
        if experts is None or index not in experts.layers:
            return self._mlp(mlp)
        mixture = self._experts(mlp, experts)
        mixture.compute_in_torch()  # no self-check tries the kernel with these shapes
        gate = self._single(f"{mlp}shared_expert_gate.weight", (1, self.config.hidden_size))
        shared = self._mlp(f"{mlp}shared_expert.", self.config.shared_size)
        return SharedExperts(mixture, shared, gate)

    def _stacked(self, module: str, experts: ExpertsConfig) -> tuple[Tensor, Tensor]:
        """Read experts that the checkpoint keeps as two tensors, or one by one."""
        name, hidden = f"{module}experts.", self.config.hidden_size
        count, inner = experts.num_experts, experts.intermediate_size
        if not self.tensors.has(f"{name}gate_up_proj"):
            return super()._stacked(module, experts)
        gates_ups = self._single(f"{name}gate_up_proj", (count, 2 * inner, hidden))
        return gates_ups, self._single(f"{name}down_proj", (count, hidden, inner))

    def _norm(self, name: str) -> RMSNorm:
        return _one_more(super()._norm(name))

    def _head_norm(self, attention: str) -> RMSNorm:
        return _one_more(super()._head_norm(attention))


def _one_more(norm: RMSNorm) -> RMSNorm:
    return RMSNorm(norm.weight + 1, norm.eps)


def _grouped(count: int, sizes: Sequence[int]) -> list[tuple[Span, ...]]:
    """Return for each of ``sizes`` its spans, where ``count`` groups of all sizes follow."""
    total = sum(sizes)
    firsts = [sum(sizes[:at]) for at in range(len(sizes))]
    return [
        tuple((group * total + first, group * total + first + size) for group in range(count))
        for first, size in zip(firsts, sizes, strict=True)
    ]


def load_hybrid(
    directory: Path,
    values: Mapping[str, Any],
    device: torch.device,
    dtype: str,
    tell: Callable[[str], None],
) -> Network:
    """Read the model of a parsed ``config.json``. Raises ModelLoadError."""
    config = parse_hybrid(values, str(directory / "config.json"))
    chosen = compute_dtype(dtype, config.checkpoint_dtype, device)
    checkpoint = Checkpoint(directory, is_wrapped="text_config" in values)
    checkpoint.check_room(device, chosen)
    builder = _HybridBuilder(config, checkpoint, device, chosen, tell, held=None, int8=False)
    parts = builder.read()
    checkpoint.close()
    logger.info("%s: weights of %.1f MiB", directory, builder.num_bytes / 2**20)

    def with_context(length: int, operations: Operations) -> HybridModel:
        rotations = rotation_table(config.rotary, config.head_dim, length, device=device)
        return HybridModel(*parts, rotations=rotations, operations=operations)

    return Network(config, chosen, with_context, states=config.states)
