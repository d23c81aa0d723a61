"""What distinguishes one decoder model from another, read from ``config.json``.

Llama, Qwen2 and Qwen3 are one architecture with four switches; this file is where they differ.
Anything the decoder would silently get wrong (sliding windows, other activations, unknown rotary
scaling) is refused here.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from backend.models.errors import ModelLoadError

_Value = TypeVar("_Value", bool, int, float, str)


@dataclass(frozen=True, slots=True)
class RotaryConfig:
    """Rotary position embedding; ``factor`` and below are Llama 3's and linear scaling's."""

    theta: float
    scaling: str = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_positions: int = 8192


@dataclass(frozen=True, slots=True)
class DecoderConfig:
    """Shapes and switches of one model."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_positions: int
    rms_eps: float
    rotary: RotaryConfig
    tied_embeddings: bool
    qkv_bias: bool
    output_bias: bool
    mlp_bias: bool
    qk_norm: bool
    checkpoint_dtype: str


@dataclass(frozen=True, slots=True)
class _Family:
    qkv_bias: bool | None  # None: the checkpoint's attention_bias says
    output_bias: bool | None
    qk_norm: bool


_FAMILIES = {
    "LlamaForCausalLM": _Family(qkv_bias=None, output_bias=None, qk_norm=False),
    "Qwen2ForCausalLM": _Family(qkv_bias=True, output_bias=False, qk_norm=False),
    "Qwen3ForCausalLM": _Family(qkv_bias=None, output_bias=None, qk_norm=True),
}


class _Keys:
    """Typed access to one JSON object; every refusal names source and key."""

    def __init__(self, values: Mapping[str, Any], source: str) -> None:
        self.values = values
        self.source = source

    def get(self, key: str, kind: type[_Value], default: _Value | None = None) -> _Value:
        value = self.values.get(key)
        if value is None:
            if default is None:
                raise ModelLoadError(f"{self.source}: {key} is missing")
            return default
        if kind is float and isinstance(value, int) and not isinstance(value, bool):
            value = float(value)
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            raise ModelLoadError(f"{self.source}: {key}: expected {kind.__name__}, got {value!r}")
        return value

    def positive(self, key: str, default: int | None = None) -> int:
        value = self.get(key, int, default)
        if value < 1:
            raise ModelLoadError(f"{self.source}: {key}: expected a positive number, got {value}")
        return value


def parse_config(values: Mapping[str, Any], source: str) -> DecoderConfig:
    """Read the parsed ``config.json``; ``source`` is its path. Raises ModelLoadError."""
    keys = _Keys(values, source)
    names = values.get("architectures") or []
    family = next((_FAMILIES[name] for name in names if name in _FAMILIES), None)
    if family is None:
        raise ModelLoadError(
            f"{source}: architectures: {names} is not supported; one of {', '.join(_FAMILIES)} is"
        )
    if (activation := keys.get("hidden_act", str, "silu")) != "silu":
        raise ModelLoadError(f"{source}: hidden_act: {activation!r} is not supported, silu is")
    if keys.get("use_sliding_window", bool, False):
        raise ModelLoadError(f"{source}: use_sliding_window: sliding windows are not supported")
    if "quantization_config" in values:
        raise ModelLoadError(f"{source}: quantization_config: quantised weights are not supported")
    hidden_size = keys.positive("hidden_size")
    num_heads = keys.positive("num_attention_heads")
    num_kv_heads = keys.positive("num_key_value_heads", num_heads)
    head_dim = keys.positive("head_dim", hidden_size // num_heads)
    if num_heads % num_kv_heads or head_dim % 2:
        raise ModelLoadError(
            f"{source}: {num_heads} heads of {head_dim} do not share {num_kv_heads} KV heads"
        )
    attention_bias = keys.get("attention_bias", bool, False)
    return DecoderConfig(
        vocab_size=keys.positive("vocab_size"),
        hidden_size=hidden_size,
        intermediate_size=keys.positive("intermediate_size"),
        num_layers=keys.positive("num_hidden_layers"),
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        max_positions=keys.positive("max_position_embeddings"),
        rms_eps=keys.get("rms_norm_eps", float, 1e-6),
        rotary=_parse_rotary(keys),
        tied_embeddings=keys.get("tie_word_embeddings", bool, False),
        qkv_bias=attention_bias if family.qkv_bias is None else family.qkv_bias,
        output_bias=attention_bias if family.output_bias is None else family.output_bias,
        mlp_bias=keys.get("mlp_bias", bool, False),
        qk_norm=family.qk_norm,
        checkpoint_dtype=str(values.get("dtype") or values.get("torch_dtype") or "float32"),
    )


def _parse_rotary(keys: _Keys) -> RotaryConfig:
    # transformers 5 writes rope_parameters, theta included; older checkpoints rope_scaling.
    block = keys.values.get("rope_parameters") or keys.values.get("rope_scaling") or {}
    rotary = _Keys(block, f"{keys.source}: rope_parameters")
    theta = rotary.get("rope_theta", float, keys.get("rope_theta", float, 10_000.0))
    scaling = str(block.get("rope_type") or block.get("type") or "default")
    match scaling:
        case "default":
            return RotaryConfig(theta)
        case "linear":
            return RotaryConfig(theta, "linear", factor=rotary.get("factor", float))
        case "llama3":
            return RotaryConfig(
                theta,
                "llama3",
                factor=rotary.get("factor", float),
                low_freq_factor=rotary.get("low_freq_factor", float),
                high_freq_factor=rotary.get("high_freq_factor", float),
                original_max_positions=rotary.positive("original_max_position_embeddings"),
            )
        case _:
            raise ModelLoadError(
                f"{rotary.source}: rope_type: {scaling!r} is not supported; "
                "default, linear and llama3 are"
            )
