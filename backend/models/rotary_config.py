"""Rotary position embedding as ``config.json`` describes it, read as transformers 5 reads it."""

import math
from dataclasses import dataclass

from backend.models.config_keys import ConfigKeys


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
    keys: ConfigKeys, *, head_dim: int, default_theta: float, is_phi3: bool
) -> RotaryConfig:
    """Read ``rope_parameters``, or the older ``rope_scaling`` and ``rope_theta``."""
    block = keys.values.get("rope_scaling") or keys.values.get("rope_parameters") or {}
    if not isinstance(block, dict):
        raise keys.refusal("rope_parameters", f"expected an object, got {block!r}")
    rotary = ConfigKeys(block, f"{keys.source}: rope_parameters")
    theta = rotary.above_zero("rope_theta", keys.above_zero("rope_theta", default_theta))
    share = rotary.above_zero(
        "partial_rotary_factor", keys.above_zero("partial_rotary_factor", 1.0)
    )
    dim = int(head_dim * share)
    if dim % 2 or not 0 < dim <= head_dim or (dim != head_dim and not is_phi3):
        raise rotary.refusal("partial_rotary_factor", f"{share} is not supported")
    name = str(block.get("rope_type") or block.get("type") or "default")
    if is_phi3 and name in {"su", "yarn"}:
        name = "longrope"  # what Phi-3 called it at first
    return RotaryConfig(theta, dim, _parse_scaling(name, keys, rotary, dim))


def _parse_scaling(
    name: str, keys: ConfigKeys, rotary: ConfigKeys, dim: int
) -> RotaryScaling | None:
    match name:
        case "default":
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
