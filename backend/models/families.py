"""Which families of decoders are computed here, and how each reads its ``config.json``.

The families share one architecture; the table below says where they differ. A key that is absent
means what transformers 5 takes it to mean. What the decoder would get wrong is refused.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

from backend.models.config import (
    ConfigKeys,
    DecoderConfig,
    ExpertsConfig,
    ModelLoadError,
    parse_rotary,
)

_MOST_LAYERS = 10_000


class _Windows(Enum):
    NONE = auto()
    EVERY_LAYER = auto()  # sliding_window, where there is one
    EVERY_LAYER_IF_USED = auto()  # the same, behind use_sliding_window
    BY_LAYER = auto()  # behind use_sliding_window, layer_types or max_window_layers say where


@dataclass(frozen=True, slots=True)
class _Family:
    """Biases: None means that the checkpoint's attention_bias or mlp_bias says."""

    windows: _Windows = _Windows.NONE
    default_window: int | None = None
    qkv_bias: bool | None = False
    output_bias: bool | None = False
    mlp_bias: bool | None = False
    qk_norm: bool = False
    fused_projections: bool = False
    experts: str | None = None
    rms_eps: float = 1e-6
    theta: float = 10_000.0
    head_dim: int | None = None


_FAMILIES = {
    "LlamaForCausalLM": _Family(qkv_bias=None, output_bias=None, mlp_bias=None),
    "MistralForCausalLM": _Family(windows=_Windows.EVERY_LAYER, default_window=4096),
    "Qwen2ForCausalLM": _Family(windows=_Windows.BY_LAYER, default_window=4096, qkv_bias=True),
    "Qwen3ForCausalLM": _Family(
        windows=_Windows.BY_LAYER,
        default_window=4096,
        qkv_bias=None,
        output_bias=None,
        qk_norm=True,
        head_dim=128,
    ),
    "Phi3ForCausalLM": _Family(windows=_Windows.EVERY_LAYER, fused_projections=True, rms_eps=1e-5),
    "MixtralForCausalLM": _Family(
        windows=_Windows.EVERY_LAYER, experts="mixtral", rms_eps=1e-5, theta=1_000_000.0
    ),
    "Qwen3MoeForCausalLM": _Family(
        windows=_Windows.EVERY_LAYER_IF_USED,
        default_window=4096,
        qkv_bias=None,
        output_bias=None,
        qk_norm=True,
        experts="qwen3_moe",
    ),
}


def native_family(values: Mapping[str, Any]) -> str | None:
    """Return which of the families here a parsed ``config.json`` describes, if any."""
    names = values.get("architectures")
    if not isinstance(names, list):
        return None
    return next((name for name in names if name in _FAMILIES), None)


def parse_config(values: Mapping[str, Any], source: str) -> DecoderConfig:
    """Read the parsed ``config.json``; ``source`` is its path. Raises ModelLoadError."""
    keys = ConfigKeys(values, source)
    name = native_family(values)
    if name is None:
        raise ModelLoadError(
            f"{source}: architectures: {values.get('architectures') or []} is not supported; "
            f"one of {', '.join(_FAMILIES)} is"
        )
    family = _FAMILIES[name]
    if (activation := keys.get("hidden_act", str, "silu")) != "silu":
        raise keys.refusal("hidden_act", f"{activation!r} is not supported, silu is")
    refuse_quantised(values, source)
    hidden_size = keys.positive("hidden_size")
    num_heads = keys.positive("num_attention_heads")
    num_kv_heads = keys.positive("num_key_value_heads", num_heads)
    head_dim = keys.positive("head_dim", family.head_dim or hidden_size // num_heads)
    if num_heads % num_kv_heads or head_dim % 2:
        raise ModelLoadError(
            f"{source}: {num_heads} heads of {head_dim} do not share {num_kv_heads} KV heads"
        )
    num_layers = keys.positive("num_hidden_layers")
    if num_layers > _MOST_LAYERS:
        raise keys.refusal("num_hidden_layers", f"{num_layers} is not a model")
    attention_bias = keys.get("attention_bias", bool, False)
    mlp_bias = keys.get("mlp_bias", bool, False)
    return DecoderConfig(
        vocab_size=keys.positive("vocab_size"),
        hidden_size=hidden_size,
        intermediate_size=keys.positive("intermediate_size"),
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        max_positions=keys.positive("max_position_embeddings"),
        rms_eps=keys.get("rms_norm_eps", float, family.rms_eps),
        rotary=parse_rotary(
            keys,
            head_dim=head_dim,
            default_theta=family.theta,
            is_phi3=name == "Phi3ForCausalLM",
        ),
        windows=_parse_windows(keys, family, num_layers),
        tied_embeddings=keys.get("tie_word_embeddings", bool, False),
        qkv_bias=attention_bias if family.qkv_bias is None else family.qkv_bias,
        output_bias=attention_bias if family.output_bias is None else family.output_bias,
        mlp_bias=mlp_bias if family.mlp_bias is None else family.mlp_bias,
        qk_norm=family.qk_norm,
        fused_projections=family.fused_projections,
        experts=_parse_experts(keys, family, num_layers),
        checkpoint_dtype=str(values.get("dtype") or values.get("torch_dtype") or "float32"),
    )


def refuse_quantised(values: Mapping[str, Any], source: str) -> None:
    """Raise ModelLoadError when ``config.json`` says that the weights are quantised."""
    for key in ("quantization_config", "compression_config"):
        if values.get(key) is not None:
            raise ModelLoadError(f"{source}: {key}: quantised weights are not supported")


def _parse_windows(keys: ConfigKeys, family: _Family, num_layers: int) -> tuple[int | None, ...]:
    if family.windows is _Windows.NONE:
        return (None,) * num_layers
    window = keys.optional_positive("sliding_window", family.default_window)
    if family.windows is not _Windows.EVERY_LAYER and not keys.get(
        "use_sliding_window", bool, False
    ):
        window = None
    types = keys.names("layer_types")
    if family.windows is not _Windows.BY_LAYER:
        if window is not None and types is not None and "full_attention" in types:
            raise keys.refusal("layer_types", "this architecture has one window for every layer")
        return (window,) * num_layers
    if types is None:
        first = keys.get("max_window_layers", int, 28)
        return tuple(window if layer >= first else None for layer in range(num_layers))
    if len(types) != num_layers:
        raise keys.refusal("layer_types", f"{len(types)} types for {num_layers} layers")
    return tuple(_window_of(keys, kind, window) for kind in types)


def _window_of(keys: ConfigKeys, kind: str, window: int | None) -> int | None:
    match kind:
        case "full_attention":
            return None
        case "sliding_attention":
            if window is None:
                raise keys.refusal(
                    "layer_types", "sliding_attention without sliding_window and use_sliding_window"
                )
            return window
        case _:
            raise keys.refusal("layer_types", f"{kind!r} is not supported")


def _parse_experts(keys: ConfigKeys, family: _Family, num_layers: int) -> ExpertsConfig | None:
    match family.experts:
        case None:
            return None
        case "mixtral":
            experts = ExpertsConfig(
                num_experts=keys.positive("num_local_experts", 8),
                top_k=keys.positive("num_experts_per_tok", 2),
                normalised=True,
                intermediate_size=keys.positive("intermediate_size"),
                layers=frozenset(range(num_layers)),
                module="block_sparse_moe",
                projections=("w1", "w3", "w2"),
            )
        case _:
            count_key = "num_experts" if "num_experts" in keys.values else "num_local_experts"
            experts = ExpertsConfig(
                num_experts=keys.positive(count_key, 128),
                top_k=keys.positive("num_experts_per_tok", 8),
                normalised=keys.get("norm_topk_prob", bool, False),
                intermediate_size=keys.positive("moe_intermediate_size", 768),
                layers=_sparse_layers(keys, num_layers),
                module="mlp",
                projections=("gate_proj", "up_proj", "down_proj"),
            )
    if experts.top_k > experts.num_experts:
        raise keys.refusal(
            "num_experts_per_tok", f"{experts.top_k} of only {experts.num_experts} experts"
        )
    return experts


def _sparse_layers(keys: ConfigKeys, num_layers: int) -> frozenset[int]:
    every = keys.positive("decoder_sparse_step", 1)
    dense = keys.values.get("mlp_only_layers") or []
    if not isinstance(dense, list) or not all(isinstance(layer, int) for layer in dense):
        raise keys.refusal("mlp_only_layers", "expected a list of layer numbers")
    return frozenset(
        layer for layer in range(num_layers) if layer not in dense and (layer + 1) % every == 0
    )
