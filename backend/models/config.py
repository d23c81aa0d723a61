"""What distinguishes one decoder model from another, and typed access to ``config.json``.

No torch here: the server's process imports this too.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar


class ModelLoadError(Exception):
    """The model cannot be served: something is missing, damaged, or not supported here."""


def first_line(error: Exception) -> str:
    """Return the first line of an error's text, or the error's type where it has no text."""
    return str(error).strip().partition("\n")[0].rstrip() or type(error).__name__


def read_json(path: Path, *, optional: bool = False) -> dict[str, Any]:
    """Read a JSON object; empty where an ``optional`` file is missing. Raises ModelLoadError."""
    if optional and not path.is_file():
        return {}
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ModelLoadError(f"{path}: not found") from error
    except OSError as error:
        raise ModelLoadError(f"{path}: {error}") from error
    except (ValueError, RecursionError) as error:
        raise ModelLoadError(f"{path}: not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise ModelLoadError(f"{path}: expected a JSON object")
    return value


_Value = TypeVar("_Value", bool, int, float, str)


class ConfigKeys:
    """One parsed JSON object; null counts as absent."""

    def __init__(self, values: Mapping[str, Any], source: str) -> None:
        """``source`` says where ``values`` stand, for refusals."""
        self.values = values
        self.source = source

    def refusal(self, key: str, problem: str) -> ModelLoadError:
        """Return the error that says what is wrong with ``key``."""
        return ModelLoadError(f"{self.source}: {key}: {problem}")

    def get(self, key: str, kind: type[_Value], default: _Value | None = None) -> _Value:
        """Return a value of ``kind``; without a default it must be there."""
        value = self.values.get(key)
        if value is None:
            if default is None:
                raise ModelLoadError(f"{self.source}: {key} is missing")
            return default
        if kind is float and isinstance(value, int) and not isinstance(value, bool):
            value = float(value)
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            raise self.refusal(key, f"expected {kind.__name__}, got {value!r}")
        return value

    def positive(self, key: str, default: int | None = None) -> int:
        """Return a number that is at least 1."""
        value = self.get(key, int, default)
        if value < 1:
            raise self.refusal(key, f"expected a positive number, got {value}")
        return value

    def optional_positive(self, key: str, default: int | None = None) -> int | None:
        """Return a number that is at least 1; None where the file says null."""
        return None if self.values.get(key, default) is None else self.positive(key, default)

    def above_zero(self, key: str, default: float | None = None) -> float:
        """Return a number greater than 0."""
        value = self.get(key, float, default)
        if not 0 < value < float("inf"):
            raise self.refusal(key, f"expected a number above 0, got {value}")
        return value

    def numbers(self, key: str, length: int) -> tuple[float, ...]:
        """Return a list of ``length`` numbers, which must be there."""
        value = self.values.get(key)
        if value is None:
            raise ModelLoadError(f"{self.source}: {key} is missing")
        if not isinstance(value, list) or any(
            isinstance(each, bool) or not isinstance(each, int | float) for each in value
        ):
            raise self.refusal(key, "expected a list of numbers")
        if len(value) != length:
            raise self.refusal(key, f"expected {length} numbers, got {len(value)}")
        return tuple(float(each) for each in value)

    def names(self, key: str) -> tuple[str, ...] | None:
        """Return a list of strings, None when it is not there."""
        value = self.values.get(key)
        if value is None:
            return None
        if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
            raise self.refusal(key, "expected a list of names")
        return tuple(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """What decides the size of caches and inputs, the same in every layer.

    ``windows`` says for each layer how many tokens attention looks back, itself included; None is
    all. ``checkpoint_dtype`` is the type that ``config.json`` names.
    """

    vocab_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_positions: int
    windows: tuple[int | None, ...]
    checkpoint_dtype: str


@dataclass(frozen=True, slots=True)
class LinearScaling:
    """Every frequency divided by ``factor``."""

    factor: float


@dataclass(frozen=True, slots=True)
class Llama3Scaling:
    """Long wavelengths slowed down by ``factor``, short ones kept, blended between."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_positions: int


@dataclass(frozen=True, slots=True)
class YarnScaling:
    """Frequencies blended by how often they turn; ``magnitude`` scales queries and keys."""

    factor: float
    original_max_positions: int
    beta_fast: float
    beta_slow: float
    truncate: bool
    magnitude: float


@dataclass(frozen=True, slots=True)
class LongRopeScaling:
    """A factor for each frequency, one set up to ``original_max_positions`` and one beyond."""

    short_factor: tuple[float, ...]
    long_factor: tuple[float, ...]
    original_max_positions: int
    magnitude: float


RotaryScaling = LinearScaling | Llama3Scaling | YarnScaling | LongRopeScaling


@dataclass(frozen=True, slots=True)
class RotaryConfig:
    """The first ``dim`` dimensions of each head turn; ``scaling`` None is the plain form."""

    theta: float
    dim: int
    scaling: RotaryScaling | None = None


def parse_rotary(
    keys: ConfigKeys,
    *,
    head_dim: int,
    default_theta: float,
    is_phi3: bool,
    partial: bool = False,
) -> RotaryConfig:
    """Read ``rope_parameters``, or the older ``rope_scaling`` and ``rope_theta``.

    ``partial`` as with Phi-3: a part of each head may turn.
    """
    block = keys.values.get("rope_scaling") or keys.values.get("rope_parameters") or {}
    if not isinstance(block, dict):
        raise keys.refusal("rope_parameters", f"expected an object, got {block!r}")
    rotary = ConfigKeys(block, f"{keys.source}: rope_parameters")
    theta = rotary.above_zero("rope_theta", keys.above_zero("rope_theta", default_theta))
    share = rotary.above_zero(
        "partial_rotary_factor", keys.above_zero("partial_rotary_factor", 1.0)
    )
    dim = int(head_dim * share)
    if dim % 2 or not 0 < dim <= head_dim or (dim != head_dim and not (is_phi3 or partial)):
        raise rotary.refusal("partial_rotary_factor", f"{share} is not supported")
    name = str(block.get("rope_type") or block.get("type") or "default")
    if is_phi3 and name in {"su", "yarn"}:
        name = "longrope"  # what Phi-3 called it at first
    return RotaryConfig(theta, dim, _parse_scaling(name, keys, rotary, dim))


def _parse_scaling(
    name: str, keys: ConfigKeys, rotary: ConfigKeys, dim: int
) -> RotaryScaling | None:
    match name:
        case "default" | "mrope":  # the same for text, whose three positions are equal
            return None
        case "linear":
            return LinearScaling(rotary.above_zero("factor"))
        case "llama3":
            return Llama3Scaling(
                factor=rotary.above_zero("factor"),
                low_freq_factor=rotary.above_zero("low_freq_factor"),
                high_freq_factor=rotary.above_zero("high_freq_factor"),
                original_max_positions=_original_max_positions(keys, rotary),
            )
        case "yarn":
            return _parse_yarn(keys, rotary)
        case "longrope":
            return _parse_longrope(keys, rotary, dim)
        case _:
            raise rotary.refusal(
                "rope_type",
                f"{name!r} is not supported; default, linear, llama3, yarn and longrope are",
            )


def _original_max_positions(keys: ConfigKeys, rotary: ConfigKeys) -> int:
    key = "original_max_position_embeddings"
    if keys.values.get(key) is not None:
        return keys.positive(key)
    return rotary.positive(key, keys.positive("max_position_embeddings"))


def _stretch(keys: ConfigKeys, rotary: ConfigKeys, original: int) -> float:
    """How much longer than ``original`` the context is."""
    return rotary.above_zero("factor", keys.positive("max_position_embeddings") / original)


def _parse_yarn(keys: ConfigKeys, rotary: ConfigKeys) -> YarnScaling:
    original = _original_max_positions(keys, rotary)
    factor = _stretch(keys, rotary, original)

    def growth(scale: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * scale * math.log(factor) + 1.0

    mscale = rotary.get("mscale", float, 0.0)
    mscale_all_dim = rotary.get("mscale_all_dim", float, 0.0)
    both = bool(mscale and mscale_all_dim)
    magnitude = growth(mscale) / growth(mscale_all_dim) if both else growth(1.0)
    return YarnScaling(
        factor=factor,
        original_max_positions=original,
        beta_fast=rotary.above_zero("beta_fast", 32.0),
        beta_slow=rotary.above_zero("beta_slow", 1.0),
        truncate=rotary.get("truncate", bool, default=True),
        magnitude=rotary.above_zero("attention_factor", magnitude),
    )


def _parse_longrope(keys: ConfigKeys, rotary: ConfigKeys, dim: int) -> LongRopeScaling:
    original = _original_max_positions(keys, rotary)
    factor = _stretch(keys, rotary, original)
    magnitude = 1.0 if factor <= 1 else math.sqrt(1 + math.log(factor) / math.log(original))
    return LongRopeScaling(
        short_factor=rotary.numbers("short_factor", dim // 2),
        long_factor=rotary.numbers("long_factor", dim // 2),
        original_max_positions=original,
        magnitude=rotary.above_zero("attention_factor", magnitude),
    )


@dataclass(frozen=True, slots=True)
class ExpertsConfig:
    """A mixture of experts in place of the MLP of ``layers``.

    Each token goes through ``top_k`` of ``num_experts``; ``normalised``: their weights sum to 1.
    ``module`` and ``projections`` (gate, up, down) are names in the checkpoint.
    """

    num_experts: int
    top_k: int
    normalised: bool
    intermediate_size: int
    layers: frozenset[int]
    module: str
    projections: tuple[str, str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderConfig(ModelShape):
    """Shapes and switches of one model.

    ``fused_projections``: the checkpoint keeps q, k and v, and gate and up, as one tensor.
    """

    hidden_size: int
    intermediate_size: int
    rms_eps: float
    rotary: RotaryConfig
    tied_embeddings: bool
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    fused_projections: bool = False
    experts: ExpertsConfig | None = None
