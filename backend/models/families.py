"""Which families of decoders are computed here, and how each reads its ``config.json``.

A Llama-like family is one function here and one row of ``FAMILIES``. A key that is absent means
what transformers 5 takes it to mean. What the decoder would get wrong is refused.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from backend.models.config import (
    ConfigKeys,
    DecoderConfig,
    ExpertsConfig,
    ModelLoadError,
    parse_rotary,
)
from backend.models.wrappers import text_part

_MAX_LAYERS = 10_000
_DEFAULT_WINDOW = 4096


def parse_config(values: Mapping[str, Any], source: str) -> DecoderConfig:
    """Read the parsed ``config.json``; ``source`` is its path. Raises ModelLoadError."""
    name = native_family(values)
    if name is None:
        raise ModelLoadError(
            f"{source}: architectures: {values.get('architectures') or []} is not supported; "
            f"one of {', '.join(FAMILIES)} is"
        )
    text = text_part(values)
    is_nested = text is not values and "text_config" in values
    return FAMILIES[name](ConfigKeys(text, f"{source}: text_config" if is_nested else source))


def native_family(values: Mapping[str, Any]) -> str | None:
    """Return which of ``FAMILIES`` a parsed ``config.json``, or its text part, is, if any."""
    names = text_part(values).get("architectures")
    if not isinstance(names, list):
        return None
    return next((name for name in names if name in FAMILIES), None)


def llama(keys: ConfigKeys) -> DecoderConfig:
    """Read Llama: biases as the file says, no windows."""
    bias = keys.get("attention_bias", bool, False)
    mlp_bias = keys.get("mlp_bias", bool, False)
    return replace(_decoder(keys), qkv_bias=bias, output_bias=bias, mlp_bias=mlp_bias)


def mistral(keys: ConfigKeys) -> DecoderConfig:
    """Read Mistral: a window in every layer."""
    return _with_window(keys, _decoder(keys), _DEFAULT_WINDOW)


def mixtral(keys: ConfigKeys) -> DecoderConfig:
    """Read Mixtral: Mistral with a mixture of experts in every layer."""
    config = _with_window(keys, _decoder(keys, rms_eps=1e-5, theta=1_000_000.0), None)
    experts = ExpertsConfig(
        num_experts=keys.positive("num_local_experts", 8),
        top_k=keys.positive("num_experts_per_tok", 2),
        normalised=True,
        intermediate_size=config.intermediate_size,
        layers=frozenset(range(config.num_layers)),
        module="block_sparse_moe",
        projections=("w1", "w3", "w2"),
    )
    return _with_experts(keys, config, experts)


def qwen2(keys: ConfigKeys) -> DecoderConfig:
    """Read Qwen 2: biases of q, k and v, windows in some layers."""
    return replace(_with_windows(keys, _decoder(keys)), qkv_bias=True)


def qwen3(keys: ConfigKeys) -> DecoderConfig:
    """Read Qwen 3: heads are normed, windows in some layers."""
    bias = keys.get("attention_bias", bool, False)
    config = _with_windows(keys, _decoder(keys, head_dim=128))
    return replace(config, qkv_bias=bias, output_bias=bias, qk_norm=True)


def qwen3_moe(keys: ConfigKeys) -> DecoderConfig:
    """Read Qwen 3 MoE: experts in most layers, and one window for all."""
    bias = keys.get("attention_bias", bool, False)
    config = _decoder(keys)
    if keys.get("use_sliding_window", bool, False):
        config = _with_window(keys, config, _DEFAULT_WINDOW)
    count_key = "num_experts" if "num_experts" in keys.values else "num_local_experts"
    experts = ExpertsConfig(
        num_experts=keys.positive(count_key, 128),
        top_k=keys.positive("num_experts_per_tok", 8),
        normalised=keys.get("norm_topk_prob", bool, False),
        intermediate_size=keys.positive("moe_intermediate_size", 768),
        layers=_sparse_layers(keys, config.num_layers),
        module="mlp",
        projections=("gate_proj", "up_proj", "down_proj"),
    )
    config = replace(config, qkv_bias=bias, output_bias=bias, qk_norm=True)
    return _with_experts(keys, config, experts)


def phi3(keys: ConfigKeys) -> DecoderConfig:
    """Read Phi 3, whose checkpoints keep q, k and v as one tensor, gate and up as another."""
    config = _with_window(keys, _decoder(keys, rms_eps=1e-5, is_phi3=True), None)
    return replace(config, fused_projections=True)


FAMILIES: dict[str, Callable[[ConfigKeys], DecoderConfig]] = {
    "LlamaForCausalLM": llama,
    "MistralForCausalLM": mistral,
    "Qwen2ForCausalLM": qwen2,
    "Qwen3ForCausalLM": qwen3,
    "Phi3ForCausalLM": phi3,
    "MixtralForCausalLM": mixtral,
    "Qwen3MoeForCausalLM": qwen3_moe,
}


def _decoder(
    keys: ConfigKeys,
    *,
    rms_eps: float = 1e-6,
    theta: float = 10_000.0,
    head_dim: int | None = None,
    is_phi3: bool = False,
) -> DecoderConfig:
    """Read what all families have, without biases, windows and experts; options are defaults."""
    if (activation := keys.get("hidden_act", str, "silu")) != "silu":
        raise keys.refusal("hidden_act", f"{activation!r} is not supported, silu is")
    hidden_size = keys.positive("hidden_size")
    num_heads = keys.positive("num_attention_heads")
    num_kv_heads = keys.positive("num_key_value_heads", num_heads)
    head_dim = keys.positive("head_dim", head_dim or hidden_size // num_heads)
    if num_heads % num_kv_heads or head_dim % 2:
        raise ModelLoadError(
            f"{keys.source}: {num_heads} heads of {head_dim} do not share {num_kv_heads} KV heads"
        )
    num_layers = keys.positive("num_hidden_layers")
    if num_layers > _MAX_LAYERS:
        raise keys.refusal("num_hidden_layers", f"{num_layers} is not a model")
    values = keys.values
    return DecoderConfig(
        vocab_size=keys.positive("vocab_size"),
        hidden_size=hidden_size,
        intermediate_size=keys.positive("intermediate_size"),
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        max_positions=keys.positive("max_position_embeddings"),
        rms_eps=keys.get("rms_norm_eps", float, rms_eps),
        rotary=parse_rotary(keys, head_dim=head_dim, default_theta=theta, is_phi3=is_phi3),
        windows=(None,) * num_layers,
        tied_embeddings=keys.get("tie_word_embeddings", bool, False),
        checkpoint_dtype=str(values.get("dtype") or values.get("torch_dtype") or "float32"),
    )


def _with_window(keys: ConfigKeys, config: DecoderConfig, default: int | None) -> DecoderConfig:
    """Give every layer the window ``sliding_window``."""
    window = keys.optional_positive("sliding_window", default)
    types = keys.names("layer_types")
    if window is not None and types is not None and "full_attention" in types:
        raise keys.refusal("layer_types", "this architecture has one window for every layer")
    return replace(config, windows=(window,) * config.num_layers)


def _with_windows(keys: ConfigKeys, config: DecoderConfig) -> DecoderConfig:
    """Give those layers a window that ``layer_types`` or ``max_window_layers`` name."""
    window = keys.optional_positive("sliding_window", _DEFAULT_WINDOW)
    if not keys.get("use_sliding_window", bool, False):
        window = None
    num_layers, types = config.num_layers, keys.names("layer_types")
    if types is None:
        first = keys.get("max_window_layers", int, 28)
        windows = tuple(window if layer >= first else None for layer in range(num_layers))
        return replace(config, windows=windows)
    if len(types) != num_layers:
        raise keys.refusal("layer_types", f"{len(types)} types for {num_layers} layers")
    for kind in types:
        if kind not in {"full_attention", "sliding_attention"}:
            raise keys.refusal("layer_types", f"{kind!r} is not supported")
        if kind == "sliding_attention" and window is None:
            raise keys.refusal(
                "layer_types", "sliding_attention without sliding_window and use_sliding_window"
            )
    windows = tuple(window if kind == "sliding_attention" else None for kind in types)
    return replace(config, windows=windows)


def _with_experts(keys: ConfigKeys, config: DecoderConfig, experts: ExpertsConfig) -> DecoderConfig:
    if experts.top_k > experts.num_experts:
        raise keys.refusal(
            "num_experts_per_tok", f"{experts.top_k} of only {experts.num_experts} experts"
        )
    return replace(config, experts=experts)


def _sparse_layers(keys: ConfigKeys, num_layers: int) -> frozenset[int]:
    every = keys.positive("decoder_sparse_step", 1)
    dense = keys.values.get("mlp_only_layers") or []
    if not isinstance(dense, list) or not all(isinstance(layer, int) for layer in dense):
        raise keys.refusal("mlp_only_layers", "expected a list of layer numbers")
    return frozenset(
        layer for layer in range(num_layers) if layer not in dense and (layer + 1) % every == 0
    )
